"""The modelled cost of a tree, where the golden shapes do not reach: splits, probes, fresh contexts, running paths."""

from tests.strategies.world import CODEC

from ramify.core.command import Grow
from ramify.core.growth import Done, Growth, GrowthRules
from ramify.core.ledger import Spend
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.core.tree import ROOT, Step, Tree
from ramify.testing.prefill_cost import decode_if_chains, modelled_spend


def planted() -> Growth:
    tree = Tree(Problem("p", "q"), CODEC, [Segment("prompt", token_array(range(50)))], seed=1)
    return Growth(tree, rules=GrowthRules(quoting=frozenset({"critique"})))


def grow(growth: Growth, command: Grow, step: Step) -> int:
    command_id = growth.ask(command)
    growth.grow(command_id, step)
    return growth.end(command_id, Done()).nodes[0]


def leaf(num_tokens: int) -> Step:
    return Step((Segment("sampled", token_array(range(num_tokens))),), stop="answer")


def test_a_fork_inside_a_run_pays_one_token_of_prefill() -> None:
    growth = planted()
    best = grow(growth, Grow(ROOT), leaf(10))
    grow(growth, Grow(best, at=54), leaf(6))
    spend = modelled_spend(growth.tree)
    assert spend == Spend(leaves=2, engine_calls=2, decode=16, prefill_cached=53, prefill_uncached=51)
    assert decode_if_chains(growth.tree) == 20


def test_a_split_changes_no_cost() -> None:
    growth = planted()
    best = grow(growth, Grow(ROOT), leaf(10))
    before = modelled_spend(growth.tree)
    growth.tree.split(best, 53)
    assert modelled_spend(growth.tree) == before


def test_the_cache_is_used_in_whole_blocks_and_never_for_the_whole_context() -> None:
    growth = planted()
    for _ in range(2):
        grow(growth, Grow(ROOT), leaf(4))
    assert modelled_spend(growth.tree, block=1).prefill_cached == 49
    assert modelled_spend(growth.tree, block=32).prefill_cached == 32
    assert modelled_spend(growth.tree, block=50).prefill_cached == 0


def test_a_fresh_context_pays_for_its_own_prompt_only() -> None:
    growth = planted()
    answer = grow(growth, Grow(ROOT), leaf(4))
    prompt, words = Segment("prompt", token_array(range(7))), Segment("sampled", token_array(range(3)))
    step = Step((prompt, words), stop="answer", action="critique", edge="quotes", role="critique")
    grow(growth, Grow(answer, action="critique"), step)
    spend = modelled_spend(growth.tree)
    assert (spend.engine_calls, spend.decode, spend.prefill_uncached, spend.leaves) == (2, 7, 57, 1)
