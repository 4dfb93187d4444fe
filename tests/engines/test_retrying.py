import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify.core.engine import Engine, Generation, Request
from ramify.core.errors import ConfigError, ContractError, EngineError, EnginesDown
from ramify.core.segment import token_array
from ramify.edge.patience import Patience
from ramify.edge.retries import backoff_s, too_many_retries
from ramify.engines.builtin import FOLDER, Builtin
from ramify.engines.in_front import InFront
from ramify.engines.logged import Logged
from ramify.engines.retrying import Retrying, RetryPolicy
from ramify.engines.retrying import retrying as retrying_of
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay, Fault
from ramify.testing.scripted import SCRIPTED, Scripted
from ramify.testing.scripts import ScriptedTurn

REQUEST = Request(token_array(list(b"q")), max_tokens=10, seed=5)
POLICY = RetryPolicy()
NO_DELAY = Delay()


def engine(*faults: Fault, policy: RetryPolicy = POLICY, delay: Delay = NO_DELAY) -> tuple[Scripted, Retrying]:
    inner = Scripted(lambda turn: "ok", faults=faults, delay=delay)
    return inner, Retrying(inner, policy)


def answer(retrying: Retrying) -> tuple[Generation, float]:
    async def main() -> tuple[Generation, float]:
        generation = await retrying.generate(REQUEST)
        return generation, asyncio.get_running_loop().time()

    return run_virtual(main())


def test_a_fault_that_may_pass_is_tried_again_after_a_pause() -> None:
    inner, retrying = engine(Fault("error", calls=(0, 1)))
    generation, seconds = answer(retrying)
    assert generation.ids.tolist() == [*b"ok", 256]
    assert (inner.num_calls, retrying.num_retries) == (3, 2)
    assert 0 < seconds < 0.5 + 1.0


def test_the_last_try_says_why() -> None:
    inner, retrying = engine(Fault("error", share=1.0, reason="http_502"))
    with pytest.raises(EngineError, match="http_502"):
        answer(retrying)
    assert inner.num_calls == 4


def test_a_retry_that_the_budget_forbids_names_the_setting() -> None:
    said = too_many_retries(EngineError("http_502", "answered 502"), replace(POLICY, max_retry_share=0.25))
    assert str(said).endswith("(engine.retry.max_retry_share = 0.25)")


def test_a_request_that_gives_the_same_500_three_times_is_its_own_fault() -> None:
    inner, retrying = engine(Fault("error", share=1.0, reason="http_500"))
    with pytest.raises(EngineError, match="http_500"):
        answer(retrying)
    assert inner.num_calls == 3
    inner, retrying = engine(Fault("error", share=1.0, reason="http_500", num_tries=2))
    answer(retrying)
    assert inner.num_calls == 3


def test_a_fault_that_will_not_pass_is_not_tried_again() -> None:
    inner, retrying = engine(Fault("error", share=1.0, reason="engine_400", is_retryable=False))
    with pytest.raises(EngineError, match="engine_400"):
        answer(retrying)
    assert inner.num_calls == 1


@pytest.mark.parametrize("kind", ["nan_logprobs", "wrong_length", "bad_ids", "no_tokens", "too_many_tokens"])
def test_an_unsound_generation_is_refused_and_not_repaired(kind: str) -> None:
    inner, retrying = engine(Fault(kind, calls=(0,)))  # type: ignore[arg-type]
    with pytest.raises(EngineError):
        answer(retrying)
    assert inner.num_calls == 1


def test_an_aborted_turn_is_sampled_again_and_its_tokens_are_counted_as_wasted() -> None:
    _, retrying = engine(Fault("abort", calls=(0,)))
    assert answer(retrying)[0].finish.kind == "end_of_sequence"
    assert (retrying.num_retries, retrying.num_wasted) == (1, 3)


def test_a_hang_ends_at_the_deadline_and_is_tried_again() -> None:
    policy = RetryPolicy(patience=Patience(start_s=20.0, prefill_s=1.0, token_s=2.0), base_s=0.0)
    inner, retrying = engine(Fault("hang", calls=(0,)), policy=policy)
    assert answer(retrying)[1] == 20 + 1 * 1 + 10 * 2
    assert (inner.num_calls, inner.num_active) == (2, 0)
    _, hanging = engine(Fault("hang", share=1.0), policy=policy)
    with pytest.raises(EngineError, match="engine_hang: no answer in 41 s"):
        answer(hanging)


def test_a_slow_call_that_its_size_explains_is_no_hang() -> None:
    policy = RetryPolicy(patience=Patience(start_s=1.0, prefill_s=0.0, token_s=5.0))
    _, retrying = engine(policy=policy, delay=Delay(token_s=4.0))
    assert answer(retrying)[1] == 12.0


def test_whatever_an_engine_raises_becomes_an_engine_error_but_a_broken_contract_stays_one() -> None:
    def broken(turn: ScriptedTurn) -> str:
        raise ZeroDivisionError("mine") if turn.seed == 5 else ContractError("yours")

    with pytest.raises(EngineError, match="engine_raised: ZeroDivisionError: mine"):
        answer(Retrying(Scripted(broken)))
    with pytest.raises(ContractError, match="yours"):
        run_virtual(Retrying(Scripted(broken)).generate(Request(REQUEST.ids, 1, seed=6)))


def test_cancelling_reaches_the_engine_and_is_not_tried_again() -> None:
    inner, retrying = engine(Fault("hang", share=1.0))

    async def main() -> None:
        task = asyncio.create_task(retrying.generate(REQUEST))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())
    assert (inner.num_calls, inner.num_active) == (1, 0)


def test_an_engine_that_cancels_itself_is_at_fault() -> None:
    def cancelled(turn: ScriptedTurn) -> str:
        raise asyncio.CancelledError

    with pytest.raises(EngineError, match="engine_raised: the engine cancelled the call itself"):
        answer(Retrying(Scripted(cancelled)))


# -- engines that are busy or away ------------------------------------------------------------------------------------


class Planned(InFront):
    """An engine in front of another one that raises what is planned for its calls, and notes when they came."""

    def __init__(self, error: Callable[[int, float], EngineError | None]) -> None:
        """`error` of the number of a call and the time."""
        super().__init__(Scripted(lambda turn: "ok", capabilities=replace(SCRIPTED, is_deterministic=False)))
        self.error = error
        self.calls: list[tuple[float, str]] = []

    async def generate(self, request: Request) -> Generation:
        number, now = len(self.calls), asyncio.get_running_loop().time()
        self.calls.append((now, request.request_id))
        if (error := self.error(number, now)) is not None:
            raise error
        return await self.engine.generate(request)

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.calls]


def busy(seconds: float) -> EngineError:
    return EngineError("busy", "come again", is_retryable=True, retry_after_s=seconds)


def away() -> EngineError:
    return EngineError("unreachable", "nobody there", is_retryable=True)


ONE_TRY = RetryPolicy(max_tries=1)


def test_a_busy_engine_is_asked_again_when_it_says_and_that_costs_no_try() -> None:
    planned = Planned(lambda number, now: busy(7.0) if number < 3 else None)
    retrying = Retrying(planned, ONE_TRY)
    _, seconds = answer(retrying)
    assert planned.times == [0.0, 7.0, 14.0, 21.0]
    assert (seconds, retrying.num_retries, retrying.num_waits) == (21.0, 0, 3)


def test_a_busy_engine_that_names_no_time_is_asked_less_and_less_often() -> None:
    planned = Planned(lambda number, now: busy(0.0) if now < 100 else None)
    answer(Retrying(planned, ONE_TRY))
    assert len(planned.calls) < 25


def test_no_engine_is_waited_for_longer_than_a_minute_at_a_time_or_ten_in_all() -> None:
    planned = Planned(lambda number, now: busy(1e6))
    with pytest.raises(EngineError, match="busy"):
        answer(Retrying(planned))
    assert planned.times == [60.0 * number for number in range(11)]


def test_only_the_pauses_count_as_waiting_for_a_busy_engine() -> None:
    class Slow(Planned):
        async def generate(self, request: Request) -> Generation:
            await asyncio.sleep(60.0)
            return await super().generate(request)

    planned = Slow(lambda number, now: busy(60.0) if number < 10 else None)
    assert answer(Retrying(planned, ONE_TRY))[1] == 11 * 60 + 10 * 60


def test_an_engine_that_was_away_costs_no_try() -> None:
    planned = Planned(lambda number, now: away() if now < 100 else None)
    retrying = Retrying(planned, ONE_TRY)
    _, seconds = answer(retrying)
    assert 100 <= seconds <= 130
    assert (retrying.num_retries, retrying.num_waits) == (0, len(planned.calls) - 1)


def test_an_engine_that_stays_away_stops_the_run_after_five_minutes() -> None:
    planned = Planned(lambda number, now: away())
    with pytest.raises(EnginesDown, match=r"^unreachable: nobody there; nothing has answered for 300 s$"):
        answer(Retrying(planned))
    assert planned.times[-1] == 300.0
    assert len(planned.calls) < 60


def test_how_long_an_engine_is_away_is_counted_for_all_requests_together() -> None:
    async def main(retrying: Retrying) -> None:
        async def late() -> float:
            await asyncio.sleep(200)
            with pytest.raises(EnginesDown):
                await retrying.generate(replace(REQUEST, seed=6))
            return asyncio.get_running_loop().time()

        first, second = await asyncio.gather(retrying.generate(REQUEST), late(), return_exceptions=True)
        assert isinstance(first, EnginesDown)
        assert second == pytest.approx(300, abs=31)

    run_virtual(main(Retrying(Planned(lambda number, now: away()))))


def test_time_in_which_nobody_waited_is_not_counted_as_time_away() -> None:
    planned = Planned(lambda number, now: away() if now < 50 or 1000 <= now < 1010 else None)

    async def main() -> None:
        retrying = Retrying(planned)
        first = asyncio.create_task(retrying.generate(REQUEST))
        await asyncio.sleep(20)
        first.cancel()
        await asyncio.sleep(980)
        await retrying.generate(REQUEST)
        assert 1010 <= asyncio.get_running_loop().time() < 1041

    run_virtual(main())


def test_an_answer_of_any_kind_shows_that_the_engine_is_there() -> None:
    def error(number: int, now: float) -> EngineError | None:
        if now > 500:
            return None
        return busy(20.0) if 200 < now < 240 else away()

    _, seconds = answer(Retrying(Planned(error), ONE_TRY))
    assert 500 < seconds < 531


def test_a_dying_engine_is_not_hammered() -> None:
    planned = Planned(lambda number, now: EngineError("http_502", is_retryable=True) if now < 3600 else None)

    async def main() -> None:
        retrying = Retrying(planned)
        requests = [replace(REQUEST, seed=seed) for seed in range(500)]
        failed = await asyncio.gather(*(retrying.generate(r) for r in requests), return_exceptions=True)
        assert {getattr(fault, "reason", None) for fault in failed} == {"http_502"}
        assert any("too many of the last minute's requests" in str(fault) for fault in failed)
        assert len(planned.calls) == 550
        await asyncio.sleep(3600)
        await asyncio.gather(*(retrying.generate(r) for r in requests))

    run_virtual(main())


def test_a_few_requests_have_all_their_tries() -> None:
    planned = Planned(lambda number, now: EngineError("http_502", is_retryable=True) if number < 3 else None)
    answer(Retrying(planned))
    assert len(planned.calls) == 4


def test_every_try_goes_by_the_same_id() -> None:
    faults = [busy(1.0), away(), EngineError("timeout", is_retryable=True), EngineError("http_502", is_retryable=True)]
    planned = Planned(lambda number, now: faults[number] if number < 4 else None)
    run_virtual(Retrying(planned).generate(replace(REQUEST, request_id="3/00ff")))
    assert [name for _, name in planned.calls] == ["3/00ff"] * 5


# -- deadlines and aborts ---------------------------------------------------------------------------------------------


def by(deadline: float) -> Request:
    return replace(REQUEST, request_id="3/00ff", deadline=deadline)


def generated(inner: Engine, request: Request) -> tuple[Generation | EngineError, float, Retrying]:
    """What became of a request, and when."""

    async def main() -> tuple[Generation | EngineError, float, Retrying]:
        retrying = Retrying(inner)
        try:
            said: Generation | EngineError = await retrying.generate(request)
        except EngineError as error:
            said = error
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return said, asyncio.get_running_loop().time(), retrying

    return run_virtual(main())


@pytest.mark.parametrize(("deadline", "num_tokens"), [(0.5, 0), (3.5, 0), (5.5, 1), (12.0, 4), (12.5, 4)])
def test_at_its_deadline_a_request_returns_what_it_has(deadline: float, num_tokens: int) -> None:
    inner = Scripted(lambda turn: "abcdefgh", delay=Delay(call_s=3.0, token_s=2.0), version=4)
    said, seconds, retrying = generated(inner, by(deadline))
    assert isinstance(said, Generation)
    assert (bytes(said.ids.tolist()), said.finish.kind) == (b"abcdefgh"[:num_tokens], "abort")
    assert (said.num_billed, seconds) == (num_tokens, deadline)
    assert sum(length for _, length in said.versions) == num_tokens
    assert (retrying.num_retries, retrying.num_wasted, inner.num_active) == (0, 0, 0)


def test_a_request_that_is_done_in_time_does_not_feel_its_deadline() -> None:
    said, seconds, _ = generated(Scripted(lambda turn: "ab", delay=Delay(token_s=2.0)), by(6.5))
    assert isinstance(said, Generation)
    assert (said.finish.kind, seconds) == ("end_of_sequence", 6.0)


def test_an_engine_that_hangs_even_when_told_to_end_is_left_after_a_grace() -> None:
    inner = Scripted(faults=[Fault("hang", share=1.0)])
    said, seconds, _ = generated(inner, by(30.0))
    assert isinstance(said, EngineError)
    assert (said.reason, said.is_retryable, seconds, inner.num_active) == ("deadline", False, 32.0, 0)


def test_an_engine_that_cannot_be_told_to_end_is_left_at_the_deadline() -> None:
    inner = Scripted(delay=Delay(call_s=100.0))
    said, seconds, _ = generated(Bare(inner), by(30.0))
    assert isinstance(said, EngineError)
    assert (said.reason, seconds, inner.num_active) == ("deadline", 30.0, 0)


class Bare:
    """An engine and nothing more."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.codec = engine.codec
        self.capabilities = engine.capabilities

    async def generate(self, request: Request) -> Generation:
        return await self.engine.generate(request)

    async def close(self) -> None:
        await self.engine.close()


@pytest.mark.parametrize("error", [busy(50.0), away()])
def test_a_deadline_comes_in_a_pause_too(error: EngineError) -> None:
    said, seconds, _ = generated(Planned(lambda number, now: error), by(30.0))
    assert isinstance(said, EngineError)
    assert (said.reason, seconds) == ("deadline", 30.0)
    assert str(error) in str(said)


def test_a_request_somebody_aborts_returns_what_it_has_and_wastes_nothing() -> None:
    async def main() -> None:
        retrying = Retrying(Scripted(lambda turn: "abcdefgh", delay=Delay(token_s=2.0)))
        going = asyncio.create_task(retrying.generate(by(1e6)))
        other = asyncio.create_task(retrying.generate(replace(REQUEST, request_id="3/0100")))
        await asyncio.sleep(5)
        await retrying.abort("3/00ff")
        said = await going
        assert (bytes(said.ids.tolist()), said.finish.kind) == (b"ab", "abort")
        assert (await other).finish.kind == "end_of_sequence"
        assert (retrying.num_retries, retrying.num_wasted) == (0, 0)
        await retrying.abort("nobody")

    run_virtual(main())


@pytest.mark.parametrize("error", [busy(50.0), away()])
def test_a_request_somebody_aborts_in_a_pause_ends_there_with_nothing(error: EngineError) -> None:
    async def main() -> None:
        planned = Planned(lambda number, now: error)
        retrying = Retrying(planned)
        going = asyncio.create_task(retrying.generate(replace(REQUEST, request_id="3/00ff")))
        other = asyncio.create_task(retrying.generate(replace(REQUEST, request_id="3/0100")))
        await asyncio.sleep(20)
        num_calls = len(planned.calls)
        await retrying.abort("3/00ff")
        said = await going
        assert (len(said.ids), said.finish.kind, len(planned.calls)) == (0, "abort", num_calls)
        assert asyncio.get_running_loop().time() == 20.0
        assert not other.done()
        other.cancel()

    run_virtual(main())


def test_an_abort_that_came_too_early_is_forgotten() -> None:
    inner, retrying = engine(Fault("abort", calls=(0,)))

    async def main() -> Generation:
        await retrying.abort("3/00ff")
        return await retrying.generate(replace(REQUEST, request_id="3/00ff"))

    assert run_virtual(main()).finish.kind == "end_of_sequence"
    assert (inner.num_calls, retrying.num_wasted) == (2, 3)


def test_a_request_cancelled_before_its_deadline_leaves_nothing_behind() -> None:
    inner = Scripted(delay=Delay(call_s=100.0))

    async def main() -> None:
        task = asyncio.create_task(Retrying(inner).generate(by(1e6)))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert inner.num_active == 0

    run_virtual(main())


# -- what the engine has besides --------------------------------------------------------------------------------------


async def test_the_control_side_goes_through(tmp_path: Path) -> None:
    builtin = Builtin(num_slots=2)
    control = Retrying(Logged(builtin, tmp_path / "log"))
    await control.update_weights(str(FOLDER), 3)
    request = Request(token_array(control.codec.encode("make 3")), max_tokens=2, seed=1)
    assert (await control.generate(request)).versions == ((3, 2),)
    await control.offload()
    waiting = asyncio.create_task(control.generate(request))
    await asyncio.sleep(0)
    await control.onload()
    await control.pause()
    await control.resume()
    assert len((await waiting).ids) == 2
    await control.abort("nobody")
    assert await control.is_healthy()
    await control.close()
    assert not await control.is_healthy()


async def test_what_the_engine_lacks_is_refused_by_name(tmp_path: Path) -> None:
    control = Retrying(Logged(Bare(Scripted()), tmp_path / "log"))
    calls = [control.pause, control.resume, control.offload, control.onload, control.is_healthy]
    for call in calls:
        with pytest.raises(ConfigError, match="engine 'scripted' has no control side"):
            await call()
    with pytest.raises(ConfigError, match="engine 'scripted' cannot end a request early"):
        await control.abort("a")


def test_an_engine_is_not_tried_again_twice_over() -> None:
    once = Retrying(Scripted(), ONE_TRY)
    assert retrying_of(once) is once
    assert retrying_of(once.engine).engine is once.engine
    assert retrying_of(once, RetryPolicy(max_tries=2)) is once


# -- pauses -----------------------------------------------------------------------------------------------------------


def test_pauses_grow_have_a_cap_and_follow_from_the_seed() -> None:
    def pauses(seed: int) -> list[float]:
        return [backoff_s(number, seed=seed, base_s=1.0, cap_s=4.0) for number in range(1, 6)]

    assert pauses(1) == pauses(1) != pauses(2)
    for seed in range(50):
        assert all(0 <= p <= limit for p, limit in zip(pauses(seed), [1, 2, 4, 4, 4], strict=True))


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tries": 0},
        {"max_same_500": 0},
        {"base_s": -1},
        {"max_down_s": -1},
        {"max_busy_s": float("inf")},
        {"cap_s": float("nan")},
        {"max_retry_share": 1.5},
    ],
)
def test_an_impossible_policy_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="impossible retry policy"):
        RetryPolicy(**fields)


@pytest.mark.parametrize("fields", [{"start_s": 0}, {"token_s": -1}, {"prefill_s": float("inf")}])
def test_an_impossible_patience_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="impossible patience"):
        Patience(**fields)
