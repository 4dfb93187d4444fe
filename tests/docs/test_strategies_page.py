"""The strategies of the documentation are complete, short, and keep to the contract."""

import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.strategies.world import CODEC, Journey, SeededWorld, journey, sampled_step, shape

from ramify.core.growth import GrowthRules
from ramify.core.segment import Segment, token_array
from ramify.core.strategy import Strategy
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Start

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "strategy.md"
BLOCKS = [
    block
    for block in re.findall(r"```python[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    if "\nclass " in block
]
"""The blocks that define a strategy."""


def example(class_name: str) -> Strategy:
    """The strategy of that name, from the block of the page that defines it."""
    block = next(block for block in BLOCKS if f"class {class_name}:" in block)
    module = ModuleType(f"example_{class_name.lower()}")
    sys.modules[module.__name__] = module
    exec(compile(block, str(PAGE), "exec"), module.__dict__)
    strategy_class = module.__dict__[class_name]
    return strategy_class(strategy_class.Config(), np.random.default_rng(0))


@pytest.mark.covers("S0.10")
def test_a_new_strategy_is_one_short_file() -> None:
    assert len(BLOCKS) == 2
    for block in BLOCKS:
        assert len([line for line in block.splitlines() if line.strip()]) < 40


def test_the_best_chain_is_forked_at_its_middle_token() -> None:
    tree = journey(example("BestHalf")).tree
    fork = tree.forks[1]
    assert tree.num_leaves == 8
    assert fork.num_siblings == 4
    assert fork.is_post_hoc
    best = max(tree.leaves(), key=lambda leaf: tree.reward(leaf) or 0)
    assert all(tree.reward(leaf) is not None for leaf in tree.leaves(fork.node))
    assert tree.reward(best) == 1.0


class QuotingWorld(SeededWorld):
    """Critiques and rewrites are one step in a context of their own."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        action = start.command.action  # type: ignore[union-attr]
        if action == "policy":
            return super().steps(tree, start)
        step = sampled_step(3, entropy=0.0, stop="answer", role="critique" if action == "critique" else "policy")
        prompt = Segment("prompt", token_array(CODEC.encode("What is wrong?")))
        return [replace(step, segments=(prompt, *step.segments), action=action, edge="quotes", scores=())]


def test_an_answer_is_criticised_rewritten_and_judged() -> None:
    rules = GrowthRules(quoting=frozenset({"critique", "rewrite"}))
    tree = journey(example("Refine"), QuotingWorld(), rules=rules, judge=lambda tree, command: [1.0]).tree
    (critique,) = tree.derived(tree.leaves()[0])
    (rewrite,) = tree.derived(critique)
    assert (tree.role(critique), tree.action(rewrite)) == ("critique", "rewrite")
    assert tree.reward(rewrite) == 1.0
    assert tree.num_leaves == 1


@pytest.mark.parametrize("name", ["BestHalf", "Refine"])
@pytest.mark.parametrize("failing", [None, 0, 1, 5])
def test_the_examples_survive_pickling_and_failures(name: str, failing: int | None) -> None:
    rules = GrowthRules(quoting=frozenset({"critique", "rewrite"}))

    def trip() -> Journey:
        fails = lambda command_id: "engine_error" if command_id == failing else None  # noqa: E731
        return Journey(example(name), QuotingWorld(), rules=rules, fails=fails)

    pickled = trip()
    while pickled.step():
        pickled.driver.strategy = pickle.loads(pickle.dumps(pickled.driver.strategy))
    assert shape(pickled.tree) == shape(trip().run().tree)
