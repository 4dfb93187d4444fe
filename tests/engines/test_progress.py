"""The clock of a server, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ramify.core.errors import EngineError
from ramify.engines.served.progress import PROBE_S, Progress, counted
from ramify.testing.clock import run_virtual


class Suspect:
    """A server that may give a token, and may count those it sampled."""

    def __init__(self, *, is_alive: bool = False, counts: Callable[[float], float | None] = lambda now: None) -> None:
        self.is_alive = is_alive
        self.num_probes = 0
        self._counts = counts
        self.progress = Progress(silent_s=30.0, prefill_s=0.01, probe=self.probe, count=self.count)

    async def probe(self, deadline_s: float) -> None:
        self.num_probes += 1
        if not self.is_alive:
            await asyncio.sleep(deadline_s)
            raise EngineError("timeout")

    async def count(self) -> float | None:
        return self._counts(asyncio.get_running_loop().time())

    async def request(self, seconds: float, num_context: int = 10) -> float:
        """A request that takes so long; when it ended."""
        async with self.progress.watched(num_context):
            await asyncio.sleep(seconds)
        return asyncio.get_running_loop().time()


def run(suspect: Suspect, use: Coroutine[Any, Any, Any]) -> Any:
    async def main() -> Any:
        try:
            return await use
        finally:
            await suspect.progress.close()

    return run_virtual(main())


def test_a_silent_server_fails_all_that_is_in_flight() -> None:
    suspect = Suspect()

    async def use() -> tuple[list[Any], float]:
        failed = await asyncio.gather(*(suspect.request(1000) for _ in range(3)), return_exceptions=True)
        return failed, asyncio.get_running_loop().time()

    failed, seconds = run(suspect, use())
    assert {(error.reason, error.is_retryable) for error in failed} == {("engine_silent", True)}
    assert 30 + PROBE_S <= seconds < 30 + PROBE_S + 15
    assert suspect.num_probes == 1


def test_a_server_that_gives_a_token_when_asked_is_not_silent() -> None:
    suspect = Suspect(is_alive=True)
    assert run(suspect, suspect.request(200)) == 200
    assert 1 < suspect.num_probes < 8


def test_a_count_that_rises_needs_no_probe() -> None:
    suspect = Suspect(counts=lambda now: now)
    assert run(suspect, suspect.request(200)) == 200
    assert suspect.num_probes == 0


def test_a_count_that_stands_still_saves_nobody() -> None:
    suspect = Suspect(counts=lambda now: 7.0)
    with pytest.raises(EngineError, match="engine_silent"):
        run(suspect, suspect.request(1000))


def test_a_long_context_has_longer() -> None:
    suspect = Suspect()
    assert run(suspect, suspect.request(300, num_context=30_000)) == 300
    assert suspect.num_probes == 0


def test_an_answer_of_another_request_is_a_sign_of_life() -> None:
    suspect = Suspect()

    async def use() -> float:
        async def others() -> None:
            for _ in range(30):
                await suspect.request(8)
                suspect.progress.beat()

        _, seconds = await asyncio.gather(others(), suspect.request(200))
        return seconds

    assert run(suspect, use()) == 200


def test_a_paused_server_may_be_silent() -> None:
    suspect = Suspect()

    async def use() -> float:
        suspect.progress.pause()
        assert await suspect.progress.is_working()
        seconds = await suspect.request(500)
        suspect.progress.resume()
        return seconds

    assert run(suspect, use()) == 500


def test_health_is_a_token_when_nothing_came_of_late() -> None:
    suspect = Suspect()

    async def use() -> list[bool]:
        never = await suspect.progress.is_working()
        suspect.is_alive = True
        found = [never, await suspect.progress.is_working()]
        suspect.is_alive = False
        return [*found, await suspect.progress.is_working()]

    assert run(suspect, use()) == [False, True, True]


def test_one_request_can_be_failed_from_outside() -> None:
    suspect = Suspect(is_alive=True)

    async def use() -> Any:
        async with suspect.progress.watched(1) as flight:
            flight.fail(EngineError("aborted"), after_s=3)
            await asyncio.sleep(1000)

    with pytest.raises(EngineError, match="aborted"):
        run(suspect, use())


def test_failing_a_request_that_has_ended_changes_nothing() -> None:
    async def main() -> None:
        async with Suspect().progress.watched(10) as flight:
            pass
        flight.fail(EngineError("aborted"), after_s=5.0)
        assert flight.error is None

    run_virtual(main())


def test_a_time_out_of_its_own_is_no_silence() -> None:
    suspect = Suspect(is_alive=True)

    async def use() -> None:
        async with suspect.progress.watched(1):
            raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        run(suspect, use())


def test_a_counter_is_the_sum_over_its_lines() -> None:
    page = b'# HELP a:b_total x\na:b_total{engine="0"} 5.0\na:b_total{engine="1"} 1e3\na:b_total_created 7\n'
    assert counted(page, "a:b_total") == 1005
    assert counted(page, "c") is None
    assert counted(b"c +Inf\nc eggs\nc -\nc 1e\n", "c") is None
