"""A tree is a pure function of its records."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.growths import CODEC, RULES, Live, answer, grow_randomly, same, state, turn

from ramify.core import growth
from ramify.core.codec import ByteCodec
from ramify.core.command import Fork, Grow
from ramify.core.errors import StoreError
from ramify.core.growth import Done
from ramify.core.tree import ROOT
from ramify.store import recording
from ramify.store.framing import decode, encode
from ramify.store.records import TreeRecord
from ramify.store.replay import replay, replay_each


class OtherCodec(ByteCodec):
    """A tokenizer that is not the one the trees were grown with."""

    @property
    def sha256(self) -> str:
        return "f" * 64


def grown(index: int = 0, records: list[TreeRecord] | None = None) -> Live:
    """A tree of two chains and a fork inside the first, finished."""
    live = Live(index, records)
    first, second = live.ask(Grow(ROOT, fork=Fork(2, "chains")), Grow(ROOT, fork=0))
    for step in (turn("1+1"), answer()):
        live.grow(first, step)
    live.grow(second, answer("9"))
    live.end(second)
    live.end(first)
    (third,) = live.ask(Grow(live.tree.leaves()[0], at=live.tree.length(ROOT) + 3))
    live.grow(third, answer("5"))
    live.end(third)
    live.shut()
    return live


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(0, 80))
@settings(max_examples=60, deadline=None)
@pytest.mark.covers("S0.1")
def test_a_replay_is_the_live_tree_wherever_it_stops(seed: int, num_events: int) -> None:
    rng = Random(seed)
    records: list[TreeRecord] = []
    trees = [Live(index, records) for index in (4, 0)]
    for _ in range(num_events):
        grow_randomly(rng.choice(trees), rng)
    read = [decode(encode(record)) for record in records]
    replayed = replay(read, CODEC, RULES)  # pyright: ignore
    for live in trees:
        assert state(replayed[live.index].growth) == state(live.growth)
        assert not replayed[live.index].is_closed


def test_a_replay_does_not_depend_on_how_trees_are_interleaved() -> None:
    first, second = grown(0).records, grown(1).records
    mixed = [record for pair in zip(first, second, strict=True) for record in pair]
    one_by_one = replay([*first, *second], CODEC, RULES)
    together = replay(mixed, CODEC, RULES)
    assert {i: state(r.growth) for i, r in together.items()} == {i: state(r.growth) for i, r in one_by_one.items()}


def test_a_replay_tells_what_the_strategy_asked_and_heard_in_order() -> None:
    live = Live()
    (command,) = live.ask(Grow(ROOT))
    live.grow(command, turn())
    live.grow(command, answer())
    live.end(command)
    (open_command,) = live.ask(Grow(ROOT))
    live.grow(open_command, turn())
    replayed = replay(live.records, CODEC, RULES)[0]
    assert replayed.events == [
        growth.Asked(0, (Grow(ROOT),)),
        growth.Ended(0, Done()),
        growth.Asked(1, (Grow(ROOT),)),
    ]
    assert same(replayed.steps) == same({0: [turn(), answer()], 1: [turn()]})
    assert list(replayed.growth.flights) == [open_command]
    assert same(replayed.growth.flights[open_command].steps) == same([turn()])
    assert (replayed.is_closed, replayed.reason) == (False, "")


def test_a_closed_tree_keeps_its_reason_and_lets_its_steps_go() -> None:
    replayed = replay(grown().records, CODEC, RULES)[0]
    assert (replayed.is_closed, replayed.reason, replayed.steps) == (True, "done", {})
    assert replayed.tree.num_leaves == 3


def test_trees_can_be_replayed_one_at_a_time() -> None:
    records = [*grown(0).records, *grown(1).records[:-1], *grown(2).records]
    each = list(replay_each(records, CODEC, RULES))
    assert [(tree.index, tree.is_closed) for tree in each] == [(0, True), (2, True), (1, False)]
    assert [state(tree.growth) for tree in each] == [state(grown(index).growth) for index in (0, 2, 1)]


def test_a_finished_tree_with_any_record_left_out_is_refused() -> None:
    records = grown().records
    for missing in range(len(records) - 1):
        with pytest.raises(StoreError, match="tree 0"):
            replay([*records[:missing], *records[missing + 1 :]], CODEC, RULES)


def test_records_that_do_not_follow_are_refused() -> None:
    records = grown().records
    opened = records[0]
    with pytest.raises(StoreError, match="tree 0 was opened twice"):
        replay([opened, opened], CODEC, RULES)
    with pytest.raises(StoreError, match="record of tree 0, which was never opened"):
        replay(records[1:], CODEC, RULES)
    with pytest.raises(StoreError, match="a record follows its closing"):
        replay([*records, records[-1]], CODEC, RULES)
    with pytest.raises(StoreError, match="the record says command 0, and the replay comes to 2"):
        replay([*records[:2], *records[1:2]], CODEC, RULES)
    with pytest.raises(StoreError, match="the record says number of leaves 9, and the replay comes to 3"):
        replay([*records[:-1], recording.shut(0, "done", 9)], CODEC, RULES)


def test_another_tokenizer_is_refused() -> None:
    with pytest.raises(StoreError, match="use the model and tokenizer that began the run"):
        replay(grown().records, OtherCodec(), RULES)
