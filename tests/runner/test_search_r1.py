"""The Search-R1 loop: search, information, answer; invalid actions corrected, the last turn forced, masks kept."""

from dataclasses import replace
from typing import Any

import pytest
from tests.runner.parts import Listening, OneChain, Small, grown, only_leaf, problems

from ramify.config.presets import preset
from ramify.config.run_config import GrowthConfig, StrategyConfig
from ramify.core.action import ActionConfig
from ramify.core.tree import Tree
from ramify.formats.search_r1 import SEARCH_R1, SINGLE_TURN
from ramify.rows import rows_of
from ramify.runner.library import Rollout
from ramify.runner.stopping import STOP_POLICIES
from ramify.testing.scripted import SCRIPTED, Scripted
from ramify.testing.scripts import ScriptedTurn
from ramify.tools.function import FunctionTool

PASSAGES = "Doc 1(Title: A) one\nDoc 2(Title: B) two\n"
INFORMATION = "\n\n<information>Doc 1(Title: A) one\nDoc 2(Title: B) two</information>\n\n"
SEARCH, ANSWER = "<search> who </search>", "<answer>3</answer>"
LOOP = GrowthConfig(max_response_tokens=4000, no_action="observe", max_turns=4)


def task(text: str = PASSAGES) -> Small:
    return Small(format=SEARCH_R1, tools=(FunctionTool(lambda query: text, name="search"),))


def saying(*turns: str) -> Scripted:
    """An engine that says `turns` one after the other, the last one for good."""

    def rule(turn: ScriptedTurn) -> str:
        number = turn.context.count("<information>") + turn.context.count("Let me try again.")
        return turns[min(number, len(turns) - 1)]

    return Scripted(rule, capabilities=replace(SCRIPTED, context_length=32_768))


def loop(*turns: str, growth: GrowthConfig = LOOP, observed: str = PASSAGES, **config: Any) -> Rollout:
    return grown(OneChain, saying(*turns), task=task(observed), growth=growth, **config)


def segments(tree: Tree, leaf: int) -> list[tuple[str, str]]:
    return [(p.segment.origin, tree.codec.decode(p.segment.ids)) for p in tree.branch(leaf).pieces[1:]]


@pytest.mark.covers("S1.2")
def test_a_search_is_answered_with_information_and_an_answer_ends() -> None:
    tree, leaf = only_leaf(loop(SEARCH, ANSWER))
    assert segments(tree, leaf) == [("sampled", SEARCH), ("given", INFORMATION), ("sampled", ANSWER)]
    assert tree.stop(leaf) == "answer"
    (call,) = tree.branch(leaf).tool_calls
    assert (call.tool, call.arguments) == ("search", "who")


@pytest.mark.covers("S1.2")
@pytest.mark.parametrize("invalid", ["I do not know.", "</search>", "<search></search>"])
def test_what_is_no_action_is_answered_by_the_three_sentences(invalid: str) -> None:
    tree, leaf = only_leaf(loop(invalid, ANSWER))
    origins = [origin for origin, _ in segments(tree, leaf)]
    given = [text for origin, text in segments(tree, leaf) if origin == "given"]
    assert given == [SEARCH_R1.invalid]
    assert origins[0] == "sampled" and origins[-1] == "sampled"
    assert tree.stop(leaf) == "answer"
    assert tree.reward(leaf) == 1.0


def test_a_turn_cut_at_its_own_limit_without_an_action_is_corrected_too() -> None:
    actions = {"policy": ActionConfig(max_tokens=30)}
    tree, leaf = only_leaf(loop("x" * 100, ANSWER, actions=actions))
    assert segments(tree, leaf) == [("sampled", "x" * 30), ("given", SEARCH_R1.invalid), ("sampled", ANSWER)]


@pytest.mark.parametrize("most", range(1, 28))
def test_a_turn_cut_at_its_own_limit_inside_a_stop_word_is_corrected_like_any_other(most: int) -> None:
    actions = {"policy": ActionConfig(max_tokens=most)}
    said = f"{'x' * 12}{SEARCH}"
    growth = replace(LOOP, max_turns=2, max_response_tokens=1000)
    tree, leaf = only_leaf(loop(said, growth=growth, actions=actions))
    cut = ("sampled", said[:most])
    assert segments(tree, leaf) == [cut, ("given", SEARCH_R1.invalid), cut]
    assert tree.stop(leaf) == "turn_limit"


@pytest.mark.covers("S1.2")
def test_the_last_turn_is_forced_its_search_is_not_carried_out() -> None:
    growth = replace(LOOP, max_turns=3)
    tree, leaf = only_leaf(loop(SEARCH, growth=growth))
    assert [origin for origin, _ in segments(tree, leaf)] == ["sampled", "given"] * 2 + ["sampled"]
    assert tree.stop(leaf) == "turn_limit"
    assert len(tree.branch(leaf).tool_calls) == 2


def test_a_forced_last_turn_may_still_answer() -> None:
    tree, leaf = only_leaf(loop(SEARCH, SEARCH, ANSWER, growth=replace(LOOP, max_turns=3)))
    assert tree.stop(leaf) == "answer"


def test_an_invalid_last_turn_ends_the_path_and_is_not_corrected() -> None:
    tree, leaf = only_leaf(loop(SEARCH, "no idea", growth=replace(LOOP, max_turns=2)))
    assert tree.stop(leaf) == "end_of_sequence"
    assert segments(tree, leaf)[-1][0] == "sampled"


def test_a_last_turn_cut_at_its_own_limit_ends_the_path() -> None:
    engine = Listening(saying("x" * 100))
    actions = {"policy": ActionConfig(max_tokens=30)}
    tree, leaf = only_leaf(grown(OneChain, engine, task=task(), growth=replace(LOOP, max_turns=2), actions=actions))
    assert [text for origin, text in segments(tree, leaf) if origin == "sampled"] == ["x" * 30] * 2
    assert (tree.stop(leaf), len(engine.requests)) == ("turn_limit", 2)


@pytest.mark.parametrize("most", [7, 12, 19])
def test_an_action_that_spans_the_steps_of_the_forced_last_turn_is_read_whole_and_not_carried_out(most: int) -> None:
    """Steps of `most` tokens cut the search in two or more; they are one turn, the last."""
    growth = replace(LOOP, max_turns=1, no_action="end")
    actions = {"policy": ActionConfig(max_tokens=most)}
    tree, leaf = only_leaf(loop(SEARCH, growth=growth, actions=actions))
    assert tree.branch(leaf).transcript == SEARCH
    assert tree.stop(leaf) == "turn_limit"
    assert not tree.branch(leaf).tool_calls


@pytest.mark.covers("S1.2")
@pytest.mark.parametrize("limit", [40, 41, 57, 200])
def test_an_observation_is_cut_to_its_limit_and_keeps_its_frame(limit: int) -> None:
    growth = replace(LOOP, max_observation_tokens=limit)
    tree, leaf = only_leaf(loop(SEARCH, ANSWER, growth=growth, observed="z" * 150))
    observation = segments(tree, leaf)[1][1]
    assert len(observation) == min(limit, len("\n\n<information></information>\n\n") + 150)
    assert observation.startswith("\n\n<information>") and observation.endswith("</information>\n\n")
    assert tree.stop(leaf) == "answer"


def test_an_observation_may_be_cut_at_its_end_with_its_frame() -> None:
    growth = replace(LOOP, max_observation_tokens=40, observation_cut="end")
    tree, leaf = only_leaf(loop(SEARCH, ANSWER, growth=growth, observed="z" * 150))
    assert segments(tree, leaf)[1][1] == f"\n\n<information>{'z' * 25}"


def test_an_empty_search_may_be_carried_out() -> None:
    growth = replace(LOOP, empty_call="call")
    tree, leaf = only_leaf(loop("<search> </search>", ANSWER, growth=growth))
    assert segments(tree, leaf)[1] == ("given", INFORMATION)
    (call,) = tree.branch(leaf).tool_calls
    assert (call.arguments, call.status) == ("", "ok")


def test_a_limit_too_small_for_the_frame_cuts_the_frame() -> None:
    growth = replace(LOOP, max_observation_tokens=5)
    tree, leaf = only_leaf(loop(SEARCH, ANSWER, growth=replace(growth, max_turns=2), observed="z"))
    assert segments(tree, leaf)[1][1] == "\n\n<in"


def test_an_observation_longer_than_the_context_ends_the_path() -> None:
    growth = replace(LOOP, max_response_tokens=100_000)
    tree, leaf = only_leaf(loop(SEARCH, ANSWER, growth=growth, observed="z" * 50_000))
    assert tree.stop(leaf) == "context_full"
    assert tree.length(leaf) == 32_768


@pytest.mark.covers("S1.3")
def test_no_token_of_an_observation_or_a_correction_is_trained() -> None:
    tree, _ = only_leaf(loop(SEARCH, "hm", ANSWER))
    (row,) = rows_of(tree)
    trained = "".join(tree.codec.decode([i]) for i, w in zip(row.ids, row.weights, strict=True) if w > 0)
    assert "information" not in trained and "previous action" not in trained
    assert trained.startswith(SEARCH) and trained.endswith(ANSWER)


@pytest.mark.covers("S1.2")
def test_without_tools_it_is_single_turn_by_the_same_loop() -> None:
    single = Small(format=SINGLE_TURN, tools=())
    tree, leaf = only_leaf(grown(OneChain, saying(f"thinking {ANSWER}"), task=single, growth=GrowthConfig()))
    assert segments(tree, leaf) == [("sampled", f"thinking {ANSWER}")]
    assert tree.stop(leaf) == "answer"


@pytest.mark.covers("S1.1", "S1.4")
def test_one_prompt_becomes_n_trajectories_of_one_completion_a_call_grouped_by_its_uid() -> None:
    engine = Listening(saying(SEARCH, ANSWER))
    strategy = StrategyConfig(name="chains", options={"n": 5})
    result = grown(None, engine, task=task(), questions=problems(2), strategy=strategy, growth=LOOP)
    assert [len(tree.stems()) for tree in result.trees] == [5, 5]
    assert len(engine.requests) == 2 * 5 * 2
    assert [row.uid for row in result.rows()] == ["p0"] * 5 + ["p1"] * 5


@pytest.mark.parametrize("name", ["search_r1", "search_r1_as_published"])
def test_the_preset_is_search_r1s_script(name: str) -> None:
    growth = preset(name).values["growth"]
    assert growth["max_turns"] == 3 and growth["max_observation_tokens"] == 500 and growth["no_action"] == "observe"


# -- published rules about what nobody sampled -------------------------------------------------------------------------


def test_arpos_forced_end_stands_as_given_and_is_not_trained() -> None:
    growth = GrowthConfig(max_response_tokens=4000, max_tool_calls=1, stop_rule="arpo")
    tree, leaf = only_leaf(loop(SEARCH, growth=growth))
    assert STOP_POLICIES["arpo"].forced_end == {"tool_limit"}
    assert tree.segments(leaf)[-1].ids.tolist() == [tree.codec.eos_id]
    assert tree.segments(leaf)[-1].origin == "given"
    (row,) = rows_of(tree)
    assert row.weights[-1] == 0


def test_arpos_forced_end_is_not_appended_to_a_full_response() -> None:
    growth = GrowthConfig(max_response_tokens=len(SEARCH), max_tool_calls=0, stop_rule="arpo")
    tree, leaf = only_leaf(loop(SEARCH, growth=growth))
    assert tree.stop(leaf) == "tool_limit"
    assert segments(tree, leaf) == [("sampled", SEARCH)]


def test_at2pos_warning_is_given_and_the_path_goes_on() -> None:
    growth = GrowthConfig(max_response_tokens=4000, max_tool_calls=1, stop_rule="at2po")

    def rule(turn: ScriptedTurn) -> str:
        return ANSWER if "No tool calls are left" in turn.context else SEARCH

    tree, leaf = only_leaf(grown(OneChain, Scripted(rule), task=task(), growth=growth))
    assert [origin for origin, _ in segments(tree, leaf)] == ["sampled", "given", "sampled", "given", "sampled"]
    assert len(tree.branch(leaf).tool_calls) == 1
    assert tree.stop(leaf) == "answer"
