"""A path grows turn by turn: every limit, every kind of action and every fault ends it under its own name."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import pytest
from tests.runner.parts import OneChain, Plan, Small, grown, only_leaf, small_with, tip

from ramify.config.run_config import GrowthConfig, RunConfig, ToolsConfig
from ramify.core.branch import Branch
from ramify.core.command import Command, Failed, Grow, Tokens
from ramify.core.errors import ToolError
from ramify.core.format import Action, Span, ToolAction
from ramify.core.limits import Limits
from ramify.core.segment import Finish
from ramify.core.tool import ToolResult
from ramify.core.tree import ROOT, Tree
from ramify.credit import forest_of
from ramify.formats.tags import TagFormat
from ramify.runner.library import Rollout, rollout
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay, Fault
from ramify.testing.policies import chains
from ramify.testing.scripted import SCRIPTED, Scripted
from ramify.testing.scripts import ScriptedTurn

PROMPT = len("<|user|>make 3 from 1 2<|end|><|assistant|>")
OBSERVED = " <result>\n{}\n</result>"
CALL, ANSWER = "<calc>1+2</calc>", "<answer>3</answer>"


def said(*turns: str, context_length: int = 32_768) -> Scripted:
    """An engine that says one of `turns` after each observation, the last one for good."""

    def rule(turn: ScriptedTurn) -> str:
        return turns[min(turn.context.count("</result>"), len(turns) - 1)]

    return Scripted(rule, capabilities=replace(SCRIPTED, context_length=context_length))


def texts(tree: Tree, leaf: int) -> list[tuple[str, str]]:
    """Origin and text of every segment behind the prompt."""
    pieces = tree.branch(leaf).pieces[1:]
    return [(p.segment.origin, tree.codec.decode(p.segment.ids)) for p in pieces]


def stop_of(result: Rollout) -> str | None:
    tree, leaf = only_leaf(result)
    return tree.stop(leaf)


class Crumbs(Plan):
    """Grows of `num_tokens` one behind the other, until the path has ended."""

    num_tokens = 1

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        node = tip(self.told[-1]) if self.told else ROOT
        return None if tree.is_ended(node) else [Grow(node, until=Tokens(self.num_tokens))]


def crumbs(num_tokens: int) -> type[Crumbs]:
    return type("Crumbs", (Crumbs,), {"num_tokens": num_tokens})


# -- how much a growth grows ------------------------------------------------------------------------------------------


def test_a_chain_is_one_node_a_turn_each_with_its_observation() -> None:
    tree, leaf = only_leaf(grown(OneChain, said(CALL, ANSWER)))
    assert texts(tree, leaf) == [("sampled", CALL), ("given", OBSERVED.format("3 : 3")), ("sampled", ANSWER)]
    assert [tree.stop(n) for n in tree.path(leaf)] == [None, None, "answer"]
    assert tree.reward(leaf) == 1.0
    assert [p.segment.tool_call is None for p in tree.branch(leaf).pieces] == [True, True, False, True]


def test_a_step_is_one_turn_with_its_observation() -> None:
    class OneStep(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            return None if self.told else [Grow(ROOT, until="step")]

    (tree,) = grown(OneStep, said(CALL, ANSWER)).trees
    assert texts(tree, 1) == [("sampled", CALL), ("given", OBSERVED.format("3 : 3"))]
    assert len(tree) == 2
    assert not tree.leaves()


@pytest.mark.covers("S0.3")
@pytest.mark.parametrize("num_tokens", [1, 3, 5, 16, 17, 100])
def test_tokens_grow_by_exactly_so_many_unless_a_word_or_a_turn_ends(num_tokens: int) -> None:
    tree, leaf = only_leaf(grown(crumbs(num_tokens), said("thinking about it" + CALL, ANSWER)))
    assert tree.branch(leaf).transcript == "thinking about it" + CALL + OBSERVED.format("3 : 3") + ANSWER
    runs = [tree.num_sampled(n) for n in tree.path(leaf)[1:]]
    assert sum(runs) == len("thinking about it" + CALL + ANSWER)
    # "thinking about it" begins no stop word: its growths are exact.
    assert runs[: 17 // num_tokens] == [num_tokens] * (17 // num_tokens)


def test_growths_of_a_few_tokens_never_end_inside_a_stop_word_or_a_character() -> None:
    for num_tokens in range(1, 12):
        tree, leaf = only_leaf(grown(crumbs(num_tokens), said("日本é" + CALL, "é" + ANSWER)))
        for node in tree.path(leaf)[1:]:
            run = bytes(i for s in tree.segments(node) if s.is_sampled for i in s.ids.tolist())
            run.decode()
            assert not any(run.endswith(tag[:n]) for tag in (b"</calc>", b"</answer>") for n in range(1, len(tag)))


def test_the_last_token_asked_for_is_observed_when_it_ends_a_call() -> None:
    tree, _ = only_leaf(grown(crumbs(len(CALL)), said(CALL, ANSWER)))
    assert texts(tree, 1) == [("sampled", CALL), ("given", OBSERVED.format("3 : 3"))]


# -- limits of a path -------------------------------------------------------------------------------------------------


@pytest.mark.covers("S0.3", "S0.4")
@pytest.mark.parametrize("most", [1, 10, 16, 17, 60])
def test_a_path_ends_at_its_response_length_actions_and_observations_counted(most: int) -> None:
    tree, leaf = only_leaf(
        grown(OneChain, said("x" * 20 + CALL, "y" * 100), growth=GrowthConfig(max_response_tokens=most))
    )
    assert tree.stop(leaf) == "length"
    assert tree.length(leaf) == PROMPT + most
    whole = "x" * 20 + CALL + OBSERVED.format("3 : 3") + "y" * 100
    assert tree.branch(leaf).transcript == whole[:most]


@pytest.mark.parametrize(("each", "most"), [(5, 20), (4, 20), (20, 20), (7, 20)])
def test_a_segment_that_ends_where_the_path_must_is_its_leaf_and_no_empty_one_follows(each: int, most: int) -> None:
    tree, leaf = only_leaf(grown(crumbs(each), said("x" * 100), growth=GrowthConfig(max_response_tokens=most)))
    assert tree.stop(leaf) == "length"
    assert tree.num_sampled(leaf) > 0
    assert len(tree) == 1 + -(-most // each)


def test_an_observation_longer_than_the_room_is_cut_and_ends_the_path() -> None:
    task = small_with(lambda arguments: "z" * 1000)
    for most in (len(CALL), len(CALL) + 1, len(CALL) + 30):
        tree, leaf = only_leaf(grown(OneChain, said(CALL), task=task, growth=GrowthConfig(max_response_tokens=most)))
        assert tree.stop(leaf) == "length"
        assert tree.length(leaf) == PROMPT + most
        (call,) = tree.branch(leaf).tool_calls
        assert call.result == "z" * 1000
        assert tree.branch(leaf).transcript == (CALL + OBSERVED.format("z" * 1000))[:most]


def test_an_observation_that_fills_the_context_ends_the_path_under_that_name() -> None:
    engine = said(CALL, ANSWER, context_length=PROMPT + len(CALL) + 10)
    tree, leaf = only_leaf(grown(OneChain, engine))
    assert tree.stop(leaf) == "context_full"
    assert tree.length(leaf) == PROMPT + len(CALL) + 10


@pytest.mark.parametrize("num_over", [0, 1, 100])
def test_a_prompt_without_room_behind_it_is_a_leaf_with_nothing_generated(num_over: int) -> None:
    engine = said(ANSWER, context_length=PROMPT - num_over)
    result = grown(OneChain, engine)
    tree, leaf = only_leaf(result)
    assert tree.stop(leaf) == "context_full"
    assert tree.segments(leaf) == ()
    assert engine.num_calls == 0
    assert result.report.truncated_share == 1.0
    assert result.rows() == []


def test_a_path_fills_the_last_token_of_the_context() -> None:
    tree, leaf = only_leaf(grown(OneChain, said("x" * 100, context_length=PROMPT + 7)))
    assert tree.stop(leaf) == "context_full"
    assert tree.branch(leaf).transcript == "x" * 7


@pytest.mark.parametrize("max_turns", [1, 2])
def test_a_path_takes_no_more_turns_than_it_may(max_turns: int) -> None:
    tree, leaf = only_leaf(grown(OneChain, Scripted(chains(5)), growth=GrowthConfig(max_turns=max_turns)))
    assert tree.stop(leaf) == "turn_limit"
    assert tree.branch(leaf).num_turns == max_turns


@pytest.mark.covers("S0.4", "S0.5")
@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_call_beyond_the_limit_ends_the_path_unmade_and_is_counted(most: int) -> None:
    result = grown(OneChain, Scripted(chains(5)), growth=GrowthConfig(max_tool_calls=most))
    tree, leaf = only_leaf(result)
    assert tree.stop(leaf) == "tool_limit"
    assert len(tree.branch(leaf).tool_calls) == most
    assert tree.branch(leaf).transcript.endswith(f"<calc>{most + 1}/5</calc>")
    assert result.report.tools["tools/total_calls"] == most
    assert result.report.tools["tools/call_limit_reached_count"] == 1


@pytest.mark.parametrize(
    ("limits", "num_turns"),
    [(Limits(decode=20), 2), (Limits(tool_calls=1), 2), (Limits(turns=2), 2), (Limits(prefill_uncached=10), 0)],
)
def test_a_path_without_budget_ends_as_such_and_spends_no_more(limits: Limits, num_turns: int) -> None:
    tree, leaf = only_leaf(grown(OneChain, Scripted(chains(5)), limits=limits))
    assert tree.stop(leaf) == "budget"
    assert tree.branch(leaf).num_turns == num_turns
    for name, limit in limits.counted().items():
        assert getattr(tree.spent()["policy"], name) <= limit


# -- actions ----------------------------------------------------------------------------------------------------------


def test_an_empty_call_is_answered_with_an_error_and_no_tool_runs() -> None:
    result = grown(OneChain, said("<calc> </calc>", ANSWER))
    tree, leaf = only_leaf(result)
    (call,) = tree.branch(leaf).tool_calls
    assert (call.status, call.is_executed) == ("invalid", False)
    assert "Error: the call was empty" in tree.branch(leaf).transcript
    assert tree.stop(leaf) == "answer"
    assert result.report.tool_calls == 0


def test_an_empty_call_may_end_the_path() -> None:
    assert stop_of(grown(OneChain, said("<calc></calc>"), growth=GrowthConfig(empty_call="end"))) == "empty_tool_call"


@pytest.mark.parametrize("malformed", ["</calc>", "1+2</calc>", "<clac>1+2</calc>", "</answer>"])
def test_a_malformed_action_is_answered_with_what_is_wrong(malformed: str) -> None:
    tree, leaf = only_leaf(grown(OneChain, said(malformed, ANSWER)))
    (call,) = tree.branch(leaf).tool_calls
    assert call.status == "invalid"
    assert "closes nothing" in tree.branch(leaf).transcript
    assert tree.stop(leaf) == "answer"


def test_a_rule_that_gives_up_a_path_may_name_the_stop_word() -> None:
    result = grown(OneChain, said("ab" * 400), growth=GrowthConfig(prune="repetition", max_response_tokens=900))
    tree, leaf = only_leaf(result)
    assert tree.stop(leaf) in ("end_of_sequence", "length")
    cut = grown(crumbs(300), said("ab" * 400), growth=GrowthConfig(prune="repetition", max_response_tokens=900))
    tree, leaf = only_leaf(cut)
    assert tree.stop(leaf) == "repetition"
    assert str(tree.notes(leaf)["closed"]).startswith("repetition:")


def test_a_repeated_action_is_carried_out_again_unless_a_rule_gives_it_up() -> None:
    task = small_with(lambda arguments: "the same")
    result = grown(OneChain, said(CALL, CALL, ANSWER), task=task)
    assert (stop_of(result), result.report.tool_calls) == ("answer", 2)
    result = grown(OneChain, said(CALL, CALL, ANSWER), task=task, growth=GrowthConfig(prune="repeated_call"))
    tree, leaf = only_leaf(result)
    assert tree.stop(leaf) == "closed"
    assert tree.notes(leaf)["closed"] == "the call '1+2' was made before"


def test_a_coin_may_let_a_path_go_on_where_a_rule_fires() -> None:
    task = small_with(lambda arguments: "the same")
    growth = GrowthConfig(prune="repeated_call", keep=0.5)
    found: dict[str, list[Tree]] = {"roulette": [], "answer": []}
    for seed in range(12):
        tree, leaf = only_leaf(grown(OneChain, said(CALL, CALL, ANSWER), task=task, growth=growth, seed=seed))
        found[tree.stop(leaf) or ""].append(tree)
    assert len(found["roulette"]) > 2 and len(found["answer"]) > 2
    for tree in found["roulette"]:
        (leaf,) = tree.leaves()
        assert tree.scores(leaf) == ()
        assert tree.notes(leaf)["closed"] == "the call '1+2' was made before"
        assert forest_of(tree).rewards.tolist() == [0.0]
    for tree in found["answer"]:
        forest = forest_of(tree)
        assert forest.has_coins
        assert forest.weight.tolist() == [1, 1, 2]


def test_where_a_rule_fires_again_another_coin_is_thrown() -> None:
    growth = GrowthConfig(prune="over_budget", prune_options={"tokens": 1}, keep=0.5)
    trees = [grown(OneChain, said(CALL, CALL, ANSWER), growth=growth, seed=seed).trees[0] for seed in range(16)]
    weights = {len(forest): forest.weight.tolist() for forest in map(forest_of, trees)}
    assert weights == {1: [1], 2: [1, 2], 3: [1, 2, 4]}


class Strict(TagFormat):
    """Gives every path up at its first step."""

    def give_up(self, branch: Branch) -> str:
        return "tool_errors: one is too many"


def test_what_a_format_gives_up_no_coin_lets_go_on() -> None:
    task = Small(format=Strict(tags={"calculator": "calc"}))
    for growth in (GrowthConfig(), GrowthConfig(prune="repeated_call", keep=0.99)):
        tree, leaf = only_leaf(grown(OneChain, said(CALL, ANSWER), task=task, growth=growth))
        assert (tree.stop(leaf), tree.reward(leaf)) == ("tool_errors", 0.0)


def test_a_model_that_only_repeats_itself_ends_by_a_limit() -> None:
    result = grown(OneChain, said("<calc></calc>"), growth=GrowthConfig(max_response_tokens=1000))
    assert stop_of(result) == "tool_limit"
    result = grown(OneChain, said("</calc>"), growth=GrowthConfig(max_response_tokens=200))
    assert stop_of(result) == "length"


def test_an_end_of_sequence_and_an_answer_end_a_path() -> None:
    assert stop_of(grown(OneChain, said("no more"))) == "end_of_sequence"
    assert stop_of(grown(OneChain, said(ANSWER))) == "answer"


def test_a_stop_word_that_is_no_action_goes_on_in_a_new_step() -> None:
    """A format may stop at a line and read nothing there: the next step continues the run."""

    @dataclass(frozen=True)
    class Lines(TagFormat):
        @property
        def stops(self) -> tuple[str, ...]:
            return ("\n", *super().stops)

        def read(self, run: str) -> Action | None:
            return None if run.endswith("\n") else super().read(run)

    task = Small(format=Lines(tags={"calculator": "calc"}))
    tree, leaf = only_leaf(grown(OneChain, said("one\ntwo\n" + ANSWER), task=task))
    assert [text for _, text in texts(tree, leaf)] == ["one\n", "two\n", ANSWER]
    assert tree.depth(leaf) == 3


def test_a_call_of_a_tool_that_is_not_there_is_refused_with_its_name() -> None:
    @dataclass(frozen=True)
    class Wrong(TagFormat):
        def read(self, run: str) -> Action | None:
            action = super().read(run)
            return ToolAction("calculater", "1+2") if isinstance(action, ToolAction) else action

    result = grown(OneChain, said(CALL, ANSWER), task=Small(format=Wrong(tags={"calculator": "calc"})))
    tree, leaf = only_leaf(result)
    (call,) = tree.branch(leaf).tool_calls
    assert call.status == "refused"
    assert "did you mean 'calculator'?" in tree.branch(leaf).transcript
    assert result.report.tools["tools/refused_calls"] == 1


# -- tools that fail --------------------------------------------------------------------------------------------------


async def hang(arguments: str) -> str:
    await asyncio.Event().wait()
    return ""


async def crash(arguments: str) -> str:
    raise ToolError("sandbox_lost")


@pytest.mark.covers("S0.5")
def test_a_tool_that_hangs_is_told_to_the_model_which_goes_on() -> None:
    result = grown(OneChain, said(CALL, ANSWER), task=small_with(hang), tools=ToolsConfig(deadline_s=5.0))
    tree, leaf = only_leaf(result)
    (call,) = tree.branch(leaf).tool_calls
    assert (call.status, call.duration_s) == ("timeout", 5.0)
    assert "[timeout] Error: Tool(calc) execution failed" in tree.branch(leaf).transcript
    assert tree.stop(leaf) == "answer"


@pytest.mark.covers("S0.5")
def test_a_failed_tool_may_end_the_path_and_its_call_is_still_counted() -> None:
    growth = GrowthConfig(tool_failed="end")
    tools = ToolsConfig(deadline_s=5.0, max_retries=1)
    result = grown(OneChain, said(CALL, ANSWER), task=small_with(hang), growth=growth, tools=tools)
    tree, leaf = only_leaf(result)
    assert tree.stop(leaf) == "tool_failed"
    assert tree.branch(leaf).transcript == CALL
    assert [call.status for call in tree.branch(leaf).tool_calls] == ["timeout"]
    assert result.report.tool_calls == result.report.tools["tools/total_calls"] == 1
    assert tree.reward(leaf) == 0.0


def test_metadata_and_attachments_reach_the_observation_and_the_tree() -> None:
    async def look(arguments: str) -> ToolResult:
        return ToolResult("a frame", metadata={"second": 3.5}, attachments=("sha256:ab",))

    seen: list[ToolResult] = []

    @dataclass(frozen=True)
    class Watching(TagFormat):
        def observe(self, action: Action, result: ToolResult) -> Sequence[Span]:
            seen.append(result)
            return super().observe(action, result)

    task = replace(small_with(look), format=Watching(tags={"calculator": "calc"}))
    tree, leaf = only_leaf(grown(OneChain, said(CALL, ANSWER), task=task))
    (call,) = tree.branch(leaf).tool_calls
    observation = tree.branch(leaf).pieces[2].segment
    assert call.attachments == observation.attachments == seen[0].attachments == ("sha256:ab",)
    assert call.metadata == seen[0].metadata == {"second": 3.5}


# -- engines that fail ------------------------------------------------------------------------------------------------


def test_a_fault_in_a_later_turn_keeps_the_turns_before_it() -> None:
    engine = Scripted(chains(3), faults=[Fault("error", calls=(2,), is_retryable=False, reason="engine_500")])
    result = grown(OneChain, engine, max_failed_share=1.0)
    (tree,) = result.trees
    assert not tree.leaves()
    assert [tree.stop(n) for n in tree.subtree()] == [None, None, None, "engine_error"]
    assert tree.notes(3) == {"reason": "engine_500", "fault": "engine_500: planned for call 2"}
    assert result.report.failed_leaves == 1
    assert result.rows() == []


def test_a_failed_command_says_whether_a_retry_may_help() -> None:
    told: list[object] = []

    class Listening(OneChain):
        def tell(self, tree: Tree, outcome: object) -> None:
            told.append(outcome)
            super().tell(tree, outcome)  # type: ignore[arg-type]

    for is_retryable in (True, False):
        told.clear()
        grown(Listening, Scripted(chains(1), faults=[Fault("error", share=1.0, is_retryable=is_retryable)]))
        assert told[0] == Failed(0, "engine_500", is_retryable=is_retryable, nodes=(1,))


# -- versions ---------------------------------------------------------------------------------------------------------


def test_a_policy_that_changes_within_a_turn_makes_one_segment_a_version() -> None:
    engine = Scripted(chains(1), version=3, delay=Delay(token_s=1.0))

    async def main() -> Rollout:
        asyncio.get_running_loop().call_later(5.5, setattr, engine, "version", 4)
        return await rollout(config=RunConfig(), engine=engine, task=Small(), strategy=OneChain)

    result = run_virtual(main())
    tree = result.trees[0]
    first, second, observation = tree.segments(1)
    assert [(s.version, len(s)) for s in (first, second)] == [(3, 5), (4, len("<calc>1/1</calc>") - 5)]
    assert [s.usage.num_calls for s in (first, second)] == [1, 0]
    assert first.usage.num_billed == len(first) + len(second)
    assert (first.finish, second.finish) == (None, Finish("stop", "</calc>"))
    assert observation.tool_call is not None
    assert tree.spent()["policy"].engine_calls == 2
    (row,) = result.rows()
    assert [v for v, _ in groupby(row.versions.tolist())] == [-1, 3, 4, -1, 4]
