"""Rules for every engine, as far as its capabilities promise them."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ramify.core.cut import first_stop
from ramify.core.engine import Abortable, Engine, Generation, Remote, Request, checked
from ramify.core.errors import EngineError
from ramify.core.segment import Sampling, token_array
from ramify.testing.contracts.rules import BrokenRule, demand, keep_all, name_of, rules_of

PROMPT: Final = "<|user|>make 99 from 13 7 1 5<|end|><|assistant|>"
STOPS: Final = ("</calc>", "</answer>")
SEEDS: Final = range(6)
MAX_TOKENS: Final = 40


@dataclass(frozen=True, slots=True)
class EngineCase:
    """An engine, and what it is asked."""

    build: Callable[[], Engine]
    prompt: str = PROMPT
    stops: tuple[str, ...] = STOPS

    def request(self, engine: Engine, **options: Any) -> Request:
        ids = token_array(engine.codec.encode(self.prompt, allow_special=True))
        defaults: dict[str, Any] = {
            "max_tokens": MAX_TOKENS,
            "seed": 11,
            "stops": self.stops,
            "measures": engine.capabilities.measures,
        }
        return Request(ids, **{**defaults, **options})


def check_engine(
    engine: Callable[[], Engine],
    *,
    prompt: str = PROMPT,
    stops: tuple[str, ...] = STOPS,
    without: Collection[str] = (),
) -> None:
    """Check every rule of an engine except those in `without`. Raises `BrokenRule` that says which rule was broken and
    where.

    `engine` makes an engine: a class, or a function without parameters. Each rule uses a fresh engine and closes it.
    Only what the engine's capabilities promise is checked.
    """
    keep_all(ENGINE_RULES, EngineCase(engine, prompt, stops), f"engine {name_of(engine)}", without=without)


def a_generation_is_sound_and_ends_for_the_reason_it_says(case: EngineCase) -> None:
    async def use(engine: Engine) -> None:
        for seed in SEEDS:
            request = case.request(engine, seed=seed)
            _demand_sound(engine, request, await _answer(engine, request))

    _run(case, use)


def what_was_promised_is_returned(case: EngineCase) -> None:
    async def use(engine: Engine) -> None:
        able = engine.capabilities
        request = case.request(engine, topk=min(5, able.max_topk), topk_tokens=3)
        generation = await _answer(engine, request)
        has_logprobs = generation.logprobs is not None
        demand(has_logprobs == (able.logprobs is not None), f"logprobs: promised {able.logprobs!r}, got {has_logprobs}")
        measures = set(generation.measures)
        demand(measures == set(able.measures), f"measures: promised {set(able.measures)}, got {measures}")
        num_top = min(3, len(generation.ids)) if able.max_topk else 0
        demand(len(generation.topk) == num_top, f"top logprobs of {len(generation.topk)} tokens; asked for {num_top}")
        for index, top in enumerate(generation.topk):
            assert generation.logprobs is not None
            own = generation.logprobs[index]
            demand(
                bool(np.isclose(top, own, atol=1e-5).any()),
                f"token {index}: its logprob {own} is not among the top {top}",
            )
            total = np.exp(top.astype(np.float64)).sum()
            demand(total <= 1 + 1e-5, f"token {index}: the top probabilities sum to {total}, more than 1")
        versions = generation.versions
        demand(bool(versions) == able.has_versions, f"versions: promised {able.has_versions}, got {versions}")

    _run(case, use)


def the_same_request_gives_the_same_bits_alone_and_in_company(case: EngineCase) -> None:
    async def use(engine: Engine) -> None:
        alone = [_bits(await _answer(engine, case.request(engine, seed=seed))) for seed in SEEDS]
        requests = [case.request(engine, seed=seed) for seed in reversed(SEEDS)]
        together = [_bits(g) for g in await asyncio.gather(*(_answer(engine, request) for request in requests))]
        for seed, one, other in zip(SEEDS, alone, reversed(together), strict=True):
            demand(one == other, f"seed {seed}: alone {one[0]}, beside others {other[0]}, or other numbers for them")

    if _promises(case, "is_deterministic", "has_seeds"):
        _run(case, use)


def different_seeds_give_different_samples(case: EngineCase) -> None:
    async def use(engine: Engine) -> None:
        said = {str(_bits(await _answer(engine, case.request(engine, seed=seed)))[0]) for seed in SEEDS}
        demand(len(said) > 1, f"seeds {SEEDS} all give {said}")

    if _promises(case, "is_deterministic", "has_seeds"):
        _run(case, use)


def a_turn_is_the_same_however_it_is_divided_into_requests(case: EngineCase) -> None:
    async def use(engine: Engine) -> None:
        for seed in SEEDS:
            request = case.request(engine, seed=seed)
            whole = await _answer(engine, request)
            for cut in range(1, len(whole.ids)):
                head = await _answer(engine, replace(request, max_tokens=cut))
                ids = np.concatenate([request.ids, head.ids])
                rest = replace(request, ids=ids, num_run=cut, max_tokens=MAX_TOKENS - cut)
                tail = await _answer(engine, rest)
                where = f"seed {seed}, cut behind token {cut}"
                parts = [*head.ids.tolist(), *tail.ids.tolist()]
                hint = "draw the token at position p of a context by random number p of the seed"
                demand(parts == whole.ids.tolist(), f"{where}: {parts}, in one request {whole.ids.tolist()}; {hint}")
                ends = (head.finish.kind, tail.finish)
                demand(ends == ("length", whole.finish), f"{where}: it ends {ends}, in one request {whole.finish}")

    if _promises(case, "is_deterministic", "can_continue_turn"):
        _run(case, use)


def greedy_sampling_does_not_depend_on_the_seed(case: EngineCase) -> None:
    async def use(engine: Engine) -> None:
        greedy = Sampling(temperature=0.0)
        requests = [case.request(engine, seed=s, sampling=greedy, max_tokens=8) for s in SEEDS]
        texts = {str((await _answer(engine, request)).ids.tolist()) for request in requests}
        demand(len(texts) == 1, f"temperature 0 and seeds {SEEDS} give {texts}")

    _run(case, use)


def a_context_without_room_is_an_engine_error(case: EngineCase) -> None:
    async def use(engine: Engine) -> None:
        length = engine.capabilities.context_length
        full = np.full(length, 65, np.int32)
        await _demand_error(
            engine, replace(case.request(engine), ids=full), f"a context of {length} of {length} tokens"
        )
        try:
            nearly = await _answer(engine, replace(case.request(engine), ids=full[:-2]))
        except EngineError as error:
            where = f"a context with room for 2 of {MAX_TOKENS} tokens is refused ({error}); sample those 2"
            raise BrokenRule(where) from error
        demand(len(nearly.ids) <= 2, f"{len(nearly.ids)} tokens in a context with room for 2")

    _run(case, use)


def cancelling_a_request_harms_no_other(case: EngineCase) -> None:
    async def use(engine: Engine) -> None:
        wanted = _bits(await _answer(engine, case.request(engine, seed=3)))
        for num_steps in range(8):
            where = f"cancelled after {num_steps} steps of the event loop"
            tasks = [asyncio.create_task(_answer(engine, case.request(engine, seed=seed))) for seed in (1, 3, 5)]
            for _ in range(num_steps):
                await asyncio.sleep(0)
            tasks[0].cancel()
            tasks[2].cancel()
            cancelled, kept, _ = await asyncio.gather(*tasks, return_exceptions=True)
            is_ended = isinstance(cancelled, asyncio.CancelledError | Generation)
            demand(is_ended, f"{where}: the request itself ended with {cancelled!r}")
            demand(isinstance(kept, Generation), f"{where}: another request ended with {kept!r}")
            assert isinstance(kept, Generation)
            if engine.capabilities.is_deterministic:
                demand(_bits(kept) == wanted, f"{where}: another request gave {_bits(kept)[0]}, alone {wanted[0]}")

    _run(case, use)


def an_aborted_request_returns_the_tokens_it_had(case: EngineCase) -> None:
    async def use(engine: Engine) -> None:
        if not isinstance(engine, Abortable):
            return
        whole, other = [await _answer(engine, case.request(engine, seed=seed)) for seed in (1, 3)]
        for num_steps in range(0, 30, 3):
            requests = [case.request(engine, seed=seed, request_id=f"0/{seed}") for seed in (1, 3)]
            tasks = [asyncio.create_task(_answer(engine, request)) for request in requests]
            for _ in range(num_steps):
                await asyncio.sleep(0)
            await engine.abort("0/1")
            await engine.abort("0/2")
            ended, kept = await asyncio.gather(*tasks)
            where = f"aborted after {num_steps} steps of the event loop"
            if engine.capabilities.is_deterministic:
                demand(_bits(kept) == _bits(other), f"{where}: another request changed")
                is_head = ended.ids.tolist() == whole.ids.tolist()[: len(ended.ids)]
                demand(is_head, f"{where}: its tokens {ended.ids.tolist()} do not begin {whole.ids.tolist()}")
            if ended.finish.kind == "abort":
                _demand_abort_billed(engine, requests[0], ended, whole, where)

    _run(case, use)


def nothing_is_generated_after_close(case: EngineCase) -> None:
    async def use(engine: Engine) -> None:
        await engine.close()
        await _demand_error(engine, case.request(engine), "a request after close")

    _run(case, use)


ENGINE_RULES: Final = rules_of(
    a_generation_is_sound_and_ends_for_the_reason_it_says,
    what_was_promised_is_returned,
    the_same_request_gives_the_same_bits_alone_and_in_company,
    different_seeds_give_different_samples,
    a_turn_is_the_same_however_it_is_divided_into_requests,
    greedy_sampling_does_not_depend_on_the_seed,
    a_context_without_room_is_an_engine_error,
    cancelling_a_request_harms_no_other,
    an_aborted_request_returns_the_tokens_it_had,
    nothing_is_generated_after_close,
)
"""Rule in plain English -> the function that checks it."""


def _run(case: EngineCase, use: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
    """Use a fresh engine in its own event loop and close it."""

    async def main() -> None:
        engine = case.build()
        try:
            if isinstance(engine, Remote):
                await engine.connect()
            await use(engine)
        finally:
            await engine.close()

    asyncio.run(main())


def _promises(case: EngineCase, *names: str) -> bool:
    """Whether the engine, when connected, has all these capabilities."""
    promised: list[bool] = []

    async def use(engine: Engine) -> None:
        promised.extend(bool(getattr(engine.capabilities, name)) for name in names)

    _run(case, use)
    return all(promised)


async def _answer(engine: Engine, request: Request) -> Generation:
    return checked(await engine.generate(request), request, engine.codec.vocab_size)


def _bits(generation: Generation) -> tuple[object, ...]:
    """Everything in a generation that must repeat bit for bit."""
    logprobs = None if generation.logprobs is None else generation.logprobs.tobytes()
    measures = {name: values.tobytes() for name, values in generation.measures.items()}
    return generation.ids.tolist(), generation.finish, logprobs, measures, [t.tobytes() for t in generation.topk]


def _demand_sound(engine: Engine, request: Request, generation: Generation) -> None:
    """Check stop words, the end of the sequence, the token limit and the billing."""
    codec, ids = engine.codec, generation.ids
    text = b"".join(codec.token_bytes(int(i)) for i in ids)
    stop, where = first_stop(text, request.stops, after=0), f"seed {request.seed}, {text!r}"
    match generation.finish.kind:
        case "stop":
            demand(stop is not None, f"{where}: it ends by a stop word, but holds none of {request.stops}")
            assert stop is not None
            matched = generation.finish.matched
            demand(matched == stop[0], f"{where}: it says that {matched!r} ended it, but {stop[0]!r} did")
            before = text[: -len(codec.token_bytes(int(ids[-1])))]
            is_last = first_stop(before, request.stops, after=0) is None
            demand(is_last, f"{where}: tokens follow the one that completed the stop word {stop[0]!r}")
        case "end_of_sequence":
            demand(ids[-1] == codec.eos_id, f"{where}: it ends by the end of the sequence, whose token is not its last")
            demand(stop is None, f"{where}: it goes on behind the stop word {stop and stop[0]!r}")
        case kind:
            ended = (kind, len(ids))
            demand(ended == ("length", request.max_tokens), f"{where}: it ends by {ended} of {request.max_tokens}")
    demand(codec.eos_id not in ids[:-1], f"{where}: tokens follow the end of the sequence")
    billed = generation.num_billed
    demand(billed >= len(ids), f"{where}: it bills {billed} tokens for {len(ids)} sampled ones")
    read = generation.num_cached + generation.num_prefilled
    demand(read == len(request.ids), f"{where}: it read {read} tokens of a context of {len(request.ids)}")


def _demand_abort_billed(engine: Engine, request: Request, ended: Generation, whole: Generation, where: str) -> None:
    billed, num_tokens = ended.num_billed, len(ended.ids)
    demand(billed == num_tokens, f"{where}: it bills {billed} tokens for {num_tokens} sampled ones")
    demand(num_tokens < len(whole.ids), f"{where}: all {num_tokens} tokens came, so nothing was aborted")
    read = ended.num_cached + ended.num_prefilled
    demand(read <= len(request.ids), f"{where}: it read {read} tokens of a context of {len(request.ids)}")
    versioned = sum(length for _, length in ended.versions)
    wanted = num_tokens * engine.capabilities.has_versions
    demand(versioned == wanted, f"{where}: versions of {versioned} tokens, {wanted} wanted")


async def _demand_error(engine: Engine, request: Request, what: str) -> None:
    try:
        generation = await engine.generate(request)
    except EngineError:
        return
    demand(False, f"{what} is no EngineError, but gives {len(generation.ids)} tokens")
