"""Servers that go and come back, as the requests of one engine see it; in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from ramify.core.engine import Generation, Request
from ramify.core.errors import ConfigError, EngineError, EnginesDown
from ramify.core.segment import token_array
from ramify.engines.gate import Gate
from ramify.engines.retrying import Retrying, RetryPolicy
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay
from ramify.testing.scripted import SCRIPTED, Scripted

REQUEST = Request(token_array(list(b"q")), max_tokens=10, seed=5)
POLICY = RetryPolicy()


class Server(Scripted):
    """A server that answers in a second. `fails` says how it fails a request; `is_gone` what a look at it finds."""

    def __init__(self, fails: Callable[[Request, float], str | None], is_gone: Callable[[float], bool]) -> None:
        capabilities = replace(SCRIPTED, is_deterministic=False)
        super().__init__(lambda turn: "ok", capabilities=capabilities, delay=Delay(call_s=1.0))
        self.fails = fails
        self.is_gone = is_gone
        self.tries: list[tuple[float, int]] = []
        """When a try began, and its request's seed."""
        self.looks: list[float] = []

    async def generate(self, request: Request) -> Generation:
        began = asyncio.get_running_loop().time()
        self.tries.append((began, request.seed))
        await asyncio.sleep(0.01)
        if (reason := self.fails(request, began)) is not None:
            raise EngineError(reason, "planned", is_retryable=True)
        generation = await super().generate(request)
        if (reason := self.fails(request, asyncio.get_running_loop().time())) is not None:
            raise EngineError(reason, "planned", is_retryable=True)
        return generation


class Looked(Server):
    """One that can be looked at."""

    async def connect(self) -> None:
        now = asyncio.get_running_loop().time()
        self.looks.append(now)
        if self.is_gone(now):
            raise EngineError("unreachable", "nobody there", is_retryable=True)


def until(end: float, reason: str, *, start: float = 0.0) -> Callable[[Request, float], str | None]:
    return lambda request, now: reason if start <= now < end else None


def requests(number: int) -> list[Request]:
    return [replace(REQUEST, seed=seed, request_id=f"0/{seed:016x}") for seed in range(number)]


def all_asked(server: Server, number: int, *, policy: RetryPolicy = POLICY) -> tuple[list[Any], float, Retrying]:
    """What became of requests that were made together, and when the last ended."""

    async def main() -> tuple[list[Any], float, Retrying]:
        engine = Retrying(server, policy)
        said = await asyncio.gather(*map(engine.generate, requests(number)), return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return said, asyncio.get_running_loop().time(), engine

    return run_virtual(main())


def num_answers(said: list[Any]) -> int:
    return sum(isinstance(one, Generation) for one in said)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 8, 64, 512])
@pytest.mark.parametrize("reason", ["disconnected", "engine_silent", "unreachable"])
@pytest.mark.parametrize("kind", [Server, Looked])
def test_connections_cut_together_cost_no_try(kind: type[Server], reason: str, number: int) -> None:
    server = kind(until(20.0, reason), lambda now: now < 20.0)
    said, seconds, engine = all_asked(server, number, policy=replace(POLICY, max_tries=1, min_retries=0))
    assert (num_answers(said), engine.num_retries) == (number, 0)
    assert 21.0 <= seconds < 28.0
    if isinstance(server, Looked):
        assert len(server.tries) == 2 * number, "the server is looked at, not asked by everybody"


def test_a_blip_in_which_nobody_finds_the_server_gone_costs_no_try_either() -> None:
    server = Looked(until(0.1, "disconnected"), lambda now: False)
    said, seconds, engine = all_asked(server, 256, policy=replace(POLICY, min_retries=0))
    assert (num_answers(said), engine.num_retries, len(server.looks)) == (256, 0, 1)
    assert seconds < 2.0


@pytest.mark.parametrize("reason", ["http_500", "http_502", "engine_aborted", "timeout"])
def test_other_faults_are_an_outage_if_the_server_is_gone(reason: str) -> None:
    server = Looked(until(20.0, reason), lambda now: now < 20.0)
    said, _, engine = all_asked(server, 64)
    assert (num_answers(said), engine.num_retries) == (64, 0)


def test_other_faults_of_a_server_that_is_there_are_charged() -> None:
    server = Looked(until(20.0, "http_502"), lambda now: False)
    said, _, engine = all_asked(server, 64)
    assert (num_answers(said), engine.num_retries) == (0, 10)


def test_a_request_that_is_refused_again_and_again_is_charged_and_no_other_waits_for_it() -> None:
    server = Looked(lambda request, now: "http_500" if request.seed == 3 else None, lambda now: False)
    said, _, _ = all_asked(server, 8)
    assert (num_answers(said), [one.reason for one in said if isinstance(one, EngineError)]) == (7, ["http_500"])
    assert sum(seed == 3 for _, seed in server.tries) == 3
    assert all(now == 0.0 for now, seed in server.tries if seed != 3)


def test_a_request_that_is_cut_again_and_again_is_given_up_and_the_others_go_on() -> None:
    server = Looked(lambda request, now: "disconnected" if request.seed == 3 else None, lambda now: False)
    said, _, _ = all_asked(server, 8)
    assert (num_answers(said), [one.reason for one in said if isinstance(one, EngineError)]) == (7, ["disconnected"])
    assert sum(seed == 3 for _, seed in server.tries) == 4


def test_a_request_that_takes_the_server_down_each_time_is_given_up() -> None:
    class Fragile(Looked):
        """Goes down 2 s after it has begun with one request, and cuts what else it has; the others take 1 s."""

        def __init__(self) -> None:
            super().__init__(until(0.0, ""), lambda now: False)
            self.went_down = asyncio.Event()

        async def generate(self, request: Request) -> Generation:
            if request.seed == 3:
                await asyncio.sleep(2.0)
                self.went_down.set()
                self.went_down = asyncio.Event()
                raise EngineError("disconnected", "planned", is_retryable=True)
            answering = asyncio.ensure_future(super().generate(request))
            cut = asyncio.ensure_future(self.went_down.wait())
            await asyncio.wait({answering, cut}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                answering.cancel()
                raise EngineError("disconnected", "planned", is_retryable=True)
            cut.cancel()
            return answering.result()

    async def main() -> None:
        engine = Retrying(Fragile())

        async def one_after_the_other(seeds: range) -> int:
            said = [await engine.generate(replace(REQUEST, seed=100 + seed)) for seed in seeds]
            return num_answers(list(said))

        poison = asyncio.create_task(engine.generate(replace(REQUEST, seed=3)))
        chains = [asyncio.create_task(one_after_the_other(range(n, n + 40))) for n in range(8)]
        with pytest.raises(EngineError, match="disconnected"):
            await poison
        assert await asyncio.gather(*chains) == [40] * 8

    run_virtual(main())


def test_a_server_that_stays_away_stops_everybody_at_the_limit() -> None:
    server = Looked(until(1e9, "disconnected"), lambda now: True)
    said, seconds, _ = all_asked(server, 64)
    assert all(isinstance(one, EnginesDown) for one in said)
    assert "nothing has answered for 300 s" in str(said[0])
    assert seconds == pytest.approx(300.0, abs=0.1)
    assert len(server.looks) < 60


def test_a_server_that_says_it_is_there_and_cuts_everybody_stops_everybody_at_the_limit() -> None:
    server = Looked(until(1e9, "disconnected"), lambda now: False)
    said, seconds, _ = all_asked(server, 64)
    assert all(isinstance(one, EnginesDown) for one in said)
    assert seconds == pytest.approx(300.0, abs=0.1)


def test_a_server_that_dies_again_and_again_before_it_answers_stops_everybody() -> None:
    class Dying(Looked):
        async def generate(self, request: Request) -> Generation:
            await asyncio.sleep(40.0)
            raise EngineError("disconnected", "planned", is_retryable=True)

    server = Dying(until(0.0, ""), lambda now: False)
    said, seconds, _ = all_asked(server, 16)
    assert all(isinstance(one, EnginesDown) for one in said)
    assert "went down 4 times and answered nothing in between" in str(said[0])
    assert seconds < 180


def test_new_requests_wait_while_the_server_is_known_to_be_gone() -> None:
    async def main() -> None:
        server = Looked(until(20.0, "unreachable"), lambda now: now < 20.0)
        engine = Retrying(server)
        first = [asyncio.create_task(engine.generate(request)) for request in requests(4)]
        await asyncio.sleep(5.0)
        late = [asyncio.create_task(engine.generate(replace(one, seed=one.seed + 100))) for one in requests(4)]
        await asyncio.gather(*first, *late)
        assert [now for now, seed in server.tries if seed >= 100] == [pytest.approx(22.0, abs=3.0)] * 4

    run_virtual(main())


def test_a_cut_that_is_noticed_after_the_outage_belongs_to_it() -> None:
    """A connection whose other end has vanished is noticed late, one request after the other."""
    lost = {seed: 40.0 + seed for seed in range(32)}

    class Late(Looked):
        async def generate(self, request: Request) -> Generation:
            began = asyncio.get_running_loop().time()
            if began == 0.0 and request.seed in lost:
                await asyncio.sleep(lost[request.seed])
                raise EngineError("timeout", "no answer", is_retryable=True)
            return await super().generate(request)

    async def main() -> None:
        server = Late(until(20.0, "unreachable", start=1.0), lambda now: 1.0 <= now < 20.0)
        engine = Retrying(server, replace(POLICY, min_retries=0))
        vanished = [asyncio.create_task(engine.generate(request)) for request in requests(32)]
        await asyncio.sleep(2.0)
        late = [asyncio.create_task(engine.generate(replace(one, seed=one.seed + 100))) for one in requests(4)]
        await asyncio.gather(*vanished, *late)
        assert engine.num_retries == 0

    run_virtual(main())


def waiting(then: Callable[[Retrying, list["asyncio.Task[Generation]"]], Awaitable[None]], **fields: Any) -> None:
    """Requests that wait for a server that is gone, at second 20."""

    async def main() -> None:
        engine = Retrying(Looked(until(1e9, "disconnected"), lambda now: True))
        tasks = [asyncio.create_task(engine.generate(replace(one, **fields))) for one in requests(4)]
        await asyncio.sleep(20.0)
        await then(engine, tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())


def test_whoever_leaves_while_it_looks_is_followed_by_another() -> None:
    async def leave(engine: Retrying, tasks: list["asyncio.Task[Generation]"]) -> None:
        for task in tasks[:3]:
            task.cancel()
            await asyncio.wait([task])
            num_looks = len(engine.engine.looks)  # type: ignore[attr-defined]
            await asyncio.sleep(20.0)
            assert not tasks[3].done()
            assert task is tasks[2] or len(engine.engine.looks) > num_looks  # type: ignore[attr-defined]

    waiting(leave)


def test_a_request_that_is_aborted_in_an_outage_ends_at_once_with_nothing() -> None:
    async def abort(engine: Retrying, tasks: list["asyncio.Task[Generation]"]) -> None:
        for task, request in zip(tasks[:2], requests(2), strict=True):
            await engine.abort(request.request_id)
            assert (await task).finish.kind == "abort"
        assert asyncio.get_running_loop().time() == 20.0

    waiting(abort)


def test_a_deadline_comes_in_an_outage_too() -> None:
    async def wait(engine: Retrying, tasks: list["asyncio.Task[Generation]"]) -> None:
        done, _ = await asyncio.wait(tasks)
        assert {task.exception().reason for task in done} == {"deadline"}  # type: ignore[union-attr]
        assert asyncio.get_running_loop().time() == 30.0

    waiting(wait, deadline=30.0)


class Other(Looked):
    async def connect(self) -> None:
        await super().connect()
        raise ConfigError("it runs another model")


def test_a_server_that_comes_back_with_another_model_is_not_there() -> None:
    server = Other(until(1e9, "disconnected"), lambda now: False)
    said, seconds, _ = all_asked(server, 4)
    assert all(isinstance(one, EnginesDown) for one in said)
    assert seconds == pytest.approx(300.0, abs=0.1)


def test_wrappers_are_looked_through() -> None:
    server = Looked(until(20.0, "http_500"), lambda now: now < 20.0)

    async def main() -> None:
        engine = Retrying(Gate(server))
        await asyncio.gather(*map(engine.generate, requests(64)))
        assert engine.num_retries == 0

    run_virtual(main())
