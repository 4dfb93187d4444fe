"""What judges sample and say changes nothing about what grows, nor about the reward of what has ended."""

import pytest
from tests.runner.parts import PROBLEM

from ramify.core.codec import ByteCodec
from ramify.core.command import Grow, Judge, Judged, Score
from ramify.core.errors import ContractError
from ramify.core.growth import Done, Growth, GrowthRules, Scored
from ramify.core.segment import Segment, token_array
from ramify.core.tree import JUDGED, ROOT, Step, Tree


def growth() -> Growth:
    prompt = Segment("prompt", token_array([ord("q")]))
    return Growth(Tree(PROBLEM, ByteCodec(is_exact=True), [prompt], seed=3))


def leaf(at: Growth, *scores: Score) -> int:
    command_id = at.ask(Grow(ROOT))
    at.grow(command_id, Step((Segment("sampled", token_array([ord("a")])),), "answer", scores=scores))
    at.end(command_id, Done())
    return len(at.tree) - 1


def reply(*, edge: str = "quotes") -> Step:
    return Step((Segment("sampled", token_array([ord("9")])),), edge=edge, role="judge", action="grade")  # type: ignore[arg-type]


def judged(at: Growth, *nodes: int, steps: list[Step], attempt: int = 0) -> tuple[int, ...]:
    command_id = at.ask(Judge(nodes, "grader", attempt))
    for step in steps:
        at.grow(command_id, step)
    outcome = at.end(command_id, Scored(tuple(Score("grader", 9.0, attempt=attempt) for _ in nodes)))
    assert isinstance(outcome, Judged)
    return outcome.nodes


def test_each_fresh_context_of_a_judge_quotes_a_node_it_judges_in_their_order() -> None:
    at = growth()
    one, two = leaf(at), leaf(at)
    nodes = judged(at, one, two, steps=[reply(), reply(edge="continues"), reply(), reply()])
    assert [at.tree.parent(node) for node in nodes] == [one, nodes[0], two, two]
    assert len({at.tree.node_seed(node) for node in nodes}) == 4


def test_the_place_of_a_judges_reply_is_no_place_of_a_child() -> None:
    at = growth()
    node = leaf(at)
    before = at.tree.num_requested(node), at.tree.num_requested(ROOT)
    (first,) = judged(at, node, steps=[reply()])
    (second,) = judged(at, node, steps=[reply()], attempt=1)
    assert (at.tree.num_requested(node), at.tree.num_requested(ROOT)) == before
    assert [at.tree.index(n) for n in (first, second)] == [JUDGED, JUDGED + 1]
    assert at.tree.node_seed(first) != at.tree.node_seed(second)
    assert at.tree.is_leaf(node) and at.tree.num_leaves == 1


def test_the_reward_is_of_the_judge_that_scored_the_leaf_when_it_ended() -> None:
    at = growth()
    own, unjudged = leaf(at, Score("style", 0.2), Score("right", None)), leaf(at)
    judged(at, own, unjudged, steps=[])
    assert at.tree.reward(own) is None and at.tree.reward(unjudged) == 9.0
    at.tree.score(own, Score("right", 1.0, attempt=1))
    at.tree.score(own, Score("grader", 3.0))
    assert at.tree.reward(own) == 1.0


def test_a_judges_context_may_have_a_tokenizer_of_its_own_from_which_nothing_grows() -> None:
    own, other = ByteCodec(is_exact=True), ByteCodec()
    prompt = Segment("prompt", token_array([ord("q")]))
    rules = GrowthRules(quoting=frozenset({"again", "grade"}), codecs={"grade": other})
    at = Growth(Tree(PROBLEM, own, [prompt], seed=3, codecs=rules.codecs), rules=rules)
    one = leaf(at)
    first, second = judged(at, one, steps=[reply(), reply(edge="continues")])
    assert at.tree.branch(one).codec is own
    assert at.tree.branch(first).codec is at.tree.branch(second).codec is other
    assert [branch.codec for branch in at.tree.contexts(second)] == [own, other]
    for grow in (Grow(second), Grow(first, action="again"), Grow(one, action="grade")):
        with pytest.raises(ContractError, match="a tokenizer of its own"):
            at.ask(grow)
    at.ask(Grow(one, action="again"))
