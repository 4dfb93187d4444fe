"""What every engine promises, as far as its capabilities say; add a builder here and it is held to it."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from ramify.core.cut import first_stop
from ramify.core.engine import Abortable, Engine, Generation, Remote, Request, checked
from ramify.core.errors import EngineError
from ramify.core.segment import Sampling, token_array
from ramify.engines.builtin import FOLDER, Builtin
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.local import Local
from ramify.engines.retrying import Retrying
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted
from ramify.testing.simulated import Simulated

T = TypeVar("T")

ENGINES = {
    "builtin": Builtin,
    "local": pytest.param(lambda: Local(FOLDER), marks=pytest.mark.hf),
    "replicas-builtin": lambda: Replicas([Builtin(), Builtin()], max_in_flight=2),
    "replicas-scripted": lambda: Replicas([Scripted(), Scripted()], placement="round_robin"),
    "retrying": lambda: Retrying(Scripted()),
    "scripted-law": Scripted,
    "scripted-rule": lambda: Scripted(chains(1, 2, 3)),
    "simulated": lambda: Simulated(step_s=1e-5, version=3),
    "simulated-unversioned": lambda: Simulated(step_s=1e-5),
}
PROMPT = "<|user|>make 99 from 13 7 1 5<|end|><|assistant|>"
STOPS = ("</calc>", "</answer>")
SEEDS = range(6)


@pytest.fixture(params=ENGINES.values(), ids=ENGINES.keys())
def build(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    return request.param


def run(build: Callable[[], Engine], use: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
    """Use a fresh engine in a loop of its own and close it."""

    async def main() -> T:
        engine = build()
        try:
            if isinstance(engine, Remote):
                await engine.connect()
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def ask(engine: Engine, text: str = PROMPT, **options: object) -> Request:
    ids = token_array(engine.codec.encode(text, allow_special=True))
    defaults: dict[str, object] = {
        "max_tokens": 40,
        "seed": 11,
        "stops": STOPS,
        "measures": engine.capabilities.measures,
    }
    return Request(ids, **{**defaults, **options})  # type: ignore[arg-type]


async def answer(engine: Engine, request: Request) -> Generation:
    return checked(await engine.generate(request), request, engine.codec.vocab_size)


def bits(generation: Generation) -> tuple[object, ...]:
    """Everything of a generation that must repeat bit for bit."""
    logprobs = None if generation.logprobs is None else generation.logprobs.tobytes()
    measures = {name: values.tobytes() for name, values in generation.measures.items()}
    return generation.ids.tolist(), generation.finish, logprobs, measures, [t.tobytes() for t in generation.topk]


def test_a_generation_is_sound_and_ends_for_the_reason_it_says(build: Callable[[], Engine]) -> None:
    async def use(engine: Engine) -> None:
        for seed in SEEDS:
            request = ask(engine, seed=seed)
            generation = await answer(engine, request)
            text = b"".join(engine.codec.token_bytes(int(i)) for i in generation.ids)
            stop = first_stop(text, STOPS, after=0)
            match generation.finish.kind:
                case "stop":
                    assert stop is not None
                    assert generation.finish.matched == stop[0]
                    assert (
                        first_stop(text[: -len(engine.codec.token_bytes(int(generation.ids[-1])))], STOPS, after=0)
                        is None
                    )
                case "end_of_sequence":
                    assert generation.ids[-1] == engine.codec.eos_id
                    assert stop is None
                case kind:
                    assert (kind, len(generation.ids)) == ("length", 40)
            assert engine.codec.eos_id not in generation.ids[:-1]
            assert generation.num_billed >= len(generation.ids)
            assert generation.num_cached + generation.num_prefilled == len(request.ids)

    run(build, use)


def test_what_was_promised_is_returned(build: Callable[[], Engine]) -> None:
    async def use(engine: Engine) -> None:
        capabilities = engine.capabilities
        generation = await answer(engine, ask(engine, topk=min(5, capabilities.max_topk), topk_tokens=3))
        assert (generation.logprobs is not None) == (capabilities.logprobs is not None)
        assert set(generation.measures) == set(capabilities.measures)
        assert len(generation.topk) == (min(3, len(generation.ids)) if capabilities.max_topk else 0)
        for index, top in enumerate(generation.topk):
            assert generation.logprobs is not None
            assert np.isclose(top, generation.logprobs[index], atol=1e-5).any()
            assert np.exp(top.astype(np.float64)).sum() <= 1 + 1e-5
        assert bool(generation.versions) == capabilities.has_versions

    run(build, use)


def test_the_same_request_gives_the_same_bits_alone_and_in_company(build: Callable[[], Engine]) -> None:
    async def use(engine: Engine) -> None:
        if not (engine.capabilities.is_deterministic and engine.capabilities.has_seeds):
            pytest.skip("the engine does not promise it")
        alone = [bits(await answer(engine, ask(engine, seed=seed))) for seed in SEEDS]
        together = await asyncio.gather(*(answer(engine, ask(engine, seed=seed)) for seed in reversed(SEEDS)))
        assert [bits(g) for g in reversed(together)] == alone
        assert len({str(b[0]) for b in alone}) > 1

    run(build, use)


def test_a_turn_is_the_same_however_it_is_divided_into_requests(build: Callable[[], Engine]) -> None:
    async def use(engine: Engine) -> None:
        if not (engine.capabilities.is_deterministic and engine.capabilities.can_continue_turn):
            pytest.skip("the engine does not promise it")
        for seed in SEEDS:
            request = ask(engine, seed=seed)
            whole = await answer(engine, request)
            for cut in range(1, len(whole.ids)):
                head = await answer(engine, replace(request, max_tokens=cut))
                ids = np.concatenate([request.ids, head.ids])
                rest = replace(request, ids=ids, num_run=cut, max_tokens=40 - cut)
                tail = await answer(engine, rest)
                assert [*head.ids, *tail.ids] == whole.ids.tolist()
                assert (head.finish.kind, tail.finish) == ("length", whole.finish)

    run(build, use)


def test_greedy_sampling_does_not_depend_on_the_seed(build: Callable[[], Engine]) -> None:
    async def use(engine: Engine) -> None:
        greedy = Sampling(temperature=0.0)
        texts = {
            str((await answer(engine, ask(engine, seed=s, sampling=greedy, max_tokens=8))).ids.tolist()) for s in SEEDS
        }
        assert len(texts) == 1

    run(build, use)


def test_a_context_without_room_is_an_engine_error(build: Callable[[], Engine]) -> None:
    async def use(engine: Engine) -> None:
        full = np.full(engine.capabilities.context_length, 65, np.int32)
        with pytest.raises(EngineError):
            await engine.generate(replace(ask(engine), ids=full))
        nearly = await answer(engine, replace(ask(engine), ids=full[:-2]))
        assert len(nearly.ids) <= 2

    run(build, use)


def test_cancelling_a_request_harms_no_other(build: Callable[[], Engine]) -> None:
    async def use(engine: Engine) -> None:
        wanted = bits(await answer(engine, ask(engine, seed=3)))
        for num_steps in range(8):
            tasks = [asyncio.create_task(answer(engine, ask(engine, seed=seed))) for seed in (1, 3, 5)]
            for _ in range(num_steps):
                await asyncio.sleep(0)
            tasks[0].cancel()
            tasks[2].cancel()
            cancelled, kept, _ = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(cancelled, asyncio.CancelledError | Generation)
            assert isinstance(kept, Generation)
            if engine.capabilities.is_deterministic:
                assert bits(kept) == wanted

    run(build, use)


def test_an_aborted_request_returns_the_tokens_it_had(build: Callable[[], Engine]) -> None:
    async def use(engine: Engine) -> None:
        if not isinstance(engine, Abortable):
            pytest.skip("the engine does not promise it")
        wanted = [bits(await answer(engine, ask(engine, seed=seed))) for seed in (1, 3)]
        for num_steps in range(0, 30, 3):
            requests = [ask(engine, seed=seed, request_id=f"0/{seed}") for seed in (1, 3)]
            tasks = [asyncio.create_task(answer(engine, request)) for request in requests]
            for _ in range(num_steps):
                await asyncio.sleep(0)
            await engine.abort("0/1")
            await engine.abort("0/2")
            ended, kept = await asyncio.gather(*tasks)
            if engine.capabilities.is_deterministic:
                assert bits(kept) == wanted[1]
                assert ended.ids.tolist() == bits_of(wanted[0])[: len(ended.ids)]
            if ended.finish.kind == "abort":
                assert ended.num_billed == len(ended.ids) < len(bits_of(wanted[0]))
                assert ended.num_cached + ended.num_prefilled <= len(requests[0].ids)
                assert sum(length for _, length in ended.versions) == len(ended.ids) * engine.capabilities.has_versions

    run(build, use)


def bits_of(generation: tuple[object, ...]) -> list[int]:
    """The ids in what `bits` returns."""
    ids = generation[0]
    assert isinstance(ids, list)
    return ids


def test_nothing_is_generated_after_close(build: Callable[[], Engine]) -> None:
    async def use(engine: Engine) -> None:
        await engine.close()
        with pytest.raises(EngineError):
            await engine.generate(ask(engine))

    run(build, use)
