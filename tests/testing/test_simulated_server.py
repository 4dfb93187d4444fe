"""The clockwork of a simulated server: by hand, and against one that takes every step on its own."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import ConfigError
from ramify.core.segment import token_array
from ramify.testing.prefixes import KnownPrefixes
from ramify.testing.simulated_server import Job, SimulatedCosts, SimulatedServer

COSTS = SimulatedCosts(step_s=1.0, sequence_s=0.1, kv_token_s=0.001, prefill_token_s=0.01)


def server(*, max_batch: int = 4, block_size: int = 0) -> SimulatedServer:
    return SimulatedServer(COSTS, max_batch=max_batch, prefixes=KnownPrefixes(block_size))


def job(num_context: int, num_tokens: int) -> Job:
    return Job(token_array(range(num_context)), token_array([7] * num_tokens))


def ends(one: SimulatedServer) -> dict[Job, float]:
    """When each job finishes if nothing else comes."""
    times: dict[Job, float] = {}
    while (due := one.due) is not None:
        times.update(dict.fromkeys(one.advance(), due))
    return times


def test_one_sequence_takes_its_context_and_a_step_a_token() -> None:
    one, alone = server(), job(100, 3)
    one.submit(alone, 5.0)
    assert ends(one)[alone] == pytest.approx(5.0 + 100 * 0.01 + 3 * 1.1 + (100 + 101 + 102) * 0.001)
    assert (one.stats.num_steps, one.stats.num_decoded, one.stats.num_read) == (3, 3, 303)


def test_a_batch_shares_its_steps() -> None:
    one, batch = server(), [job(100, 3) for _ in range(4)]
    for sequence in batch:
        one.submit(sequence, 0.0)
    end = 4 * 100 * 0.01 + 3 * (1 + 4 * 0.1) + 4 * 303 * 0.001
    assert ends(one) == {sequence: pytest.approx(end) for sequence in batch}
    assert one.stats.mean_batch == 4


def test_who_comes_during_a_step_joins_behind_it_and_who_is_finished_leaves() -> None:
    one, first, second = server(), job(0, 3), job(0, 3)
    one.submit(first, 0.0)
    one.advance()
    one.submit(second, 0.5)
    times = ends(one)
    assert times[first] == pytest.approx(1.1 + 2 * 1.2 + (1 + 0 + 2 + 1) * 0.001)
    assert times[second] == pytest.approx(times[first] + 1.1 + 2 * 0.001)


def test_a_full_batch_lets_others_wait_in_order() -> None:
    one, jobs = server(max_batch=1), [job(0, 2) for _ in range(3)]
    for sequence in jobs:
        one.submit(sequence, 0.0)
    assert list(ends(one).values()) == pytest.approx([n * (2 * 1.1 + 0.001) for n in (1, 2, 3)])


def test_what_an_earlier_request_left_is_not_computed_again() -> None:
    one, first = server(block_size=16), job(40, 1)
    second = Job(token_array([*range(40), 7, 1, 2]), token_array([7]))
    one.submit(first, 0.0)
    ends(one)
    one.submit(second, 100.0)
    assert ends(one)[second] == pytest.approx(100 + (43 - 32) * 0.01 + 1.1 + 43 * 0.001)
    assert second.num_cached == 32
    assert (one.stats.prefill_cached, one.stats.prefill_uncached) == (32, 40 + 11)


def test_siblings_that_come_together_compute_their_context_once() -> None:
    one, siblings = server(block_size=16), [job(33, 1) for _ in range(3)]
    for sibling in siblings:
        one.submit(sibling, 0.0)
    ends(one)
    assert [sibling.num_cached for sibling in siblings] == [0, 32, 32]


def test_who_is_withdrawn_leaves_behind_the_step_under_way() -> None:
    one, kept, gone = server(), job(0, 3), job(0, 50)
    for sequence in (kept, gone):
        one.submit(sequence, 0.0)
    one.advance()
    one.withdraw(gone, 1.3)
    assert ends(one) == {kept: pytest.approx(2 * 1.2 + (0 + 2) * 0.001 + 1.1 + 2 * 0.001)}


def test_the_place_of_a_withdrawn_one_is_free_for_the_next() -> None:
    one, gone, waiting = server(max_batch=1), job(0, 50), job(0, 1)
    for sequence in (gone, waiting):
        one.submit(sequence, 0.0)
    one.advance()
    one.withdraw(gone, 0.2)
    assert ends(one) == {waiting: pytest.approx(1.1 + 1.1)}


def test_a_server_left_by_all_is_idle_at_once() -> None:
    one, running, waiting = server(max_batch=1), job(0, 50), job(0, 50)
    for sequence in (running, waiting):
        one.submit(sequence, 0.0)
    one.advance()
    one.withdraw(waiting, 0.1)
    one.withdraw(running, 0.2)
    assert one.due is None
    late = job(0, 1)
    one.submit(late, 50.0)
    assert ends(one) == {late: pytest.approx(51.1)}


def test_no_schedule_takes_less_than_full_steps() -> None:
    one = server(max_batch=2)
    for num_tokens in (2, 4):
        one.submit(job(10, num_tokens), 0.0)
    took = max(ends(one).values())
    num_read = (10 + 11) * 2 + 12 + 13
    assert one.least_s == pytest.approx(6 * (1.0 / 2 + 0.1) + num_read * 0.001 + 20 * 0.01)
    assert one.least_s < took


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_impossible_costs_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="kv_token_s"):
        SimulatedCosts(kv_token_s=value)
    with pytest.raises(ConfigError, match="max_batch = 0"):
        SimulatedServer(COSTS, max_batch=0, prefixes=KnownPrefixes(0))


# -- against steps taken one by one -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Visit:
    """One request; `leaves` is when it is withdrawn."""

    comes: float
    num_context: int
    num_tokens: int
    leaves: float = math.inf


@st.composite
def parties(draw: st.DrawFn, *, is_patient: bool) -> list[Visit]:
    """Requests that come and leave at times of their own: steps take whole milliseconds, so that no two times tie."""
    milliseconds, guests = st.integers(0, 40_000), list[Visit]()
    for i in range(draw(st.integers(0, 12))):
        comes = draw(milliseconds) / 1000 + (i + 1) * 1e-5
        leaves = math.inf if is_patient else draw(milliseconds) / 1000 + (i + 1) * 1e-5 + 5e-6
        guests.append(Visit(comes, draw(st.integers(0, 20)), draw(st.integers(1, 12)), leaves))
    return guests


ANCHOR = Visit(0.0, 3, 100)
"""Runs all the while, so that no withdrawal leaves the server empty."""


def stepped(guests: list[Visit], max_batch: int) -> dict[int, float]:
    """When each visit is answered by a server that looks around behind every single step."""
    waiting = sorted(range(len(guests)), key=lambda i: guests[i].comes)
    running: dict[int, int] = {}
    answered: dict[int, float] = {}
    now = 0.0
    while waiting or running:
        if not running:
            now = max(now, guests[waiting[0]].comes)
        prefill = 0.0
        waiting = [i for i in waiting if guests[i].leaves > max(now, guests[i].comes)]
        while waiting and len(running) < max_batch and guests[waiting[0]].comes <= now:
            running[waiting[0]] = 0
            prefill += guests[waiting.pop(0)].num_context * 0.01
        held = sum(guests[i].num_context + done for i, done in running.items())
        now += prefill + 1 + 0.1 * len(running) + 0.001 * held if running else 0.0
        running = {i: done + 1 for i, done in running.items()}
        over = {i for i, done in running.items() if done == guests[i].num_tokens and guests[i].leaves > now}
        answered |= dict.fromkeys(over, now)
        running = {i: done for i, done in running.items() if i not in over and guests[i].leaves > now}
    return answered


def jumped(guests: list[Visit], max_batch: int) -> dict[int, float]:
    """The same of `SimulatedServer`."""
    one = server(max_batch=max_batch)
    jobs = [job(guest.num_context, guest.num_tokens) for guest in guests]
    comings = [(guest.comes, i, one.submit) for i, guest in enumerate(guests) if guest.leaves > guest.comes]
    goings = [
        (guest.leaves, i, one.withdraw) for i, guest in enumerate(guests) if math.inf > guest.leaves > guest.comes
    ]
    answered: dict[int, float] = {}
    for time, i, act in [*sorted(comings + goings, key=lambda event: event[:2]), (math.inf, 0, None)]:
        while (due := one.due) is not None and due < time:
            answered.update({jobs.index(finished): due for finished in one.advance()})
        if act is not None:
            act(jobs[i], time)
    return answered


@given(parties(is_patient=True), st.integers(1, 4))
def test_jumps_end_where_single_steps_do(guests: list[Visit], max_batch: int) -> None:
    assert jumped(guests, max_batch) == pytest.approx(stepped(guests, max_batch))


@given(parties(is_patient=False), st.integers(1, 4))
def test_jumps_end_where_single_steps_do_when_some_are_withdrawn(guests: list[Visit], max_batch: int) -> None:
    guests = [ANCHOR, *guests]
    assert jumped(guests, max_batch) == pytest.approx(stepped(guests, max_batch))
