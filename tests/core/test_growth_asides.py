"""What an environment's model said in a step quotes that step, and is no part of the path."""

from ramify.core.command import Grow, Role
from ramify.core.growth import Done, Growth
from ramify.core.segment import Segment, token_array
from ramify.core.tree import Step
from ramify.testing import bare_tree


def said(text: str, *asides: Step, role: Role = "policy") -> Step:
    segment = Segment("sampled", token_array(list(text.encode())))
    return Step((segment,), edge="quotes" if role == "user" else "continues", role=role, asides=asides)


def test_replies_stand_beside_the_path() -> None:
    growth = Growth(bare_tree(seed=1))
    command = growth.ask(Grow(0))
    growth.grow(command, said("a", said("one", role="user"), said("two", role="user")))
    growth.grow(command, said("b", said("three", role="user")))
    outcome = growth.end(command, Done())
    tree = growth.tree
    first, second = outcome.nodes  # type: ignore[union-attr]
    assert tree.path(second) == [0, first, second]
    assert [tree.role(node) for node in tree.derived(first)] == ["user", "user"]
    assert len({tree.node_seed(node) for node in tree.derived(first)}) == 2
    assert len(tree.derived(second)) == 1 and tree.num_requested(second) == 0
    assert tree.leaves() == []
