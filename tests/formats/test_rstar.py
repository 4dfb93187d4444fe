"""Steps of words and code: how a run is cut into them, what is run and shown, and what ends a path."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runner.parts import Plan, Small, tip

from ramify import plugins, view
from ramify.config.configure import checked
from ramify.config.run_config import StrategyConfig
from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.command import Command, Grow
from ramify.core.errors import ConfigError
from ramify.core.format import Action, AnswerAction, GivingUp, InvalidAction, MessageFormat, Span, ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, ToolStatus, token_array
from ramify.core.tool import ToolResult
from ramify.core.tree import ROOT, Tree
from ramify.formats.rstar import AS_PUBLISHED, OpenBlock, RStar, RStarOptions
from ramify.formats.steps import PARSERS, StepTags, last_step, published, tagged
from ramify.judges.exact import ANSWER, Exact
from ramify.runner.library import Rollout, rollout_sync
from ramify.store.check import tree_faults
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn
from ramify.tools.python import Python

CODEC = ByteCodec()
PROBLEM = Problem("p", "What is 2 + 3? <end_of_step>")
FORMAT = RStar()
PUBLISHED = RStar(AS_PUBLISHED)
GOLDEN = Path(__file__).parent / "rstar"


def shown(spans: Sequence[Span]) -> str:
    return "".join(span.text for span in spans)


def call(status: ToolStatus = "ok", result: str = "", tool: str = "python") -> ToolCall:
    return ToolCall(tool, "code", status, result)


def branch(*calls: ToolCall | None) -> Branch:
    """A path of one step for each of `calls`; None = a step that calls nothing."""
    pieces = [Piece(0, Segment("prompt", token_array(CODEC.encode("asked"))))]
    for node, made in enumerate(calls, start=1):
        pieces.append(Piece(node, Segment("sampled", token_array(CODEC.encode("said")))))
        if made is not None:
            pieces.append(Piece(node, Segment("given", token_array(CODEC.encode("seen")), tool_call=made)))
    return Branch(CODEC, len(calls), tuple(pieces))


# -- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "action"),
    [
        ("First, add.<end_of_step>", None),
        ("<code>\n# add\nx = 2 + 3<end_of_step>", None),
        ("<code>\nprint(2)<end_of_code>", ToolAction("python", "print(2)")),
        (
            "<code>\n# a\nx = 2<end_of_step>\n# b\nprint(x)<end_of_code>",
            ToolAction("python", "# a\nx = 2\n# b\nprint(x)"),
        ),
        ("Words.<end_of_step>Let me: <code>print(2)<end_of_code>", ToolAction("python", "print(2)")),
        ("print(2)<end_of_code>", ToolAction("python", "print(2)")),
        ("<code>print(2)<end_of_code>\n", ToolAction("python", "print(2)")),
        ("<answer>It is \\boxed{5}.<end_of_answer>", AnswerAction("5")),
        ("It is \\boxed{5}.<end_of_step>", AnswerAction("5")),
        ("so<end_of_step>\\boxed{4}, no, \\boxed{5}<end_of_step>", AnswerAction("5")),
        ("<code>print('\\boxed{4}')<end_of_code>", ToolAction("python", "print('\\boxed{4}')")),
        ("<code>'\\boxed{4}'<end_of_step>", None),
    ],
)
def test_a_run_is_read_by_its_last_step(run: str, action: Action | None) -> None:
    assert FORMAT.read(run) == action


@pytest.mark.parametrize(
    "run",
    [
        "<end_of_step>",
        "a<end_of_step> \n<end_of_step>",
        "<code> \n<end_of_code>",
        "<end_of_code>",
        "<answer>It is 5.<end_of_answer>",
        "\\boxed{}<end_of_answer>",
        "\\boxed{5<end_of_answer>",
        "<code>print(1)<end_of_answer>",
    ],
)
def test_what_is_no_step_ends_the_path_with_a_reason(run: str) -> None:
    action = FORMAT.read(run)
    assert isinstance(action, InvalidAction)
    assert FORMAT.give_up(branch(ToolCall("", run, "invalid", action.reason))) == f"no_valid_step: {action.reason}"


@pytest.mark.parametrize(
    ("run", "action"),
    [
        ("Words.<end_of_step>", OpenBlock("python", "Words.")),
        ("<code>\nx = 2<end_of_step>", OpenBlock("python", "# ========\nx = 2")),
        ("<code>\nx = 2<end_of_step>\ny = x<end_of_step>", OpenBlock("python", "# ========\nx = 2\ny = x")),
        ("<code>\nprint(2)\n<end_of_code>", ToolAction("python", "# ========\nprint(2)")),
        ("It is 5.<end_of_answer>", OpenBlock("python", "It is 5.<end_of_answer>")),
        # Lines with a tag of code are left out whole, and all is code where no line opens a block.
        ("<code>x = 2\ny = 3\nboom(<end_of_code>", ToolAction("python", "# ========\ny = 3")),
        ("<code>\n<end_of_code>", ToolAction("python", "# ========")),
        ("x = 2<end_of_code>", ToolAction("python", "x = 2<end_of_code>")),
        # A step with an empty box is no code of its block.
        (
            "<code>\nx = 2<end_of_step>So \\boxed{}<end_of_step>\ny = x\n<end_of_code>",
            ToolAction("python", "# ========\nx = 2\ny = x"),
        ),
        # Nothing to run, or nothing in the box: the path goes on.
        ("<end_of_step>", None),
        (" \n<end_of_step>", None),
        ("So \\boxed{}<end_of_step>", None),
        ("\\boxed{\\text{ and }}<end_of_step>", None),
        ("It is at last the \\boxed{5<end_of_step>", AnswerAction("p>")),
        ("It is, and this was not easy to see, the \\boxed{5<end_of_step>", None),
        # Answers.
        ("\\boxed{5}<end_of_step>", AnswerAction("5")),
        ("\\boxed{\\text{ five }}.<end_of_answer>", AnswerAction("five")),
        ("\\boxed{\\text{five}<end_of_answer>", AnswerAction("five}<end_of_answer>")),
        ("It is 5.\nSo \\boxed{6}<end_of_answer>", AnswerAction("It is 5")),
        ("<code>print('boxed')<end_of_code>", AnswerAction("<code>print('boxed')<end_of_code>")),
    ],
)
def test_the_published_parser_reads_odd_steps_as_its_code_does(run: str, action: Action | None) -> None:
    """By rstar_step_result_unwrap and extract_program of microsoft/rStar agents/utils.py and agents/tree.py."""
    assert PUBLISHED.read(run) == action
    assert type(PUBLISHED.read(run)) is type(action)


def test_an_observation_as_published_ends_at_its_tag() -> None:
    seen = shown(PUBLISHED.observe(ToolAction("python", "print(5)"), ToolResult("5\n")))
    assert seen == "\n<output>5<end_of_output>"


@given(st.lists(st.sampled_from(["<code>", *StepTags().ends, "x = 1", "\\boxed{5}", "boxed", " ", "\n"])).map("".join))
def test_any_run_is_read_and_code_holds_no_tag(run: str) -> None:
    for format in (FORMAT, PUBLISHED):
        action = format.read(run)
        if isinstance(action, ToolAction):
            assert action.arguments.strip()
            assert format is PUBLISHED or not any(tag in action.arguments for tag in StepTags().ends)
        answer = format.answer(run)
        assert answer is None or answer in run


def test_a_step_knows_its_text_its_end_and_the_block_so_far() -> None:
    step = last_step("one<end_of_step>two <code>a<end_of_step>b<end_of_code>", StepTags())
    assert (step.text, step.end, step.block, step.is_code) == ("b", "code", "ab", True)
    step = last_step("no tag", StepTags())
    assert (step.text, step.end, step.is_code) == ("no tag", "answer", False)


@pytest.mark.covers("S4.6")
def test_other_tags_are_data() -> None:
    tags = StepTags(step_end="\n\n", code="```python\n", code_end="```\n", answer_end="QED")
    format = RStar(RStarOptions(tags=tags))
    assert format.stops == ("\n\n", "```\n", "QED")
    assert format.read("Add.\n\nSo:\n```python\nprint(2)```\n") == ToolAction("python", "print(2)")
    assert format.read("\\boxed{5} QED") == AnswerAction("5")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<code>print(5)<end_of_code>\n<output>5<end_of_output>\nIt is \\boxed{5}.<end_of_answer>", "5"),
        ("<code>print(5)<end_of_code>\n<output>\\boxed{6}<end_of_output>\n", None),
        ("<code>p<end_of_code>\n<output>\\boxed{6}<end_of_output>\nso<end_of_step>\\boxed{7}", "7"),
        ("<code>p<end_of_code>\n<output><end_of_output>\\boxed{6}<end_of_output>\nso", None),
        ("<code>print('\\boxed{5}')", None),
        ("\\boxed{5}<end_of_answer>\n", "5"),
        ("It is 5.", None),
        ("", None),
    ],
)
def test_the_answer_is_the_model_s_own_and_never_what_code_printed(response: str, answer: str | None) -> None:
    assert FORMAT.answer(response) == answer


# -- writing --------------------------------------------------------------------------------------------------------


def test_the_opening_and_an_observation_read_as_their_golden_files() -> None:
    format = RStar(RStarOptions(few_shot="<|user|>:\n1 + 1?\n<|assistant|>: <answer>\\boxed{2}<end_of_answer>\n"))
    assert shown(format.open(PROBLEM)) == (GOLDEN / "opening.txt").read_text("utf-8").removesuffix("\n")
    seen = shown(format.observe(ToolAction("python", "print(5)"), ToolResult("5\n")))
    assert seen == (GOLDEN / "observation.txt").read_text("utf-8")


def test_neither_a_question_nor_an_output_is_trusted() -> None:
    untrusted = [span.text for span in FORMAT.open(PROBLEM) if not span.is_trusted]
    assert untrusted == [PROBLEM.question]
    seen = FORMAT.observe(ToolAction("python", "p"), ToolResult("a<end_of_output>b"))
    assert [span.text for span in seen if not span.is_trusted] == ["a<end_of_output>b"]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ToolResult(" 5\n"), "5"),
        (ToolResult("", "empty"), ""),
        (ToolResult("NameError: x\n", "error"), "NameError: x"),
        (ToolResult("", "timeout"), "[timeout] Error: Tool(python) execution failed: no result in time"),
    ],
)
def test_an_output_stands_in_its_frame(result: ToolResult, text: str) -> None:
    assert shown(FORMAT.observe(ToolAction("python", "p"), result)) == f"\n<output>{text}<end_of_output>\n"


def test_nothing_is_shown_of_a_block_that_is_still_open() -> None:
    assert not PUBLISHED.observe(OpenBlock("python", "x"), ToolResult("seen"))


def test_it_writes_no_messages_and_gives_paths_up() -> None:
    assert not isinstance(FORMAT, MessageFormat)
    assert isinstance(FORMAT, GivingUp)
    assert FORMAT.tools() == {"python": "code"}
    assert shown(FORMAT.quote("{question}: {answer}", [branch()], PROBLEM)).startswith(PROBLEM.question)


# -- giving up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threshold", "calls", "reason"),
    [
        (2, [call("error")], None),
        (2, [call("error"), call("timeout")], "tool_errors: 2 in a row"),
        (2, [call("error"), call(), call("error")], None),
        (2, [call("error"), None, call("crashed")], "tool_errors: 2 in a row"),
        (1, [call("error")], "tool_errors: 1 in a row"),
        (0, [call("refused")], "tool_errors: 1 in a row"),
        (0, [call(), call("empty")], None),
        (0, [], None),
    ],
)
def test_so_many_errors_in_a_row_end_a_path(threshold: int, calls: list[ToolCall | None], reason: str | None) -> None:
    assert RStar(RStarOptions(errors_threshold=threshold)).give_up(branch(*calls)) == reason


@pytest.mark.parametrize("text", ["error", "The mean squared Error is 0.5", "NameError: x"])
def test_published_an_error_is_a_word_in_the_output(text: str) -> None:
    by_word = RStar(RStarOptions(errors_threshold=1, error_match="text"))
    by_status = RStar(RStarOptions(errors_threshold=1))
    assert by_word.give_up(branch(call("ok", text))) == "tool_errors: 1 in a row"
    assert by_status.give_up(branch(call("ok", text))) is None
    assert by_word.give_up(branch(call("error", "went wrong"))) is None
    assert by_word.give_up(branch(call("timeout"))) == "tool_errors: 1 in a row"


def test_published_a_step_without_a_call_ends_the_run_of_errors() -> None:
    """By create_child of microsoft/rStar agents/mcts.py: a node that ran nothing has no errors behind it."""
    by_steps = RStar(RStarOptions(errors_threshold=2, error_run="steps"))
    assert by_steps.give_up(branch(call("error"), None, call("error"))) is None
    assert by_steps.give_up(branch(None, call("error"), call("error"))) == "tool_errors: 2 in a row"
    assert RStar(AS_PUBLISHED).options.error_run == "steps"


def test_one_step_more_than_allowed_ends_a_path() -> None:
    format = RStar(RStarOptions(max_depth=2))
    assert format.give_up(branch(None, None)) is None
    assert format.give_up(branch(None, None, None)) == "depth_limit: 3 steps, 2 are allowed"
    assert RStar(RStarOptions(max_depth=None)).give_up(branch(*[None] * 100)) is None
    assert format.give_up(branch(call("error"), call("error"), call("error"))) == "tool_errors: 3 in a row"


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "{qestion}"}, r"must cite \{question\}"),
        ({"template": "{question} {few_shot}"}, r"must cite \{question\}"),
        ({"observation": "<output>{text}"}, r"words must stand behind \{text\}"),
        ({"errors_threshold": -1}, "errors_threshold = -1"),
        ({"max_depth": 0}, "max_depth = 0"),
        ({"tool": ""}, "has a name"),
        ({"tags": {"code": ""}}, "none of them may be empty"),
        ({"tags": {"step_end": "<end"}}, "is part of another one"),
        ({"tags": {"stepend": "x"}}, "unknown key"),
        ({"error_match": "txt"}, "allowed are 'status', 'text'"),
        ({"code_context": "all"}, "allowed are 'closed', 'every_step'"),
        ({"step_parser": "tag"}, "unknown step_parser 'tag'; did you mean 'tags'"),
        ({"step_parser": "nowhere.py:parse"}, "there is no file"),
        ({"answer_equivalence": "txt"}, "unknown equivalence 'txt'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Mapping[str, Any], message: str) -> None:
    config, faults = checked({"format": "rstar", "format_options": options})
    assert config is None
    with pytest.raises(ConfigError, match=message):
        raise ConfigError(faults[0].message)


def test_a_parser_that_is_not_known_is_refused() -> None:
    assert set(plugins.known("step_parser")) == set(PARSERS)
    assert (plugins.find("step_parser", "tags"), plugins.find("step_parser", "published")) == (tagged, published)
    with pytest.raises(ConfigError, match="step_parser = 'tag'"):
        RStar(RStarOptions(step_parser="tag"))


# -- whole runs -------------------------------------------------------------------------------------------------------


def searched(
    rule: Any, plan: type[Plan], *, tool: Mapping[str, Any] | None = None, **options: Any
) -> tuple[Tree, Rollout]:
    config, faults = checked(
        {
            "format": "rstar",
            "format_options": options,
            "growth": {"max_response_tokens": 4000, "max_tool_calls": 20},
        }
    )
    assert config is not None, faults
    config = replace(config, strategy=StrategyConfig())
    problem = Problem("p", "What is 2 + 3?", secret={ANSWER: "5"})
    task = Small(tools=(Python(preload=(), **(tool or {})),), judges=(Exact(RStar()),))
    result = rollout_sync([problem], config=config, task=task, engine=Scripted(rule), strategy=plan)
    (tree,) = result.trees
    assert not list(tree_faults(tree))
    return tree, result


class Steps(Plan):
    """One path, a step a command, to its end."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        if not self.told:
            return [Grow(ROOT, until="step")]
        last = tip(self.told[-1])
        return None if tree.is_ended(last) else [Grow(last, until="step")]


class Forked(Plan):
    """One step, then two ways on from it, each to its end."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        match len(self.told):
            case 0:
                return [Grow(ROOT, until="step")]
            case 1:
                return [Grow(tip(self.told[0]))] * 2
            case 2:
                return []
        return None


SOLUTION = (
    "<code>\n# Step 1\nx = 2<end_of_step>\n# Step 2\nprint(x + 3)\n<end_of_code>",
    "It is \\boxed{5}.<end_of_answer>",
)


def solving(turn: ScriptedTurn) -> str:
    return SOLUTION[1] if turn.context.endswith("<output>5<end_of_output>\n") else SOLUTION[0]


def test_code_is_run_when_its_block_closes_and_its_output_is_shown() -> None:
    tree, result = searched(solving, Steps)
    (leaf,) = tree.leaves()
    path = tree.path(leaf)[1:]
    assert [tree.stop(node) for node in path] == [None, None, "answer"]
    assert [len(tree.branch(node).tool_calls) for node in path] == [0, 1, 1]
    assert tree.branch(leaf).transcript == "".join((SOLUTION[0], "\n<output>5<end_of_output>\n", SOLUTION[1]))
    assert tree.reward(leaf) == 1.0
    assert result.answers()[0].answer == "5"
    seen = view.rstar(tree, path[1])
    assert (seen.state["action"], seen.state["observation"]) == ("python", "5\n")
    assert seen.state["action_input"] == "# Step 1\nx = 2\n# Step 2\nprint(x + 3)"
    assert view.rstar(tree, leaf).state["final_answer"] == "5"


@pytest.mark.parametrize("is_stateful", [True, False])
def test_published_every_step_runs_the_block_so_far_and_shows_it_once(is_stateful: bool) -> None:
    tree, _ = searched(
        solving, Steps, tool={"is_stateful": is_stateful}, code_context="every_step", step_parser="published"
    )
    (leaf,) = tree.leaves()
    path = tree.path(leaf)[1:]
    assert [call.arguments for call in tree.branch(leaf).tool_calls] == [
        "# ========\n# Step 1\nx = 2",
        "# ========\n# Step 1\nx = 2\n# Step 2\nprint(x + 3)",
    ]
    assert tree.branch(leaf).transcript == "".join((SOLUTION[0], "\n<output>5<end_of_output>\n", SOLUTION[1]))
    assert tree.stop(path[-1]) == "answer"


def test_branches_have_interpreters_of_their_own() -> None:
    def rule(turn: ScriptedTurn) -> str:
        if turn.context.count("<output>") == 0:
            return "<code>x = 1<end_of_code>"
        if turn.context.count("<output>") == 1:
            return f"<code>x += {1 + turn.seed % 2}; y = {turn.seed}; print(x)<end_of_code>"
        return "<code>print(x, y)<end_of_code>" if turn.context.count("<output>") == 2 else "\\boxed{5}<end_of_answer>"

    tree, _ = searched(rule, Forked)
    ends = [tree.branch(leaf).tool_calls for leaf in tree.leaves()]
    assert len(ends) == 2
    for calls in ends:
        increment, seed = calls[1].arguments.split(";")[0][-1], calls[1].arguments.split("y = ")[1].split(";")[0]
        assert calls[2].result == f"{1 + int(increment)} {seed}\n"


ERROR = "<code>print(nothing)<end_of_code>"


@pytest.mark.parametrize(
    ("said", "options", "stop"),
    [
        (ERROR, {}, "tool_errors"),
        (ERROR, {"errors_threshold": 0}, "tool_errors"),
        (ERROR, {"errors_threshold": 9, "max_depth": 3}, "depth_limit"),
        ("More words.<end_of_step>", {"max_depth": 5}, "depth_limit"),
        ("<end_of_step>", {}, "no_valid_step"),
        ("I cannot say.<end_of_answer>", {}, "no_valid_step"),
        ("<code>print('no error at all')<end_of_code>", {"error_match": "text"}, "tool_errors"),
        ("<code>print('no error at all')<end_of_code>", {"max_depth": 4}, "depth_limit"),
        ("<code>x = nothing<end_of_step>", {"code_context": "every_step"}, "tool_errors"),
    ],
)
@pytest.mark.covers("S4.4")
def test_a_path_ends_by_a_word_that_says_why(said: str, options: Mapping[str, Any], stop: str) -> None:
    def rule(turn: ScriptedTurn) -> str:
        return said * 20

    tree, _ = searched(rule, Steps, **options)
    (leaf,) = tree.leaves()
    assert tree.stop(leaf) == stop
    num_steps = {"tool_errors": options.get("errors_threshold", 2) or 1, "no_valid_step": 1}
    assert tree.depth(leaf) == num_steps.get(stop, options.get("max_depth", 0) + 1)
    assert str(tree.notes(leaf)["closed"]).startswith(f"{stop}: ")
    assert tree.reward(leaf) == 0.0
    seen = view.rstar(tree, leaf)
    assert (seen.value, seen.is_terminal) == (-1.0, True)
    assert seen.consecutive_errors == (tree.depth(leaf) if said == ERROR or "every_step" in options.values() else 0)


@pytest.mark.covers("S4.6")
def test_a_parser_and_an_equivalence_are_named_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from ramify.core.format import AnswerAction\n\n"
        "def parse(step):\n    return AnswerAction('five') if 'FIVE' in step.text else None\n\n"
        "def same(one, other):\n    return {one, other} == {'five', '5'}\n"
    )
    monkeypatch.chdir(tmp_path)

    def rule(turn: ScriptedTurn) -> str:
        return "Hm.<end_of_step>It is FIVE.<end_of_step>"

    tree, result = searched(rule, Steps, step_parser="mine.py:parse", answer_equivalence="mine.py:same")
    (leaf,) = tree.leaves()
    assert (tree.stop(leaf), tree.depth(leaf), tree.reward(leaf)) == ("answer", 2, 1.0)
    assert str(tmp_path) in result.config.format_options["step_parser"]
    assert result.answering.is_same("five", "5")


def test_a_named_prune_rule_is_asked_beside_the_format() -> None:
    def rule(turn: ScriptedTurn) -> str:
        return "<code>x = 1<end_of_code>" * 9

    config, _ = checked({"format": "rstar", "growth": {"prune": "repeated_call", "max_response_tokens": 4000}})
    assert config is not None
    config = replace(config, strategy=StrategyConfig())
    task = replace(Small(), tools=(Python(preload=()),), judges=())
    result = rollout_sync(["q"], config=config, task=task, engine=Scripted(rule), strategy=Steps)
    (leaf,) = result.trees[0].leaves()
    assert result.trees[0].stop(leaf) == "closed"
