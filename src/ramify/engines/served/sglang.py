"""Sglang: a model behind an SGLang server.

Takes and returns token ids over `/generate`; no text is read. It also rejects sampling parameters whose logprobs the
server cannot give.

Differences from vLLM: logprobs are computed after temperature (and before truncation) unless the server was started
with SGLANG_RETURN_ORIGINAL_LOGPROB=1; seeds have an effect only with --enable-deterministic-inference; an abort ends
every request whose id begins with the given id; the server does not say whether somebody else paused it.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal

import msgspec

from ramify.core.engine import Capabilities
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import LogprobKind, Sampling
from ramify.engines.served.answer import decoded, version_number
from ramify.engines.served.control import LOAD_S, AbortRoute
from ramify.engines.served.engine import Kind, Served
from ramify.engines.served.exchange import Terms
from ramify.engines.served.sglang_wire import Native
from ramify.engines.served.turn import Sampled

PauseMode = Literal["retract", "in_place", "abort"]

MAX_TOPK: Final = 20
"""The same as vLLM's; SGLang has no limit of its own."""
MARGIN: Final = 6
"""Context positions that SGLang reserves: one, and five more of a context's own length."""
ADMIN: Final = "the key of a server started with --admin-api-key, or one started without"
MEMORY_SAVER: Final = "a server started with --enable-memory-saver"


class _ModelInfo(msgspec.Struct):
    model_path: str
    served_model_name: str | None = None
    weight_version: str | None = None


class _ServerInfo(msgspec.Struct):
    version: str = "unknown"
    max_req_input_len: int | None = None
    enable_deterministic_inference: bool = False


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Told(msgspec.Struct):
    success: bool
    message: str = ""


MODEL_INFO: Final = msgspec.json.Decoder(_ModelInfo)
SERVER_INFO: Final = msgspec.json.Decoder(_ServerInfo)
MODELS: Final = msgspec.json.Decoder(_Models)
TOLD: Final = msgspec.json.Decoder(_Told)


@dataclass(frozen=True, slots=True)
class SglangServer:
    """What a server reported about itself."""

    version: str
    served_name: str
    is_deterministic: bool
    """Whether it was started with --enable-deterministic-inference."""


@dataclass(eq=False, kw_only=True)
class Sglang(Served):
    """An SGLang server. If `pause_mode` is `retract`, running requests continue under new weights and their contexts
    are recomputed."""

    kind: ClassVar[Kind] = Kind(
        capabilities=Capabilities(
            name="sglang",
            context_length=0,
            max_topk=MAX_TOPK,
            keeps_deadlines=True,
            has_abort=True,
            has_versions=True,
        ),
        dialect=lambda served: Native(),
        example="http://host:30000",
        counter="sglang:generation_tokens_total",
        tags=frozenset({"weights", "kv_cache", "cuda_graph"}),
    )

    logprobs_mode: LogprobKind = "scaled"
    """Set `raw` for a server with SGLANG_RETURN_ORIGINAL_LOGPROB=1."""
    pause_mode: PauseMode = "retract"
    """What a pause does with running requests: they wait without their keys and values (`retract`) or with them
    (`in_place`), or are aborted."""
    server: SglangServer | None = field(default=None, init=False)
    """What the server said; None = it was not yet asked."""

    def _refuse_law(self, law: Sampling) -> None:
        if self.capabilities.logprobs == "scaled" and law.temperature and (law.top_p < 1 or law.top_k):
            raise EngineError(
                "unservable_sampling",
                f"top_p={law.top_p!r}, top_k={law.top_k!r}: its logprobs are those before truncation; the server needs "
                "SGLANG_RETURN_ORIGINAL_LOGPROB=1 and engine.options.logprobs_mode = 'raw'",
            )

    # -- what the server is ------------------------------------------------------------------------------------------

    async def _meet(self) -> Terms:
        info = await self._model_served()
        about = decoded(SERVER_INFO, await self._control.get("/server_info"))
        has_seeds = about.enable_deterministic_inference
        wire = Native(has_seeds=has_seeds)
        told = await self._tried(wire)
        has_logprobs = told.logprobs is not None
        naming = "answers" if told.versions else "none" if info.weight_version is None else "asked"
        abort_route = await self._control.first_of(AbortRoute("/abort_request", _abort_body))
        given = replace(
            self.kind.capabilities,
            context_length=about.max_req_input_len or await self._context_length(),
            logprobs=self.logprobs_mode if has_logprobs else None,
            max_topk=MAX_TOPK if has_logprobs else 0,
            has_seeds=has_seeds,
            has_abort=abort_route is not None,
            has_versions=naming != "none",
        )
        self.server = SglangServer(about.version, info.served_model_name or info.model_path, has_seeds)
        return Terms(replace(wire, has_logprobs=has_logprobs), given, abort_route, naming)

    async def _model_served(self) -> _ModelInfo:
        """What the server says of its model. Raises `ConfigError`, which names both, if it is not ours."""
        info = decoded(MODEL_INFO, await self._control.get("/model_info"))
        names = {info.model_path, info.served_model_name or info.model_path}
        if not self._known.is_among(names):
            raise self._other_model(names)
        return info

    async def _tried(self, wire: Native) -> Sampled:
        try:
            return await self._exchange.probe(wire)
        except EngineError as error:
            if error.reason != "no_token_ids":
                raise
            raise ConfigError(f"the server at {self._control.address} gives no token ids: {error}") from error

    async def _context_length(self) -> int:
        models = decoded(MODELS, await self._control.get("/v1/models")).data
        longest = max((model.max_model_len or 0 for model in models), default=0)
        return max(0, longest - MARGIN) or self._known.context_length

    async def _ask_weights(self) -> int | None:
        info = await self._model_served()
        return version_number(info.weight_version or "") if self._exchange.terms.naming == "asked" else None

    # -- control -----------------------------------------------------------------------------------------------------

    async def _order_pause(self) -> None:
        await self._control.order("/pause_generation", {"mode": self.pause_mode}, needs=ADMIN, deadline_s=LOAD_S)

    async def _order_resume(self) -> None:
        await self._control.order("/continue_generation", needs=ADMIN)

    async def _order_offload(self, tags: tuple[str, ...]) -> None:
        await self._memory("/release_memory_occupation", tags)

    async def _order_onload(self, tags: tuple[str, ...]) -> None:
        await self._memory("/resume_memory_occupation", tags)

    async def _memory(self, path: str, tags: tuple[str, ...]) -> None:
        await self._control.order(path, {"tags": list(tags) or None}, needs=MEMORY_SAVER, deadline_s=LOAD_S)

    async def _load(self, source: str, version: int) -> None:
        body = {"model_path": source, "weight_version": str(version), "flush_cache": True}
        path = "/update_weights_from_disk"
        told = decoded(TOLD, await self._control.post(path, msgspec.json.encode(body), deadline_s=LOAD_S))
        if not told.success:
            raise EngineError("update_failed", f"{told.message}; the server stays paused")


def _abort_body(wire_id: str) -> dict[str, str]:
    return {"rid": wire_id}
