"""A scripted engine that takes a server's time, in virtual and in real seconds."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from ramify.core.engine import Generation, Request
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import token_array
from ramify.plugins import build
from ramify.testing.clock import run_virtual
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn
from ramify.testing.simulated import Simulated


def ten(turn: ScriptedTurn) -> str:
    """Nine letters and the end of the sequence."""
    return "abcdefghi"


def ask(text: str, seed: int = 0, max_tokens: int = 100) -> Request:
    return Request(token_array(list(text.encode())), max_tokens, seed)


async def timed(engine: Simulated, request: Request) -> tuple[float, Generation]:
    """(when the answer came, the answer)."""
    answer = await engine.generate(request)
    return asyncio.get_running_loop().time(), answer


def alone_s(num_context: int, num_tokens: int, *, num_cached: int = 0) -> float:
    """Time of one sequence, by the formula of the default costs."""
    num_read = num_tokens * num_context + num_tokens * (num_tokens - 1) // 2
    return num_tokens * (6e-3 + 27e-6) + num_read * 44e-9 + (num_context - num_cached) * 30e-6


def test_one_request_takes_a_step_a_token_and_its_context() -> None:
    time, answer = run_virtual(timed(Simulated(ten), ask("x" * 50)))
    assert time == pytest.approx(alone_s(50, 10))
    assert (answer.num_cached, answer.num_prefilled, answer.num_billed) == (0, 50, 10)


def test_requests_that_come_at_once_are_one_batch() -> None:
    async def main() -> list[float]:
        engine = Simulated(ten)
        answers = await asyncio.gather(*(timed(engine, ask(letter * 50)) for letter in "uvw"))
        assert engine.stats.num_steps == 10
        return [time for time, _ in answers]

    end = 10 * (6e-3 + 3 * 27e-6) + 3 * (10 * 50 + 45) * 44e-9 + 3 * 50 * 30e-6
    assert run_virtual(main()) == pytest.approx([end] * 3)


def test_the_next_turn_pays_for_what_is_new() -> None:
    async def main() -> None:
        engine = Simulated(ten)
        first = await engine.generate(ask("x" * 50))
        began = asyncio.get_running_loop().time()
        context = np.concatenate([ask("x" * 50).ids, first.ids[:-1], ask("y" * 20).ids])
        end, second = await timed(engine, Request(context, 100, 0))
        assert (second.num_cached, second.num_prefilled) == (48, 31)
        assert end - began == pytest.approx(alone_s(79, 10, num_cached=48))

    run_virtual(main())


def test_a_request_that_comes_later_joins_and_one_that_ends_leaves() -> None:
    async def main() -> None:
        engine = Simulated(ten, step_s=1.0, sequence_s=0.5, kv_token_s=0.0, prefill_token_s=0.0)
        first = asyncio.create_task(timed(engine, ask("a")))
        await asyncio.sleep(4.0)
        second = asyncio.create_task(timed(engine, ask("b")))
        assert (await first)[0] == 3 * 1.5 + 7 * 2
        assert (await second)[0] == 3 * 1.5 + 7 * 2 + 3 * 1.5

    run_virtual(main())


def test_what_is_said_does_not_depend_on_who_else_is_served() -> None:
    async def said(max_batch: int, requests: list[Request]) -> list[tuple[list[int], float]]:
        engine = Simulated(max_batch=max_batch)
        answers = await asyncio.gather(*(engine.generate(request) for request in requests))
        return [
            (answer.ids.tolist(), float(answer.logprobs.sum())) for answer in answers if answer.logprobs is not None
        ]

    requests = [ask("make 3 from 1 2\n", seed) for seed in range(12)]
    together = run_virtual(said(256, requests))
    assert together == run_virtual(said(2, requests))
    assert together == run_virtual(said(1, requests[::-1]))[::-1]
    assert together[3][0] == run_virtual(Scripted().generate(requests[3])).ids.tolist()


def test_time_repeats_itself() -> None:
    async def times() -> list[float]:
        engine = Simulated(max_batch=3)
        return [t for t, _ in await asyncio.gather(*(timed(engine, ask("q" * seed, seed)) for seed in range(1, 9)))]

    assert run_virtual(times()) == run_virtual(times())


def test_cancelling_frees_the_place_in_the_batch() -> None:
    async def main() -> None:
        engine = Simulated(ten, max_batch=1, step_s=1.0, sequence_s=0.0, kv_token_s=0.0, prefill_token_s=0.0)
        first, second, third = (asyncio.create_task(timed(engine, ask(letter))) for letter in "abc")
        await asyncio.sleep(2.5)
        second.cancel()
        first.cancel()
        assert (await third)[0] == 3 + 10
        assert first.cancelled()
        assert second.cancelled()
        assert engine.stats.num_decoded == 3 + 10

    run_virtual(main())


def test_closing_ends_what_is_on_its_way() -> None:
    async def main() -> None:
        engine = Simulated(ten)
        task = asyncio.create_task(engine.generate(ask("a")))
        await asyncio.sleep(0.01)
        await engine.close()
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await task
        with pytest.raises(EngineError, match="closed"):
            await engine.generate(ask("a"))

    run_virtual(main())


def test_an_engine_may_serve_one_loop_after_another() -> None:
    engine = Simulated(ten)
    run_virtual(asyncio.wait_for(engine.generate(ask("a" * 50)), timeout=9))

    async def given_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate(ask("b" * 50)), timeout=0.01)

    run_virtual(given_up())
    time, _ = run_virtual(timed(engine, ask("c" * 50)))
    assert time == pytest.approx(alone_s(50, 10))


def test_real_time_is_kept_as_well() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        return (await timed(Simulated(ten), ask("x" * 50)))[0] - began

    assert asyncio.run(main()) >= alone_s(50, 10) - 1e-6


def test_its_options_can_be_named_in_a_configuration() -> None:
    engine = build("engine", "simulated", max_batch=8, step_s=0.5)
    assert engine.capabilities == replace(Scripted().capabilities, name="simulated")
    with pytest.raises(ConfigError, match="step_s = -1"):
        build("engine", "simulated", step_s=-1)
    with pytest.raises(ConfigError, match="max_batch"):
        build("engine", "simulated", max_batches=1)
