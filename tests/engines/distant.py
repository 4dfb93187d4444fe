"""Distant: a scripted engine behind a real server, with the smallest protocol there can be.

For tests of what lies between: the server side answers what its `Scripted` says, the client side is an engine over
`Http`, so that whatever happens on the way is real.
"""

from dataclasses import replace
from typing import Final

import msgspec
import numpy as np
from tests.engines.fault_server import Answer, Received

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.errors import EngineError
from ramify.core.segment import Finish, Sampling, token_array
from ramify.edge.http import Http, HttpLimits
from ramify.edge.patience import Patience
from ramify.testing.scripted import SCRIPTED, Scripted

LIMITS: Final = HttpLimits()
PATIENCE: Final = Patience(start_s=5.0)


class Ask(msgspec.Struct, frozen=True):
    ids: list[int]
    max_tokens: int
    seed: int
    stops: tuple[str, ...]
    num_run: int
    temperature: float
    topk: int
    request_id: str


class Said(msgspec.Struct, frozen=True):
    ids: list[int]
    kind: str
    matched: str | None
    logprobs: list[float] | None
    topk: list[list[float]]
    num_billed: int
    num_cached: int
    num_prefilled: int


def spoken_by(scripted: Scripted) -> Answer:
    """The server side: POST /generate, /abort and anything else to be told that all is well."""

    async def answer(received: Received) -> bytes:
        if received.path == "/abort":
            await scripted.abort(received.body.decode())
            return b"{}"
        if received.path != "/generate":
            return b"{}"
        ask = msgspec.json.decode(received.body, type=Ask)
        request = Request(
            token_array(ask.ids),
            ask.max_tokens,
            ask.seed,
            stops=ask.stops,
            num_run=ask.num_run,
            sampling=Sampling(ask.temperature),
            topk=ask.topk,
            request_id=ask.request_id,
        )
        said = await scripted.generate(request)
        logprobs = None if said.logprobs is None else said.logprobs.astype(float).tolist()
        return msgspec.json.encode(
            Said(
                said.ids.tolist(),
                said.finish.kind,
                said.finish.matched,
                logprobs,
                [top.astype(float).tolist() for top in said.topk],
                said.num_billed,
                said.num_cached,
                said.num_prefilled,
            )
        )

    return answer


class Distant:
    """The client side: an engine of one server, one try a request."""

    def __init__(self, base_url: str, *, limits: HttpLimits = LIMITS, patience: Patience = PATIENCE) -> None:
        self.http = Http(base_url, limits=limits)
        self._patience = patience
        self._scripted = Scripted()
        self._capabilities = replace(SCRIPTED, name="distant", measures=frozenset(), keeps_deadlines=True)

    @property
    def codec(self) -> Codec:
        return self._scripted.codec

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def connect(self) -> None:
        await self.http.get("/health", deadline_s=5.0)

    async def generate(self, request: Request) -> Generation:
        body = msgspec.json.encode(
            Ask(
                request.ids.tolist(),
                request.max_tokens,
                request.seed,
                request.stops,
                request.num_run,
                request.sampling.temperature,
                request.topk,
                request.request_id,
            )
        )
        answer = await self.http.post("/generate", body, deadline_s=self._patience.deadline_s(request))
        try:
            said = msgspec.json.decode(answer, type=Said)
        except msgspec.DecodeError as error:
            raise EngineError("bad_answer", str(error)) from None
        return Generation(
            ids=token_array(said.ids),
            finish=Finish(said.kind, said.matched),  # type: ignore[arg-type]
            logprobs=None if said.logprobs is None else np.array(said.logprobs, np.float32),
            topk=tuple(np.array(top, np.float32) for top in said.topk),
            num_billed=said.num_billed,
            num_cached=said.num_cached,
            num_prefilled=said.num_prefilled,
        )

    async def abort(self, request_id: str) -> None:
        await self.http.post_now("/abort", request_id.encode(), deadline_s=1.0)

    async def close(self) -> None:
        await self.http.close()
