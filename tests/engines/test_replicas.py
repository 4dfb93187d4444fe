"""Several engines as one: where requests go, and what happens when a replica is not right."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from tests.engines.breakable import Breakable, Uncontrolled

from ramify.core.codec import ByteCodec
from ramify.core.engine import Abortable, EngineControl, Generation, Remote, Request
from ramify.core.errors import ConfigError, EngineError, EnginesDown
from ramify.core.segment import token_array
from ramify.engines.builtin import FOLDER, Builtin
from ramify.engines.fleet.placement import RoundRobin
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.retrying import Retrying
from ramify.engines.tokenizer import TokenizerFile
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay, Fault
from ramify.testing.scripted import SCRIPTED, Scripted

T = TypeVar("T")

SECOND = Delay(call_s=1.0)
LONG = "once upon a time there was a tree of many branches, and every branch had a story of its own to tell; "


def ask(text: str = LONG, **options: Any) -> Request:
    ids = token_array(ByteCodec(is_exact=True).encode(text))
    return Request(ids, **{"max_tokens": 8, "seed": 1, "request_id": f"{text[-8:]}/{options}", **options})


def within(replicas: Replicas, use: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Use replicas in virtual time and close them; nothing may be left behind."""

    async def main() -> T:
        try:
            return await use()
        finally:
            await replicas.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    return run_virtual(main())


def now() -> float:
    return asyncio.get_running_loop().time()


def states(replicas: Replicas) -> list[str]:
    return [stats.state for stats in replicas.stats]


async def until_ready(replicas: Replicas) -> float:
    """When every replica is in service."""
    async with asyncio.timeout(600):
        while set(states(replicas)) != {"ready"}:  # noqa: ASYNC110 - replicas tell nobody, and this time is virtual
            await asyncio.sleep(0.01)
    return now()


async def failure(replicas: Replicas, request: Request) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await replicas.generate(request)
    return caught.value


# -- as one engine ----------------------------------------------------------------------------------------------------


def test_replicas_are_one_engine_with_all_that_engines_may_have() -> None:
    replicas = Replicas([Scripted(), Scripted()])
    assert isinstance(replicas, Remote) and isinstance(replicas, Abortable) and isinstance(replicas, EngineControl)
    assert replicas.capabilities == replace(SCRIPTED, keeps_deadlines=True)
    assert replicas.codec.sha256 == Scripted().codec.sha256


@pytest.mark.covers("S3.3")
def test_siblings_go_to_one_replica_and_trees_to_all() -> None:
    replicas = Replicas([Breakable(delay=SECOND) for _ in range(4)])

    async def use() -> None:
        siblings = [ask(LONG + f"tree {tree}. " * 10, affinity=tree, seed=s) for tree in range(8) for s in range(3)]
        await asyncio.gather(*map(replicas.generate, siblings))
        assert [stats.num_requests for stats in replicas.stats] == [6] * 4
        assert sum(stats.prefill_cached + stats.prefill_uncached for stats in replicas.stats) == sum(
            len(request.ids) for request in siblings
        )

    within(replicas, use)


def test_a_rule_of_ones_own_places_requests() -> None:
    replicas = Replicas([Scripted(), Scripted(), Scripted()], placement=RoundRobin())

    async def use() -> None:
        for _ in range(6):
            await replicas.generate(ask())
        assert [stats.num_requests for stats in replicas.stats] == [2, 2, 2]

    within(replicas, use)


def test_a_full_replica_spills_and_that_is_counted() -> None:
    replicas = Replicas([Breakable(delay=SECOND), Breakable(delay=SECOND)], max_in_flight=2)

    async def use() -> None:
        tasks = [asyncio.create_task(replicas.generate(ask(seed=seed))) for seed in range(3)]
        await asyncio.sleep(0.5)
        assert sorted(stats.in_flight for stats in replicas.stats) == [1, 2]
        assert all(await asyncio.gather(*tasks))
        assert sorted((stats.num_requests, stats.num_spills) for stats in replicas.stats) == [(1, 1), (2, 0)]
        assert [stats.in_flight for stats in replicas.stats] == [0, 0]

    within(replicas, use)


def test_a_cancelled_request_takes_no_place() -> None:
    engines = [Breakable(delay=SECOND), Breakable(delay=SECOND)]
    replicas = Replicas(engines)

    async def use() -> None:
        task = asyncio.create_task(replicas.generate(ask()))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [stats.in_flight for stats in replicas.stats] == [0, 0]
        assert [engine.inner.num_active for engine in engines] == [0, 0]
        assert states(replicas) == ["ready", "ready"]

    within(replicas, use)


# -- a replica that is lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["unreachable", "disconnected", "timeout", "engine_silent"])
def test_a_replica_that_fails_gets_nothing_new_until_it_generates_again(reason: str) -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].down = reason
        await failure(replicas, ask(affinity=0))
        assert states(replicas) == ["suspect", "ready"]
        for seed in range(5):
            await replicas.generate(ask(affinity=0, seed=seed))
        assert [stats.num_requests for stats in replicas.stats] == [1, 5]
        await asyncio.sleep(10)
        assert states(replicas) == ["suspect", "ready"]
        assert reason in replicas.stats[0].fault
        engines[0].come_back()
        await until_ready(replicas)
        await replicas.generate(ask("elsewhere", affinity=0))
        assert replicas.stats[0].num_requests == 2

    within(replicas, use)


def test_a_lost_replica_is_looked_at_with_growing_pauses() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].die()
        await failure(replicas, ask(affinity=0))
        await asyncio.sleep(150)
        pauses = np.diff(engines[0].looks)
        assert pauses.tolist() == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30])

    within(replicas, use)


def test_a_replica_that_says_it_is_well_and_generates_nothing_stays_out() -> None:
    engines = [Breakable(faults=[Fault("error", share=1.0, reason="engine_silent")]), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        await failure(replicas, ask(affinity=0))
        await asyncio.sleep(100)
        assert states(replicas) == ["suspect", "ready"]
        assert len(engines[0].looks) > 3

    within(replicas, use)


def test_a_replica_that_generates_and_says_it_is_not_well_stays_out() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].down = "timeout"
        await failure(replicas, ask(affinity=0))
        engines[0].down, engines[0].is_unwell = None, True
        await asyncio.sleep(20)
        assert states(replicas) == ["suspect", "ready"]
        engines[0].is_unwell = False
        await until_ready(replicas)

    within(replicas, use)


def test_losing_a_replica_costs_a_request_none_of_its_tries() -> None:
    engines = [Breakable(delay=SECOND), Breakable(delay=SECOND)]
    replicas = Replicas(engines)
    retrying = Retrying(replicas)

    async def use() -> None:
        tasks = [asyncio.create_task(retrying.generate(ask(affinity=0, seed=seed))) for seed in range(40)]
        await asyncio.sleep(0.5)
        held = [stats.in_flight for stats in replicas.stats]
        assert held[0] == 40 or min(held) > 0
        engines[0].die()
        assert all(generation.ids.tolist() == [*b"ok", 256] for generation in await asyncio.gather(*tasks))
        assert (retrying.num_retries, retrying.num_waits) == (0, held[0])
        assert now() < 4

    within(replicas, use)


def test_a_request_that_breaks_every_replica_is_given_up() -> None:
    poison = Fault("error", when=lambda turn: "poison" in turn.context, reason="disconnected")
    engines = [Breakable(faults=[poison]) for _ in range(8)]
    replicas = Replicas(engines)
    retrying = Retrying(replicas)

    async def use() -> None:
        with pytest.raises(EngineError, match="disconnected"):
            await retrying.generate(ask("poison"))
        assert sum(stats.num_failed for stats in replicas.stats) == 4
        await until_ready(replicas)
        await replicas.generate(ask())

    within(replicas, use)


def test_when_all_are_lost_requests_wait_until_one_is_back() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines, names=["left", "right"])
    retrying = Retrying(replicas)

    async def use() -> None:
        for engine in engines:
            engine.die()
        tasks = [asyncio.create_task(retrying.generate(ask(seed=seed))) for seed in range(20)]
        await asyncio.sleep(60)
        error = await failure(replicas, ask())
        assert (error.reason, error.is_retryable, error.retry_after_s) == ("unreachable", True, None)
        assert "left is suspect (unreachable: planned)" in str(error)
        engines[1].come_back()
        await asyncio.gather(*tasks)
        assert retrying.num_retries == 0
        assert states(replicas) == ["suspect", "ready"]

    within(replicas, use)


def test_when_all_stay_lost_the_run_stops() -> None:
    engine = Breakable()
    replicas = Replicas([engine])

    async def use() -> None:
        engine.die()
        with pytest.raises(EnginesDown):
            await Retrying(replicas).generate(ask())

    within(replicas, use)


def test_what_is_in_flight_on_a_host_that_vanished_is_given_back_early() -> None:
    engines = [Breakable(delay=Delay(call_s=50.0)), Breakable(delay=SECOND)]
    replicas = Replicas(engines)

    async def use() -> None:
        held = asyncio.create_task(failure(replicas, ask(affinity=0, seed=1)))
        await asyncio.sleep(1)
        engines[0].down = "unreachable"
        await failure(replicas, ask(affinity=0, seed=2))
        error = await held
        assert (error.reason, error.retry_after_s) == ("disconnected", 0.0)
        assert now() == pytest.approx(1.5)
        assert engines[0].inner.num_active == 0

    within(replicas, use)


def test_a_call_that_hangs_ends_at_a_deadline_and_its_replica_is_left_out() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].down = "hang"
        error = await failure(replicas, ask(affinity=0))
        assert error.reason == "engine_hang"
        assert now() == pytest.approx(60 + 0.01 * len(LONG) + 0.5 * 8)
        assert states(replicas) == ["suspect", "ready"]

    within(replicas, use)


def test_a_replica_that_fails_whatever_it_is_asked_does_not_get_everything() -> None:
    engines = [Breakable(faults=[Fault("error", share=1.0)]), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        for seed in range(3):
            assert (await failure(replicas, ask(affinity=0, seed=seed))).reason == "engine_500"
        assert states(replicas) == ["suspect", "ready"]
        for seed in range(10):
            await replicas.generate(ask(affinity=0, seed=seed))

    within(replicas, use)


def test_a_replica_that_computes_nonsense_is_left_out() -> None:
    replicas = Replicas([Breakable(faults=[Fault("nan_logprobs", share=1.0)]), Breakable()])

    async def use() -> None:
        for seed in range(3):
            assert (await failure(replicas, ask(affinity=0, seed=seed))).reason == "bad_logprobs"
        await asyncio.sleep(100)
        assert states(replicas) == ["suspect", "ready"]

    within(replicas, use)


def test_a_request_that_cannot_be_served_says_nothing_about_the_replica() -> None:
    replicas = Replicas([Scripted(), Scripted()])

    async def use() -> None:
        full = ask(request_id="long")
        full = replace(full, ids=np.full(SCRIPTED.context_length, 65, np.int32))
        error = await failure(replicas, full)
        assert (error.reason, error.is_retryable) == ("context_full", False)
        assert states(replicas) == ["ready", "ready"]

    within(replicas, use)


# -- a replica that is busy -------------------------------------------------------------------------------------------


def test_a_busy_replica_rests_for_as_long_as_it_asks_and_others_take_its_requests() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].busy_s = 7.0
        error = await failure(replicas, ask(affinity=0))
        assert (error.reason, error.retry_after_s) == ("busy", 0.0)
        assert states(replicas) == ["busy", "ready"]
        await replicas.generate(ask(affinity=0))
        engines[1].busy_s = 2.0
        assert (await failure(replicas, ask(affinity=0))).retry_after_s == 2.0
        await asyncio.sleep(0.5)
        assert (await failure(replicas, ask(affinity=0))).retry_after_s == 1.5
        engines[0].busy_s = engines[1].busy_s = None
        await asyncio.sleep(7)
        await replicas.generate(ask(affinity=0))
        assert states(replicas) == ["ready", "ready"]
        assert engines[0].looks == []

    within(replicas, use)


# -- weights ----------------------------------------------------------------------------------------------------------


def test_an_answer_by_old_weights_is_thrown_away_and_the_replica_gets_the_new_ones() -> None:
    engines = [Breakable(version=0), Breakable(version=0)]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.connect()
        await replicas.update_weights("step-5", 5)
        engines[0].come_back(version=0)
        error = await failure(replicas, ask(affinity=0))
        assert (error.reason, error.is_retryable, error.retry_after_s) == ("stale_weights", True, 0.0)
        assert states(replicas) == ["stale", "ready"]
        await until_ready(replicas)
        assert engines[0].loaded == [("step-5", 5)] * 2
        assert engines[1].loaded == [("step-5", 5)]
        assert (await replicas.generate(ask(affinity=0))).versions == ((5, 3),)

    within(replicas, use)


def test_old_weights_that_cannot_be_replaced_keep_a_replica_out() -> None:
    engines = [Breakable(version=3), Breakable(version=3)]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.connect()
        engines[0].come_back(version=2)
        assert (await failure(replicas, ask(affinity=0))).reason == "stale_weights"
        await asyncio.sleep(100)
        assert states(replicas) == ["stale", "ready"]
        engines[0].come_back(version=3)
        await until_ready(replicas)

    within(replicas, use)


def test_what_was_asked_before_an_update_may_be_answered_by_the_old_weights() -> None:
    engines = [Breakable(version=1, delay=Delay(token_s=1.0))]
    replicas = Replicas(engines)

    async def use() -> Generation:
        await replicas.connect()
        task = asyncio.create_task(replicas.generate(ask()))
        await asyncio.sleep(1.5)
        await replicas.update_weights("new", 2)
        return await task

    assert within(replicas, use).versions == ((1, 1), (2, 2))


def test_a_replica_that_cannot_be_updated_is_left_out_until_it_can() -> None:
    engines = [Breakable(version=0), Breakable(version=0)]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.connect()
        engines[0].rejects = "step-1"
        await replicas.update_weights("step-1", 1)
        assert states(replicas) == ["stale", "ready"]
        await asyncio.sleep(20)
        assert states(replicas) == ["stale", "ready"]
        await replicas.update_weights("step-2", 2)
        await until_ready(replicas)
        assert engines[0].loaded == [("step-2", 2)]

    within(replicas, use)


def test_an_update_that_fails_everywhere_is_an_error_and_changes_nothing() -> None:
    engines = [Breakable(version=0), Breakable(version=0)]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.connect()
        for engine in engines:
            engine.rejects = "bad"
        with pytest.raises(EngineError, match="no such weights"):
            await replicas.update_weights("bad", 1)
        assert states(replicas) == ["ready", "ready"]
        assert (await replicas.generate(ask())).versions == ((0, 3),)

    within(replicas, use)


@pytest.mark.parametrize("version", [None, 0])
def test_a_replica_that_was_lost_gets_the_weights_again_before_any_request(version: int | None) -> None:
    engines = [Breakable(version=version), Breakable(version=version)]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.connect()
        await replicas.update_weights("step-1", 1)
        engines[0].die()
        await failure(replicas, ask(affinity=0))
        await asyncio.sleep(3)
        engines[0].come_back(version=version)
        await until_ready(replicas)
        assert engines[0].loaded == [("step-1", 1)] * 2

    within(replicas, use)


def test_prefixes_computed_by_old_weights_draw_nobody() -> None:
    replicas = Replicas([Breakable(delay=SECOND), Breakable(delay=SECOND)])

    async def use() -> None:
        await replicas.generate(ask(affinity=0))
        await replicas.update_weights("new", 1)
        held = asyncio.create_task(replicas.generate(ask("something else altogether", affinity=0)))
        await asyncio.sleep(0)
        await replicas.generate(ask(affinity=0))
        await held
        assert [stats.num_requests for stats in replicas.stats] == [2, 1]

    within(replicas, use)


# -- before a run -----------------------------------------------------------------------------------------------------


def connecting(*engines: Any, **options: Any) -> Replicas:
    replicas = Replicas(engines, **options)
    within(replicas, replicas.connect)
    return replicas


def test_another_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="right has the tokenizer"):
        connecting(Breakable(), Breakable(codec=TokenizerFile(FOLDER / "tokenizer.json")), names=["left", "right"])


def test_another_context_length_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="replica 1 has context_length = 99, the others have 32768"):
        connecting(Breakable(), Breakable(capabilities=replace(SCRIPTED, context_length=99)))


def test_other_weights_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="replica 1 has weights of version 1, others of version 2"):
        connecting(Breakable(version=2), Breakable(version=1))


def test_a_replica_that_is_not_there_yet_joins_when_it_is() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].die()
        await replicas.connect()
        assert states(replicas) == ["suspect", "ready"]
        await replicas.connect()
        engines[0].come_back()
        await until_ready(replicas)

    within(replicas, use)


def test_a_replica_that_comes_back_as_another_model_stays_out() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.connect()
        await replicas.replace(0, Breakable(capabilities=replace(SCRIPTED, max_topk=1)))
        await asyncio.sleep(10)
        assert states(replicas) == ["suspect", "ready"]
        assert "max_topk = 1" in replicas.stats[0].fault

    within(replicas, use)


def test_where_nobody_answers_there_is_no_run() -> None:
    engines = [Breakable(), Breakable()]
    for engine in engines:
        engine.die()
    with pytest.raises(EngineError, match="unreachable"):
        connecting(*engines)


def test_an_odd_number_of_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 engines and 2 names"):
        Replicas([Scripted()], names=["one", "two"])
    with pytest.raises(ConfigError, match="0 engines"):
        Replicas([])


# -- control ----------------------------------------------------------------------------------------------------------


def test_orders_reach_every_replica() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.pause()
        assert all(engine.is_paused for engine in engines)
        await replicas.resume()
        assert not any(engine.is_paused for engine in engines)
        await replicas.offload(("weights",))
        assert all(engine.is_paused for engine in engines)
        await replicas.onload()
        assert not any(engine.is_paused for engine in engines)
        assert await replicas.is_healthy()

    within(replicas, use)


def test_a_replica_that_was_paused_and_lost_touch_is_woken_when_it_is_found_again() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        await replicas.pause()
        engines[0].down = "timeout"
        await replicas.resume()
        assert states(replicas) == ["suspect", "ready"]
        await asyncio.sleep(0.1)
        engines[0].down = None
        await until_ready(replicas)
        assert not engines[0].is_paused

    within(replicas, use)


def test_nobody_is_looked_at_while_all_sleep() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        engines[0].down = "timeout"
        await failure(replicas, ask(affinity=0))
        await replicas.pause()
        engines[0].down = None
        num_looks = len(engines[0].looks)
        await asyncio.sleep(100)
        assert len(engines[0].looks) <= num_looks + 1
        await replicas.resume()
        await until_ready(replicas)

    within(replicas, use)


def test_orders_to_engines_without_a_control_side_are_refused() -> None:
    with pytest.raises(ConfigError, match="replica 0 \\('scripted'\\) has no control side"):
        run_virtual(Replicas([Uncontrolled(), Uncontrolled()]).pause())


# -- aborts -----------------------------------------------------------------------------------------------------------


def test_an_aborted_request_returns_what_it_had() -> None:
    replicas = Replicas([Builtin(FOLDER, num_slots=4), Builtin(FOLDER, num_slots=4)])

    async def main() -> list[Generation]:
        ids = token_array(
            replicas.codec.encode("<|user|>make 99 from 13 7 1 5<|end|><|assistant|>", allow_special=True)
        )
        requests = [Request(ids, max_tokens=150, seed=seed, request_id=f"r{seed}") for seed in range(2)]
        tasks = [asyncio.create_task(replicas.generate(request)) for request in requests]
        for _ in range(10):
            await asyncio.sleep(0)
        await replicas.abort("r0")
        await replicas.abort("nobody")
        try:
            return await asyncio.gather(*tasks)
        finally:
            await replicas.close()

    aborted, other = asyncio.run(main())
    assert aborted.finish.kind == "abort"
    assert 0 < len(aborted.ids) < 150
    assert other.finish.kind != "abort"


def test_an_abort_ends_a_request_also_on_an_engine_that_knows_none() -> None:
    replicas = Replicas([Breakable(delay=SECOND)])

    async def use() -> Generation:
        task = asyncio.create_task(replicas.generate(ask(request_id="r", measures=frozenset({"entropy"}))))
        await asyncio.sleep(0.5)
        await replicas.abort("r")
        generation = await task
        assert now() == 0.5
        return generation

    generation = within(replicas, use)
    assert (len(generation.ids), generation.finish.kind) == (0, "abort")


# -- changes of the fleet ---------------------------------------------------------------------------------------------


def test_a_restarted_replica_takes_the_place_of_the_old_one() -> None:
    engines = [Breakable(delay=SECOND), Breakable(delay=SECOND)]
    replicas = Replicas(engines)

    async def use() -> None:
        held = asyncio.create_task(failure(replicas, ask(affinity=0)))
        await asyncio.sleep(0.5)
        fresh = Breakable()
        await replicas.replace(0, fresh)
        error = await held
        assert (error.reason, error.retry_after_s, now()) == ("disconnected", 0.0, 0.5)
        assert engines[0].is_closed
        await until_ready(replicas)
        await replicas.generate(ask("elsewhere", affinity=0))
        assert fresh.inner.num_calls == 2

    within(replicas, use)


def test_a_draining_replica_finishes_what_it_has() -> None:
    engines = [Breakable(delay=SECOND), Breakable(delay=SECOND)]
    replicas = Replicas(engines)

    async def use() -> None:
        held = asyncio.create_task(replicas.generate(ask(affinity=0)))
        await asyncio.sleep(0.5)
        draining = asyncio.create_task(replicas.drain(0))
        await asyncio.sleep(0)
        await replicas.generate(ask(affinity=0))
        await draining
        assert held.done()
        assert [stats.num_requests for stats in replicas.stats] == [1, 1]
        assert states(replicas) == ["draining", "ready"]
        await replicas.replace(0, engines[0])
        await until_ready(replicas)
        assert not engines[0].is_closed

    within(replicas, use)


def test_nothing_is_left_running_behind_close() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def use() -> None:
        for engine in engines:
            engine.down = "hang"
        tasks = [asyncio.create_task(failure(replicas, ask(affinity=i))) for i in range(2)]
        await asyncio.gather(*tasks)
        assert states(replicas) == ["suspect", "suspect"]
        await replicas.close()
        await replicas.close()
        assert (await failure(replicas, ask())).reason == "closed"
        assert all(engine.is_closed for engine in engines)

    within(replicas, use)


def test_replicas_go_on_in_another_event_loop() -> None:
    engines = [Breakable(), Breakable()]
    replicas = Replicas(engines)

    async def lose() -> None:
        engines[0].die()
        await failure(replicas, ask(affinity=0))

    async def find() -> None:
        engines[0].come_back()
        await replicas.generate(ask(affinity=0))
        await until_ready(replicas)
        await replicas.close()

    run_virtual(lose())
    assert states(replicas) == ["suspect", "ready"]
    run_virtual(find())
