"""No command uses more than it was allowed, and what it is allowed is no more than it can use."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runner.parts import PROBLEM

from ramify.config.run_config import GrowthConfig, RunConfig, StrategyConfig
from ramify.core.action import ActionConfig
from ramify.core.codec import ByteCodec
from ramify.core.command import Close, Command, Grow, Judge, Tokens, Until
from ramify.core.errors import ContractError
from ramify.core.ledger import Spend
from ramify.core.limits import COUNTED_LIMITS
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.allowance import Allowance
from ramify.runner.driver import spend_of
from ramify.runner.library import rollout
from ramify.tasks.countdown import Countdown
from ramify.testing.clock import run_virtual
from ramify.testing.scripted import Scripted

CODEC = ByteCodec(is_exact=True)
ACTIONS = {
    "policy": ActionConfig(),
    "rewrite": ActionConfig(edge="quotes", template="again: {previous}"),
}
GROWTH = GrowthConfig(max_response_tokens=100, max_tool_calls=3)
ALLOWANCE = Allowance(GROWTH, ACTIONS, num_leaf_judges=2, max_word=8)


def tree_with_a_call() -> Tree:
    """A root of 10 tokens and a step of 20 with one call."""
    tree = Tree(PROBLEM, CODEC, [Segment("prompt", token_array(range(10)))], seed=1)
    place = tree.begin(0, Grow(ROOT))
    assert place is not None
    observation = Segment("given", token_array(range(5)), tool_call=ToolCall("calculator", "1+2"))
    tree.add(Step((Segment("sampled", token_array(range(15))), observation)), place)
    tree.end(0)
    return tree


def allowed(command: Command) -> Spend:
    tree = tree_with_a_call()
    edge = "quotes" if isinstance(command, Grow) and command.action == "rewrite" else "continues"
    return ALLOWANCE(tree, command, tree.begin(1, command, edge=edge))


@pytest.mark.parametrize(
    ("until", "decode", "turns", "calls", "requests"),
    [("end", 80, 80, 2, 4), ("step", 80, 1, 1, 1), (Tokens(10), 18, 18, 2, 18), (Tokens(500), 80, 80, 2, 36)],
)
def test_a_growth_is_allowed_what_its_path_has_left(
    until: Until, decode: int, turns: int, calls: int, requests: int
) -> None:
    num_turns = 1 if until == "step" else calls + 2
    assert allowed(Grow(1, until=until)) == Spend(
        leaves=1,
        decode=decode,
        prefill_uncached=130 * num_turns,
        engine_calls=requests,
        turns=turns,
        tool_calls=calls,
        judge_calls=2,
    )


def test_a_step_that_is_cut_may_need_requests_to_finish_a_word_where_its_engine_can_go_on() -> None:
    tree, command = tree_with_a_call(), Grow(1, until="step")
    cut = {"policy": ActionConfig(max_tokens=20)}
    place = tree.begin(1, command)
    assert Allowance(GROWTH, cut, num_leaf_judges=2, max_word=8)(tree, command, place).engine_calls == 9
    whole = Allowance(GROWTH, cut, num_leaf_judges=2, max_word=8, whole_turns=frozenset(cut))
    assert whole(tree, command, place).engine_calls == 1
    assert whole(tree, Grow(1), place).engine_calls == 4 + 80 // 20


def test_what_was_no_call_takes_none_away() -> None:
    tree = tree_with_a_call()
    place = tree.follow(1)
    correction = Segment("given", token_array(range(5)), tool_call=ToolCall("", "</calc>", "invalid"))
    last = tree.add(Step((Segment("sampled", token_array(range(5))), correction)), place)
    command = Grow(last)
    assert ALLOWANCE(tree, command, tree.begin(1, command)).tool_calls == 2


def test_a_growth_from_the_root_has_the_whole_response() -> None:
    assert allowed(Grow(ROOT)).decode == 100
    assert allowed(Grow(ROOT)).tool_calls == 3


def test_a_fresh_context_has_a_response_and_calls_of_its_own() -> None:
    spend = allowed(Grow(1, action="rewrite"))
    assert (spend.decode, spend.tool_calls) == (100, 3)


def test_a_judgement_is_allowed_one_call_a_node_and_the_rest_costs_nothing() -> None:
    assert allowed(Judge((0, 1), "right")) == Spend(judge_calls=2)
    assert allowed(Close(1, "enough")) == Spend()


def test_an_action_that_is_not_configured_is_a_broken_contract() -> None:
    with pytest.raises(ContractError, match="no such action; did you mean 'policy'"):
        allowed(Grow(1, action="polcy"))


@given(
    seed=st.integers(0, 10_000),
    max_response_tokens=st.integers(1, 200),
    max_tool_calls=st.integers(0, 4),
    max_turns=st.none() | st.integers(1, 4),
)
@settings(max_examples=30)
def test_no_command_uses_more_than_it_was_allowed(
    seed: int, max_response_tokens: int, max_tool_calls: int, max_turns: int | None
) -> None:
    growth = GrowthConfig(max_response_tokens=max_response_tokens, max_tool_calls=max_tool_calls, max_turns=max_turns)
    options = {"initial_rollouts": 2, "expansion_iterations": 2}
    config = RunConfig(prompts=2, seed=seed, growth=growth, strategy=StrategyConfig(name="offline", options=options))
    allowance = Allowance(growth, config.actions, num_leaf_judges=1, max_word=9)
    result = run_virtual(rollout(config=config, engine=Scripted(), task=Countdown()))
    assert not result.report.unfinished
    for tree in result.trees:
        for first in (n for n in tree.subtree()[1:] if tree.index(n) or tree.parent(n) == ROOT):
            used = Spend()
            for node in chain_of(tree, first):
                step = Step(tree.segments(node), tree.stop(node), scores=tree.scores(node))
                used.add(spend_of(step))
            parent = tree.parent(first)
            assert parent is not None
            most = allowance(tree, Grow(parent), tree.follow(parent))
            for name in COUNTED_LIMITS:
                if name not in ("prefill_uncached", "engine_calls"):
                    assert getattr(used, name) <= getattr(most, name), name


def chain_of(tree: Tree, node: int) -> list[int]:
    """The nodes one growth added: `node` and first continuations below it."""
    nodes = [node]
    while below := [c for c in tree.children(nodes[-1]) if tree.index(c) == 0]:
        nodes.append(below[0])
    return nodes
