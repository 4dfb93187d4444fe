"""Who is in service, whatever happens at the same time: looks, orders, updates, drains and replacements that meet."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.engines.breakable import Breakable, Uncontrolled
from tests.engines.test_replicas import LONG, SECOND, ask, failure, now, states, until_ready, within

from ramify.core.engine import Generation
from ramify.core.errors import ConfigError, EngineError
from ramify.edge.patience import Patience
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.retrying import Retrying
from ramify.testing.planned_faults import Delay, Fault


class Ordered(Breakable):
    """Keeps its orders in order, and can be slow or break in the middle of an update, as vLLM does: it is paused then,
    and does not say what it is until it is resumed."""

    def __init__(self, *, update_s: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.update_s = update_s
        self.breaks: str | None = None
        """Source of weights in whose update it breaks."""
        self.loses_pause = False
        """Whether it carries a pause out and does not say so."""
        self.orders: list[str] = []

    async def connect(self) -> None:
        await super().connect()
        if self.is_paused:
            raise EngineError("paused", "resume it first")

    async def pause(self) -> None:
        await super().pause()
        self.orders.append("pause")
        if self.loses_pause:
            raise EngineError("timeout", "no answer", is_retryable=True)

    async def resume(self) -> None:
        await super().resume()
        self.orders.append("resume")

    async def update_weights(self, source: str, version: int) -> None:
        await asyncio.sleep(self.update_s)
        if source == self.breaks:
            self.is_paused, self.breaks = True, None
            raise EngineError("http_500", "it broke", is_retryable=True)
        await super().update_weights(source, version)
        self.orders.append(source)


async def settled(replicas: Replicas, seconds: float = 10.0) -> list[str]:
    """States after some time."""
    await asyncio.sleep(seconds)
    return states(replicas)


async def begun(work: Awaitable[Any], seconds: float = 0.0) -> "asyncio.Task[Any]":
    """Work that has been going on for so long."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(seconds)
    return task


# -- looks ------------------------------------------------------------------------------------------------------------


def test_a_look_that_nobody_answers_is_given_up_and_repeated() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines, patience=Patience(5.0, 0.0, 0.0))

    async def use() -> None:
        engines[0].down = "hang"
        assert (await failure(replicas, ask(affinity=0))).reason == "engine_hang"
        assert now() == 5.0
        await asyncio.sleep(1)
        engines[0].down = None
        assert await until_ready(replicas) < 20

    within(replicas, use)


def test_a_server_that_hangs_when_it_is_asked_what_it_is_holds_up_no_run() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines, patience=Patience(5.0, 0.0, 0.0))

    async def use() -> None:
        engines[0].down = "hang"
        await replicas.connect()
        assert (now(), states(replicas)) == (5.0, ["suspect", "ready"])
        assert "did not say in 5 s what it is" in replicas.stats[0].fault

    within(replicas, use)


def test_a_replica_that_raises_whatever_it_is_asked_does_not_get_everything() -> None:
    def broken(turn: object) -> str:
        raise ZeroDivisionError("mine")

    replicas = Replicas([Breakable(broken), Breakable()])

    async def use() -> None:
        for seed in range(3):
            error = await failure(replicas, ask(affinity=0, seed=seed))
            assert (error.reason, error.is_retryable) == ("engine_raised", False)
        assert await settled(replicas) == ["suspect", "ready"]

    within(replicas, use)


def test_a_replica_rests_for_a_minute_at_most() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].busy_s = 1e6
        await failure(replicas, ask(affinity=0))
        engines[0].busy_s = None
        await asyncio.sleep(60)
        await replicas.generate(ask(affinity=0))
        assert states(replicas) == ["ready", "ready"]

    within(replicas, use)


def test_one_that_is_well_is_enough_for_the_fleet_to_be() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].down = "timeout"
        assert await replicas.is_healthy()
        engines[1].is_unwell = True
        assert not await replicas.is_healthy()

    within(replicas, use)


# -- orders that meet looks -------------------------------------------------------------------------------------------


def test_a_replica_that_is_found_well_while_all_sleep_is_let_in_when_they_are_awake() -> None:
    engines = [Breakable(delay=SECOND), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].down = "timeout"
        await failure(replicas, ask(affinity=0))
        engines[0].down = None
        await asyncio.sleep(0.5)
        assert engines[0].inner.num_active == 1
        await replicas.offload()
        assert await settled(replicas) == ["suspect", "ready"]
        await replicas.onload()
        await until_ready(replicas)

    within(replicas, use)


def test_an_order_that_is_refused_puts_nobody_to_sleep() -> None:
    replicas = Replicas([Uncontrolled(faults=[Fault("error", calls=(0,), reason="timeout")]), Uncontrolled()])

    async def use() -> None:
        await failure(replicas, ask(affinity=0))
        with pytest.raises(ConfigError, match="no control side"):
            await replicas.pause()
        await until_ready(replicas)

    within(replicas, use)


def test_an_order_that_fails_everywhere_wakes_nobody_who_sleeps() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].down = "timeout"
        await failure(replicas, ask(affinity=0))
        await replicas.pause()
        engines[0].down, engines[1].down = None, "timeout"
        num_looks = len(engines[0].looks)
        with pytest.raises(EngineError):
            await replicas.offload()
        await asyncio.sleep(100)
        assert len(engines[0].looks) <= num_looks + 1

    within(replicas, use)


@pytest.mark.parametrize("away_s", [0.1, 100.0])
def test_a_replica_that_was_paused_is_woken_however_long_it_was_out_of_reach(away_s: float) -> None:
    engines = [Ordered(), Ordered()]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.pause()
        engines[0].down = "timeout"
        await replicas.resume()
        await asyncio.sleep(away_s)
        engines[0].down = None
        await until_ready(replicas)
        assert not engines[0].is_paused

    within(replicas, use)


def test_a_pause_whose_answer_was_lost_is_undone_as_well() -> None:
    engines = [Ordered(), Ordered()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].loses_pause = True
        await replicas.pause()
        assert states(replicas) == ["suspect", "ready"]
        await replicas.resume()
        await until_ready(replicas)
        assert not engines[0].is_paused

    within(replicas, use)


# -- weights ----------------------------------------------------------------------------------------------------------


def test_a_server_that_cannot_say_its_weights_and_was_back_before_anybody_looked_gets_them_again() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.connect()
        await replicas.update_weights("step-1", 1)
        engines[0].die()
        await failure(replicas, ask(affinity=0))
        engines[0].come_back()
        await until_ready(replicas)
        assert engines[0].loaded == [("step-1", 1)] * 2

    within(replicas, use)


def test_a_replica_that_broke_in_an_update_samples_nothing_until_its_weights_are_whole() -> None:
    engines = [Ordered(version=0, delay=Delay(call_s=50.0)), Ordered(version=0, delay=SECOND)]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.update_weights("step-1", 1)
        held = await begun(failure(replicas, ask(affinity=0)), 1.0)
        engines[0].breaks = "step-2"
        await replicas.update_weights("step-2", 2)
        assert states(replicas) == ["stale", "ready"]
        error = await held
        assert (error.reason, error.retry_after_s, now()) == ("disconnected", 0.0, 1.0)
        await until_ready(replicas)
        assert engines[0].orders == ["step-1", "step-2", "resume"]
        assert engines[1].orders == ["step-1", "step-2"]

    within(replicas, use)


def test_weights_that_are_refused_leave_what_runs_alone() -> None:
    class Picky(Breakable):
        async def update_weights(self, source: str, version: int) -> None:
            raise ConfigError("they do not fit")

    engines = [Picky(delay=Delay(call_s=50.0)), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        held = await begun(replicas.generate(ask(affinity=0)), 1.0)
        await replicas.update_weights("step-1", 1)
        assert states(replicas) == ["stale", "ready"]
        assert (await held).ids.tolist() == [*b"ok", 256]

    within(replicas, use)


def test_weights_that_were_acknowledged_nowhere_do_not_stay_with_a_replica_that_was_mended_meanwhile() -> None:
    engines = [Ordered(version=0), Ordered(version=0, update_s=10.0)]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.connect()
        await replicas.update_weights("step-1", 1)
        engines[0].die()
        await failure(replicas, ask(affinity=0))
        engines[1].rejects = "step-2"
        updating = await begun(replicas.update_weights("step-2", 2))
        engines[0].come_back(version=0)
        await asyncio.sleep(5)
        assert states(replicas) == ["ready", "ready"]
        assert engines[0].orders[-1] == "step-2"
        with pytest.raises(EngineError, match="no such weights"):
            await updating
        await until_ready(replicas)
        assert engines[0].orders == ["step-1", "step-2", "step-1"]
        assert engines[1].orders == ["step-1", "step-1", "resume"]
        for affinity in range(2):
            assert (await replicas.generate(ask(f"tree {affinity}", affinity=affinity))).versions == ((1, 3),)

    within(replicas, use)


def test_an_update_that_is_cancelled_leaves_nobody_with_its_weights() -> None:
    engines = [Ordered(), Ordered()]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.update_weights("step-1", 1)
        engines[1].update_s = 10.0
        updating = await begun(replicas.update_weights("step-2", 2), 5.0)
        updating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await updating
        assert states(replicas) == ["stale", "stale"]
        await until_ready(replicas)
        assert [engine.orders for engine in engines] == [["step-1", "step-2", "step-1"], ["step-1", "step-1", "resume"]]

    within(replicas, use)


def test_updates_that_meet_are_made_one_after_the_other() -> None:
    engines = [Ordered(version=0, update_s=10.0), Ordered(version=0)]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.connect()
        slow = await begun(replicas.update_weights("step-1", 1), 1.0)
        engines[0].update_s = 0.0
        await replicas.update_weights("step-2", 2)
        await slow
        assert [engine.orders for engine in engines] == [["step-1", "step-2"]] * 2
        engines[1].come_back(version=1)
        engines[0].down = "timeout"
        await failure(replicas, ask(affinity=0))
        assert (await failure(replicas, ask(affinity=0))).reason in {"stale_weights", "unreachable"}
        assert states(replicas) == ["suspect", "stale"]

    within(replicas, use)


def test_a_replica_that_fails_in_an_update_is_given_no_second_one_meanwhile() -> None:
    engines = [Ordered(version=0, update_s=10.0, delay=SECOND), Ordered(version=0)]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.connect()
        began = now()
        held = await begun(failure(replicas, ask(affinity=0)))
        updating = await begun(replicas.update_weights("step-1", 1), 0.5)
        engines[0].die("disconnected")
        await held
        engines[0].come_back(version=0)
        await updating
        assert engines[0].orders == ["step-1"]
        assert await until_ready(replicas) >= began + 20
        assert engines[0].orders == ["step-1", "step-1"]

    within(replicas, use)


# -- draining and replacing -------------------------------------------------------------------------------------------


def test_a_replica_that_is_lost_while_it_is_drained_gives_back_what_it_has() -> None:
    def delay(turn: Any) -> Delay:
        return Delay(call_s=5.0 if "cut" in turn.context else 1000.0)

    cut = Fault("error", when=lambda turn: "cut" in turn.context, reason="disconnected")
    engines = [Breakable(delay=delay, faults=[cut]), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        held = await begun(failure(replicas, ask(affinity=0)))
        other = await begun(failure(replicas, ask(LONG + "cut", affinity=0)))
        draining = await begun(replicas.drain(0), 1.0)
        engines[0].down = "unreachable"
        await other
        assert (await held).retry_after_s == 0.0
        await draining
        assert now() < 10
        assert await settled(replicas) == ["draining", "ready"]

    within(replicas, use)


def test_a_replica_that_is_drained_while_it_is_mended_stays_out() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].down = "timeout"
        await failure(replicas, ask(affinity=0))
        await replicas.drain(0)
        engines[0].down = None
        assert await settled(replicas) == ["draining", "ready"]
        await replicas.replace(0, engines[0])
        await until_ready(replicas)

    within(replicas, use)


@pytest.mark.parametrize("is_draining", [False, True])
def test_a_replica_that_is_replaced_while_it_is_mended_changes_nothing_any_more(is_draining: bool) -> None:
    engines = [Breakable(delay=SECOND), Breakable(delay=SECOND)]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].down = "timeout"
        await failure(replicas, ask(affinity=0))
        draining = await begun(replicas.drain(0) if is_draining else asyncio.sleep(0))
        fresh = Breakable()
        fresh.down = "timeout"
        await replicas.replace(0, fresh)
        await draining
        engines[0].down = None
        assert await settled(replicas) == ["suspect", "ready"]
        assert engines[0].is_closed
        fresh.down = None
        await until_ready(replicas)

    within(replicas, use)


def test_a_late_failure_of_a_replica_that_was_replaced_takes_nobody_out() -> None:
    class Deaf(Breakable):
        """Fails a second after it was told to give up."""

        async def generate(self, request: Any) -> Any:
            try:
                return await super().generate(request)
            except asyncio.CancelledError:
                await asyncio.sleep(1)
                raise EngineError("disconnected", "late", is_retryable=True) from None

    replicas = Replicas([Deaf(delay=Delay(call_s=50.0)), Breakable()])

    async def use() -> None:
        held = await begun(failure(replicas, ask(affinity=0)), 1.0)
        await replicas.replace(0, Breakable())
        await asyncio.sleep(0.5)
        assert states(replicas) == ["ready", "ready"]
        await held
        assert states(replicas) == ["ready", "ready"]

    within(replicas, use)


def test_a_replacement_that_is_cancelled_closes_the_old_engine_all_the_same() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].down = "hang"
        await failure(replicas, ask(affinity=0))
        replacing = await begun(replicas.replace(0, Breakable()))
        replacing.cancel()
        await asyncio.wait([replacing])
        assert engines[0].is_closed
        await until_ready(replicas)

    within(replicas, use)


def test_an_engine_that_comes_when_all_is_closed_is_closed_too() -> None:
    replicas = Replicas([Breakable(), Breakable()])
    late = Breakable()

    async def use() -> None:
        await replicas.close()
        await replicas.replace(0, late)
        assert late.is_closed

    within(replicas, use)


def closing(meanwhile: Callable[[Replicas], Awaitable[Any]], engine: Breakable) -> None:
    """Close replicas while something else goes on; both come to an end."""
    replicas = Replicas([engine, Breakable()], patience=Patience(5.0, 0.0, 0.0))

    async def use() -> None:
        task = await begun(meanwhile(replicas), 1.0)
        await replicas.close()
        await asyncio.wait([task], timeout=60)
        assert task.done()
        if not task.cancelled():
            task.exception()
        assert engine.is_closed

    within(replicas, use)


def test_replicas_that_are_closed_while_they_connect_leave_nothing_behind() -> None:
    engine = Breakable()
    engine.down = "hang"
    closing(lambda replicas: replicas.connect(), engine)


def test_replicas_that_are_closed_while_one_is_drained_leave_nothing_behind() -> None:
    async def drained(replicas: Replicas) -> None:
        await asyncio.gather(replicas.generate(ask(affinity=0)), replicas.drain(0), return_exceptions=True)

    closing(drained, Breakable(delay=Delay(call_s=3.0)))


# -- all of it --------------------------------------------------------------------------------------------------------


class Storm:
    """Things that happen to four replicas at random, some of them at once, and requests all the while."""

    def __init__(self, seed: int, *, version: int | None) -> None:
        self.draw = random.Random(seed)
        self.version = version
        """What servers begin with."""
        self.engines = [self._engine() for _ in range(4)]
        self.replicas = Replicas(self.engines)
        self.acknowledged = 0

    def _engine(self) -> Ordered:
        return Ordered(delay=lambda turn: Delay(call_s=1.0 + turn.seed % 5), version=self.version)

    async def update(self) -> None:
        version = self.acknowledged + 1
        if self.draw.random() < 0.3:
            self.draw.choice(self.engines).breaks = f"step-{version}"
        with contextlib.suppress(EngineError):
            await self.replicas.update_weights(f"step-{version}", version)
            self.acknowledged = version

    async def restart(self) -> None:
        engine = self.draw.choice(self.engines)
        engine.die(self.draw.choice(["unreachable", "disconnected", "timeout"]))
        await asyncio.sleep(self.draw.choice([0.0, 1.0, 20.0]))
        engine.is_paused = False
        engine.come_back(version=self.version)

    async def cut_off(self) -> None:
        engine = self.draw.choice(self.engines)
        engine.down = "timeout"
        await asyncio.sleep(self.draw.choice([0.0, 1.0, 20.0]))
        engine.down = None

    async def sleep(self) -> None:
        with contextlib.suppress(EngineError):
            await self.replicas.pause()
        await asyncio.sleep(self.draw.random() * 5)
        with contextlib.suppress(EngineError):
            await self.replicas.resume()

    async def replace(self) -> None:
        index = self.draw.randrange(4)
        if self.draw.random() < 0.5:
            await self.replicas.drain(index)
        self.engines[index] = self._engine()
        await self.replicas.replace(index, self.engines[index])

    async def blow(self) -> None:
        """Updates and pauses are one trainer's and so follow each other; the rest comes as it comes."""

        async def orders() -> None:
            for _ in range(8):
                await self.draw.choice([self.update, self.sleep])()
                await asyncio.sleep(self.draw.random() * 10)

        async def troubles() -> None:
            for _ in range(8):
                await self.draw.choice([self.restart, self.cut_off, self.replace])()
                await asyncio.sleep(self.draw.random() * 5)

        await asyncio.gather(orders(), troubles(), troubles())

    async def asked(self, seed: int) -> tuple[int, Generation]:
        """What was acknowledged when a request was asked for, for the last time, and what it came to."""
        await asyncio.sleep(seed * 0.5)
        request = ask(LONG + f"tree {seed % 5}", seed=seed, affinity=seed % 5, request_id=f"{seed}")
        while True:
            acknowledged = self.acknowledged
            try:
                return acknowledged, await Retrying(self.replicas).generate(request)
            except EngineError as error:
                if error.reason not in {"disconnected", "timeout"}:  # It was in flight on four that were lost.
                    raise


@pytest.mark.covers("S3.3")
@pytest.mark.parametrize("version", [0, None])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_every_request_is_answered_by_good_weights_and_all_are_right_in_the_end(
    seed: int, version: int | None
) -> None:
    storm = Storm(seed, version=version)

    async def use() -> None:
        await storm.replicas.connect()
        asking = [asyncio.ensure_future(storm.asked(number)) for number in range(200)]
        await storm.blow()
        async with asyncio.timeout(3600):
            answers = await asyncio.gather(*asking)
        await until_ready(storm.replicas)
        assert not [engine for engine in storm.engines if engine.is_paused or engine.inner.num_active]
        if storm.acknowledged:
            assert {engine.loaded[-1] for engine in storm.engines} == {
                (f"step-{storm.acknowledged}", storm.acknowledged)
            }
        if version is not None:
            assert all(generation.versions[0][0] >= floor for floor, generation in answers)

    within(storm.replicas, use)
