"""Nodes of a searched tree with values, q and visits, and with what came of a judge that saw the answer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from tests.golden.mctsr import played
from tests.strategies.world import bare_tree, text_step
from tests.view.test_mctsr import TRACES as MCTSR
from tests.view.test_mctsr import config_of
from tests.view.test_rstar import TRACES as RSTAR
from tests.view.test_rstar import golden_tree

from ramify import view
from ramify.config.run_config import StrategyConfig
from ramify.core.command import Grow, Score
from ramify.core.growth import Done, Growth
from ramify.core.tree import ROOT, Tree

STEPS = StrategyConfig(name="mcts", options={"judge": "process", "outcome": "world"})


def grown(steps: Mapping[str, Sequence[Score]], *, ended: str) -> Tree:
    """A tree of paths of letters with these scores; those in `ended` are whole."""
    growth, nodes = Growth(bare_tree()), {"": ROOT}
    for path, scores in steps.items():
        command = growth.ask(Grow(nodes[path[:-1]], until="step"))
        stop = "answer" if path in ended.split() else None
        growth.grow(command, text_step(path[-1], stop=stop, scores=tuple(scores)))
        nodes[path] = growth.end(command, Done()).tip  # type: ignore[union-attr]
    return growth.tree


def by_text(tree: Tree, strategy: StrategyConfig) -> dict[str, view.ValuedNode]:
    return {node.text: node for node in view.valued(tree, strategy).nodes}


def test_q_is_the_mean_of_what_the_searchs_judges_said_at_a_node_and_below() -> None:
    scores = {
        "a": [Score("process", 0.2), Score("process", 0.4, attempt=1)],
        "b": [Score("process", None)],
        "ax": [Score("process", 0.9), Score("world", 1.0)],
        "ay": [Score("world", 0.5)],
    }
    found = by_text(grown(scores, ended="ax ay"), STEPS)
    assert [(found[t].value, found[t].q, found[t].visits) for t in ("a", "b", "x", "y")] == [
        (pytest.approx(0.3), pytest.approx(0.6), 3),
        (None, None, 0),
        (1.0, 1.0, 1),
        (0.5, 0.5, 1),
    ]
    assert found[""].parent is None and found["x"].parent == found["a"].node
    assert (found["x"].reward, found["a"].reward) == (1.0, None)


def test_a_search_that_names_no_judge_goes_by_rewards() -> None:
    found = by_text(grown({"a": [], "ax": [Score("world", 1.0)], "ay": []}, ended="ax ay"), StrategyConfig())
    assert (found["a"].value, found["a"].q, found["a"].visits) == (None, 1.0, 1)
    assert (found["y"].reward, found["y"].q) == (None, None)


def test_what_comes_of_a_judge_that_saw_the_answer_is_marked() -> None:
    scores = {"a": [Score("process", 0.5)], "ax": [Score("world", 0.5), Score("gold", 1.0, is_oracle=True)], "b": []}
    tree = grown(scores, ended="ax")
    steered = StrategyConfig(name="mcts", options={"judge": "process", "outcome": "gold", "oracle": "declared"})
    is_marked = {text: node.is_oracle for text, node in by_text(tree, steered).items()}
    assert is_marked == {"": True, "a": True, "x": True, "b": False}
    assert {text: node.is_oracle for text, node in by_text(tree, STEPS).items()} == is_marked | {"": False, "a": False}
    (told,) = [node for node in view.valued(tree, STEPS).as_dict()["nodes"] if node["text"] == "x"]
    assert told["scores"][1] == {"judge": "gold", "value": 1.0, "is_oracle": True}


def test_answers_of_mctsr_have_its_q() -> None:
    case = next(case for case in MCTSR if case["preset"] == "corrected")
    config, given = config_of(case), case["inputs"]
    tree = played(config, given["raw_rewards"], given["draws"])[1].tree
    found = {node.node: node for node in view.valued(tree, StrategyConfig(name="mctsr", options=asdict(config))).nodes}
    for one in view.mctsr_nodes(tree, config):
        assert (found[one.node].q, found[one.node].visits) == (one.Q, one.visits)


@pytest.mark.covers("S4.7")
@pytest.mark.parametrize("case", RSTAR, ids=[case["name"] for case in RSTAR])
def test_steps_of_rstar_have_its_q(case: Mapping[str, Any]) -> None:
    tree, nodes = golden_tree(case)
    is_local = "backup_failures" not in case["inputs"].get("switches", ())
    options = {"judge": "ppm", "outcome": "reward", "backup_failures": "leaf" if is_local else "root"}
    found = {node.node: node for node in view.valued(tree, StrategyConfig(name="rstar_mcts", options=options)).nodes}
    for tag, told in case["expected"]["nodes"].items():
        assert found[nodes[tag]].visits == told["visits"]
        assert found[nodes[tag]].q == (pytest.approx(told["q"], abs=1e-12) if told["visits"] else None)


def test_it_is_plain_json() -> None:
    tree = grown({"a": [Score("process", 0.5)]}, ended="a")
    told = view.valued(tree, STEPS).as_dict()
    assert json.loads(json.dumps(told)) == told
    assert (told["judge"], told["outcome"]) == ("process", "world")
