"""A model's judgement: read strictly, asked for again in the same context, paid for, and never made up."""

import re
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from tests.faults.grown import faults, grown
from tests.judges.sittings import ERROR, Judged, Sat, judged_by, sat
from tests.runner.parts import Listening, Small, problems

from ramify.config.run_config import EngineConfig, JudgeConfig, RunConfig, StrategyConfig
from ramify.core.action import ActionConfig
from ramify.core.command import Command, Failed, Grow, Judge, Score
from ramify.core.command import Judged as JudgedOutcome
from ramify.core.engine import Generation, Request
from ramify.core.errors import ConfigError, EngineError
from ramify.core.limits import Limits
from ramify.core.segment import Sampling
from ramify.core.tree import ROOT, Tree
from ramify.edge.retries import RetryPolicy
from ramify.judges.llm import LlmJudge
from ramify.judges.prompts import Mode
from ramify.runner.library import rollout
from ramify.runner.scheduler import TooManyFailures
from ramify.store.check import tree_faults
from ramify.testing.clock import run_virtual
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn

SELF = {"mode": "self_reward"}


def scores(sat: Sat) -> tuple[Score, ...]:
    (outcome,) = sat.outcomes
    assert isinstance(outcome, JudgedOutcome), outcome
    return outcome.scores


def score(*grades: str, **options: Any) -> Score:
    (one,) = scores(sat(judged_by(grades), options={**SELF, **options}))
    return one


@pytest.mark.parametrize(("said", "value"), [("87", 87.0), (" -100\n", -100.0), ("+3", 3.0), ("100", 100.0)])
def test_a_grade_is_the_whole_reply(said: str, value: float) -> None:
    assert score(said) == Score("grader", value, (("raw", value), ("num_replies", 1.0)))


def test_a_grade_between_answer_tags_is_read_as_an_answer_is() -> None:
    assert score("I find it weak. <answer>12</answer>").value == 12.0


@pytest.mark.parametrize("odd", ["about 80", "80.5", "80/100", "nan", "inf", "", "1e2", "٨٠", "1_0", "9" * 50, "101"])
@pytest.mark.covers("S2.4")
def test_what_is_no_grade_is_asked_for_again(odd: str) -> None:
    assert score(odd, "-5") == Score("grader", -5.0, (("raw", -5.0), ("num_replies", 2.0)))


@pytest.mark.parametrize("odd", ["eighty", "nan", "1000", "-101"])
@pytest.mark.covers("S2.4")
def test_three_failures_are_no_score_and_never_0(odd: str) -> None:
    found = sat(judged_by([odd]), options=SELF)
    assert scores(found) == (Score("grader", None, (("num_replies", 3.0),)),)
    assert found.result.report.failed_trees == 0


def test_each_reply_is_a_node_of_one_context_that_quotes_what_is_judged() -> None:
    found = sat(judged_by(["what?", "no idea", "41"]), options=SELF)
    tree = found.tree
    (outcome,) = found.outcomes
    assert isinstance(outcome, JudgedOutcome)
    (leaf,) = tree.leaves()
    first, second, third = outcome.nodes
    assert tree.derived(leaf) == [first] and tree.children(first) == [second] and tree.children(second) == [third]
    assert [tree.role(node) for node in outcome.nodes] == ["judge"] * 3
    assert [tree.edge(node) for node in outcome.nodes] == ["quotes", "continues", "continues"]
    assert [tree.stop(node) for node in outcome.nodes] == [None, None, "end_of_sequence"]
    text = tree.branch(third).text
    assert text.index("Problem:") < text.index("what?") < text.index("no integer") < text.index("no idea")
    assert text.rstrip("\x00").find("41") > text.index("no idea")
    assert tree.branch(leaf).transcript in text


def test_what_judges_sample_is_billed_to_their_role_and_the_tree_is_sound() -> None:
    found = sat(judged_by(["what?", "41"]), options=SELF)
    spent = found.tree.spent()
    assert (
        spent["judge"].engine_calls == 2 and spent["judge"].turns == 2 and spent["judge"].decode == len("what?41") + 2
    )
    assert spent["policy"].judge_calls == 2, "the leaf judge of the task and the command"
    assert list(tree_faults(found.tree)) == []
    assert len(found.result.rows()) == 1


def test_repeated_attempts_are_drawn_anew_and_are_the_same_in_every_run() -> None:
    def rule(turn: ScriptedTurn) -> str:
        return str(turn.seed % 101) if "Problem:" in turn.context else "<answer>3</answer>"

    def run() -> list[float | None]:
        found = sat(rule, options=SELF, judgements=lambda tips: [Judge((tips[0],), "grader", i) for i in range(5)])
        return [o.scores[0].value for o in found.outcomes if isinstance(o, JudgedOutcome)]

    assert run() == run() and len(set(run())) > 1


def test_asking_a_judge_changes_nothing_about_what_grows_later() -> None:
    class Later(Judged):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            match len(self.told):
                case 0:
                    return [Judge((ROOT,), "grader")] if self.num else [Grow(ROOT)]
                case 1 if self.num:
                    return [Grow(ROOT)]
            return None

    def leaf(num: int) -> tuple[int, int, Any]:
        tree = sat(judged_by(["5"]), options=SELF, plan=Later, num=num).tree
        (one,) = tree.leaves()
        return tree.node_seed(one), tree.index(one), tree.fork(one)

    assert leaf(1) == leaf(0)


# -- several nodes ----------------------------------------------------------------------------------------------------


def of_all(tips: Sequence[int]) -> list[Judge]:
    return [Judge(tuple(tips), "grader")]


def test_several_nodes_are_graded_each_in_a_context_of_its_own() -> None:
    found = sat(judged_by(["7"]), options=SELF, num=3, judgements=of_all)
    (outcome,) = found.outcomes
    assert isinstance(outcome, JudgedOutcome)
    assert [s.value for s in outcome.scores] == [7.0] * 3
    assert [found.tree.parent(node) for node in outcome.nodes] == found.tree.leaves()


def test_a_vote_is_one_for_the_choice_and_nothing_for_the_others() -> None:
    found = sat(judged_by(["B is odd.\nThe best choice is 2"]), options={"mode": "vote"}, num=3, judgements=of_all)
    assert [s.value for s in scores(found)] == [0.0, 1.0, 0.0]
    (node,) = found.outcomes[0].nodes  # type: ignore[union-attr]
    assert found.tree.branch(node).text.count("Choice ") == 3


def test_a_vote_for_nobody_there_is_asked_for_again() -> None:
    found = sat(
        judged_by(["The best choice is 4", "The best choice is 1"]), options={"mode": "vote"}, num=3, judgements=of_all
    )
    assert [s.value for s in scores(found)] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("replies", "values"),
    [(("1", "2"), [1.0, 0.0]), (("2", "1"), [0.0, 1.0]), (("1", "1"), [0.5, 0.5]), (("1", "x"), [None, None])],
)
def test_a_pair_is_compared_in_both_orders(replies: tuple[str, str], values: list[float | None]) -> None:
    asked: list[str] = []

    def rule(turn: ScriptedTurn) -> str:
        if "Choice 1" not in turn.context:
            return f"<answer>{turn.seed}</answer>"
        opening = turn.context.split("Error: ")[0].split("<|assistant|>")[0]
        if opening not in asked:
            asked.append(opening)
        return f"The best choice is {replies[asked.index(opening)]}"

    found = sat(rule, options={"mode": "pairwise"}, num=2, judgements=of_all)
    assert [s.value for s in scores(found)] == values


def test_a_rubric_is_read_from_the_last_line_within_its_range() -> None:
    options = {"mode": "rubric", "rubric": "it is {short}", "low": 1, "high": 5}
    assert scores(sat(judged_by(["Score: 1\nno: Score: 4.5"]), options=options))[0].value == 4.5
    found = sat(judged_by(["Score: 9", "Score: 2 of them", "Score: NaN"]), options=options)
    assert scores(found)[0] == Score("grader", 2.0, (("raw", 2.0), ("num_replies", 2.0)))
    assert "it is {short}" in found.tree.branch(found.outcomes[0].nodes[0]).text  # type: ignore[union-attr]


# -- labels and tenths ------------------------------------------------------------------------------------------------

LABELS = {"mode": "labels"}
TENTHS = {"mode": "tenths"}
PUBLISHED = {"reading": "as_published"}


def judged(*replies: str, **options: Any) -> tuple[float | None, dict[str, float]]:
    """Value and parts of a judgement by `replies`: one for each time the model was corrected."""
    (one,) = scores(sat(judged_by(replies), options=options))
    return one.value, dict(one.parts)


def sampled(labels: Sequence[str], **options: Any) -> tuple[float | None, dict[str, float]]:
    """As `judged`, where each sample says the next label, however often it is corrected."""
    asked: list[int] = []

    def rule(turn: ScriptedTurn) -> str:
        if "Problem:" not in turn.context:
            return "<answer>1</answer>"
        if ERROR not in turn.context:
            asked.append(turn.seed)
        return labels[len(asked) - 1]

    (one,) = scores(sat(rule, options={**LABELS, "num_samples": len(labels), **options}))
    return one.value, dict(one.parts)


def test_a_label_is_worth_what_the_table_says() -> None:
    assert judged("24 can be made.\nsure", **LABELS) == (20.0, {"raw": 20.0, "num_replies": 1.0})
    assert judged("Likely.", **LABELS)[0] == 1.0
    assert judged("Certain", worth={"certain": 1, "low": 0.1}, **LABELS)[0] == 1.0


def test_labels_of_several_samples_are_summed() -> None:
    assert sampled(["sure", "likely", "impossible"]) == (pytest.approx(21.001), {"raw": 21.001, "num_replies": 3.0})
    found = sat(judged_by(["sure"]), options={**LABELS, "num_samples": 3})
    (leaf,) = found.tree.leaves()
    assert len(found.tree.derived(leaf)) == 3 and found.tree.spent()["judge"].turns == 3
    assert len({found.tree.node_seed(node) for node in found.tree.derived(leaf)}) == 3


def test_a_sample_that_cannot_be_read_counts_as_the_mean_of_the_others_and_never_as_0() -> None:
    assert sampled(["sure", "perhaps", "likely"])[0] == pytest.approx(1.5 * 21)
    assert sampled(["perhaps", "dunno"]) == (None, {"num_replies": 6.0})


def test_a_label_that_is_none_is_asked_for_again() -> None:
    assert judged("perhaps", "likely", **LABELS) == (1.0, {"raw": 1.0, "num_replies": 2.0})


def test_labels_as_published_are_read_from_the_first_reply_alone() -> None:
    assert sampled(["so\nsure", "Sure", "perhaps"], **PUBLISHED) == (20.0, {"raw": 20.0, "num_replies": 3.0})
    assert sampled(["Sure", "perhaps"], **PUBLISHED)[0] == 0.0


def test_a_score_from_1_to_10_is_a_tenth_of_it() -> None:
    assert judged("Step 9 is odd. Thus the correctness score is 7.", **TENTHS)[0] == 0.7
    again = judged("7", "Thus the correctness score is 11", "Thus the correctness score is 10", **TENTHS)
    assert again == (1.0, {"raw": 1.0, "num_replies": 3.0})
    assert judged("seven", **TENTHS) == (None, {"num_replies": 3.0})


def test_tenths_as_published_are_any_digit_of_the_first_reply() -> None:
    assert judged("Step 9 is odd. Thus the correctness score is 7.", **TENTHS, **PUBLISHED)[0] == 0.9
    assert judged("seven", **TENTHS, **PUBLISHED) == (-1.0, {"raw": -1.0, "num_replies": 1.0})


def test_a_vote_as_published_is_its_last_digit() -> None:
    found = sat(judged_by(["The best choice is 12"]), options={"mode": "vote", **PUBLISHED}, num=3, judgements=of_all)
    assert [s.value for s in scores(found)] == [0.0, 1.0, 0.0]
    found = sat(judged_by(["The best choice is A"]), options={"mode": "vote", **PUBLISHED}, num=2, judgements=of_all)
    assert [s.value for s in scores(found)] == [0.0, 0.0]


def test_self_reward_as_published_takes_any_integer_and_asks_again_for_one() -> None:
    """As mcts-llm's `_evaluate_answer`: Python's `int`, three attempts, no range."""
    assert judged("150", **SELF, **PUBLISHED) == (150.0, {"raw": 150.0, "num_replies": 1.0})
    assert judged("about 7", "-1_000", **SELF, **PUBLISHED) == (-1000.0, {"raw": -1000.0, "num_replies": 2.0})
    assert judged("150", "95", **SELF) == (95.0, {"raw": 95.0, "num_replies": 2.0})
    assert judged("a", "b", "c", **SELF, **PUBLISHED) == (None, {"num_replies": 3.0})


def test_every_mode_asks_what_it_reads() -> None:
    templates = {mode: LlmJudge(mode=mode).default_action.template for mode in get_args(Mode)}
    assert "sure, likely, impossible" in templates["labels"]
    assert '"Thus the correctness score is "' in templates["tenths"]
    assert '"The best choice is "' in templates["vote"] == templates["pairwise"]


# -- limits and faults ------------------------------------------------------------------------------------------------


def test_a_reply_that_was_cut_is_not_taken_for_a_whole_one() -> None:
    action = ActionConfig(edge="quotes", role="judge", template="Problem: {previous}", max_tokens=1)
    found = sat(judged_by(["95"]), options=SELF, actions={"policy": ActionConfig(), "grader": action})
    assert scores(found)[0].value is None


def test_no_budget_is_overrun_and_a_judge_without_any_is_told_so() -> None:
    for decode in range(14, 60):
        found = sat(judged_by(["what is this?", "41"]), options=SELF, limits=Limits(decode=decode))
        spent = sum(spend.decode for spend in found.tree.spent().values())
        assert spent <= decode
        for outcome in found.outcomes:
            assert isinstance(outcome, JudgedOutcome) or outcome.reason == "budget"  # type: ignore[union-attr]


class Down(Scripted):
    """An engine at which nobody answers."""

    async def generate(self, request: Request) -> Generation:
        raise EngineError("unreachable", "connection refused", is_retryable=True)


def with_a_judge_elsewhere(*, max_failed_share: float, num: int) -> Sat:
    action = ActionConfig(engine="other", edge="quotes", role="judge", template="Problem: {previous}")
    down = EngineConfig(name=f"{__file__}:Down", retry=RetryPolicy(max_down_s=5.0))
    return sat(
        judged_by(["1"]),
        options=SELF,
        num=num,
        judgements=lambda tips: [Judge((tip,), "grader") for tip in tips],
        actions={"policy": ActionConfig(), "grader": action},
        engines={"other": down},
        max_failed_share=max_failed_share,
    )


def test_an_endpoint_that_is_down_for_judges_alone_fails_their_commands_and_the_search_goes_on() -> None:
    found = with_a_judge_elsewhere(max_failed_share=1.0, num=12)
    assert len(found.outcomes) == 12 and len(found.tree.leaves()) == 12
    assert found.result.report.failed_trees == 0
    for outcome in found.outcomes:
        assert isinstance(outcome, Failed) and "nothing has answered" in outcome.reason
        assert [found.tree.stop(node) for node in outcome.nodes] == ["engine_error"]


def test_a_run_whose_judge_is_down_stops_where_its_share_of_failures_says_so() -> None:
    with pytest.raises(TooManyFailures, match="max_failed_share"):
        with_a_judge_elsewhere(max_failed_share=0.3, num=12)


def test_a_run_is_sound_whatever_its_judge_says() -> None:
    def rule(turn: ScriptedTurn) -> str:
        says = ("what?", "55", "1000", "-7")[turn.seed % 4]
        return says if "Problem:" in turn.context else f"<answer>{turn.seed % 4}</answer>"

    config = RunConfig(
        strategy=StrategyConfig(name="best_of_n", options={"n": 9, "judge": "grader"}),
        judges={"grader": JudgeConfig(kind="llm", options=SELF)},
        limits=Limits(decode=200, judge_calls=14, turns=30, prefill_uncached=30_000),
    )
    found = run_virtual(grown(config, task=Small(), engine=Scripted(rule), problems=problems(6)))
    assert list(faults(found)) == []
    assert any(tree.spent()["judge"].turns > 3 for tree in found.trees.values())


# -- refused before the start -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "template", "message"),
    [
        ({"mode": "self_rewrd"}, None, "self_reward"),
        ({"mdoe": "vote"}, None, "did you mean 'mode'"),
        ({"max_replies": 0}, None, "at least 1"),
        ({"mode": "labels", "num_samples": 0}, None, "at least 1"),
        ({"mode": "tenths", "num_samples": 3}, None, "in the mode labels alone"),
        ({"mode": "labels", "worth": {}}, None, "labels in small letters"),
        ({"mode": "labels", "worth": {"Sure": 1.0}}, None, "labels in small letters"),
        ({"mode": "labels", "worth": {"sure": float("nan")}}, None, "labels in small letters"),
        ({"mode": "labels", "worth": {"sure": "1"}}, None, "Expected `float"),
        ({"mode": "rubric", "reading": "as_published"}, None, "in the modes labels, self_reward, tenths, vote"),
        ({"mode": "tenths", "reading": "published"}, None, "as_published"),
        ({"low": 3, "high": 3}, None, "must be below"),
        ({"low": "1"}, None, "Expected `float"),
        (SELF, "Problem: {question}", "must cite what it judges"),
        (SELF, "{previous} {asnwer}", "asnwer"),
        (SELF, "{previous", "braces"),
        ({"mode": "vote"}, "{previous}", "must cite {choices}, or {0} and {1}"),
        ({"mode": "pairwise"}, "{0} {1} {2}", "of a pair"),
    ],
)
def test_a_judge_that_cannot_work_is_refused_before_the_start(
    options: dict[str, Any], template: str | None, message: str
) -> None:
    actions = {"policy": ActionConfig()}
    if template is not None:
        actions["grader"] = ActionConfig(edge="quotes", role="judge", template=template)
    with pytest.raises(ConfigError, match=re.escape(message)):
        sat(judged_by(["1"]), options=options, actions=actions)


def test_an_action_that_is_no_judges_is_refused() -> None:
    actions = {"policy": ActionConfig(), "grader": ActionConfig(edge="quotes", role="critique", template="{previous}")}
    with pytest.raises(ConfigError, match="role = 'judge'"):
        sat(judged_by(["1"]), options=SELF, actions=actions)


def test_the_prompt_of_a_judge_is_in_the_configuration_of_the_run() -> None:
    found = sat(judged_by(["1"]), options=SELF)
    action = found.result.config.actions["grader"]
    assert action.role == "judge" and "{previous}" in action.template and action.sampling == Sampling()
    assert LlmJudge(mode="rubric").default_action.sampling == Sampling(temperature=0.0)


def test_a_judge_is_offered_no_tools_and_sees_no_secret() -> None:
    engine = Listening(Scripted(judged_by(["1"])))
    sat(engine, options=SELF)
    assert all(request.tools == () for request in engine.requests)


@pytest.mark.parametrize(("name", "option"), [("best_of_n", "judge"), ("reject", "outcome"), ("rap", "fast_judge")])
async def test_a_strategy_that_names_a_judge_the_run_has_not_is_refused(name: str, option: str) -> None:
    given = {"judge": "grader"} if name == "rap" else {}
    strategy = StrategyConfig(name=name, options={**given, option: "gradr"})
    config = RunConfig(strategy=strategy, judges={"grader": JudgeConfig(kind="llm", options=SELF)})
    with pytest.raises(ConfigError, match="did you mean 'grader'"):
        await rollout(["q"], config=config, engine=Scripted(), task=Small())
