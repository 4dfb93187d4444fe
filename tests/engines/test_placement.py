"""Where requests go: by what is cached, by load, and never by chance."""

import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.errors import ConfigError
from ramify.core.segment import Ids_T
from ramify.engines.fleet.block_keys import BlockKeys
from ramify.engines.fleet.placement import Load, PrefixPlacement, RoundRobin, Seat, placement_of

BLOCK = 4


def ids(*parts: object, end: int = 1) -> Ids_T:
    """A context of one block a part, the same for the same parts, and `end` more tokens."""
    blocks = [np.random.default_rng(zlib.crc32(repr(part).encode())).integers(0, 1000, BLOCK) for part in parts]
    return np.concatenate([*blocks, np.zeros(end)]).astype(np.int32)


class Fleet:
    """Some replicas and the rule that fills them."""

    def __init__(self, num: int, *, max_in_flight: int = 256, spare: int = 256, cache_blocks: int = 1000) -> None:
        self.load = Load(num, max_in_flight=max_in_flight, spare=spare)
        self.rule = PrefixPlacement(num, block_size=BLOCK, cache_tokens=BLOCK * cache_blocks)

    def ask(self, *parts: object, tree: int = 0) -> Seat:
        """A request that stays in flight."""
        seat = self.rule.seat(ids(*parts), tree, self.load)
        assert seat is not None
        self.load.begin(seat.replica)
        return seat

    def asked(self, *parts: object, tree: int = 0) -> Seat:
        """A request that is over at once."""
        seat = self.ask(*parts, tree=tree)
        self.load.end(seat.replica)
        return seat


# -- the rule ---------------------------------------------------------------------------------------------------------


def test_a_request_goes_where_the_most_of_its_context_is_held() -> None:
    fleet = Fleet(8)
    first = fleet.asked("q", "a", tree=3)
    fleet.ask("other", tree=first.replica)
    again = fleet.asked("q", "a", "b", "c", tree=3)
    assert (again.replica, again.num_known) == (first.replica, 2 * BLOCK)
    assert fleet.asked("q", "a", "b", "x", tree=3).num_known == 3 * BLOCK


def test_siblings_asked_for_at_once_follow_the_first_of_them() -> None:
    fleet = Fleet(8)
    assert len({fleet.ask("q", "a", tree=5).replica for _ in range(32)}) == 1


def test_what_was_sampled_is_held_where_it_was_sampled() -> None:
    fleet = Fleet(2, spare=1, max_in_flight=1)
    one, two = fleet.ask("q", tree=1), fleet.ask("q", tree=1)
    assert one.replica != two.replica
    for seat, said in ((one, "one"), (two, "two")):
        fleet.load.end(seat.replica)
        fleet.rule.computed(seat, ids("q", said, end=0))
    assert fleet.asked("q", "one", "result", tree=1).replica == one.replica
    assert fleet.asked("q", "two", "result", tree=1).replica == two.replica


def test_siblings_fill_a_replica_up_to_its_capacity_and_spill_to_one_other_at_a_time() -> None:
    fleet = Fleet(4, max_in_flight=5)
    seats = [fleet.ask("q", "a", tree=2) for _ in range(12)]
    runs = [seat.replica for seat in seats]
    assert sorted(Counter(runs).values()) == [2, 5, 5]
    assert runs == sorted(runs, key=runs.index)
    assert [index for index, seat in enumerate(seats) if seat.is_spill] == [5, 10]
    assert [seat.num_known for seat in seats] == [0, 8, 8, 8, 8, 0, 8, 8, 8, 8, 0, 8]


def test_a_replica_far_above_the_mean_is_full_below_its_capacity() -> None:
    fleet = Fleet(4, spare=4)
    runs = Counter(fleet.ask("q", "a", tree=2).replica for _ in range(60))
    assert len(runs) > 1
    assert max(runs.values()) <= 60 / 4 * 1.5 + 4


def test_a_spilled_branch_stays_where_it_went() -> None:
    fleet = Fleet(2, max_in_flight=1)
    home = fleet.ask("q", tree=1)
    away = fleet.ask("q", "a", tree=1)
    assert away.is_spill and away.replica != home.replica
    fleet.load.end(home.replica)
    fleet.load.end(away.replica)
    assert fleet.asked("q", "a", "b", tree=1).replica == away.replica


def test_where_all_are_full_requests_queue_where_their_context_is_held() -> None:
    fleet = Fleet(2, max_in_flight=2)
    homes = {tree: fleet.ask("q", tree, tree=tree).replica for tree in (0, 1)}
    assert set(homes.values()) == {0, 1}
    for _ in range(3):
        for tree, home in homes.items():
            assert fleet.ask("q", tree, tree=tree).replica == home


# -- trees ------------------------------------------------------------------------------------------------------------


def test_first_requests_of_trees_spread_though_they_share_a_preamble() -> None:
    fleet = Fleet(8)
    homes = Counter(fleet.ask("be", "brief", f"question {tree}", tree=tree * 7919).replica for tree in range(64))
    assert set(homes.values()) == {8}


def test_trees_spread_also_while_nothing_is_in_flight() -> None:
    fleet = Fleet(8)
    homes = Counter(fleet.asked("be", "brief", f"question {tree}", tree=tree).replica for tree in range(64))
    assert set(homes.values()) == {8}


def test_later_requests_of_a_tree_stay_at_home_whatever_preamble_others_share() -> None:
    fleet = Fleet(8)
    homes = {tree: fleet.asked("be", "brief", f"question {tree}", tree=tree).replica for tree in range(64)}
    for step in range(3):
        said = [f"step {i}" for i in range(step)]
        for tree, home in homes.items():
            assert fleet.asked("be", "brief", f"question {tree}", *said, tree=tree).replica == home


def test_a_preamble_is_nobodys_even_if_one_replica_alone_holds_it() -> None:
    fleet = Fleet(2)
    home = fleet.ask("be", "brief", tree=0).replica
    assert fleet.ask("be", "brief", tree=0).replica == home
    assert fleet.ask("be", "brief", tree=2).replica != home


# -- who takes requests -----------------------------------------------------------------------------------------------


def test_a_replica_that_takes_none_gets_none_and_what_it_held_is_no_spill() -> None:
    fleet = Fleet(3)
    home = fleet.asked("q", "a", tree=0).replica
    fleet.load.exclude(home)
    away = fleet.asked("q", "a", tree=0)
    assert away.replica != home
    assert (away.num_known, away.is_spill) == (0, False)
    fleet.load.admit(home)
    assert fleet.asked("q", "a", tree=0).replica in (home, away.replica)


def test_where_nobody_takes_requests_there_is_no_seat() -> None:
    fleet = Fleet(2)
    for replica in (0, 1):
        fleet.load.exclude(replica)
    assert fleet.rule.seat(ids("q"), 0, fleet.load) is None
    assert RoundRobin().seat(ids("q"), 0, fleet.load) is None


def test_what_runs_on_one_that_takes_none_is_not_part_of_the_mean() -> None:
    load = Load(2, max_in_flight=1000, spare=1)
    for _ in range(100):
        load.begin(0)
    load.exclude(0)
    assert load.limit == 1
    load.end(0)
    load.admit(0)
    assert load.limit == 99 / 2 * 1.5 + 1


def test_round_robin_passes_over_those_that_take_none() -> None:
    rule, load = RoundRobin(), Load(4)
    load.exclude(1)
    seats = [rule.seat(ids("q"), 0, load) for _ in range(5)]
    assert [seat and seat.replica for seat in seats] == [0, 2, 3, 0, 2]


# -- memory -----------------------------------------------------------------------------------------------------------


def test_a_replica_that_lost_its_cache_is_nobodys_home() -> None:
    fleet = Fleet(2)
    home = fleet.asked("q", "a", tree=0).replica
    fleet.rule.forget(home)
    fleet.load.begin(home)
    again = fleet.asked("q", "a", tree=0)
    assert (again.replica, again.num_known) == (1 - home, 0)


def test_a_replica_holds_no_more_blocks_than_its_cache_and_forgets_what_was_used_longest_ago() -> None:
    fleet = Fleet(1, cache_blocks=16)
    for number in range(5):
        fleet.asked(*[f"{number}.{i}" for i in range(4)], tree=number)
    known = [fleet.rule.seat(ids(*[f"{number}.{i}" for i in range(4)]), number, fleet.load) for number in (0, 4)]
    assert [seat and seat.num_known for seat in known] == [0, 16]


def test_what_is_used_again_is_kept() -> None:
    fleet = Fleet(1, cache_blocks=64)
    for number in range(200):
        assert fleet.asked("kept", "too", tree=1).num_known == (2 * BLOCK if number else 0)
        fleet.asked(*[f"{number}.{i}" for i in range(4)], tree=number + 2)


def test_of_a_context_longer_than_the_cache_the_beginning_is_kept() -> None:
    fleet = Fleet(1, cache_blocks=8)
    parts = [f"{i}" for i in range(20)]
    fleet.asked(*parts, tree=1)
    assert fleet.asked(*parts, tree=1).num_known == 8 * BLOCK


def test_the_last_token_is_never_held_because_it_is_always_computed() -> None:
    fleet = Fleet(1)
    fleet.rule.seat(ids("a", "b", end=0), 0, fleet.load)
    seat = fleet.rule.seat(ids("a", "b", end=0), 0, fleet.load)
    assert seat is not None
    assert seat.num_known == BLOCK


REQUESTS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), max_size=6), st.sampled_from("seclf"), st.integers(0, 2)),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=150)
@given(REQUESTS)
def test_the_memory_is_what_a_plain_one_would_be(requests: Sequence[tuple[int, list[int], str, int]]) -> None:
    """As long as nothing is forgotten for lack of room: the most held anywhere is found, and homes are kept."""
    load, rule = Load(3, spare=1000), PrefixPlacement(3, block_size=BLOCK)
    held: list[set[tuple[object, ...]]] = [set(), set(), set()]
    for tree, parts, what, replica in requests:
        match what:
            case "f":
                rule.forget(replica)
                held[replica].clear()
            case "l":
                load.exclude(replica)
            case "e":
                load.admit(replica)
            case _:
                path = [f"tree {tree}", *parts]
                seat = rule.seat(ids(*path), tree, load)
                if seat is None:
                    assert not load.takers
                    continue
                depths = [max(d for d in range(len(path) + 1) if not d or tuple(path[:d]) in h) for h in held]
                assert seat.num_known == depths[seat.replica] * BLOCK
                assert depths[seat.replica] == max(depths[i] for i in load.takers)
                if what == "c":
                    path.append("said")
                    rule.computed(seat, ids(*path, end=0))
                held[seat.replica] |= {tuple(path[:d]) for d in range(1, len(path) + 1)}


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 1), max_size=4)), max_size=40))
def test_equal_requests_get_equal_seats_in_every_process(requests: Sequence[tuple[int, list[int]]]) -> None:
    runs = []
    for _ in range(2):
        fleet = Fleet(5, max_in_flight=3, spare=1, cache_blocks=8)
        runs.append([fleet.ask(*parts, tree=tree) for tree, parts in requests])
    assert runs[0] == runs[1]


# -- keys -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**31 - 1), max_size=70), st.integers(0, 8), st.sampled_from((1, 2, 7, 8)))
def test_keys_are_those_of_the_whole_prefix_however_it_was_divided(
    tokens: list[int], num_first: int, size: int
) -> None:
    keys, context = BlockKeys(size), np.array(tokens, np.int32)
    whole = keys.of(context)
    assert len(whole) == len(tokens) // size
    assert BlockKeys(size).of(context) == whole
    first = whole[:num_first]
    assert [*first, *keys.of(context, after=first)] == whole
    assert keys.of(context[: len(context) // 2]) == whole[: len(context) // 2 // size]


@pytest.mark.parametrize("size", [1, 8])
def test_keys_of_different_prefixes_differ(size: int) -> None:
    keys, rng = BlockKeys(size), np.random.default_rng(1)
    context = rng.integers(0, 150_000, 64).astype(np.int32)
    seen = Counter(keys.of(context))
    for position in range(64):
        for token in rng.integers(0, 150_000, 20):
            if token != context[position]:
                other = context.copy()
                other[position] = token
                seen.update(keys.of(other)[position // size :])
    assert set(seen.values()) == {1}


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [0, 1, 3, -2])
def test_an_impossible_block_is_refused(block_size: int) -> None:
    with pytest.raises(ConfigError, match="block_size"):
        placement_of("prefix", 2, block_size=block_size, cache_tokens=1000)


def test_a_fleet_of_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 replicas"):
        Load(0)
