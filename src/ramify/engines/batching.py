"""Batching loop: serves many requests on one in-process model, one model step at a time.

The loop decides which request computes what in each step, reuses prefixes between slots, samples, and finds stop words.
The model behind it (`SlotModel`) owns weights, keys and values. Requests join and leave the batch at every step.
Contexts are computed in chunks of bounded size, so that a long one does not delay decoding. Invariant: the token at
position p of a context is drawn with uniform number p of its seed. So on a batch-invariant model, a turn's tokens and
logprobs depend neither on the other requests nor on how the turn is divided into requests.

Life of a request: (1) The loop checks it. (2) It gets a slot at once if it continues the tokens of an idle slot;
otherwise it waits in a first-come, first-served queue. If another request is computing its prefix right now, it waits
and then copies that prefix. (3) Its prefix is continued in place or copied, the rest of its context is computed in
chunks, and it decodes one token a step. (4) When it ends, its slot stays readable until it is evicted.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from ramify.core.codec import Codec
from ramify.core.engine import Generation, Request, room_for
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import Finish, token_array
from ramify.engines.batching_run import BatchingRun
from ramify.engines.batching_stats import Stats
from ramify.engines.sampling import RAW, RawLaws, uniforms
from ramify.engines.slot_model import Chunk, Indices, Rows, SlotModel
from ramify.engines.slots import SlotTable
from ramify.engines.stop_watch import StopWatch

T = TypeVar("T")

MEASURES = frozenset({"entropy"})
"""What the loop can measure with any model."""
NOTHING: Final = Generation(token_array(()), Finish("abort"), logprobs=np.empty(0, np.float32))
"""The result of a request that was ended before it had a slot."""


class BatchingLoop:
    """Serves requests on `model`. `prefill_tokens` is the most context tokens computed beside one decode step.

    `end_ids` are tokens that end a sequence, in addition to the codec's own. The loop is one asyncio task: the first
    request starts it and `close` ends it. It yields to the event loop once between steps.
    """

    def __init__(
        self, model: SlotModel, codec: Codec, *, prefill_tokens: int = 256, end_ids: Collection[int] = ()
    ) -> None:
        if model.vocab_size < codec.vocab_size:
            raise ConfigError(f"the model has {model.vocab_size} token ids, its tokenizer {codec.vocab_size}")
        self.stats = Stats()
        self.version = 0
        self._model = model
        self._bytes = [codec.token_bytes(i) for i in range(codec.vocab_size)]
        self._end_ids = frozenset({codec.eos_id, *end_ids})
        self._prefill_tokens = prefill_tokens
        self._table = SlotTable(model.num_slots, model.context_length)
        shape = self._table.ids.shape
        self._uniforms = np.zeros(shape)
        self._logprobs = np.zeros(shape, np.float32)
        self._entropies = np.zeros(shape, np.float32)
        self._waiting: deque[BatchingRun] = deque()
        self._active: dict[int, BatchingRun] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_paused = False
        self._is_closed = False

    @property
    def num_active(self) -> int:
        """Requests that have a slot."""
        return len(self._active)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of context and completion together."""
        return self._model.context_length

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def generate(self, request: Request) -> Generation:
        """Run one request. A cancelled request frees its slot at once. Raises `EngineError`."""
        room = self._room(request)
        future = asyncio.get_running_loop().create_future()
        latest_first = request.ids[::-1][: request.num_run].tolist()
        watch = StopWatch(request.stops, (self._bytes[token] for token in latest_first))
        run = BatchingRun(request, future, watch, room, is_raw=request.sampling == RAW)
        self._ensure_running()
        if self._table.is_continued_by(request.ids):
            self._seat(run)
        else:
            self._waiting.append(run)
        self._wake.set()
        try:
            return await run.future
        finally:
            self._withdraw(run)

    def abort(self, request_id: str) -> None:
        """End every request with this id; it returns the tokens it has. Does nothing if there is none."""
        for run in [run for run in self._active.values() if run.request.request_id == request_id]:
            self._finish(run, Finish("abort"))
        for run in [run for run in self._waiting if run.request.request_id == request_id]:
            self._waiting.remove(run)
            if not run.future.done():
                run.future.set_result(NOTHING)

    async def close(self) -> None:
        """End the loop; running requests raise `EngineError`. Calling it again does nothing."""
        self._is_closed = True
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    def pause(self) -> None:
        """Stop computing until `resume`; requests keep their place."""
        self._is_paused = True

    def resume(self) -> None:
        """Continue after `pause`."""
        self._is_paused = False
        self._wake.set()

    def forget(self, version: int) -> None:
        """Call this after the model's weights or cache were replaced: it drops every cached prefix and tags later
        tokens with `version`.

        Running requests recompute all their tokens, so that the next ones come exactly from the new model's
        distribution.
        """
        self.version = version
        self.stats.recomputed_after_update += int(self._table.held[self._table.is_active].sum())
        self._table.forget()
        for run in self._active.values():
            if run.versions[-1][0] != version:
                run.versions.append((version, run.num_sampled))

    def _room(self, request: Request) -> int:
        """Maximum number of tokens to sample for a request. Raises `EngineError` for a request that cannot run."""
        if self._is_closed:
            raise EngineError("closed", "the engine was closed")
        room = room_for(request, context_length=self._model.context_length, vocab_size=len(self._bytes))
        if unknown := request.measures - MEASURES:
            raise EngineError("unknown_measure", f"{sorted(unknown)}; known: {sorted(MEASURES)}")
        return room

    def _ensure_running(self) -> None:
        if self._task is None or self._task.done():
            self._wake = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="ramify batching loop")

    async def _serve(self) -> None:
        try:
            while True:
                if self._is_paused or not (self._active or self._waiting):
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                self._step()
                await asyncio.sleep(0)
        finally:
            for run in (*self._active.values(), *self._waiting):
                self._fail(run, EngineError("closed", "the batching loop ended while the request ran"))
            self._waiting.clear()

    def _step(self) -> None:
        self._table.num_steps += 1
        self._seat_waiting()
        if not self._active:
            return
        rows, chunks = self._due()
        slots = np.array([*rows.slots, *(chunk.slot for chunk in chunks)], np.intp)
        logits = self._by_model(lambda: self._model.forward(rows, chunks), slots)
        if logits is None:
            return
        self.stats.num_steps += 1
        self._advance(slots, chunks, logits)

    def _by_model(self, compute: Callable[[], T], slots: Indices) -> T | None:
        """The result of `compute`, which calls the model. Boundary: an exception of the model fails the requests of
        these slots and not the loop. Then this returns None, and nothing that the slots hold is used again."""
        try:
            return compute()
        except Exception as error:  # noqa: BLE001
            self._table.held[slots] = 0
            for slot in slots.tolist():
                self._fail(self._active[slot], EngineError("model_error", f"{type(error).__name__}: {error}"))
            return None

    def _seat_waiting(self) -> None:
        """Give waiting requests slots, in order. A request that waits for another one's prefix stays at the head of the
        queue."""
        held_back: list[BatchingRun] = []
        while self._waiting and self._table.num_open > len(held_back):
            run = self._waiting.popleft()
            if self._table.is_being_computed(run.request.ids):
                held_back.append(run)
            else:
                self._seat(run)
        self._waiting.extendleft(reversed(held_back))

    def _seat(self, run: BatchingRun) -> None:
        seat = self._table.take(run.request.ids)
        run.slot, run.num_cached = seat.slot, seat.num_cached
        run.versions.append((self.version, 0))
        self._active[seat.slot] = run
        start, num = run.num_context, run.max_tokens
        self._uniforms[seat.slot, start : start + num] = uniforms(run.request.seed, num, start=start)
        self.stats.prefill_cached += seat.num_cached
        self.stats.prefill_uncached += run.num_context - seat.num_cached
        self.stats.num_evictions += seat.is_eviction
        self.stats.recomputed_after_eviction += seat.num_recomputed
        if seat.num_cached and seat.source != seat.slot:
            self.stats.num_copies += 1
            copy = partial(self._model.copy, seat.source, seat.slot, seat.num_cached)
            self._by_model(copy, np.array([seat.slot]))

    def _due(self) -> tuple[Rows, list[Chunk]]:
        """What the next step computes: one token for every slot that lacks one, and chunks for slots that lack more."""
        table = self._table
        lacking = table.known - table.held
        single = np.flatnonzero(table.is_active & (lacking == 1))
        positions = table.held[single]
        rows = Rows(single, positions, table.ids[single, positions])
        chunks: list[Chunk] = []
        room = self._prefill_tokens
        for slot in self._active if len(single) < len(self._active) else ():
            if lacking[slot] > 1 and room > 0:
                start = int(table.held[slot])
                end = start + min(room, int(lacking[slot]))
                chunks.append(Chunk(slot, start, table.ids[slot, start:end]))
                room -= end - start
        return rows, chunks

    def _advance(self, slots: Indices, chunks: Sequence[Chunk], logits: npt.NDArray[np.float32]) -> None:
        """Record what was computed, and sample where a context is complete."""
        table = self._table
        num_rows = len(slots) - len(chunks)
        table.held[slots[:num_rows]] += 1
        for chunk in chunks:
            table.held[chunk.slot] += len(chunk.ids)
        is_complete = table.held[slots] == table.known[slots]
        if not is_complete.all():
            slots, logits = slots[is_complete], logits[is_complete]
        if len(slots):
            self._sample(slots, logits[:, : len(self._bytes)])

    def _sample(self, slots: Indices, logits: npt.NDArray[np.float32]) -> None:
        runs = [self._active[slot] for slot in slots.tolist()]
        positions = self._table.known[slots]
        law = RawLaws.of(logits)
        changed = {row: run.request.sampling for row, run in enumerate(runs) if not run.is_raw}
        ids = law.draw(self._uniforms[slots, positions], changed)
        self._table.ids[slots, positions] = ids
        self._table.known[slots] += 1
        self._logprobs[slots, positions] = law.logprobs(ids)
        if any(run.request.measures for run in runs):
            self._entropies[slots, positions] = law.entropies()
        self._measure_top(runs, law, slots)
        self.stats.num_sampling_steps += 1
        self.stats.num_decoded += len(runs)
        for run, token in zip(runs, ids.tolist(), strict=True):
            finish = run.hear(None if token in self._end_ids else self._bytes[token])
            if finish is not None:
                self._finish(run, finish)

    def _measure_top(self, runs: Sequence[BatchingRun], law: RawLaws, slots: Indices) -> None:
        wanted = [row for row, run in enumerate(runs) if run.wants_topk]
        if not wanted:
            return
        largest = law.top(wanted, max(runs[row].request.topk for row in wanted))
        for row, values in zip(wanted, largest, strict=True):
            run, slot = runs[row], slots[row]
            own = self._logprobs[slot, self._table.known[slot] - 1]
            first = values[: run.request.topk].copy()
            run.topk.append(first if own >= first[-1] else np.append(first, own))

    def _finish(self, run: BatchingRun, finish: Finish) -> None:
        start, slot = run.num_context, run.slot
        span = slice(start, start + run.num_sampled)
        num_held = min(int(self._table.held[slot]), run.num_context)
        generation = Generation(
            ids=self._table.ids[slot, span].copy(),
            finish=finish,
            logprobs=self._logprobs[slot, span].copy(),
            measures={"entropy": self._entropies[slot, span].copy()} if "entropy" in run.request.measures else {},
            topk=tuple(run.topk),
            versions=run.spans,
            num_billed=run.num_sampled,
            num_cached=run.num_cached,
            num_prefilled=max(0, num_held - run.num_cached),
        )
        self._release(run)
        if finish.kind == "stop":
            self._table.spare(slot)
        if not run.future.done():
            run.future.set_result(generation)

    def _fail(self, run: BatchingRun, error: EngineError) -> None:
        self._release(run)
        if not run.future.done():
            run.future.set_exception(error)

    def _release(self, run: BatchingRun) -> None:
        """Free the request's slot, if it has one."""
        if run.slot >= 0:
            self._table.release(run.slot)
            del self._active[run.slot]
            run.slot = -1

    def _withdraw(self, run: BatchingRun) -> None:
        """Drop a request whose caller has stopped waiting. Does nothing for a finished one."""
        self._release(run)
        if (not run.future.done() or run.future.cancelled()) and run in self._waiting:
            self._waiting.remove(run)
