"""Simulated: the time a model server would take, without a server.

The text comes from a script, exactly as in `scripted`. The timing comes from a model of one server that batches
continuously (`simulated_server.py`). So schedulers can be compared on the same tokens, to the microsecond: at once
under `run_virtual`, elsewhere in real time. Tokens never depend on time: the same requests give the same bits, whatever
else runs.

Life of a request: its tokens are fixed when it arrives. It waits for room in the batch. Its context is looked up in the
prefix cache and the rest is computed. It samples one token per step and is answered when its last step is over.
"""

import asyncio
from dataclasses import replace
from typing import Final

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.errors import EngineError
from ramify.testing.prefixes import KnownPrefixes
from ramify.testing.scripted import SCRIPTED, Scripted, aborted
from ramify.testing.scripts import Rule, TokenLaw
from ramify.testing.simulated_server import Job, ServerStats, SimulatedCosts, SimulatedServer

SIMULATED: Final = replace(SCRIPTED, name="simulated")
"""What the simulated engine can do."""
COSTS: Final = SimulatedCosts()
BLOCK_SIZE: Final = 16
"""Tokens per block of the prefix cache (vllm-project/vllm: block_size)."""


class Simulated:
    """An engine that says what its script says, in the time a server would need.

    It has no model: use it to try limits, placement and schedules.
    """

    def __init__(
        self,
        script: Rule | TokenLaw | None = None,
        *,
        codec: Codec | None = None,
        max_batch: int = 256,
        step_s: float = COSTS.step_s,
        sequence_s: float = COSTS.sequence_s,
        kv_token_s: float = COSTS.kv_token_s,
        prefill_token_s: float = COSTS.prefill_token_s,
        join_s: float = COSTS.join_s,
        block_size: int = BLOCK_SIZE,
        version: int | None = None,
    ) -> None:
        """The costs are those of `SimulatedCosts`: a model of 7 B on one GPU, assumed and not measured.

        - `max_batch`: most sequences in one step (vllm-project/vllm:vllm/engine/arg_utils.py: max_num_seqs on cards
          below 70 GB).
        - `step_s`: time of each step: the weights are read once for the whole batch.
        - `sequence_s`: more time for each sequence of the batch.
        - `kv_token_s`: more time for each token whose keys and values are read.
        - `prefill_token_s`: more time for each context token that is computed.
        - `join_s`: more time for each sequence that joins, besides its tokens.
        - `block_size`: tokens per block of the prefix cache; only whole blocks are cached.
        - `version`: version of the weights; None = the engine has no versions until weights are loaded.
        """
        costs = SimulatedCosts(step_s, sequence_s, kv_token_s, prefill_token_s, join_s)
        self._script = Scripted(script, codec=codec, capabilities=SIMULATED, block_size=0, version=version)
        self._server = SimulatedServer(costs, max_batch=max_batch, prefixes=KnownPrefixes(block_size))
        self._answers: dict[Job, asyncio.Future[int]] = {}
        """Running jobs, each with a future for the number of tokens that answers it."""
        self._jobs: dict[str, list[Job]] = {}
        """By the ids of their requests."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def codec(self) -> Codec:
        return self._script.codec

    @property
    def capabilities(self) -> Capabilities:
        return self._script.capabilities

    @property
    def stats(self) -> ServerStats:
        """Statistics of the server so far. The object is updated live."""
        return self._server.stats

    @property
    def least_s(self) -> float:
        """Seconds that the work so far would have taken with every step full. No schedule can take less."""
        return self._server.least_s

    async def generate(self, request: Request) -> Generation:
        """Answer one request. If cancelled, it leaves the batch after the current step. Raises `EngineError`."""
        generation = await self._script.generate(request)
        loop = asyncio.get_running_loop()
        job = Job(request.ids, generation.ids)
        answer = self._answers[job] = loop.create_future()
        self._jobs.setdefault(request.request_id, []).append(job)
        self._server.submit(job, loop.time())
        self._set_timer(loop)
        try:
            num_tokens = await answer
        finally:
            self._forget(request.request_id, job)
            self._server.withdraw(job, loop.time())
            self._set_timer(loop)
        if num_tokens < len(generation.ids):
            versions = tuple((version, num_tokens) for version, _ in generation.versions if num_tokens)
            generation = replace(aborted(generation, num_tokens), versions=versions)
        was_begun = job.num_cached or num_tokens
        num_prefilled = len(request.ids) - job.num_cached if was_begun else 0
        return replace(generation, num_cached=job.num_cached, num_prefilled=num_prefilled)

    async def abort(self, request_id: str) -> None:
        """End every request with this id; it returns the tokens of its finished steps."""
        now = asyncio.get_running_loop().time()
        for job in self._jobs.get(request_id, ()):
            if not self._answers[job].done():
                self._answers[job].set_result(min(self._server.num_sampled(job, now), len(job.sampled) - 1))

    async def close(self) -> None:
        """Refuse further requests; those in flight raise `EngineError`. A second call does nothing."""
        await self._script.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EngineError("closed", "the engine was closed while the request ran"))

    async def pause(self) -> None:
        """Start no further requests; those in flight go on."""
        await self._script.pause()

    async def resume(self) -> None:
        await self._script.resume()

    async def update_weights(self, source: str, version: int) -> None:
        """Tokens of requests made from now on carry `version`, and the cache is cleared. Raises `EngineError` if
        requests are in flight, because their keys and values would be those of the old weights."""
        if self._answers:
            raise EngineError("in_flight", f"{len(self._answers)} requests are on their way; hold them first")
        await self._script.update_weights(source, version)
        self._server.forget()

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        """Pause and clear the cache."""
        await self.pause()
        self._server.forget()

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        await self.resume()

    async def is_healthy(self) -> bool:
        return await self._script.is_healthy()

    def _forget(self, request_id: str, job: Job) -> None:
        """Forget a job that nobody waits for any more."""
        self._answers.pop(job, None)
        self._jobs[request_id].remove(job)
        if not self._jobs[request_id]:
            del self._jobs[request_id]

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake up when the server is due."""
        due = self._server.due
        if self._timer is not None and self._timer.when() != due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and due is not None:
            self._timer = loop.call_at(due, self._advance, loop)

    def _advance(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for job in self._server.advance():
            answer = self._answers[job]
            if not answer.done():
                answer.set_result(len(job.sampled))
        self._set_timer(loop)
