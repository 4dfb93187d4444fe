"""Vllm: a model behind a vLLM server.

Takes and returns token ids; no text is read. It uses the route that speaks only ids if the server has it, otherwise
`/v1/completions`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal
from urllib.parse import urlencode

import msgspec

from ramify.core.engine import Capabilities
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import LogprobKind, Sampling
from ramify.engines.served.answer import decoded, version_number
from ramify.engines.served.control import CONTROL_S, LOAD_S, REFUSALS, AbortRoute
from ramify.engines.served.engine import Kind, Served
from ramify.engines.served.exchange import Terms
from ramify.engines.served.turn import Sampled
from ramify.engines.served.vllm_wire import Completions, Generate

Api = Literal["auto", "generate", "completions"]
PauseMode = Literal["keep", "abort", "wait"]
SleepLevel = Literal[1, 2]
Wire = Completions | Generate

DEV_MODE: Final = "a server started with VLLM_SERVER_DEV_MODE=1 in its environment"
SLEEP_MODE: Final = f"{DEV_MODE} and --enable-sleep-mode"
TRANSFER: Final = f"{DEV_MODE} and --weight-transfer-config, and /init_weight_transfer_engine by the trainer"
TOPKS: Final = (20, 10, 5, 1, 0)
"""Numbers of top logprobs to try, largest first: 20 is vLLM's own limit (--max-logprobs)."""
MIN_TEMPERATURE: Final = 0.01
"""vLLM raises temperatures above 0 and below this to this value."""
NOT_FINITE: Final = "not JSON compliant"
"""Part of vLLM's answer 400 when a logprob is NaN: the server is broken; it is not a server without logprobs."""
ROUTES: Final[dict[Api, tuple[type[Completions] | type[Generate], ...]]] = {
    "auto": (Generate, Completions),
    "generate": (Generate,),
    "completions": (Completions,),
}


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
    """What a server reported about itself."""

    version: str
    served_name: str
    """The server's name of the model."""
    route: str
    """The path for generating tokens."""
    has_cached_counts: bool
    """Whether it reports cached context tokens. If not (no --enable-prompt-tokens-details), all of a context counts as
    computed."""


@dataclass(eq=False, kw_only=True)
class Vllm(Served):
    """A vLLM server. If `pause_mode` is `keep`, running requests continue under new weights and their contexts are
    recomputed. In `update_weights`, `source` may also be the JSON of an `update_info` for vLLM's weight transfer
    engine."""

    kind: ClassVar[Kind] = Kind(
        capabilities=Capabilities(
            name="vllm",
            context_length=0,
            max_topk=TOPKS[0],
            keeps_deadlines=True,
            has_seeds=True,
            has_abort=True,
            has_versions=True,
        ),
        dialect=Completions,
        example="http://host:8000",
        counter="vllm:generation_tokens_total",
        tags=frozenset({"weights", "kv_cache"}),
    )

    api: Api = "auto"
    """Endpoint of the server: `/inference/v1/generate`, `/v1/completions`, or the one that the server has (`auto`)."""
    logprobs_mode: LogprobKind = "raw"
    """Set `scaled` for a server with --logprobs-mode processed_logprobs."""
    pause_mode: PauseMode = "keep"
    """What a pause does with running requests: they stop and wait (`keep`), are aborted, or are waited for."""
    sleep_level: SleepLevel = 1
    """2 = offloading drops the weights."""
    server: VllmServer | None = field(default=None, init=False)
    """What the server said; None = it was not yet asked."""

    def _refuse_law(self, law: Sampling) -> None:
        if 0 < law.temperature < MIN_TEMPERATURE:
            raise EngineError(
                "unservable_sampling", f"temperature={law.temperature!r}: vLLM raises it to {MIN_TEMPERATURE}"
            )

    # -- what the server is ------------------------------------------------------------------------------------------

    async def _meet(self) -> Terms:
        model = await self._model_served()
        if await self._is_server_paused():
            raise EngineError("paused", f"the server at {self._control.address} is paused; POST /resume to it")
        wire, told, topk = await self._tried(model.id)
        is_asked = not told.versions and await self._control.has_route("/weight_info")
        naming = "answers" if told.versions else "asked" if is_asked else "none"
        abort_route = await self._control.first_of(
            AbortRoute("/inference/v1/abort_requests", _abort_body), AbortRoute("/abort_requests", _abort_body)
        )
        version = decoded(VERSION, await self._control.get("/version")).version
        self.server = VllmServer(version, model.id, wire.path, told.num_cached is not None)
        given = replace(
            self.kind.capabilities,
            context_length=model.max_model_len or self._known.context_length,
            logprobs=self.logprobs_mode if wire.has_logprobs else None,
            max_topk=topk,
            has_abort=abort_route is not None,
            has_versions=naming != "none",
        )
        return Terms(wire, given, abort_route, naming)

    async def _model_served(self) -> _Model:
        """The server's model that is ours. Raises `ConfigError`, which names both, if there is none."""
        models = decoded(MODELS, await self._control.get("/v1/models")).data
        for each in models:
            if self._known.is_among({each.id, each.root or each.id}):
                return each
        raise self._other_model(each.id for each in models)

    async def _tried(self, name: str) -> tuple[Wire, Sampled, int]:
        """Tries routes and numbers of top logprobs in order. Returns the first pair that gives a token: route, answer,
        number.

        Raises `ConfigError` if none does. A route whose answers cannot be read gives way to the next: vLLM 0.20.2
        names no token ids in the logprobs of `/inference/v1/generate`.
        """
        address = self._control.address
        refusals: list[str] = []
        routes = ROUTES[self.api]
        for route in routes:
            for topk in (*TOPKS, None):
                wire = route(name, has_logprobs=topk is not None)
                try:
                    told = await self._exchange.probe(wire, topk=topk or 0)
                except EngineError as error:
                    is_unread = error.reason == "bad_answer" and route is not routes[-1]
                    if not is_unread and error.reason not in {*REFUSALS, "no_token_ids"}:
                        raise
                    if NOT_FINITE in str(error):
                        raise EngineError("bad_logprobs", f"{address}: not finite, for any token") from None
                    refusals.append(str(error))
                    if error.reason != "http_400":
                        break
                else:
                    has_logprobs = told.logprobs is not None
                    return replace(wire, has_logprobs=has_logprobs), told, (topk or 0) if has_logprobs else 0
        raise ConfigError(f"the server at {address} gives no token: {'; '.join(dict.fromkeys(refusals))}")

    async def _ask_weights(self) -> int | None:
        await self._model_served()
        if self._exchange.terms.naming != "asked":
            return None
        return version_number(decoded(WEIGHT_INFO, await self._control.get("/weight_info")).weight_version)

    async def _is_server_paused(self) -> bool:
        try:
            return decoded(IS_PAUSED, await self._control.get("/is_paused")).is_paused
        except EngineError:
            return False

    # -- control -----------------------------------------------------------------------------------------------------

    async def _order_pause(self) -> None:
        await self._control.order(f"/pause?{urlencode({'mode': self.pause_mode})}", needs=DEV_MODE, deadline_s=LOAD_S)

    async def _order_resume(self) -> None:
        await self._control.order("/resume", needs=DEV_MODE)

    async def _order_offload(self, tags: tuple[str, ...]) -> None:
        is_asleep = not tags or "weights" in tags
        path = f"/sleep?level={self.sleep_level}" if is_asleep else "/release_kv_cache_memory"
        await self._control.order(path, needs=SLEEP_MODE, deadline_s=LOAD_S)
        if is_asleep and self.sleep_level == 2:
            self._weights.break_off("the weights were dropped")

    async def _order_onload(self, tags: tuple[str, ...]) -> None:
        query = urlencode([("tags", tag) for tag in sorted(set(tags))])
        await self._control.order(f"/wake_up?{query}".rstrip("?"), needs=SLEEP_MODE, deadline_s=LOAD_S)

    def _refuse_source(self, source: str) -> None:
        if not _is_transfer(source):
            super()._refuse_source(source)

    async def _load(self, source: str, version: int) -> None:
        order = self._control.order
        if _is_transfer(source):
            update = {"update_info": msgspec.Raw(source.encode())}
            await order("/start_weight_update", needs=TRANSFER, refusals={*REFUSALS, "http_500"})
            await self._further("/update_weights", update, needs=TRANSFER, deadline_s=LOAD_S)
            await self._further("/finish_weight_update", {"weight_version": str(version)}, needs=TRANSFER)
        else:
            reload = {"method": "reload_weights", "kwargs": {"weights_path": source}}
            await order("/collective_rpc", reload, needs=DEV_MODE, deadline_s=LOAD_S)
            await self._further("/update_weight_version", {"new_version": str(version)}, needs=DEV_MODE)
        # Also drop keys and values of paused requests: the old weights computed them.
        answer = await self._further("/reset_prefix_cache?reset_running_requests=true", {}, needs=DEV_MODE)
        if not decoded(SUCCESS, answer).success:
            raise EngineError("stale_cache", "the server keeps prefixes of the old weights, and stays paused")

    async def _further(
        self, path: str, body: Mapping[str, object], *, needs: str, deadline_s: float = CONTROL_S
    ) -> bytes:
        """An order of an update after its first one: if the server refuses it, the weights are half loaded."""
        try:
            return await self._control.order(path, body, needs=needs, deadline_s=deadline_s)
        except ConfigError as error:
            raise EngineError("update_failed", f"{error}; the server stays paused") from error


def _is_transfer(source: str) -> bool:
    """Whether a source of weights is for the weight transfer engine rather than a folder."""
    return source.lstrip().startswith("{")


def _abort_body(wire_id: str) -> dict[str, list[str]]:
    """The id in each form that vLLM gives to our requests: in its two routes, and unchanged in versions that keep
    it."""
    return {"request_ids": [wire_id, f"cmpl-{wire_id}-0", f"generate-tokens-{wire_id}"]}
