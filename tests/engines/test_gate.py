"""The gate: requests held back, cut by three rules, and put together again token for token."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.engine import Generation, Request
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import token_array
from ramify.engines.gate import Gate, OnHold
from ramify.engines.retrying import Retrying
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay
from ramify.testing.policies import table
from ramify.testing.scripted import SCRIPTED, Scripted
from ramify.testing.simulated import Simulated

LINE = "the quick brown fox jumps over the lazy dog"
TOKEN_S = 0.1


def spelling(turn: Any) -> str:
    """Go on with the line from wherever the context stands."""
    said = turn.context.partition("|")[2]
    return LINE[len(said) :] if LINE.startswith(said) else ""


def request(seed: int = 1, **changes: Any) -> Request:
    ids = token_array([*b"spell|"])
    return replace(
        Request(ids, max_tokens=100, seed=seed, request_id=f"t/{seed}", measures=frozenset({"entropy"})), **changes
    )


def gated(**options: Any) -> tuple[Gate, Scripted]:
    engine = Scripted(spelling, delay=Delay(token_s=TOKEN_S), version=0, keeps_calls=True, **options)
    return Gate(Retrying(engine)), engine


async def updated(gate: Gate, engine: Any, on_hold: OnHold, *, at: float, version: int = 1) -> None:
    await asyncio.sleep(at)
    await gate.hold(on_hold)
    assert gate.num_in_flight == 0
    await asyncio.sleep(5)
    await engine.update_weights("", version)
    gate.version = version
    gate.release()


def told(generation: Generation) -> str:
    return bytes(i for i in generation.ids.tolist() if i < 256).decode()


def held_once(on_hold: OnHold, *, at: float = 1.05) -> tuple[Gate, Scripted, Generation]:
    gate, engine = gated()

    async def main() -> Generation:
        async with asyncio.TaskGroup() as group:
            group.create_task(updated(gate, engine, on_hold, at=at))
            said = group.create_task(gate.generate(request()))
        return said.result()

    return gate, engine, run_virtual(main())


def test_kept_turns_go_on_behind_their_tokens_under_the_new_weights() -> None:
    gate, engine, said = held_once("keep")
    assert told(said) == LINE
    assert said.versions == ((0, 10), (1, len(said.ids) - 10))
    assert said.logprobs is not None and len(said.logprobs) == len(said.ids) == len(said.measures["entropy"])
    assert said.num_billed == len(said.ids) and said.finish.kind == "end_of_sequence"
    assert gate.num_resumed == 1 and gate.num_wasted == 0
    assert engine.calls is not None
    assert engine.calls[1].fed.tolist() == [*b"spell|", *LINE.encode()[:10]], "all of it is fed again"


def test_aborted_turns_are_sampled_anew_and_their_tokens_counted() -> None:
    gate, _, said = held_once("abort")
    assert told(said) == LINE and said.versions == ((1, len(said.ids)),)
    assert said.num_billed == len(said.ids)
    assert gate.num_wasted == 10


def test_finishing_turns_are_waited_for() -> None:
    gate, _, said = held_once("finish")
    assert told(said) == LINE and said.versions == ((0, len(said.ids)),)
    assert gate.num_wasted == gate.num_resumed == 0


def test_a_hold_before_the_first_token_loses_nothing() -> None:
    for on_hold in ("keep", "abort"):
        gate, _, said = held_once(on_hold, at=0.05)
        assert told(said) == LINE and said.versions == ((1, len(said.ids)),)
        assert gate.num_wasted == gate.num_resumed == 0


def test_a_turn_cut_at_its_last_token_is_at_its_length() -> None:
    class CutLate(Scripted):
        """Aborted, it says all it was asked for, and that it was aborted."""

        async def generate(self, request: Request) -> Generation:
            said = await super().generate(request)
            whole = await Scripted(spelling).generate(request)
            return replace(whole, finish=said.finish) if said.finish.kind == "abort" else said

    engine = CutLate(spelling, delay=Delay(token_s=TOKEN_S), version=0)
    gate = Gate(Retrying(engine))

    async def main() -> Generation:
        async with asyncio.TaskGroup() as group:
            group.create_task(updated(gate, engine, "keep", at=0.55))
            said = group.create_task(gate.generate(request(max_tokens=10)))
        return said.result()

    said = run_virtual(main())
    assert told(said) == LINE[:10] and said.finish.kind == "length" and said.versions == ((0, 10),)


def test_a_stop_word_that_a_hold_divides_is_found() -> None:
    gate, engine = gated()

    async def main() -> Generation:
        async with asyncio.TaskGroup() as group:
            group.create_task(updated(gate, engine, "keep", at=0.65))  # behind "the qu"
            said = group.create_task(gate.generate(request(stops=("quick",))))
        return said.result()

    said = run_virtual(main())
    assert told(said) == "the quick" and said.finish.matched == "quick"


def test_top_logprobs_are_of_the_first_tokens_however_they_are_divided() -> None:
    for at in (0.35, 1.05):
        gate, engine = gated()

        async def main(gate: Gate = gate, engine: Scripted = engine, at: float = at) -> Generation:
            async with asyncio.TaskGroup() as group:
                group.create_task(updated(gate, engine, "keep", at=at))
                said = group.create_task(gate.generate(request(topk=3, topk_tokens=6)))
            return said.result()

        assert len(run_virtual(main()).topk) == 6


def test_held_requests_wait_and_nothing_reaches_the_engine() -> None:
    gate, engine = gated()

    async def main() -> None:
        await gate.hold("keep")
        waiting = asyncio.create_task(gate.generate(request()))
        await asyncio.sleep(3600)
        assert not waiting.done() and engine.num_calls == 0
        waiting.cancel()
        await asyncio.wait({waiting})
        gate.release()
        assert told(await gate.generate(request())) == LINE

    run_virtual(main())


@settings(max_examples=40, deadline=None)
@given(
    holds=st.lists(st.tuples(st.sampled_from(["keep", "abort", "finish"]), st.floats(0.01, 3)), max_size=4),
    num=st.integers(1, 5),
    kind=st.sampled_from(["scripted", "simulated"]),
)
def test_whatever_holds_come_every_token_is_there_once_with_its_version(
    holds: list[tuple[OnHold, float]], num: int, kind: str
) -> None:
    engine: Any
    if kind == "scripted":
        engine = Scripted(spelling, delay=Delay(token_s=TOKEN_S), version=0)
    else:
        engine = Simulated(spelling, step_s=TOKEN_S, version=0)
    gate = Gate(Retrying(engine))

    async def main() -> list[Generation]:
        async with asyncio.TaskGroup() as group:
            said = [group.create_task(gate.generate(request(seed))) for seed in range(num)]
            for version, (on_hold, at) in enumerate(holds, 1):
                await updated(gate, engine, on_hold, at=at, version=version)
        return [each.result() for each in said]

    for said in run_virtual(main()):
        assert told(said) == LINE
        assert sum(n for _, n in said.versions) == len(said.ids) == said.num_billed
        versions = [version for version, _ in said.versions]
        assert versions == sorted(set(versions))
        assert said.logprobs is not None and np.isfinite(said.logprobs).all()


def test_an_engine_without_versions_is_given_the_gates_own() -> None:
    gate = Gate(Retrying(Scripted(table({"": "yes"}))), version=7)
    assert run_virtual(gate.generate(request())).versions == ((7, 4),)


def test_a_rule_that_an_engine_cannot_follow_is_refused() -> None:
    gate = Gate(Retrying(Scripted(capabilities=replace(SCRIPTED, has_abort=False))))
    gate.check("finish")
    with pytest.raises(ConfigError, match="no aborts; use 'finish'"):
        gate.check("keep")
    with pytest.raises(ConfigError, match="no token ids to go on from"):
        Gate(Retrying(Scripted(capabilities=replace(SCRIPTED, has_token_ids=False)))).check("abort")


def test_a_failure_goes_through_and_frees_its_place() -> None:
    gate = Gate(Retrying(Scripted()))

    async def main() -> None:
        with pytest.raises(EngineError, match="context_full"):
            await gate.generate(request(ids=token_array([65] * 40_000)))
        await gate.hold("finish")

    run_virtual(main())


def test_a_simulated_engine_takes_no_weights_under_running_requests() -> None:
    engine = Simulated(spelling, version=0)

    async def main() -> None:
        asking = asyncio.create_task(engine.generate(request()))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineError, match="in_flight"):
            await engine.update_weights("", 1)
        await asking

    run_virtual(main())
