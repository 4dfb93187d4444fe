import asyncio
import socket
import threading
import time

import pytest

from ramify.core.errors import ContractError
from ramify.testing.clock import Deadlock, run_virtual


def test_a_day_passes_at_once_and_exactly() -> None:
    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    started = time.perf_counter()
    assert run_virtual(main()) == 86_400
    assert time.perf_counter() - started < 5


def test_timers_end_exactly_on_their_times_in_order() -> None:
    async def main() -> list[tuple[float, str]]:
        loop, seen = asyncio.get_running_loop(), list[tuple[float, str]]()

        async def wake(name: str, *delays: float) -> None:
            for delay in delays:
                await asyncio.sleep(delay)
                seen.append((loop.time(), name))

        await asyncio.gather(wake("a", 0.1, 0.2), wake("b", 0.2, 1000.0), wake("c", 0.05))
        return seen

    assert run_virtual(main()) == [
        (0.05, "c"),
        (0.1, "a"),
        (0.2, "b"),
        (0.1 + 0.2, "a"),
        (1000.2, "b"),
    ]


def test_a_deadline_fires_on_its_second_and_a_cancelled_timer_never() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(5.0, pytest.fail).cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(120.0):
                await asyncio.Event().wait()
        return loop.time()

    assert run_virtual(main()) == 120.0


def test_a_cancelled_timer_just_before_another_one_does_not_hold_the_clock() -> None:
    async def main() -> float:
        loop, rung = asyncio.get_running_loop(), asyncio.Event()
        loop.call_at(1.0, pytest.fail).cancel()
        loop.call_at(1.0 + 5e-7, rung.set)
        await rung.wait()
        return loop.time()

    assert run_virtual(main()) == 1.0 + 5e-7


def test_what_can_run_runs_before_time_passes() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        sleeper = asyncio.create_task(asyncio.sleep(1.0))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert loop.time() == 0.0
        await sleeper
        return loop.time()

    assert run_virtual(main()) == 1.0


def test_waiting_for_ever_is_a_deadlock_that_names_the_tasks() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait(), name="the forgotten one")

    with pytest.raises(Deadlock, match="the forgotten one at wait"):
        run_virtual(main())


def test_the_clock_stands_still_while_a_thread_works() -> None:
    released = threading.Event()

    async def main() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        loop.call_soon(released.set)
        async with asyncio.timeout(0.001):
            said = await asyncio.to_thread(lambda: "done" if released.wait(10) else "late")
        return said, loop.time()

    assert run_virtual(main()) == ("done", 0.0)


def test_real_io_is_refused() -> None:
    async def main() -> None:
        one, other = socket.socketpair()
        with one, other:
            asyncio.get_running_loop().add_reader(one, pytest.fail)

    with pytest.raises(ContractError, match="no real I/O"):
        run_virtual(main())


def test_an_error_of_the_coroutine_is_raised() -> None:
    async def main() -> None:
        await asyncio.sleep(3)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run_virtual(main())


def test_two_runs_give_the_same_times() -> None:
    async def main() -> list[float]:
        loop, times = asyncio.get_running_loop(), list[float]()

        async def one(n: int) -> None:
            await asyncio.sleep(n * 0.37 % 1)
            times.append(loop.time())

        await asyncio.gather(*(one(n) for n in range(50)))
        return times

    assert run_virtual(main()) == run_virtual(main())
