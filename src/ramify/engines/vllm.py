"""Vllm: a model behind a vLLM server.

Token ids in and out; no text is read. The route that speaks ids alone is taken where the server has it, else
`/v1/completions`. Making one asks nobody anything; `connect` asks the server what it is and tries one token. Refused
are a server of another model and one that gives no token ids. Retries are `Retrying`'s, placement `Replicas`'.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlencode

import msgspec

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import LogprobKind
from ramify.engines.patience import Patience
from ramify.engines.progress import counted
from ramify.engines.served import PATIENCE, REFUSALS, AbortRoute, Served, ServerWatch
from ramify.engines.served_answer import decoded, version_number
from ramify.engines.served_model import ServedModel
from ramify.engines.served_turn import Sampled
from ramify.engines.vllm_wire import Completions, Generate

Api = Literal["auto", "generate", "completions"]
PauseMode = Literal["keep", "abort", "wait"]
SleepLevel = Literal[1, 2]
Wire = Completions | Generate

DEV_MODE: Final = "a server started with VLLM_SERVER_DEV_MODE=1 in its environment"
TOKENS: Final = "vllm:generation_tokens_total"
TOPKS: Final = (20, 10, 5, 1, 0)
"""Numbers of top logprobs tried, most first: 20 is vLLM's own limit (--max-logprobs)."""
MIN_TEMPERATURE: Final = 0.01
"""vLLM raises what is above 0 and below this to this."""
LOAD_S: Final = 1800.0
"""Time to load weights."""
ABORT_ROUTES: Final = ("/inference/v1/abort_requests", "/abort_requests")
NOT_FINITE: Final = "not JSON compliant"
"""In vLLM's answer 400 where a logprob is NaN: the server is sick, and not one without logprobs."""
NOBODY: Final = "ramify-asks-whether-this-route-is-there"
TAGS: Final = frozenset({"weights", "kv_cache"})


class _Model(msgspec.Struct):
    id: str
    root: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


class _WeightInfo(msgspec.Struct):
    weight_version: str


class _IsPaused(msgspec.Struct):
    is_paused: bool


class _Success(msgspec.Struct):
    success: bool


MODELS: Final = msgspec.json.Decoder(_Models)
VERSION: Final = msgspec.json.Decoder(_Version)
WEIGHT_INFO: Final = msgspec.json.Decoder(_WeightInfo)
IS_PAUSED: Final = msgspec.json.Decoder(_IsPaused)
SUCCESS: Final = msgspec.json.Decoder(_Success)


@dataclass(frozen=True, slots=True)
class VllmServer:
    """What a server said of itself."""

    version: str
    served_name: str
    """What it calls the model."""
    route: str
    """Where tokens are asked for."""
    has_cached_counts: bool
    """Whether it says how much of a context it had cached; without (--enable-prompt-tokens-details) all of a context
    counts as computed."""


class Vllm:
    """Implements `Engine`, `Remote`, `Abortable` and `EngineControl` with the server at `base_url`.

    `model` is what the server calls its model, or the model's folder; `tokenizer` is the folder of its tokenizer where
    `model` is none, and `served_name` what the server calls it where the folder is in another place there. Before
    `connect`, `capabilities` are those of any vLLM server. Raises `ConfigError`.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        base_url: str | None = None,
        tokenizer: str | Path | None = None,
        served_name: str | None = None,
        api: Api = "auto",
        logprobs_mode: LogprobKind = "raw",
        pause_mode: PauseMode = "keep",
        sleep_level: SleepLevel = 1,
        silent_s: float = 30.0,
        max_in_flight: int = 256,
        api_key_env: str | None = None,
        patience: Patience = PATIENCE,
    ) -> None:
        """`logprobs_mode` is `scaled` for --logprobs-mode processed_logprobs; `pause_mode` is what becomes of requests
        at a pause; `sleep_level` 2 drops the weights; `api_key_env` is the environment variable with the server's
        key."""
        if base_url is None:
            raise ConfigError("engine 'vllm' needs the address of its server: engine.base_url = 'http://host:8000'")
        known = ServedModel.of("vllm", model, tokenizer=tokenizer, served_name=served_name)
        self.server: VllmServer | None = None
        """What the server said; None = it was not asked yet."""
        self._api: Api = api
        self._pause_mode: PauseMode = pause_mode
        self._sleep_level: SleepLevel = sleep_level
        self._is_paused = False
        self._served = Served(
            base_url,
            known,
            dialect=Completions(known.name),
            capabilities=Capabilities(
                name="vllm",
                context_length=known.context_length,
                logprobs=logprobs_mode,
                max_topk=TOPKS[0],
                keeps_deadlines=True,
                has_seeds=True,
                has_abort=True,
                has_versions=True,
            ),
            watch=ServerWatch(
                count=self._count, is_paused=self._is_server_paused, silent_s=silent_s, patience=patience
            ),
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
        temperature = request.sampling.temperature
        if 0 < temperature < MIN_TEMPERATURE:
            raise EngineError(
                "unservable_sampling", f"temperature={temperature!r}: vLLM raises it to {MIN_TEMPERATURE}"
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
        model = self._found(decoded(MODELS, await served.get("/v1/models")).data)
        if await served.is_paused():
            raise EngineError("paused", f"the server at {served.address} is paused; POST /resume to it")
        wire, told, topk = await self._tried(model.id)
        served.read_version = None
        if not told.versions and await served.has_route("/weight_info"):
            served.read_version = self._read_version
        served.abort_route = await self._abort_route()
        served.dialect = wire
        served.capabilities = replace(
            served.capabilities,
            context_length=model.max_model_len or served.capabilities.context_length,
            logprobs=served.capabilities.logprobs if wire.has_logprobs else None,
            max_topk=topk,
            has_abort=served.abort_route is not None,
            has_versions=bool(told.versions) or served.read_version is not None,
        )
        version = decoded(VERSION, await served.get("/version")).version
        served.is_connected = True
        self.server = VllmServer(version, model.id, wire.path, told.num_cached is not None)

    def _found(self, models: Sequence[_Model]) -> _Model:
        """The one of the server's models that is ours. Raises `ConfigError` naming both."""
        for each in models:
            names = {each.id, each.root or each.id}
            if self._served.model.is_among(names):
                return each
        raise self._served.other_model(each.id for each in models)

    async def _tried(self, name: str) -> tuple[Wire, Sampled, int]:
        """The first of the routes and numbers of top logprobs that gives a token; with its answer and that number.

        Raises `ConfigError` if none does.
        """
        routes: dict[Api, tuple[type[Completions] | type[Generate], ...]] = {
            "auto": (Generate, Completions),
            "generate": (Generate,),
            "completions": (Completions,),
        }
        refusals: list[str] = []
        for route in routes[self._api]:
            for topk in (*TOPKS, None):
                wire = route(name, has_logprobs=topk is not None)
                try:
                    told = await self._served.probe(wire, topk=topk or 0)
                except EngineError as error:
                    if error.reason not in {*REFUSALS, "no_token_ids"}:
                        raise
                    if NOT_FINITE in str(error):
                        raise EngineError(
                            "bad_logprobs", f"{self._served.address}: not finite, for any token"
                        ) from None
                    refusals.append(str(error))
                    if error.reason != "http_400":
                        break
                else:
                    has_logprobs = told.logprobs is not None
                    return replace(wire, has_logprobs=has_logprobs), told, (topk or 0) if has_logprobs else 0
        raise ConfigError(f"the server at {self._served.address} gives no token: {'; '.join(dict.fromkeys(refusals))}")

    async def _abort_route(self) -> AbortRoute | None:
        for path in ABORT_ROUTES:
            if await self._served.has_route(path, _abort_body(NOBODY)):
                return AbortRoute(path, _abort_body)
        return None

    async def _read_version(self) -> int:
        return version_number(decoded(WEIGHT_INFO, await self._served.get("/weight_info")).weight_version)

    async def _count(self) -> float | None:
        try:
            return counted(await self._served.get("/metrics"), TOKENS)
        except EngineError:
            return None

    async def _is_server_paused(self) -> bool:
        return decoded(IS_PAUSED, await self._served.get("/is_paused")).is_paused

    # -- control -----------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Sample nothing until `resume`. Requests on their way wait, are aborted, or are waited for: `pause_mode`."""
        self._served.progress.pause()
        self._is_paused = True
        await self._served.order(f"/pause?{urlencode({'mode': self._pause_mode})}", needs=DEV_MODE, deadline_s=LOAD_S)

    async def resume(self) -> None:
        await self._served.order("/resume", needs=DEV_MODE)
        self._is_paused = False
        self._served.progress.resume()

    async def update_weights(self, source: str, version: int) -> None:
        """Have the server take other weights; later tokens carry `version`.

        `source` is the full path of a folder on the server's machine or, for its weight transfer engine, the JSON of
        an `update_info`. Requests on their way go on under the new weights, their contexts computed anew, where
        `pause_mode` is `keep`. Where the server fails in the middle it stays paused: its weights may be half loaded.
        """
        is_transfer, was_paused = source.lstrip().startswith("{"), self._is_paused
        if not is_transfer and not source.startswith("/"):
            raise ConfigError(f"weights from {source!r}: the full path of a folder on the server's machine is needed")
        if not was_paused:
            await self.pause()
        try:
            await (self._transfer(source, version) if is_transfer else self._reload(source, version))
        except ConfigError:
            if not was_paused:
                await self.resume()
            raise
        await self._forget_prefixes()
        self._served.acknowledged = version
        self._served.hold_version(version)
        if not was_paused:
            await self.resume()

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        """Give memory back: of keys and values alone for the tag `kv_cache`, else of the weights too."""
        self._served.progress.pause()
        path = f"/sleep?level={self._sleep_level}" if "weights" in _known(tags) else "/release_kv_cache_memory"
        await self._served.order(path, needs=f"{DEV_MODE} and --enable-sleep-mode", deadline_s=LOAD_S)

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        """Take back what `offload` gave; all of it without tags."""
        query = urlencode([("tags", tag) for tag in sorted(_known(tags))] if tags else [])
        await self._served.order(
            f"/wake_up?{query}".rstrip("?"), needs=f"{DEV_MODE} and --enable-sleep-mode", deadline_s=LOAD_S
        )
        self._served.progress.resume()

    async def _reload(self, folder: str, version: int) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        await self._served.order("/collective_rpc", _json(reload), needs=DEV_MODE, deadline_s=LOAD_S)
        await self._served.order("/update_weight_version", _json({"new_version": str(version)}), needs=DEV_MODE)

    async def _transfer(self, update_info: str, version: int) -> None:
        needs = f"{DEV_MODE} and --weight-transfer-config, and /init_weight_transfer_engine by the trainer"
        body = b'{"update_info":' + update_info.encode() + b"}"
        await self._served.order("/start_weight_update", needs=needs, refusals={*REFUSALS, "http_500"})
        await self._served.order("/update_weights", body, needs=needs, deadline_s=LOAD_S)
        await self._served.order("/finish_weight_update", _json({"weight_version": str(version)}), needs=needs)

    async def _forget_prefixes(self) -> None:
        """Drop cached keys and values, those of frozen requests too: they are the old weights'."""
        answer = await self._served.order("/reset_prefix_cache?reset_running_requests=true", needs=DEV_MODE)
        if not decoded(SUCCESS, answer).success:
            raise EngineError("stale_cache", "the server keeps prefixes of the old weights, and stays paused")


def _abort_body(wire_id: str) -> bytes:
    """The id under each name that vLLM gives a request of ours: of its two routes, and of versions that change none."""
    return _json({"request_ids": [wire_id, f"cmpl-{wire_id}-0", f"generate-tokens-{wire_id}"]})


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _known(tags: tuple[str, ...]) -> frozenset[str]:
    """The tags, all there are where none is named. Raises `ConfigError` for others."""
    if set(tags) - TAGS:
        raise ConfigError(f"unknown tags {sorted(set(tags) - TAGS)}; known: {sorted(TAGS)}")
    return frozenset(tags) or TAGS
