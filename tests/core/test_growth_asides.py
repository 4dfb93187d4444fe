"""What an environment's model said in a step quotes that step, and is no part of the path."""

import pytest

from ramify.core.command import Grow
from ramify.core.errors import ContractError
from ramify.core.growth import Done, Growth
from ramify.core.segment import Segment, token_array
from ramify.core.tree import Step
from ramify.testing import bare_tree


def said(text: str, role: str = "policy") -> Step:
    segment = Segment("sampled", token_array(list(text.encode())))
    return Step((segment,), edge="quotes" if role == "user" else "continues", role=role)  # type: ignore[arg-type]


def test_replies_stand_beside_the_path() -> None:
    growth = Growth(bare_tree(seed=1))
    command = growth.ask(Grow(0))
    for step in (said("a"), said("one", "user"), said("two", "user"), said("b"), said("three", "user")):
        growth.grow(command, step)
    outcome = growth.end(command, Done())
    tree = growth.tree
    first, second = outcome.nodes  # type: ignore[union-attr]
    assert tree.path(second) == [0, first, second]
    assert [tree.role(node) for node in tree.derived(first)] == ["user", "user"]
    assert len({tree.node_seed(node) for node in tree.derived(first)}) == 2
    assert len(tree.derived(second)) == 1 and tree.num_requested(second) == 0
    assert tree.leaves() == []


def test_a_reply_before_its_step_is_refused() -> None:
    growth = Growth(bare_tree(seed=1))
    command = growth.ask(Grow(0))
    growth.grow(command, said("one", "user"))
    with pytest.raises(ContractError, match="comes behind the step that it belongs to"):
        growth.end(command, Done())
