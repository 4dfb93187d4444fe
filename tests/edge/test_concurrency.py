"""How many requests a server gets at once, whatever it says and whoever gives up."""

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ramify.edge.concurrency import ConcurrencyLimit
from ramify.testing.clock import run_virtual


async def taken(places: ConcurrencyLimit, number: int) -> list[int]:
    return [await places.acquire() for _ in range(number)]


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_who_comes_first_is_served_first_and_never_more_than_the_limit() -> None:
    async def main() -> None:
        places, order = ConcurrencyLimit(2), list[int]()

        async def one(number: int) -> None:
            await places.acquire()
            assert places.num <= 2
            order.append(number)
            await asyncio.sleep(1)
            places.release()

        await asyncio.gather(*(one(number) for number in range(7)))
        assert order == list(range(7))
        assert (places.num, places.num_waiting, asyncio.get_running_loop().time()) == (0, 0, 4.0)

    run_virtual(main())


def test_a_crowd_that_finds_the_server_busy_halves_the_limit_once() -> None:
    async def main() -> None:
        places = ConcurrencyLimit(64)
        for era in await taken(places, 64):
            places.shrink(era)
        assert places.limit == 32

    run_virtual(main())


def test_a_server_that_stays_busy_gets_one_at_a_time() -> None:
    async def main() -> None:
        places = ConcurrencyLimit(64)
        for _ in range(20):
            places.shrink(await places.acquire())
            places.release()
        assert places.limit == 1

    run_virtual(main())


def test_good_answers_open_half_of_what_was_too_much_at_once_and_the_rest_slowly() -> None:
    async def main() -> None:
        places = ConcurrencyLimit(64)
        for era in await taken(places, 64):
            places.shrink(era)
            places.release()
        assert places.limit == 32
        for _ in range(6):
            places.shrink(await places.acquire())
            places.release()
        assert places.limit == 1
        limits = [places.limit]
        while places.limit < 64:
            places.grow()
            limits.append(places.limit)
        assert limits.index(32) == 31
        assert 1200 < len(limits) < 1700

    run_virtual(main())


async def play(event: str, places: ConcurrencyLimit, tasks: list[asyncio.Task[int]]) -> None:
    """One thing that happens to three places."""
    waiting = [task for task in tasks if not task.done()]
    holding = held(tasks)
    match event:
        case "come":
            tasks.append(asyncio.create_task(places.acquire()))
        case "leave" if holding:
            tasks.remove(holding[0])
            places.release()
        case "give up" if waiting:
            waiting[0].cancel()
        case "shrink" if holding:
            places.shrink(holding[-1].result())
        case "grow":
            places.grow()
        case _:
            await settled()


def held(tasks: Sequence[asyncio.Task[int]]) -> list[asyncio.Task[int]]:
    return [task for task in tasks if task.done() and not task.cancelled()]


@given(st.lists(st.sampled_from(["come", "leave", "give up", "shrink", "grow", "settle"]), max_size=80))
def test_no_place_is_lost_whatever_happens(events: Sequence[str]) -> None:
    async def main() -> None:
        places, tasks = ConcurrencyLimit(3), list[asyncio.Task[int]]()

        for event in events:
            await play(event, places, tasks)
        while tasks:
            await settled()
            tasks = [task for task in tasks if not task.cancelled()]
            assert not tasks or held(tasks), "everybody waits and nobody holds a place"
            for task in held(tasks):
                tasks.remove(task)
                places.release()
        assert (places.num, places.num_waiting) == (0, 0)

    run_virtual(main())
