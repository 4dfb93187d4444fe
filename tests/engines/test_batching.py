import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.engines.models import HashModel, until_decoded

from ramify.core.codec import ByteCodec, Codec
from ramify.core.engine import Generation, Request, checked
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import Finish, token_array
from ramify.engines.batching import BatchingLoop
from ramify.engines.sampling import RawLaws, uniforms
from ramify.engines.slots import NUM_SPARED_STEPS, SlotTable

BYTES = ByteCodec()


def loop_of(model: HashModel, codec: Codec = BYTES, **options: Any) -> BatchingLoop:
    return BatchingLoop(model, codec, **options)


def request_of(ids: Sequence[int], *, max_tokens: int = 10, seed: int = 1, **rest: Any) -> Request:
    return Request(token_array(list(ids)), max_tokens, seed, **rest)


def random_ids(rng: np.random.Generator, num: int) -> list[int]:
    return rng.integers(0, 256, num).tolist()


def alone(model: HashModel, request: Request) -> list[int]:
    """The tokens of a request by definition: the model's law of everything before, a number a position of the seed."""
    ids = request.ids
    for number in uniforms(request.seed, request.max_tokens, start=len(ids)):
        token = RawLaws.of(model.law(ids)[None]).draw(np.array([number]), {})
        ids = np.concatenate((ids, token))
        if token[0] == BYTES.eos_id:
            break
    return ids[len(request.ids) :].tolist()


@pytest.mark.parametrize("num_slots", [1, 3, 8])
@pytest.mark.parametrize("prefill_tokens", [1, 7, 128])
async def test_every_request_gets_its_own_tokens_whatever_runs_beside_it(num_slots: int, prefill_tokens: int):
    model = HashModel(num_slots=num_slots)
    loop = loop_of(model, prefill_tokens=prefill_tokens)
    rng = np.random.default_rng(num_slots)
    stems = [random_ids(rng, 30) for _ in range(4)]
    requests = [
        request_of(
            stems[rng.integers(4)][: rng.integers(1, 30)] + random_ids(rng, int(rng.integers(0, 20))),
            max_tokens=int(rng.integers(1, 25)),
            seed=index,
        )
        for index in range(60)
    ]
    generations = await asyncio.gather(*(loop.generate(request) for request in requests))
    for request, generation in zip(requests, generations, strict=True):
        checked(generation, request, BYTES.vocab_size)
        assert generation.ids.tolist() == alone(model, request)
        assert generation.num_cached + generation.num_prefilled == len(request.ids)
        assert generation.num_cached < len(request.ids)
        assert generation.num_billed == len(generation.ids)
    assert loop.stats.prefill_cached == sum(g.num_cached for g in generations) > 0
    assert loop.stats.prefill_uncached == sum(g.num_prefilled for g in generations)
    assert loop.stats.num_decoded == sum(g.num_billed for g in generations)
    assert loop.num_active == loop.num_waiting == 0
    await loop.close()


async def test_chunks_stay_within_their_bound_and_decoding_never_waits_for_them():
    model = HashModel(num_slots=4)
    loop = loop_of(model, prefill_tokens=8)
    rng = np.random.default_rng(0)
    first = asyncio.create_task(loop.generate(request_of(random_ids(rng, 1), max_tokens=40)))
    await until_decoded(loop.stats, 2)
    before = len(model.calls)
    await asyncio.gather(*(loop.generate(request_of(random_ids(rng, 64), max_tokens=1)) for _ in range(2)))
    entered = [call for call in model.calls[before:] if call[1]]
    assert all(sum(sizes) <= 8 for _, sizes in entered)
    assert len(entered) == 16 and all(num_rows == 1 for num_rows, _ in entered)
    await first
    await loop.close()


async def test_siblings_that_start_together_compute_their_context_once():
    model = HashModel(num_slots=16)
    loop = loop_of(model, prefill_tokens=16)
    context = random_ids(np.random.default_rng(1), 50)
    siblings = [request_of(context, seed=seed) for seed in range(16)]
    generations = await asyncio.gather(*(loop.generate(request) for request in siblings))
    assert sorted(g.num_cached for g in generations) == [0] + [49] * 15
    assert loop.stats.num_copies == 15
    assert loop.stats.prefill_uncached == 50 + 15
    assert sum(rows + sum(sizes) for rows, sizes in model.calls) == 50 + 15 + sum(len(g.ids) - 1 for g in generations)
    await loop.close()


async def test_a_fork_copies_and_leaves_its_sibling_whole():
    loop = loop_of(HashModel(num_slots=4))
    context = random_ids(np.random.default_rng(2), 30)
    parent = await loop.generate(request_of(context, max_tokens=20))
    sampled = parent.ids.tolist()
    fork = await loop.generate(request_of(context + sampled[:8], seed=5))
    assert (fork.num_cached, loop.stats.num_copies) == (37, 1)
    onward = await loop.generate(request_of(context + sampled + [1, 2, 3]))
    # All of the parent's tokens but the last were computed; the turn goes on in their slot, uncopied.
    assert (onward.num_cached, loop.stats.num_copies) == (30 + len(sampled) - 1, 1)
    assert loop.stats.num_evictions == 0
    await loop.close()


async def test_a_branch_is_copied_from_a_slot_that_is_still_decoding():
    loop = loop_of(HashModel(num_slots=4))
    context = random_ids(np.random.default_rng(3), 30)
    running = asyncio.create_task(loop.generate(request_of(context, max_tokens=100)))
    await until_decoded(loop.stats, 5)
    fork = await loop.generate(request_of([*context, 7, 7], max_tokens=3))
    assert not running.done() and fork.num_cached == 30
    await running
    await loop.close()


async def test_the_only_slot_is_cut_back_for_a_fork():
    model = HashModel(num_slots=1)
    loop = loop_of(model)
    context = random_ids(np.random.default_rng(4), 20)
    parent = await loop.generate(request_of(context, max_tokens=10))
    request = request_of(context + parent.ids.tolist()[:4] + [9], seed=3)
    fork = await loop.generate(request)
    assert fork.num_cached == 24 and fork.ids.tolist() == alone(model, request)
    assert (loop.stats.num_copies, loop.stats.num_evictions, loop.stats.recomputed_after_eviction) == (0, 1, 0)
    await loop.close()


async def test_what_an_eviction_costs_is_counted():
    loop = loop_of(HashModel(num_slots=2))
    rng = np.random.default_rng(5)
    contexts = [random_ids(rng, 40) for _ in range(3)]
    for context in contexts:
        await loop.generate(request_of(context, max_tokens=1))
    assert (loop.stats.num_evictions, loop.stats.recomputed_after_eviction) == (1, 0)
    again = await loop.generate(request_of([*contexts[0][:30], 1, 2, 3], max_tokens=1))
    assert again.num_cached <= 1
    assert loop.stats.num_evictions == 2
    assert loop.stats.recomputed_after_eviction == 30 - again.num_cached
    kept = await loop.generate(request_of([*contexts[2], 1], max_tokens=1))
    assert kept.num_cached == 40 and loop.stats.num_evictions == 2
    await loop.close()


def test_the_slot_used_longest_ago_is_evicted():
    table = SlotTable(3, 32)
    contexts = [token_array([i] * 10) for i in range(4)]
    seats = [table.take(context) for context in contexts[:3]]
    for slot, seat in enumerate(seats):
        table.held[seat.slot] = 10
        table.release(slot)
    table.release(table.take(np.append(contexts[0], [8]).astype(np.int32)).slot)
    seat = table.take(contexts[3])
    assert (seat.slot, seat.num_cached, seat.is_eviction) == (1, 0, True)
    table.release(seat.slot)
    assert table.take(contexts[1]).num_recomputed == 9


async def test_more_requests_than_slots_wait_in_order():
    loop = loop_of(HashModel(num_slots=2))
    rng = np.random.default_rng(6)
    ended: list[int] = []

    async def run(index: int) -> None:
        await loop.generate(request_of(random_ids(rng, 10), max_tokens=4, seed=index))
        ended.append(index)

    tasks = [asyncio.create_task(run(index)) for index in range(10)]
    await until_decoded(loop.stats, 1)
    assert loop.num_active == 2 and loop.num_waiting == 8
    await asyncio.gather(*tasks)
    assert sorted(ended) == list(range(10))
    assert all(abs(place - index) <= 1 for place, index in enumerate(ended))
    await loop.close()


async def test_a_chain_that_comes_back_goes_on_in_its_slot_ahead_of_the_queue():
    loop = loop_of(HashModel(num_slots=2, script=b"." * 99))
    rng = np.random.default_rng(7)

    async def chain() -> int:
        ids, num_computed = random_ids(rng, 20), 0
        for _ in range(4):
            generation = await loop.generate(request_of(ids, max_tokens=30, stops=("...",)))
            num_computed += generation.num_prefilled
            ids = [*ids, *generation.ids.tolist(), *random_ids(rng, 3)]
            await asyncio.sleep(0)  # what a tool takes
        return num_computed

    computed = await asyncio.gather(*(chain() for _ in range(10)))
    # Each turn computes the last sampled token and the three tokens of the tool.
    assert max(computed) <= 20 + 3 * 4
    await loop.close()


def test_a_spared_slot_is_open_to_its_own_chain_alone_for_some_steps():
    table = SlotTable(2, 32)
    first, second = (table.take(token_array([i] * 9)) for i in range(2))
    table.held[:] = 9
    table.release(first.slot)
    assert table.num_open == 1
    table.spare(first.slot)
    assert table.num_open == 0
    assert table.is_continued_by(token_array([0] * 9 + [5]))
    assert not table.is_continued_by(token_array([1] * 9 + [5]))
    table.release(second.slot)
    assert table.num_open == 1
    third = table.take(token_array([2] * 9))
    assert third.slot == second.slot, "used later than the spared one, but open"
    table.num_steps += NUM_SPARED_STEPS
    assert table.num_open == 1


async def test_a_cancelled_request_gives_its_slot_back_at_once():
    loop = loop_of(HashModel(num_slots=1))
    first = asyncio.create_task(loop.generate(request_of([1, 2, 3], max_tokens=200)))
    second = asyncio.create_task(loop.generate(request_of([4, 5, 6], max_tokens=200)))
    third = asyncio.create_task(loop.generate(request_of([7, 8, 9], max_tokens=2)))
    await until_decoded(loop.stats, 3)
    assert (loop.num_active, loop.num_waiting) == (1, 2)
    for task in (first, second):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len((await third).ids) == 2
    assert loop.stats.num_decoded < 20
    assert loop.num_active == loop.num_waiting == 0
    await loop.close()


@pytest.mark.parametrize("num_turns", range(12))
async def test_a_cancel_at_any_moment_leaves_the_loop_sound(num_turns: int):
    model = HashModel(num_slots=2)
    loop = loop_of(model, prefill_tokens=3)
    doomed = asyncio.create_task(loop.generate(request_of(list(range(10)), max_tokens=5)))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    doomed.cancel()
    request = request_of(list(range(12)), max_tokens=6)
    assert (await loop.generate(request)).ids.tolist() == alone(model, request)
    await asyncio.gather(doomed, return_exceptions=True)
    assert loop.num_active == loop.num_waiting == 0
    await loop.close()


def script_model(text: bytes) -> HashModel:
    return HashModel(script=list(text))


@pytest.mark.parametrize("cut", range(1, 20))
async def test_a_stop_word_is_found_wherever_the_context_ends(cut: int):
    text = b"ab</calc>cd</calc>efgh"
    loop = loop_of(script_model(text))
    request = request_of(text[:cut], max_tokens=40, stops=("</calc>", "</answer>"), num_run=cut)
    generation = await loop.generate(request)
    # 9 and 18 are where the stop word is complete; one complete in the context is not sampled again.
    end = 9 if cut < 9 else 18 if cut < 18 else None
    if end is None:
        assert generation.finish == Finish("length")
    else:
        assert generation.finish == Finish("stop", "</calc>")
        assert bytes(generation.ids.tolist()) == text[cut:end]
    await loop.close()


@pytest.mark.parametrize("num_run", [0, 1, 2, 3, 4])
async def test_a_stop_word_may_begin_in_the_run_but_not_before_it(num_run: int):
    text = b"xx</a>yy</a>z"
    loop = loop_of(script_model(text))
    generation = await loop.generate(request_of(text[:4], max_tokens=20, stops=("</a>",), num_run=num_run))
    assert bytes(generation.ids.tolist()) == (text[4:6] if num_run >= 2 else text[4:12])
    await loop.close()


@dataclass(frozen=True)
class PieceCodec(ByteCodec):
    """Tokens of several bytes: a stop word may be complete inside one."""

    pieces: tuple[bytes, ...] = (b"<", b"</", b"a", b"a>", b"</a>tail", b">rest", b"\xc3", b"\xa9", b"</b></a>", b"!")

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    @property
    def eos_id(self) -> int:
        return len(self.pieces) - 1

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


@pytest.mark.parametrize(
    ("script", "num_ids", "finish"),
    [
        ([2, 1, 3, 0], 3, Finish("stop", "</a>")),
        ([2, 1, 2, 5, 0], 4, Finish("stop", "</a>")),
        ([2, 4, 0], 2, Finish("stop", "</a>")),
        ([2, 8, 0], 2, Finish("stop", "</b>")),
        ([2, 6, 7, 0], 3, Finish("stop", "é")),
        ([2, 0, 9, 1], 3, Finish("end_of_sequence")),
        ([2, 0, 0, 0, 0, 0, 0], 6, Finish("length")),
    ],
)
async def test_the_token_in_which_a_stop_word_is_complete_is_kept(script: list[int], num_ids: int, finish: Finish):
    codec = PieceCodec()
    loop = loop_of(HashModel(vocab_size=codec.vocab_size, script=script), codec)
    generation = await loop.generate(request_of(script[:1], max_tokens=5, stops=("</a>", "</b>", "é"), num_run=1))
    assert generation.ids.tolist() == script[1:num_ids]
    assert generation.finish == finish
    await loop.close()


async def test_top_logprobs_hold_the_sampled_token_and_only_the_first_tokens():
    model = HashModel()
    loop = loop_of(model)
    request = request_of([1, 2, 3], max_tokens=12, topk=4, topk_tokens=5)
    generation = await loop.generate(request)
    assert generation.logprobs is not None and len(generation.topk) == 5
    for values, own in zip(generation.topk, generation.logprobs, strict=False):
        assert own in values
        assert len(values) == (4 if own >= values[3] else 5)
        assert sorted(values.tolist(), reverse=True) == values.tolist()
    without = await loop.generate(request_of([1, 2, 3]))
    assert without.topk == () and without.measures == {}
    await loop.close()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (request_of(range(64), max_tokens=5), "context_full"),
        (request_of([], max_tokens=5), "empty_request"),
        (request_of([1], max_tokens=0), "empty_request"),
        (request_of([1, 257]), "bad_token_ids"),
        (request_of([-1]), "bad_token_ids"),
        (request_of([1], measures=frozenset({"magic"})), "unknown_measure"),
    ],
)
async def test_an_impossible_request_is_refused(request_: Request, reason: str):
    loop = loop_of(HashModel(context_length=64))
    with pytest.raises(EngineError) as caught:
        await loop.generate(request_)
    assert caught.value.reason == reason and not caught.value.is_retryable
    await loop.close()


async def test_a_context_is_filled_to_its_last_position():
    model = HashModel(context_length=64, num_slots=1)
    loop = loop_of(model)
    request = request_of(range(60), max_tokens=4)
    assert (await loop.generate(request)).ids.tolist() == alone(model, request)
    await loop.close()


async def test_a_request_for_more_than_the_room_gets_the_room():
    model = HashModel(context_length=64, num_slots=1)
    loop = loop_of(model)
    generation = await loop.generate(request_of(range(60), max_tokens=50))
    assert generation.ids.tolist() == alone(model, request_of(range(60), max_tokens=4))
    assert generation.finish == Finish("length")
    await loop.close()


async def test_a_turn_is_the_same_however_it_is_divided_into_requests():
    loop = loop_of(HashModel())
    whole = (await loop.generate(request_of([1, 2, 3], max_tokens=30, seed=8))).ids.tolist()
    assert len(whole) == 30
    for cut in range(1, 30):
        head = await loop.generate(request_of([1, 2, 3], max_tokens=cut, seed=8))
        ids = [1, 2, 3, *head.ids.tolist()]
        tail = await loop.generate(request_of(ids, max_tokens=30 - cut, seed=8, num_run=cut))
        assert [*head.ids.tolist(), *tail.ids.tolist()] == whole
    await loop.close()


async def test_any_of_several_end_tokens_ends_a_sequence():
    loop = loop_of(script_model(b"abcdef"), end_ids={ord("d"), ord("f")})
    generation = await loop.generate(request_of(b"a"))
    assert (bytes(generation.ids.tolist()), generation.finish) == (b"bcd", Finish("end_of_sequence"))
    await loop.close()


async def test_a_failing_step_fails_its_requests_and_not_the_loop():
    model = HashModel(num_slots=4)
    loop = loop_of(model)
    running = [asyncio.create_task(loop.generate(request_of([i], max_tokens=100))) for i in range(2)]
    await until_decoded(loop.stats, 4)
    model.poison = 255
    with pytest.raises(EngineError, match="RuntimeError: poison"):
        await loop.generate(request_of([1, 255]))
    for task in running:
        with pytest.raises(EngineError, match="model_error"):
            await task
    model.poison = -1
    request = request_of([1, 255], seed=4)
    generation = await loop.generate(request)
    assert generation.num_cached == 0 and generation.ids.tolist() == alone(model, request)
    await loop.close()


async def test_a_copy_that_fails_fails_its_request_and_keeps_neither_its_slot_nor_the_queue():
    class Full(HashModel):
        def copy(self, source: int, target: int, length: int) -> None:
            raise MemoryError("no room for a copy")

    model = Full(num_slots=2)
    loop = loop_of(model)
    context = random_ids(np.random.default_rng(9), 20)
    siblings = [asyncio.create_task(loop.generate(request_of(context, max_tokens=30, seed=n))) for n in range(4)]
    async with asyncio.timeout(5):
        results = await asyncio.gather(*siblings, return_exceptions=True)
    assert isinstance(results[0], Generation)
    for result in results[1:]:
        assert isinstance(result, EngineError) and (result.reason, "no room" in str(result)) == ("model_error", True)
    assert loop.num_active == loop.num_waiting == 0
    request = request_of(random_ids(np.random.default_rng(10), 20), max_tokens=3)
    assert (await loop.generate(request)).ids.tolist() == alone(model, request)
    await loop.close()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
async def test_logits_that_are_no_numbers_are_refused_at_the_door(value: float):
    class Broken(HashModel):
        def law(self, ids: Any) -> Any:
            return np.full(self.vocab_size, value, np.float32)

    loop = loop_of(Broken())
    request = request_of([1, 2], max_tokens=2)
    with pytest.raises(EngineError, match="not finite"):
        checked(await loop.generate(request), request, BYTES.vocab_size)
    await loop.close()


async def test_closing_ends_every_request():
    loop = loop_of(HashModel(num_slots=1))
    tasks = [asyncio.create_task(loop.generate(request_of([i], max_tokens=200))) for i in range(3)]
    await until_decoded(loop.stats, 2)
    await loop.close()
    await loop.close()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, EngineError) and result.reason == "closed"
    with pytest.raises(EngineError, match="closed"):
        await loop.generate(request_of([1]))


def test_one_loop_serves_one_event_loop_after_another():
    model = HashModel()
    loop = loop_of(model)

    async def once() -> Generation:
        return await loop.generate(request_of([1, 2, 3, 4]))

    first, second = asyncio.run(once()), asyncio.run(once())
    assert first.ids.tolist() == second.ids.tolist()
    assert (first.num_cached, second.num_cached) == (0, 3)


async def test_a_padded_vocabulary_is_never_sampled():
    model = HashModel(vocab_size=400)
    loop = loop_of(model)
    generations = await asyncio.gather(*(loop.generate(request_of([i], max_tokens=50, seed=i)) for i in range(8)))
    assert all(g.ids.max() < 257 for g in generations)
    await loop.close()


def test_a_model_with_fewer_ids_than_its_tokenizer_is_refused():
    with pytest.raises(ConfigError, match="256 token ids"):
        loop_of(HashModel(vocab_size=256))
