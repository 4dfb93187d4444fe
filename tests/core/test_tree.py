"""The tree keeps what was sampled, whatever is split, and looks the same whatever came first."""

import copy
import pickle
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.codec import ByteCodec
from ramify.core.command import Fork, Grow, Score
from ramify.core.errors import ContractError
from ramify.core.growth import Done, Growth, GrowthRules
from ramify.core.problem import Problem
from ramify.core.segment import Finish, Segment, ToolCall, Usage, token_array
from ramify.core.tree import ROOT, Step, Tree

CODEC = ByteCodec(is_exact=True)
WORDS = ("</calc>", "</answer>")


def planted() -> Tree:
    prompt = Segment("prompt", token_array(CODEC.encode("make 3 from 1 2: ")))
    return Tree(Problem("p", "make 3 from 1 2"), CODEC, [prompt], seed=7)


def sampled(text: str, *, finish: Finish | None = None) -> Segment:
    ids = token_array(CODEC.encode(text))
    logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32) / 8
    return Segment("sampled", ids, logprobs=logprobs, measures={"entropy": -logprobs}, finish=finish,
                   usage=Usage(1, len(ids), 3, 2))  # fmt: skip


def observed(text: str) -> Segment:
    return Segment("given", token_array(CODEC.encode(text)), tool_call=ToolCall("calc", "1+2", result=text))


def chain(growth: Growth, *texts: str, node: int = ROOT, at: int | None = None) -> tuple[int, ...]:
    """Grow a chain of calls that ends in an answer."""
    command = growth.ask(Grow(node, at=at))
    for text in texts[:-1]:
        growth.grow(command, Step((sampled(f"<calc>{text}</calc>"), observed(f" <result>\n{text}\n</result>"))))
    growth.grow(command, Step((sampled(f"<answer>{texts[-1]}</answer>"),), stop="answer", scores=(Score("j", 1.0),)))
    outcome = growth.end(command, Done())
    return outcome.nodes


def snapshot(tree: Tree, leaf: int) -> tuple[object, ...]:
    branch = tree.branch(leaf)
    return (
        branch.ids.tolist(),
        branch.is_sampled.tolist(),
        np.nan_to_num(branch.logprobs, nan=9).tolist(),
        branch.text,
        branch.tool_calls,
        tree.stop(leaf),
        tree.scores(leaf),
    )


def test_a_fork_at_the_start_of_a_fresh_context_takes_no_turn_away() -> None:
    growth = Growth(planted(), rules=GrowthRules(quoting=frozenset({"again"})))
    command = growth.ask(Grow(ROOT, action="again"))
    opening = Segment("prompt", token_array(CODEC.encode("again: ")))
    growth.grow(command, Step((opening, sampled("so be it")), stop="answer", action="again", edge="quotes"))
    (rewrite,) = growth.end(command, Done()).nodes
    before = growth.tree.spent()["policy"].turns
    growth.ask(Grow(rewrite, at=0))
    assert growth.tree.spent()["policy"].turns == before == 1


@given(st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.covers("S0.1")
def test_split_changes_no_branch(data: st.DataObject) -> None:
    growth = Growth(planted(), rules=GrowthRules(WORDS))
    tree = growth.tree
    leaves = [chain(growth, "1+1", "2+2", "4")[-1], chain(growth, "9", "1")[-1]]
    for _ in range(6):
        before = {leaf: snapshot(tree, leaf) for leaf in leaves}
        spent = {role: s.as_dict() for role, s in tree.spent().items()}
        node = data.draw(st.sampled_from(leaves))
        at = data.draw(st.integers(0, tree.length(node)))
        with suppress(ContractError):
            leaves.append(chain(growth, "5", node=node, at=at)[-1])
        assert {leaf: snapshot(tree, leaf) for leaf in before} == before
        for leaf in leaves:
            path = tree.path(leaf)
            assert len(set(path)) == len(path)
            ids, logprobs, entropies = tree.tokens(path)
            np.testing.assert_array_equal(ids, tree.branch(leaf).ids)
            np.testing.assert_array_equal(logprobs, tree.branch(leaf).logprobs)
            np.testing.assert_array_equal(entropies, -logprobs)
            of_nodes = [(tree.ids(node), tree.logprobs(node), tree.token_measure(node, "entropy")) for node in path]
            for column, parts in zip((ids, logprobs, entropies), zip(*of_nodes, strict=True), strict=True):
                np.testing.assert_array_equal(column, np.concatenate(parts))
        if leaves[-1] in before:
            assert {role: s.as_dict() for role, s in tree.spent().items()} == spent


def test_a_branch_asked_for_again_is_the_same_and_a_split_is_seen_in_it() -> None:
    growth = Growth(planted())
    tree = growth.tree
    _, leaf = chain(growth, "1+2", "3")
    before = tree.branch(leaf)
    assert tree.branch(leaf) is before
    head = tree.split(leaf, tree.length(leaf) - 4)
    after = tree.branch(leaf)
    assert head in [piece.node for piece in after.pieces]
    assert after.ids.tolist() == before.ids.tolist()


def test_split_keeps_the_tail_id() -> None:
    growth = Growth(planted())
    first, leaf = chain(growth, "1+1", "2")
    prompt = growth.tree.length(ROOT)
    place = growth.tree.begin(9, Grow(leaf, at=prompt + 3))
    assert place is not None
    assert growth.tree.path(leaf) == [ROOT, place.parent, first, leaf]
    assert growth.tree.children(ROOT) == [place.parent]
    assert growth.tree.num_sampled(place.parent) == 3
    assert growth.tree.num_sampled(first) == len("<calc>1+1</calc>") - 3


def test_a_fork_inside_a_stop_word_moves_left_to_its_first_token() -> None:
    growth = Growth(planted(), rules=GrowthRules(WORDS))
    _, leaf = chain(growth, "1+1", "2")
    start = growth.tree.length(ROOT)
    for inside in range(10, 16):
        place = growth.flights[growth.ask(Grow(leaf, at=start + inside))].place
        assert place is not None
        assert place.position == start + len("<calc>1+1")


def test_positions_that_no_model_sampled_are_refused() -> None:
    growth = Growth(planted(), rules=GrowthRules(WORDS))
    first, leaf = chain(growth, "1+1", "2")
    inside_prompt, inside_given = 3, growth.tree.length(first) - 4
    behind_action = growth.tree.length(ROOT) + len("<calc>1+1</calc>")
    for at in (inside_prompt, inside_given, behind_action, growth.tree.length(leaf), growth.tree.length(leaf) + 1, -1):
        with pytest.raises(ContractError):
            growth.ask(Grow(leaf, at=at))


def test_the_start_of_a_branch_is_a_fork_position() -> None:
    growth = Growth(planted(), rules=GrowthRules(WORDS))
    _, leaf = chain(growth, "1+1", "2")
    prompt = growth.tree.length(ROOT)
    places = [growth.tree.begin(50 + at, Grow(leaf, at=at)) for at in (0, prompt)]
    assert [p.parent for p in places if p] == [ROOT, ROOT]


def test_queries_are_canonical_whatever_came_first() -> None:
    trees = []
    for order in ((0, 1, 2), (2, 0, 1)):
        growth = Growth(planted())
        ids = [growth.ask(Grow(ROOT, fork=fork)) for fork in (Fork(3, "chains"), 0, 0)]
        for number in order:
            growth.grow(ids[number], Step((sampled(f"answer {number}"),), stop="answer"))
            growth.end(ids[number], Done())
        trees.append([growth.tree.branch(leaf).text for leaf in growth.tree.leaves()])
    assert trees[0] == trees[1]


def test_a_second_decision_at_one_place_is_post_hoc() -> None:
    growth = Growth(planted())
    first, _ = chain(growth, "1+1", "2")
    growth.ask(Grow(first, fork=Fork(2, "again")))
    growth.ask(Grow(ROOT, fork=Fork(1, "restart")))
    assert [f.is_post_hoc for f in growth.tree.forks] == [True, True]


def test_a_step_of_a_chain_needs_no_record() -> None:
    growth = Growth(planted())
    nodes = chain(growth, "1+1", "2")
    assert [growth.tree.fork(n) for n in nodes] == [None, None]


@pytest.mark.covers("S0.1")
def test_expandable_are_the_root_and_steps_that_have_not_ended() -> None:
    growth = Growth(planted())
    first, second, leaf = chain(growth, "1+1", "2+2", "4")
    assert growth.tree.expandable() == [ROOT, first, second]
    assert growth.tree.leaves() == [leaf]
    growth.tree.close(first, "hopeless")
    assert growth.tree.expandable() == [ROOT]
    assert growth.tree.leaves() == [leaf]


def test_growing_from_an_ended_or_unknown_node_is_refused() -> None:
    growth = Growth(planted())
    first, leaf = chain(growth, "1+1", "2")
    growth.tree.close(first, "hopeless")
    for node in (leaf, first, 99, -1):
        with pytest.raises(ContractError):
            growth.ask(Grow(node))


def test_seeds_follow_the_place_not_the_id() -> None:
    one, other = Growth(planted()), Growth(planted())
    first, _ = chain(one, "1+1", "2")
    place = one.tree.begin(7, Grow(first))
    chain(other, "1+1", "2")
    chain(other, "9")
    again = other.tree.begin(7, Grow(1))
    assert place is not None
    assert again is not None
    assert place.seed == again.seed


def test_a_tree_survives_pickling() -> None:
    growth = Growth(planted(), rules=GrowthRules(WORDS))
    _, leaf = chain(growth, "1+1", "2")
    copy = pickle.loads(pickle.dumps(growth.tree))
    assert snapshot(copy, leaf) == snapshot(growth.tree, leaf)


def test_secrets_stay_out_of_the_tree() -> None:
    prompt = Segment("prompt", token_array([1]))
    tree = Tree(Problem("p", "q", secret={"gold": 3}), CODEC, [prompt], seed=1)
    assert tree.problem.secret == {}


def test_an_unknown_command_in_flight_is_refused() -> None:
    growth = Growth(planted())
    with pytest.raises(ContractError, match="not in flight"):
        growth.end(3, Done())


def test_a_run_of_several_segments_forks_at_their_borders_too() -> None:
    growth = Growth(planted())
    command = growth.ask(Grow(ROOT))
    growth.grow(command, Step((sampled("abc"), sampled("def")), stop="end_of_sequence"))
    growth.end(command, Done())
    place = growth.flights[growth.ask(Grow(1, at=growth.tree.length(ROOT) + 3))].place
    assert place is not None
    assert growth.tree.branch(place.parent).transcript == "abc"


def test_the_root_forks_at_the_start_of_its_branch() -> None:
    growth = Growth(planted())
    place = growth.flights[growth.ask(Grow(ROOT, at=0))].place
    assert place is not None
    assert place.parent == ROOT
    assert growth.tree.branch(ROOT, at=0).logprobs.tolist() == []


@pytest.mark.parametrize("is_pickled", [True, False])
def test_a_copy_of_a_tree_grows_on_its_own(is_pickled: bool) -> None:
    growth, said = Growth(planted(), rules=GrowthRules(WORDS)), list[str]()
    for number in range(9):
        other = pickle.loads(pickle.dumps(growth)) if is_pickled else copy.deepcopy(growth)
        for each, answer in ((growth, number), (other, -number)):
            chain(each, str(answer))
            branches = [each.tree.branch(leaf) for leaf in each.tree.leaves()]
            assert [branch.said for branch in branches] == [*said, f"<answer>{answer}</answer>"]
        said.append(f"<answer>{number}</answer>")
