"""A run ends when it is over, whatever its plug-ins think of that."""

import asyncio
import time

import pytest

from ramify.runner.loop import run


async def stubborn() -> None:
    """Ignores being cancelled."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


def test_what_a_coroutine_returns_or_raises_is_returned_or_raised() -> None:
    async def main(fault: Exception | None) -> int:
        if fault is not None:
            raise fault
        return 3

    assert run(main(None)) == 3
    with pytest.raises(ZeroDivisionError):
        run(main(ZeroDivisionError()))


def test_a_task_left_running_is_cancelled_and_waited_for() -> None:
    ends: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ends.append("tidied up")

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(tidy())
        await asyncio.sleep(0)
        return task

    assert run(main()).cancelled()
    assert ends == ["tidied up"]


def test_a_task_that_ignores_being_cancelled_is_left_behind() -> None:
    async def main() -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(stubborn()) for _ in range(2)]
        await asyncio.sleep(0)
        return tasks

    began = time.monotonic()
    tasks = run(main())
    assert time.monotonic() - began < 3
    assert not any(task.done() for task in tasks)
