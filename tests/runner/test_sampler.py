"""What an engine is asked for: no more than any limit leaves, by the action's own law, and measured as wanted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.runner.parts import PROBLEM, Listening, OneChain, Plan, grown, only_leaf, tip

from ramify.config.run_config import GrowthConfig
from ramify.core.action import ActionConfig
from ramify.core.command import Command, Fork, Grow, Tokens
from ramify.core.engine import Engine, Request
from ramify.core.limits import Limits
from ramify.core.segment import Finish, Sampling
from ramify.core.tree import ROOT, Tree
from ramify.runner.sampler import affinity
from ramify.strategies.parts.entropy import STEP_ENTROPY, initial_entropy, step_entropy_topk
from ramify.testing.planned_faults import Delay, Fault
from ramify.testing.policies import chains
from ramify.testing.scripted import SCRIPTED, Scripted
from ramify.testing.scripts import Speech

PROMPT = len("<|user|>make 3 from 1 2<|end|><|assistant|>")


def requests(engine: Scripted, plan: type[Plan] = OneChain, **fields: Any) -> list[Request]:
    """What a run of one tree asked its engine for."""
    listening = Listening(engine)
    grown(plan, listening, **fields)
    return listening.requests


class Measured(OneChain):
    measures = frozenset({STEP_ENTROPY})


# -- room -------------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S0.3")
def test_a_request_may_use_what_the_response_has_left() -> None:
    asked = requests(Scripted(chains(2)), growth=GrowthConfig(max_response_tokens=150))
    assert [r.max_tokens + len(r.ids) - PROMPT for r in asked] == [150] * 3
    assert len({len(r.ids) for r in asked}) == 3


def test_a_request_may_use_what_the_context_has_left() -> None:
    engine = Scripted(chains(1), capabilities=replace(SCRIPTED, context_length=120))
    assert [r.max_tokens + len(r.ids) for r in requests(engine)] == [120] * 2


def test_a_request_may_use_what_the_budget_has_left() -> None:
    asked = requests(Scripted(chains(2)), limits=Limits(decode=40))
    turn = len("<calc>1/2</calc>")
    assert [r.max_tokens for r in asked] == [40, 40 - turn, 40 - 2 * turn]


def test_a_path_makes_no_more_requests_than_the_budget_has_left() -> None:
    asked = requests(Scripted(chains(5)), limits=Limits(engine_calls=3))
    assert len(asked) == 3
    tree, leaf = only_leaf(grown(OneChain, Scripted(chains(5)), limits=Limits(engine_calls=3)))
    assert tree.stop(leaf) == "budget" and tree.spent()["policy"].engine_calls == 3


def test_words_are_finished_by_no_more_requests_than_the_budget_has_left() -> None:
    class FewTokens(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            return None if self.told else [Grow(ROOT, until=Tokens(12))]

    assert len(requests(Scripted(chains(2)), FewTokens, limits=Limits(engine_calls=2))) == 2


def test_context_computed_in_a_turn_counts_against_its_next_request() -> None:
    class FewTokens(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            return None if self.told else [Grow(ROOT, until=Tokens(12))]

    limit = 3 * PROMPT
    result = grown(FewTokens, Scripted(chains(2), block_size=1000), limits=Limits(prefill_uncached=limit))
    assert result.trees[0].spent()["policy"].prefill_uncached <= limit


def test_tokens_are_asked_for_exactly_and_then_one_by_one_while_a_word_is_open() -> None:
    class FewTokens(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            return None if self.told else [Grow(ROOT, until=Tokens(12))]

    # The twelfth token of "<calc>1/2</calc>" is the third of its closing tag.
    assert [r.max_tokens for r in requests(Scripted(chains(2)), FewTokens)] == [12, 1, 1, 1, 1]


@pytest.mark.covers("S0.3")
def test_a_step_has_no_more_tokens_than_its_action_allows() -> None:
    engine = Scripted(lambda turn: "x" * 25 + "<answer>3</answer>")
    tree, leaf = only_leaf(grown(OneChain, engine, actions={"policy": ActionConfig(max_tokens=10)}))
    assert [tree.num_sampled(n) for n in tree.path(leaf)] == [0, 10, 10, 10, 10, 3]
    assert tree.stop(leaf) == "answer"
    assert tree.branch(leaf).transcript == "x" * 25 + "<answer>3</answer>"


# -- law and seeds ----------------------------------------------------------------------------------------------------


@pytest.mark.covers("S0.3")
def test_each_action_is_sampled_by_its_own_law() -> None:
    class Three(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            return None if self.told else [Grow(ROOT, action=name, fork=Fork(1, name)) for name in ACTIONS]

    sampling = [Sampling(), Sampling(0.0), Sampling(1.5, top_p=0.9, top_k=7)]
    ACTIONS = {
        name: ActionConfig(sampling=law) for name, law in zip(("policy", "greedy", "bold"), sampling, strict=True)
    }
    assert [r.sampling for r in requests(Scripted(chains(0)), Three, actions=ACTIONS)] == sampling


def test_every_turn_has_a_seed_of_its_own_that_follows_from_its_place() -> None:
    seeds = [[r.seed for r in requests(Scripted(chains(3)), seed=seed)] for seed in (1, 1, 2)]
    assert len(set(seeds[0])) == 4
    assert seeds[0] == seeds[1]
    assert not set(seeds[0]) & set(seeds[2])


def test_a_request_names_its_tree_and_what_was_sampled_before_it_in_the_same_run() -> None:
    class Steps(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            node = tip(self.told[-1]) if self.told else ROOT
            return None if len(self.told) == 3 else [Grow(node, until=Tokens(5))]

    asked = requests(Scripted(lambda turn: "abcdefghijklmno"), Steps)
    assert [r.num_run for r in asked] == [0, 5, 10]
    assert {r.affinity for r in asked} == {affinity("0")} != {affinity("1")}
    assert all(r.request_id.startswith("0/") for r in asked)
    assert all(r.stops == ("</calc>", "</answer>") for r in asked)


# -- measures ---------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S0.1")
@pytest.mark.parametrize("plan", [OneChain, Measured])
def test_top_logprobs_are_asked_for_wherever_the_engine_gives_them(plan: type[Plan]) -> None:
    assert {(r.topk, r.topk_tokens) for r in requests(Scripted(chains(1)), plan)} == {(10, 20)}


@pytest.mark.parametrize("changed", [{"max_topk": 0}, {"has_token_ids": False}])
def test_an_engine_that_gives_none_or_may_refuse_them_is_asked_only_where_the_strategy_reads_them(
    changed: dict[str, Any],
) -> None:
    engine = Scripted(chains(1), capabilities=replace(SCRIPTED, **changed))
    assert {r.topk for r in requests(engine)} == {0}


@pytest.mark.covers("S0.1")
def test_every_step_of_any_strategy_has_its_entropy_and_that_of_its_first_step() -> None:
    levels = iter([-0.5, -2.0])
    engine = Scripted(lambda turn: Speech("<calc>1/2</calc>", logprob=-0.5, topk=(next(levels, -3.0),)))
    tree, leaf = only_leaf(grown(OneChain, engine, growth=GrowthConfig(max_tool_calls=1)))
    path = tree.path(leaf)[1:]
    own = [tree.measure(node, STEP_ENTROPY) for node in path]
    assert len(own) > 1 and None not in own and own[0] != own[1]
    assert [initial_entropy(tree, node) for node in path] == [own[0]] * len(path)
    assert initial_entropy(tree, ROOT) is None


@pytest.mark.covers("S0.4")
@pytest.mark.parametrize("num_tokens", [4, 20, 30])
def test_the_entropy_of_a_step_is_that_of_its_first_twenty_tokens_however_it_was_requested(num_tokens: int) -> None:
    class Whole(Measured):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            return None if self.told else [Grow(ROOT, until=Tokens(num_tokens + 2))]

    topk = (-0.5, -1.5, -3.0)
    # Ends in "<": one token at a time until the stop word is complete or given up.
    engine = Scripted(lambda turn: Speech("x" * num_tokens + "<<y" + "z" * 40, logprob=-0.5, topk=topk))
    (tree,) = grown(Whole, engine).trees
    assert tree.num_sampled(1) == num_tokens + 3
    expected = step_entropy_topk([topk] * min(20, num_tokens + 3), 257)
    assert tree.measure(1, STEP_ENTROPY) == pytest.approx(expected, rel=1e-6)


def test_without_top_logprobs_a_step_has_no_entropy_and_not_zero() -> None:
    engine = Scripted(chains(1), capabilities=replace(SCRIPTED, max_topk=0))
    tree, leaf = only_leaf(grown(OneChain, engine))
    assert all(tree.measure(n, STEP_ENTROPY) is None for n in tree.path(leaf))


def test_an_engine_without_per_token_measures_is_not_asked_for_them() -> None:
    plain = Scripted(chains(1), capabilities=replace(SCRIPTED, measures=frozenset()))
    assert {r.measures for r in requests(plain)} == {frozenset()}
    assert {r.measures for r in requests(Scripted(chains(1)))} == {frozenset({"entropy"})}


# -- what comes back --------------------------------------------------------------------------------------------------


def test_segments_keep_what_the_engine_said_of_them() -> None:
    listening = Listening(Scripted(chains(1)))
    tree, leaf = only_leaf(grown(OneChain, listening))
    sampled = [p.segment for p in tree.branch(leaf).pieces if p.segment.is_sampled]
    for segment, request in zip(sampled, listening.requests, strict=True):
        assert segment.seed == request.seed
        assert segment.usage.num_cached + segment.usage.num_prefilled == len(request.ids)
        assert segment.source is not None
        assert (segment.source.engine, segment.source.logprobs) == ("scripted", "raw")
        assert segment.logprobs is not None
        assert np.isfinite(segment.logprobs).all()
    assert np.isnan(tree.branch(leaf).logprobs[~tree.branch(leaf).is_sampled]).all()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan_logprobs", "bad_logprobs"),
        ("wrong_length", "bad_logprobs"),
        ("bad_ids", "bad_token_ids"),
        ("no_tokens", "no_tokens"),
        ("too_many_tokens", "too_many_tokens"),
        ("abort", "engine_aborted"),
        ("hang", "engine_hang"),
    ],
)
def test_what_is_unsound_is_no_token_of_the_tree(kind: Any, reason: str) -> None:
    (tree,) = grown(OneChain, Scripted(chains(1), faults=[Fault(kind, share=1.0)])).trees
    assert [tree.stop(n) for n in tree.subtree()] == [None, "engine_error"]
    assert tree.notes(1)["reason"] == reason
    assert not tree.segments(1)


def test_a_fault_that_passes_is_not_seen() -> None:
    clean, leaf = only_leaf(grown(OneChain, Scripted(chains(1))))
    shaky, other = only_leaf(grown(OneChain, Scripted(chains(1), faults=[Fault("error", share=1.0, num_tries=2)])))
    assert clean.branch(leaf).ids.tolist() == shaky.branch(other).ids.tolist()
    assert clean.problem == shaky.problem == PROBLEM


# -- deadlines --------------------------------------------------------------------------------------------------------


def until(deadline_s: float, engine: Engine, **fields: Any) -> tuple[Tree, int]:
    return only_leaf(grown(OneChain, engine, limits=Limits(seconds=deadline_s), **fields))


def test_what_was_sampled_before_the_deadline_stays_on_the_leaf_and_is_billed() -> None:
    engine = Scripted(lambda turn: "abcdefgh<answer>3</answer>", delay=Delay(token_s=2.0))
    tree, leaf = until(11.0, engine)
    assert (tree.stop(leaf), tree.branch(leaf).transcript) == ("deadline", "abcde")
    (segment,) = [s for s in tree.segments(leaf) if s.is_sampled]
    assert (segment.finish, segment.usage.num_billed) == (Finish("abort"), 5)
    assert segment.logprobs is not None
    assert tree.spent()["policy"].decode == 5


def test_a_leaf_may_end_at_the_deadline_without_a_token() -> None:
    tree, leaf = until(3.0, Scripted(delay=Delay(call_s=5.0)))
    assert (tree.stop(leaf), tree.num_sampled(leaf)) == ("deadline", 0)
    tree, leaf = until(3.0, Scripted(faults=[Fault("hang", share=1.0)]))
    assert (tree.stop(leaf), tree.num_sampled(leaf)) == ("deadline", 0)


def test_a_turn_that_is_done_before_the_deadline_is_whole_and_no_other_begins() -> None:
    engine = Scripted(chains(3), delay=Delay(token_s=1.0))
    call = len("<calc>1/2</calc>")
    tree, leaf = until(call + 0.5, engine)
    assert (tree.stop(leaf), tree.num_sampled(leaf)) == ("deadline", 0)
    assert tree.spent()["policy"].decode == call


def test_every_request_says_by_when_it_is_wanted() -> None:
    listening = Listening(Scripted(chains(1)))
    until(7.0, listening)
    assert {request.deadline for request in listening.requests} == {7.0}
    assert {request.deadline for request in requests(Scripted(chains(1)))} == {None}
