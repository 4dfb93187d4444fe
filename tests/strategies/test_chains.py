"""Independent chains, and chains that are followed by others."""

import pytest
from tests.strategies.world import ListDraws, SeededWorld, bare_tree, journey, sampled_step

from ramify.core.command import Grow
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Start
from ramify.strategies.chains import Chains, ChainsConfig


def chains(**config: object) -> Chains:
    return Chains(ChainsConfig(**config), ListDraws())  # type: ignore[arg-type]


@pytest.mark.covers("S0.2", "S0.3")
def test_n_chains_grow_to_their_ends_from_one_decision() -> None:
    tree = journey(chains(n=5)).tree
    assert tree.num_leaves == len(tree.stems()) == 5
    assert [(f.rule, f.num_siblings, f.is_post_hoc) for f in tree.forks] == [("chains", 5, False)]


def test_plain_chains_are_one_ask() -> None:
    strategy = chains(n=3)
    assert strategy.is_order_free
    commands = strategy.ask(bare_tree())
    assert [(c.node, c.until) for c in commands] == [(ROOT, "end")] * 3
    assert strategy.ask(bare_tree()) == []


def test_a_chain_given_up_is_replaced_and_one_that_ended_is_not() -> None:
    tree = journey(chains(n=3, repeat="closed"), SeededWorld(prunes=True)).tree
    stops = [tree.stop(leaf) for leaf in tree.leaves()]
    assert stops.count("closed") == len(stops) - 3 > 0
    assert all(fork.is_post_hoc for fork in tree.forks[1:]), "restarts depend on tokens"


@pytest.mark.parametrize("prunes", [True, False])
def test_chains_go_on_until_the_budget_is_spent(prunes: bool) -> None:
    trip = journey(chains(n=4, repeat="budget"), SeededWorld(prunes=prunes), limits=Limits(decode=224))
    assert trip.driver.ledger.spent.decode == 224
    assert trip.tree.num_leaves > 4


def test_dead_end_restart_gives_more_chains_for_the_same_tokens() -> None:
    limits = Limits(decode=224)
    plain = journey(chains(n=4, repeat="budget"), SeededWorld(), limits=limits).tree
    pruned = journey(chains(n=4, repeat="budget"), SeededWorld(prunes=True), limits=limits).tree
    assert pruned.num_leaves > plain.num_leaves


class DeadWorld:
    """Every chain is given up after one step."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        return [sampled_step(1, entropy=0.0, stop="closed")]


def test_repeating_without_a_limit_comes_to_an_end() -> None:
    assert journey(chains(n=2, repeat="closed", max_chains=50), DeadWorld()).tree.num_leaves == 50


def test_a_failed_chain_is_not_replaced() -> None:
    trip = journey(chains(n=2, repeat="budget", max_chains=9), fails=lambda command_id: "engine_error")
    assert trip.driver.growth.num_asked == 2


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="n=0"):
        ChainsConfig(n=0)
    assert Grow(ROOT).until == "end"
