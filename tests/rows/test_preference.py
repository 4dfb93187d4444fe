"""Pairs of steps, and what steps are worth."""

import json
from pathlib import Path

import pytest
from tests.strategies.world import bare_tree, text_step

from ramify.core.command import Grow, Score
from ramify.core.growth import Done, Growth
from ramify.core.tree import ROOT, Tree
from ramify.rows.preference import pairs, record, write
from ramify.rows.values import worths


def grown(steps: dict[str, float | None]) -> Tree:
    """A tree whose paths of letters end with these rewards; None = the step is inside."""
    growth = Growth(bare_tree())
    nodes = {"": ROOT}
    for path, reward in steps.items():
        scores = () if reward is None else (Score("world", reward),)
        command = growth.ask(Grow(nodes[path[:-1]], until="step"))
        growth.grow(command, text_step(path[-1], stop=None if reward is None else "answer", scores=scores))
        nodes[path] = growth.end(command, Done()).tip  # type: ignore[union-attr]
    return growth.tree


TREE = {"a": None, "b": None, "ax": 1.0, "ay": 0.0, "az": 1.0, "bx": 0.0, "by": 0.0, "c": 0.5}


def test_a_step_is_worth_the_mean_reward_below_it() -> None:
    found = worths(grown(TREE))
    assert [round(worth.q, 3) for worth in found.values()] == [0.417, 0.667, 0.0, 0.5, 1.0, 0.0, 1.0, 0.0, 0.0]
    assert found[ROOT].num_values == 6


def test_the_best_step_of_a_place_is_paired_with_the_worst() -> None:
    found = list(pairs(grown(TREE)))
    assert [(pair.chosen, pair.rejected, round(pair.margin, 3)) for pair in found] == [("a", "b", 0.667), ("x", "y", 1)]
    assert found[1].prompt.endswith(": a")
    assert found[1].ids is not None
    assert bytes(found[1].ids[1].tolist()) == b"x"


def test_steps_that_differ_by_less_than_the_margin_make_no_pair() -> None:
    assert len(list(pairs(grown(TREE), min_margin=0.9))) == 1
    assert list(pairs(grown({"a": 0.5, "b": 0.5}), min_margin=0.0)) == []


def test_steps_that_said_the_same_make_no_pair() -> None:
    growth = Growth(bare_tree())
    for reward in (0.0, 1.0):
        command = growth.ask(Grow(ROOT, until="step"))
        growth.grow(command, text_step("same", stop="answer", scores=(Score("world", reward),)))
        growth.end(command, Done())
    assert list(pairs(growth.tree)) == []


def test_values_may_be_those_of_a_judge_of_steps() -> None:
    tree = grown({"a": None, "b": None})
    assert list(pairs(tree, judge="process")) == []
    for node, value in ((1, 0.2), (2, 0.7)):
        tree.score(node, Score("process", value))
    (pair,) = pairs(tree, judge="process")
    assert (pair.chosen, pair.margin) == ("b", pytest.approx(0.5))


def test_pairs_are_written_one_a_line(tmp_path: Path) -> None:
    assert write([grown(TREE), grown(TREE)], tmp_path / "pairs.jsonl") == 4
    lines = (tmp_path / "pairs.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == record(next(pairs(grown(TREE))))
