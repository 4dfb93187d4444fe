import asyncio
from contextlib import suppress

import pytest

from ramify.runner.deadline import GRACE_S, Deadlines, GaveUp, OutOfTime, finished
from ramify.testing.clock import run_virtual


async def late(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "late"


async def stubborn(seconds: float) -> str:
    """Ignores being cancelled."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        try:
            await asyncio.sleep(end - loop.time())
        except asyncio.CancelledError:
            continue
    return "stubborn"


def test_a_result_in_time_is_returned_and_an_error_raised() -> None:
    async def fail() -> str:
        raise KeyError("mine")

    async def main() -> None:
        deadlines = Deadlines()
        assert await deadlines.within(lambda: late(3), 4) == "late"
        with pytest.raises(KeyError, match="mine"):
            await deadlines.within(fail, 4)

    run_virtual(main())


def test_out_of_time_is_raised_on_the_second() -> None:
    async def main() -> float:
        with pytest.raises(OutOfTime):
            await Deadlines().within(lambda: late(3), 2)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 2


def test_code_that_ignores_its_cancellation_is_abandoned_and_its_late_result_handed_on() -> None:
    async def main() -> None:
        deadlines, unwanted = Deadlines(), list[str]()
        with pytest.raises(OutOfTime):
            await deadlines.within(lambda: stubborn(50), 2, unwanted=unwanted.append)
        assert asyncio.get_running_loop().time() == 2 + GRACE_S
        assert len(deadlines.abandoned) == 1
        await deadlines.close()
        assert asyncio.get_running_loop().time() == 2 + 2 * GRACE_S
        await asyncio.sleep(100)
        assert not deadlines.abandoned
        assert unwanted == ["stubborn"]

    run_virtual(main())


def test_cancelling_the_caller_cancels_the_work_and_a_result_of_that_moment_is_handed_on() -> None:
    async def main() -> list[str]:
        unwanted = list[str]()
        task = asyncio.create_task(Deadlines().within(lambda: late(3), 10, unwanted=unwanted.append))
        await asyncio.sleep(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return unwanted

    assert run_virtual(main()) == ["late"]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_leaving_the_process_or_cancelling_oneself_is_giving_up(error: BaseException) -> None:
    async def leave() -> None:
        raise error

    async def main() -> None:
        with pytest.raises(GaveUp):
            await Deadlines().within(leave, 1)

    run_virtual(main())


@pytest.mark.parametrize("num_cancels", [0, 1, 2])
def test_work_that_must_finish_outlives_one_cancellation(num_cancels: int) -> None:
    done: list[float] = []

    async def clean_up() -> None:
        await asyncio.sleep(3.0)
        done.append(asyncio.get_running_loop().time())

    async def main() -> float:
        task = asyncio.create_task(finished(clean_up()))
        for _ in range(num_cancels):
            await asyncio.sleep(1.0)
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled() == (num_cancels > 0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == (3.0 if num_cancels < 2 else 2.0)
    assert done == ([3.0] if num_cancels < 2 else [])
