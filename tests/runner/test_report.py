"""A report is the sum of what the trees of a run came to, and says where it does not know."""

from pathlib import Path

import msgspec
import pytest
from tests.engines.breakable import Breakable
from tests.runner.parts import OneChain, Right, Small, grown, problems

from ramify.cli.running import summary
from ramify.config.run_config import EngineConfig, StrategyConfig
from ramify.core.action import ActionConfig
from ramify.core.limits import Limits
from ramify.core.tree import Tree
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.logged import Logged
from ramify.runner.events import TreeClosed
from ramify.runner.report import RunReport
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Fault
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn


def four_chains(**options: object) -> StrategyConfig:
    return StrategyConfig(name="chains", options={"n": 4, **options})


def test_totals_are_those_of_all_trees() -> None:
    result = grown(None, Scripted(chains(0, 1, 2)), questions=problems(5), strategy=four_chains())
    report = result.report
    spent = [tree.spent()["policy"] for tree in result.trees]
    assert (report.trees, report.leaves) == (5, 20)
    assert report.decode_tokens == sum(s.decode for s in spent) > 0
    assert report.prefill_cached == sum(s.prefill_cached for s in spent) > 0
    assert report.prefill_uncached == sum(s.prefill_uncached for s in spent) > 0
    assert report.engine_calls == report.turns == sum(s.engine_calls for s in spent)
    assert report.tool_calls == sum(s.tool_calls for s in spent) == report.tools["tools/total_calls"]
    assert report.judge_calls == 20
    assert report.stop_words == {"answer": 20}
    assert report.truncated_share == 0.0
    assert report.max_rss_mb > 1


def by_tree(**answers: str) -> Scripted:
    """Tree `t0` answers the digits it is given, one a chain."""

    def rule(turn: ScriptedTurn) -> str:
        digits = answers[f"t{turn.request_id.partition('/')[0]}"]
        return f"<answer>{digits[turn.call % len(digits)]}</answer>"

    return Scripted(rule)


def test_rewards_are_counted_a_leaf_and_a_tree() -> None:
    engine = by_tree(t0="3333", t1="3111", t2="1111", t3="1111")
    report = grown(None, engine, questions=problems(4), strategy=four_chains(), max_trees=1).report
    assert report.mean_reward == 5 / 16
    assert report.coverage == 2 / 4
    assert report.mixed_groups == 1 / 4


def test_a_run_without_a_judge_says_so() -> None:
    report = grown(None, Scripted(chains(1)), task=Small(judges=()), strategy=four_chains()).report
    assert (report.mean_reward, report.coverage, report.mixed_groups) == (None, None, None)
    assert report.leaves == 4


def test_a_run_without_a_leaf_has_no_shares() -> None:
    report = grown(OneChain, Scripted(chains(1), faults=[Fault("error", share=1.0, is_retryable=False)])).report
    assert (report.leaves, report.failed_leaves, report.truncated_share, report.mean_reward) == (0, 1, None, None)


def test_cut_off_paths_are_counted_by_their_word() -> None:
    report = grown(None, Scripted(chains(2)), strategy=four_chains(), limits=Limits(decode=80)).report
    assert report.stop_words["budget"] >= 1
    assert report.truncated_share == report.stop_words["budget"] / report.leaves


def test_a_tree_that_was_not_finished_is_named_with_its_fault() -> None:
    class Moody(OneChain):
        def tell(self, tree: Tree, outcome: object) -> None:
            raise KeyError("no")

    report = grown(Moody, questions=problems(2)).report
    assert report.failed_trees == report.trees == 2
    assert set(report.unfinished) == {"p0", "p1"}


def test_a_figure_that_used_the_secret_says_so() -> None:
    assert not grown(OneChain).report.is_oracle
    assert grown(OneChain, task=Small(judges=(Right(is_oracle=True),))).report.is_oracle


def test_a_report_is_plain_data_without_its_private_sums() -> None:
    report = grown(OneChain).report
    again = msgspec.json.decode(msgspec.json.encode(report.as_dict()))
    assert again["trees"] == 1
    assert {"leaves", "decode_tokens", "prefill_cached", "prefill_uncached", "tool_calls"} < set(again)
    assert {"mean_reward", "stop_words", "seconds", "tools", "faults"} < set(again)
    assert not [name for name in again if name.startswith("_")]


# -- engines ----------------------------------------------------------------------------------------------------------


def test_a_run_of_one_engine_says_nothing_more_of_it() -> None:
    report = grown(OneChain).report
    assert report.engines == {}
    assert not [line for line in summary(report) if "requests" in line]


def test_what_each_replica_did_is_in_the_report(tmp_path: Path) -> None:
    lost = Breakable(chains(2), faults=[Fault("error", share=1.0, reason="disconnected")])
    replicas = Replicas([lost, Breakable(chains(2))], placement="round_robin", names=["left", "right"])
    engine = Logged(replicas, tmp_path / "log")
    report = grown(None, engine, questions=problems(4), strategy=four_chains()).report
    run_virtual(engine.close())
    policy = report.engines["policy"]
    assert (policy.actions, policy.requests, policy.retries) == (("policy",), report.engine_calls, 0)
    left, right = policy.replicas
    assert (left.name, left.state, left.num_failed) == ("left", "suspect", left.num_requests)
    assert policy.waits == left.num_failed > 0
    assert right.num_requests == report.engine_calls
    assert (right.prefill_cached, right.prefill_uncached) == (report.prefill_cached, report.prefill_uncached)
    said = [line for line in summary(report) if "requests" in line]
    assert [line.split(":")[0] for line in said] == ["engine policy", "  left", "  right"]
    assert "; suspect: disconnected: planned for call" in said[1]
    assert said[2].endswith("cached")
    as_json = msgspec.json.decode(msgspec.json.encode(report.as_dict()))
    assert as_json["engines"]["policy"]["replicas"][1]["num_requests"] == right.num_requests


def test_several_engines_are_told_apart_with_the_actions_that_sample_from_them() -> None:
    actions = {name: ActionConfig(engine=engine) for name, engine in (("policy", "policy"), ("second", "other"))}
    report = grown(
        OneChain, questions=problems(2), engines={"other": EngineConfig(name="scripted")}, actions=actions
    ).report
    assert {name: (each.actions, each.requests) for name, each in report.engines.items()} == {
        "policy": (("policy",), report.engine_calls),
        "other": (("second",), 0),
    }
    assert "engine other (second): 0 requests, 0 retries, 0 waits" in summary(report)


@pytest.mark.parametrize("reason", ["done", "stopped"])
def test_only_whole_trees_are_no_failures(reason: str) -> None:
    report = RunReport()
    report.observe(TreeClosed(0, grown(OneChain).trees[0], reason))
    assert report.failed_trees == (reason != "done")
    assert report.leaves == 1
