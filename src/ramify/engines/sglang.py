"""Sglang: a model behind an SGLang server.

Token ids in and out over `/generate`; no text is read. Making one asks nobody anything; `connect` asks the server what
it is and tries one token. Refused are a server of another model, one that gives no token ids, and sampling whose
logprobs the server cannot give. Retries are `Retrying`'s, placement `Replicas`'.

What differs from vLLM: logprobs come after temperature (and before truncation) unless the server was started with
SGLANG_RETURN_ORIGINAL_LOGPROB=1; seeds count with --enable-deterministic-inference alone; an abort ends every request
whose id begins with the one named.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import msgspec

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import LogprobKind
from ramify.engines.patience import Patience
from ramify.engines.progress import counted
from ramify.engines.served import PATIENCE, AbortRoute, Served, ServerWatch
from ramify.engines.served_answer import decoded, version_number
from ramify.engines.served_model import ServedModel
from ramify.engines.sglang_wire import Native

PauseMode = Literal["retract", "in_place", "abort"]

TOKENS: Final = "sglang:generation_tokens_total"
MAX_TOPK: Final = 20
"""As vLLM's; SGLang has no limit of its own."""
MARGIN: Final = 6
"""Positions of its context that SGLang does not give away: one, and five more of a context's own length."""
LOAD_S: Final = 1800.0
"""Time to load weights."""
ADMIN: Final = "the key of a server started with --admin-api-key, or one started without"
MEMORY_SAVER: Final = "a server started with --enable-memory-saver"
NOBODY: Final = "ramify-asks-whether-this-route-is-there"
TAGS: Final = frozenset({"weights", "kv_cache", "cuda_graph"})


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
    """What a server said of itself."""

    version: str
    served_name: str
    is_deterministic: bool
    """Whether it was started with --enable-deterministic-inference."""


class Sglang:
    """Implements `Engine`, `Remote`, `Abortable` and `EngineControl` with the server at `base_url`.

    `model` is what the server calls its model, or the model's folder; `tokenizer` is the folder of its tokenizer where
    `model` is none, and `served_name` what the server calls it where the folder is in another place there. Before
    `connect`, `capabilities` are those of any SGLang server. Raises `ConfigError`.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        base_url: str | None = None,
        tokenizer: str | Path | None = None,
        served_name: str | None = None,
        logprobs_mode: LogprobKind = "scaled",
        pause_mode: PauseMode = "retract",
        silent_s: float = 30.0,
        max_in_flight: int = 256,
        api_key_env: str | None = None,
        patience: Patience = PATIENCE,
    ) -> None:
        """`logprobs_mode` is `raw` for SGLANG_RETURN_ORIGINAL_LOGPROB=1; `pause_mode` is what becomes of requests at a
        pause; `api_key_env` is the environment variable with the server's key."""
        if base_url is None:
            raise ConfigError("engine 'sglang' needs the address of its server: engine.base_url = 'http://host:30000'")
        known = ServedModel.of("sglang", model, tokenizer=tokenizer, served_name=served_name)
        self.server: SglangServer | None = None
        """What the server said; None = it was not asked yet."""
        self._pause_mode: PauseMode = pause_mode
        self._is_paused = False
        self._served = Served(
            base_url,
            known,
            dialect=Native(),
            capabilities=Capabilities(
                name="sglang",
                context_length=known.context_length,
                logprobs=logprobs_mode,
                max_topk=MAX_TOPK,
                keeps_deadlines=True,
                has_abort=True,
                has_versions=True,
            ),
            watch=ServerWatch(count=self._count, is_paused=_is_never_paused, silent_s=silent_s, patience=patience),
            max_in_flight=max_in_flight,
            api_key_env=api_key_env,
        )

    @property
    def codec(self) -> Codec:
        return self._served.model.codec

    @property
    def capabilities(self) -> Capabilities:
        return self._served.capabilities

    async def generate(self, request: Request) -> Generation:
        """Carry one request out, one try; connects first where nobody has. Raises `EngineError`."""
        await self._served.connected(self.connect)
        law = request.sampling
        if self.capabilities.logprobs == "scaled" and law.temperature and (law.top_p < 1 or law.top_k):
            raise EngineError(
                "unservable_sampling",
                f"top_p={law.top_p!r}, top_k={law.top_k!r}: its logprobs are those before truncation; the server needs "
                "SGLANG_RETURN_ORIGINAL_LOGPROB=1 and engine.options.logprobs_mode = 'raw'",
            )
        return await self._served.generate(request)

    async def abort(self, request_id: str) -> None:
        await self._served.abort(request_id)

    async def close(self) -> None:
        await self._served.close()

    async def is_healthy(self) -> bool:
        """Whether tokens come: by the progress clock, and by asking for one where it stands still."""
        return await self._served.is_healthy()

    # -- what the server is ------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        served = self._served
        info = decoded(MODEL_INFO, await served.get("/model_info"))
        self._refuse_other(info)
        about = decoded(SERVER_INFO, await served.get("/server_info"))
        wire = Native(has_seeds=about.enable_deterministic_inference)
        try:
            told = await served.probe(wire, topk=0)
        except EngineError as error:
            if error.reason != "no_token_ids":
                raise
            raise ConfigError(f"the server at {served.address} gives no token ids: {error}") from error
        has_logprobs = told.logprobs is not None
        served.dialect = replace(wire, has_logprobs=has_logprobs)
        has_version = bool(told.versions) or info.weight_version is not None
        served.read_version = self._read_version if has_version and not told.versions else None
        served.abort_route = None
        if await served.has_route("/abort_request", _abort_body(NOBODY)):
            served.abort_route = AbortRoute("/abort_request", _abort_body)
        served.capabilities = replace(
            served.capabilities,
            context_length=about.max_req_input_len or await self._context_length(),
            logprobs=served.capabilities.logprobs if has_logprobs else None,
            max_topk=MAX_TOPK if has_logprobs else 0,
            has_seeds=about.enable_deterministic_inference,
            has_abort=served.abort_route is not None,
            has_versions=has_version,
        )
        name = info.served_model_name or info.model_path
        served.is_connected = True
        self.server = SglangServer(about.version, name, about.enable_deterministic_inference)

    def _refuse_other(self, info: _ModelInfo) -> None:
        """Raise `ConfigError` naming both models if the server's is another one."""
        names = {info.model_path, info.served_model_name or info.model_path}
        if self._served.model.is_among(names):
            return
        raise self._served.other_model(names)

    async def _context_length(self) -> int:
        models = decoded(MODELS, await self._served.get("/v1/models")).data
        longest = max((model.max_model_len or 0 for model in models), default=0)
        return max(0, longest - MARGIN) or self._served.capabilities.context_length

    async def _read_version(self) -> int:
        name = decoded(MODEL_INFO, await self._served.get("/model_info")).weight_version
        return version_number(name or "")

    async def _count(self) -> float | None:
        try:
            return counted(await self._served.get("/metrics"), TOKENS)
        except EngineError:
            return None

    # -- control -----------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Sample nothing until `resume`. Requests on their way wait without or with their keys and values, or are
        aborted: `pause_mode`."""
        self._served.progress.pause()
        self._is_paused = True
        await self._served.order("/pause_generation", _json({"mode": self._pause_mode}), needs=ADMIN, deadline_s=LOAD_S)

    async def resume(self) -> None:
        await self._served.order("/continue_generation", needs=ADMIN)
        self._is_paused = False
        self._served.progress.resume()

    async def update_weights(self, source: str, version: int) -> None:
        """Have the server take the weights of folder `source` on its machine; later tokens carry `version`.

        Requests on their way go on under the new weights, their contexts computed anew, where `pause_mode` is
        `retract`. Where the server fails it stays paused: its weights may be half loaded.
        """
        if not source.startswith("/"):
            raise ConfigError(f"weights from {source!r}: the full path of a folder on the server's machine is needed")
        was_paused = self._is_paused
        if not was_paused:
            await self.pause()
        body = _json({"model_path": source, "weight_version": str(version), "flush_cache": True})
        told = decoded(TOLD, await self._served.post("/update_weights_from_disk", body, deadline_s=LOAD_S))
        if not told.success:
            raise EngineError("update_failed", f"{told.message}; the server stays paused")
        self._served.acknowledged = version
        self._served.hold_version(version)
        if not was_paused:
            await self.resume()

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        """Give the memory of the tags back, of all without tags; the server must have nothing in flight."""
        self._served.progress.pause()
        await self._memory("/release_memory_occupation", tags)

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        """Take back what `offload` gave."""
        await self._memory("/resume_memory_occupation", tags)
        self._served.progress.resume()

    async def _memory(self, path: str, tags: tuple[str, ...]) -> None:
        if set(tags) - TAGS:
            raise ConfigError(f"unknown tags {sorted(set(tags) - TAGS)}; known: {sorted(TAGS)}")
        await self._served.order(path, _json({"tags": list(tags) or None}), needs=MEMORY_SAVER, deadline_s=LOAD_S)


def _abort_body(wire_id: str) -> bytes:
    return _json({"rid": wire_id})


async def _is_never_paused() -> bool:
    """SGLang does not say whether it was paused by others."""
    return False


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
