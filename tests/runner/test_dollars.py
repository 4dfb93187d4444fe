"""A budget in dollars holds whoever is asked, and every engine is charged at its own prices."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.endpoint import call, calling, said
from tests.faults.test_kill import config as run_config
from tests.faults.test_kill import killed
from tests.judges.sittings import judged_by, sat
from tests.runner.parts import OneChain, Plan, grown, only_leaf
from tests.runner.test_message_runs import grown as grown_at_endpoint

from ramify.config.run_config import EngineConfig, GrowthConfig, RunConfig, StrategyConfig
from ramify.core.action import ActionConfig
from ramify.core.command import Command, Grow
from ramify.core.errors import ConfigError
from ramify.core.ledger import Spend
from ramify.core.limits import Limits
from ramify.core.prices import Prices
from ramify.core.segment import Usage
from ramify.core.tree import ROOT, Tree
from ramify.runner.folder import begin, resume
from ramify.runner.library import rollout
from ramify.runner.saved import Saved
from ramify.store.check import ledger_faults
from ramify.tasks.countdown import Countdown
from ramify.testing.clock import run_virtual
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

PRICES = Prices(prompt=2.0, cached=0.5, output=8.0)
PRICED = EngineConfig(prices=PRICES)


def total(tree: Tree) -> Spend:
    spend = Spend()
    for each in tree.spent().values():
        spend.add(each)
    return spend


def test_what_was_sampled_read_and_cached_is_charged() -> None:
    result = grown(OneChain, Scripted(chains(3)), engine=PRICED)
    spend = total(result.trees[0])
    assert spend.prefill_cached and spend.prefill_uncached
    expected = 2.0 * spend.prefill_uncached + 0.5 * spend.prefill_cached + 8.0 * spend.decode
    assert spend.dollars == pytest.approx(expected / 1e6, abs=1e-12)
    assert result.report.dollars == spend.dollars


def test_without_prices_nothing_is_said_of_costs() -> None:
    assert grown(OneChain).report.dollars is None


@pytest.mark.slow
@given(
    seed=st.integers(0, 1000),
    budget=st.floats(0.0005, 0.02),
    name=st.sampled_from(["chains", "offline", "online", "best_of_n"]),
    block_size=st.sampled_from([1, 16, 1000]),
)
@settings(max_examples=30)
def test_a_budget_in_dollars_is_never_overrun(seed: int, budget: float, name: str, block_size: int) -> None:
    config = RunConfig(
        prompts=2, seed=seed, engine=PRICED, limits=Limits(dollars=budget), strategy=StrategyConfig(name=name)
    )
    result = run_virtual(rollout(config=config, engine=Scripted(block_size=block_size), task=Countdown()))
    assert not result.report.unfinished
    for tree in result.trees:
        assert total(tree).dollars <= budget
        assert not list(ledger_faults(tree, {role: spend.as_dict() for role, spend in tree.spent().items()}))


def test_a_path_samples_no_more_than_its_dollars_pay_for() -> None:
    least = grown(OneChain, Scripted(chains(0)), engine=PRICED).report.dollars
    assert least is not None
    limits = Limits(dollars=least - 8.0 / 1e6)
    tree, leaf = only_leaf(grown(OneChain, Scripted(chains(0)), engine=PRICED, limits=limits))
    assert tree.stop(leaf) == "budget"
    assert total(tree).dollars == pytest.approx(limits.dollars)


class Two(Plan):
    """One growth by each action."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        return None if self.told else [Grow(ROOT), Grow(ROOT, action="dear")]


def test_every_action_is_charged_at_the_prices_of_its_own_engine() -> None:
    actions = {"policy": ActionConfig(), "dear": ActionConfig(engine="big", role="probe")}
    dear = Prices(prompt=20.0, cached=5.0, output=80.0)
    fields = {"engine": PRICED, "actions": actions}
    big = EngineConfig(name="scripted", prices=dear)
    spent = grown(Two, Scripted(), **fields, engines={"big": big}).trees[0].spent()
    for role, prices in (("policy", PRICES), ("probe", dear)):
        usage = Usage(0, spent[role].decode, spent[role].prefill_cached, spent[role].prefill_uncached)
        assert spent[role].picodollars == prices.cost(usage) > 0
    with pytest.raises(ConfigError, match=r"engine 'big' has none; set engines\.big\.prices\.prompt"):
        grown(Two, **fields, engines={"big": EngineConfig(name="scripted")}, limits=Limits(dollars=1.0))


def test_what_judges_sample_is_charged_and_bounded() -> None:
    found = sat(judged_by(["what?", "41"]), options={"mode": "self_reward"}, engine=PRICED, limits=Limits(dollars=0.05))
    spent = found.tree.spent()
    assert spent["judge"].picodollars > 0
    assert total(found.tree).dollars <= 0.05


@pytest.mark.parametrize("usage", [(20, 10), None])
def test_dollars_hold_at_an_endpoint_whether_or_not_the_server_counts(usage: Any) -> None:
    def model(body: Mapping[str, Any]) -> Mapping[str, Any]:
        told = None if usage is None else (usage[0], min(usage[1], body["max_tokens"]))
        return calling(call("look", '{"thing": "a"}'), usage=told)

    limits = Limits(dollars=0.004)
    result, requests = grown_at_endpoint(
        model, limits=limits, growth=GrowthConfig(max_response_tokens=4000), prices=PRICES
    )
    (tree,) = result.trees
    assert requests and 0 < total(tree).dollars <= 0.004
    assert tree.stop(tree.leaves()[0]) in ("budget", "tool_limit")


def test_small_responses_are_reserved_for_with_the_tools_that_requests_describe() -> None:
    growth = GrowthConfig(max_response_tokens=20)
    result, _ = grown_at_endpoint(
        lambda body: said("It is 3."), limits=Limits(dollars=0.01), growth=growth, prices=PRICES
    )
    assert [tree.stop(leaf) for tree in result.trees for leaf in tree.leaves()] == ["end_of_sequence"]


@pytest.mark.parametrize("after", [4, 20])
def test_a_killed_run_goes_on_with_the_dollars_it_has_left(tmp_path: Path, after: int) -> None:
    dollars = {"limits.dollars": 0.006, "engine.prices.prompt": 2.0, "engine.prices.output": 8.0}
    config = run_config("arpo", prompts=2, **dollars)
    begin(config, tmp_path / "whole")
    assert killed(config, tmp_path / "killed", after=after)
    report = resume(tmp_path / "killed")
    spent = [total(tree).dollars for tree in Saved.open(tmp_path / "whole").trees()]
    assert [total(tree).dollars for tree in Saved.open(tmp_path / "killed").trees()] == spent
    assert all(0 < dollars <= 0.006 for dollars in spent)
    assert report.dollars == pytest.approx(sum(spent))


def test_dollars_without_prices_are_refused() -> None:
    for fields in ({"limits": Limits(dollars=1.0)}, {"run_limits": Limits(dollars=1.0)}):
        with pytest.raises(ConfigError, match=r"set engine\.prices\.prompt and engine\.prices\.output"):
            grown(OneChain, **fields)


def test_a_budget_that_does_not_pay_for_one_leaf_is_refused() -> None:
    with pytest.raises(ConfigError, match="too small for the question 'p'"):
        grown(OneChain, engine=PRICED, limits=Limits(dollars=1e-5))
    with pytest.raises(ConfigError, match="too small"):
        grown(OneChain, engine=PRICED, run_limits=Limits(dollars=1e-5))
