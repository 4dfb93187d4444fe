import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.golden.mctsr import CONFIGS, played
from tests.strategies.world import bare_tree

from ramify import view
from ramify.core.errors import ConfigError
from ramify.strategies.mctsr.config import MATHBLACKBOX, MCTSrConfig

VECTORS = Path(__file__).parent.parent / "golden" / "vectors" / "search_mctsr.json"
TRACES: list[Mapping[str, Any]] = [
    case
    for case in json.loads(VECTORS.read_text("utf-8"))["cases"]
    if case["kind"] == "trace" and "crash_at_rollout" not in case["expected"]
]


def config_of(case: Mapping[str, Any]) -> MCTSrConfig:
    given = case["inputs"]
    return replace(
        CONFIGS[case["preset"]],
        selection=given["policy"],
        max_rollouts=given["rollouts"],
        max_children=given["max_children"],
        exploration=given["c"],
        scale=given.get("reward_scale", 1.0),
    )


@pytest.mark.parametrize("case", TRACES, ids=[case["name"] for case in TRACES])
@pytest.mark.covers("S2.1", "S2.5")
def test_the_stored_tree_tells_what_the_search_knew(case: Mapping[str, Any]) -> None:
    given, expected, config = case["inputs"], case["expected"], config_of(case)
    strategy, trip = played(config, given["raw_rewards"], given["draws"])
    tree = trip.tree
    nodes = [answer.node for answer in strategy.answers.answers]
    seen = [view.mctsr(tree, node, config) for node in nodes]
    assert [one.visits for one in seen] == expected["visits"]
    assert [list(one.reward_samples) for one in seen] == expected["reward_samples"]
    assert [one.parent if one.parent is None else nodes.index(one.parent) for one in seen] == expected["parents"]
    assert all(
        child in nodes and view.mctsr(tree, child, config).parent == one.node for one in seen for child in one.children
    )
    if case["preset"] == "corrected":
        assert [one.Q for one in seen] == pytest.approx(expected["q"], abs=1e-9)
        assert [one.own_q for one in seen] == pytest.approx(expected["own_q"], abs=1e-9)
    told = view.mctsr_trace(tree, config)
    assert [nodes.index(node) for node in told.selected_nodes] == expected["selected"]
    assert len(told.critiques) == len(told.refinements) == given["rollouts"]
    assert list(told.refinements) == [one.answer for one in seen[1:]]
    limit, excess = config.reward_limit, config.excess_penalty
    raw = given["raw_rewards"][: len(told.rewards)]
    assert list(told.rewards) == [value - excess if value > limit else value for value in raw]
    assert json.loads(json.dumps(seen[0].as_dict())) == seen[0].as_dict()


def test_judgements_are_visits_where_the_search_says_so() -> None:
    strategy, trip = played(replace(MATHBLACKBOX, max_rollouts=3), [20.0] * 20, [])
    for answer in strategy.answers.answers:
        seen = view.mctsr(trip.tree, answer.node, MATHBLACKBOX)
        assert seen.visits == strategy.answers.visits[answer.number] == len(seen.reward_samples)
    assert [view.mctsr(trip.tree, node, MATHBLACKBOX).parent for node in trip.tree.stems()] == [None, None]


def test_a_node_without_an_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="no answer ends at node 0"):
        view.mctsr(bare_tree(), 0)
    assert view.mctsr_trace(bare_tree()).as_dict() == {
        "critiques": [],
        "refinements": [],
        "rewards": [],
        "selected_nodes": [],
    }
