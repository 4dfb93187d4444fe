import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.strategies.world import CODEC, bare_tree, text_step

from ramify import view
from ramify.config.run_config import StrategyConfig
from ramify.core.command import Grow, Score
from ramify.core.errors import ConfigError
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.tree import ROOT, Step, Tree
from ramify.view.rstar import RStarReading, Visits, puct, update_recursive

VECTORS = Path(__file__).parent.parent / "golden" / "vectors" / "search_rstar.json"
CASES: list[Mapping[str, Any]] = json.loads(VECTORS.read_text("utf-8"))["cases"]
TRACES = [case for case in CASES if case["kind"] == "mcts_trace"]
STOPS = {"no_valid_child": "no_valid_step", "too_many_steps": "depth_limit", "too_many_code_errors": "tool_errors"}


def grown(tree: Tree, parent: int, step: Step) -> int:
    place = tree.begin(len(tree), Grow(parent))
    assert place is not None
    node = tree.add(step, place)
    tree.end(node)
    return node


def with_call(step: Step, call: ToolCall) -> Step:
    shown = Segment("given", token_array(CODEC.encode(f"<output>{call.result}<end_of_output>")), tool_call=call)
    return replace(step, segments=(*step.segments, shown))


def golden_tree(case: Mapping[str, Any]) -> tuple[Tree, dict[str, int]]:
    """The tree that a golden trace ended with, by tag: only what the search itself would have recorded."""
    given, config = case["inputs"], case["inputs"]["config"]
    tree, nodes = bare_tree(), {"0": ROOT}
    for tag, told in list(case["expected"]["nodes"].items())[1:]:
        entry = given["script"][told["text"]]
        answer = told["answer"]
        scores: list[Score] = []
        stop = STOPS.get(answer, "answer" if answer is not None else None)
        if stop == "answer":
            is_right = answer == given["ground_truth"]
            value = (1.0 if is_right else -1.0) if config["is_sampling"] else entry["value"]
            scores = [Score("outcome", value)]
        elif stop is None and config["need_value_func"] and not config.get("terminal_sample"):
            scores = [Score("ppm", entry["value"])]
        said = f"\\boxed{{{answer}}}" if stop == "answer" else told["text"]
        nodes[tag] = grown(tree, nodes[tag.rpartition(".")[0]], text_step(said, stop=stop, scores=tuple(scores)))
    for tag, told in case["expected"]["nodes"].items():
        if told["terminal"] and told["answer"] is None:
            tree.close(nodes[tag], "exhausted")
    return tree, nodes


@pytest.mark.parametrize("case", TRACES, ids=[case["name"] for case in TRACES])
@pytest.mark.covers("S4.1", "S4.3")
def test_its_statistics_are_those_of_the_published_search(case: Mapping[str, Any]) -> None:
    tree, nodes = golden_tree(case)
    goes_up = "backup_failures" in case["inputs"].get("switches", ())
    reading = RStarReading(judge="ppm", failures="to_root" if goes_up else "local")
    tags = {node: tag for tag, node in nodes.items()}
    seen = view.rstar_nodes(tree, reading)
    assert [one.tag for one in seen] == [tags[one.node] for one in seen]
    for one in seen:
        told = case["expected"]["nodes"][one.tag]
        assert (one.visit_count, one.is_terminal) == (told["visits"], told["terminal"])
        assert one.q_value == pytest.approx(told["q"], abs=1e-12)
        assert (one.state["final_answer"] or None) == told["answer"]
        assert one.value_sum == pytest.approx(one.q_value * one.visit_count)
        assert one.depth == one.tag.count(".") == tree.depth(one.node)
        assert view.rstar(tree, one.node, reading) == one


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "puct"], ids=lambda c: c["name"])
def test_its_puct_is_the_published_one(case: Mapping[str, Any]) -> None:
    given = case["inputs"]
    own, above = Visits(given["visits"], given["value_sum"]), Visits(given["parent_visits"])
    assert puct(own, above, given["c_puct"]) == pytest.approx(case["expected"]["puct"], abs=1e-12)


@pytest.mark.covers("S4.1")
def test_a_state_says_what_was_done_and_seen_and_more() -> None:
    tree = bare_tree()
    call = ToolCall("python", "print(x)", "error", "NameError: x")
    one = grown(tree, ROOT, with_call(text_step("<code>print(x)<end_of_code>"), call))
    two = grown(tree, one, with_call(text_step("again<end_of_code>", notes={"why": "a note"}), call))
    end = grown(tree, two, text_step("so \\boxed{3}", stop="answer", scores=(Score("exact", 0.5),)))
    seen = view.rstar(tree, two)
    assert seen.state == {
        "text": "again<end_of_code><output>NameError: x<end_of_output>",
        "action": "python",
        "action_input": "print(x)",
        "observation": "NameError: x",
        "final_answer": "",
        "stop": None,
        "scores": {},
        "why": "a note",
    }
    assert (seen.tag, seen.parent, seen.children, seen.consecutive_errors) == ("0.1.1", one, (end,), 2)
    assert (seen.reward, seen.value, seen.visit_count, seen.q_value) == (None, None, 1, 0.5)
    last = view.rstar(tree, end)
    assert (last.reward, last.value, last.state["final_answer"]) == (0.5, 0.5, "3")
    assert json.loads(json.dumps(last.as_dict())) == last.as_dict()


def test_reward_and_value_stand_apart() -> None:
    tree = bare_tree()
    scores = (Score("exact", 1.0), Score("ppm", 0.25), Score("ppm", 0.75))
    end = grown(tree, ROOT, text_step("\\boxed{3}", stop="answer", scores=scores))
    seen = view.rstar(tree, end, RStarReading(outcome="ppm"))
    assert (seen.reward, seen.value) == (tree.reward(end), 0.25)
    cut = grown(tree, ROOT, text_step("lost", stop="tool_errors", scores=(Score("exact", 0.0),)))
    assert (view.rstar(tree, cut).reward, view.rstar(tree, cut).value) == (0.0, -1.0)
    assert view.rstar(tree, ROOT).visit_count == 2
    assert view.rstar(tree, ROOT, RStarReading(failures="local")).visit_count == 1


@pytest.mark.covers("S4.1")
def test_a_tree_alone_is_read_by_the_judge_that_scored_its_steps() -> None:
    tree = bare_tree()
    one = grown(tree, ROOT, text_step("a", scores=(Score("mine", None), Score("ppm", 0.5))))
    end = grown(tree, one, text_step("\\boxed{3}", stop="answer", scores=(Score("exact", 1.0), Score("ppm", 0.25))))
    seen = {node.node: node for node in view.rstar_nodes(tree)}
    assert (seen[one].value, seen[one].visit_count, seen[end].value) == (0.5, 2, 0.25)
    assert view.rstar_nodes(tree) == view.rstar_nodes(tree, RStarReading(judge="ppm", outcome="ppm"))
    assert view.rstar(tree, one) == seen[one]


def test_a_judge_of_steps_that_scored_no_answer_leaves_answers_to_their_rewards() -> None:
    tree = bare_tree()
    one = grown(tree, ROOT, text_step("a", scores=(Score("ppm", 0.5),)))
    end = grown(tree, one, text_step("\\boxed{3}", stop="answer", scores=(Score("exact", 1.0),)))
    assert (view.rstar(tree, one).value, view.rstar(tree, end).value) == (0.5, 1.0)


@pytest.mark.covers("S4.1", "S4.6")
def test_a_runs_own_strategy_and_format_say_how_its_trees_are_read() -> None:
    options = {"outcome": "reward", "judge": "ppm", "positive_reward": 2.0, "negative_reward": -3.0}
    reading = RStarReading.of(StrategyConfig(name="rstar_mcts", options=options), answer=str.upper)
    tree = bare_tree()
    one = grown(tree, ROOT, text_step("a", scores=(Score("ppm", 0.5),)))
    right = grown(tree, one, text_step("x", stop="answer", scores=(Score("exact", 1.0, is_oracle=True),)))
    wrong = grown(tree, one, text_step("y", stop="answer", scores=(Score("exact", 0.0, is_oracle=True),)))
    seen = {node.node: node for node in view.rstar_nodes(tree, reading)}
    assert [seen[node].value for node in (one, right, wrong)] == [0.5, 2.0, -3.0]
    assert seen[right].state["final_answer"].endswith("X")
    with pytest.raises(ConfigError, match="'chains'"):
        RStarReading.of(StrategyConfig(name="chains"))


@pytest.mark.parametrize("stop", ["closed", "budget", "engine_error"])
def test_a_path_that_was_cut_short_from_outside_updates_nothing(stop: str) -> None:
    tree = bare_tree()
    cut = grown(tree, ROOT, text_step("cut", stop=stop))
    assert view.rstar(tree, cut).visit_count == view.rstar(tree, ROOT).visit_count == 0


@pytest.mark.covers("S4.1")
def test_an_update_goes_up_to_a_given_node() -> None:
    tree = bare_tree()
    one = grown(tree, ROOT, text_step("a"))
    two = grown(tree, one, text_step("b"))
    visits = {node: Visits() for node in (ROOT, one, two)}
    update_recursive(tree, visits, two, 0.5, start=one)
    assert [visits[node].count for node in (ROOT, one, two)] == [0, 1, 1]


def test_what_is_no_step_of_the_policy_is_refused() -> None:
    tree = bare_tree()
    probe = grown(tree, ROOT, text_step("p", role="probe", action="probe"))
    with pytest.raises(ConfigError, match="no step of the policy"):
        view.rstar(tree, probe)
    assert view.rstar(tree, ROOT).children == ()
