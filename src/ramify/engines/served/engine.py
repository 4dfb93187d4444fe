"""Engine: `Served`, an engine whose model runs behind a server of token ids.

It holds what such engines share: options, token generation by the exchange, and the steps of a weight update. A
subclass adds the server's protocol: how it is asked for tokens, how it is identified, and how it is controlled.
Creating an engine sends no request. It rejects a server of another model and one that returns no token ids. `Retrying`
retries and `Replicas` places requests; this class does neither. Invariant: weights change only while the server is
paused; if an update stops halfway, no token counts until an update succeeds.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Generation, Request
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import LogprobKind, Sampling
from ramify.edge.http import Http, HttpLimits
from ramify.edge.patience import PATIENCE, Patience
from ramify.engines.served.control import ServedControl
from ramify.engines.served.exchange import Dialect, Exchange, Terms
from ramify.engines.served.inquiry import Inquiry
from ramify.engines.served.model import ServedModel
from ramify.engines.served.progress import Progress, counted
from ramify.engines.served.weights import ServedWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is known of every server of one kind before it is asked."""

    capabilities: Capabilities
    """`context_length` is replaced by the model's own."""
    dialect: Callable[[str], Dialect]
    """Makes the dialect from the server's name of its model."""
    example: str
    """An example of an address."""
    counter: str
    """Name of its counter of sampled tokens, at `/metrics`."""
    tags: frozenset[str]
    """Parts of its memory that can be freed."""


@dataclass(eq=False, kw_only=True)
class Served(ABC):
    """Implements `Engine`, `Remote`, `Abortable` and `EngineControl` with the server at `base_url`.

    Before `connect`, `capabilities` are those of any server of its kind. Raises `ConfigError`.
    """

    kind: ClassVar[Kind]

    model: str | Path | None = field(default=None, kw_only=False)
    """The server's name of its model, or the model's folder."""
    base_url: str | None = None
    """Address of the server."""
    tokenizer: str | Path | None = None
    """Folder of the tokenizer, if `model` is not a folder."""
    served_name: str | None = None
    """The server's name of the model, if the model's folder has another path on the server."""
    logprobs_mode: LogprobKind = "raw"
    """Whether the server gives logprobs of the model, or after temperature and cuts."""
    max_topk: int | None = None
    """Most top logprobs that are asked for with a token; 0 = none, and steps have no entropy. None = as many as the
    server gives."""
    silent_s: float = 30.0
    """Seconds without a token before the server is checked."""
    max_in_flight: int = 256
    """Most requests to the server at one time; others wait."""
    api_key_env: str | None = None
    """Environment variable with the server's key."""
    patience: Patience = PATIENCE
    """How long a request may take."""

    def __post_init__(self) -> None:
        kind = self.kind
        name = kind.capabilities.name
        if self.max_topk is not None and self.max_topk < 0:
            raise ConfigError(f"engine {name!r}: max_topk = {self.max_topk!r}: 0 or more top logprobs")
        if self.base_url is None:
            raise ConfigError(f"engine {name!r} needs the address of its server: engine.base_url = {kind.example!r}")
        self._known = ServedModel.of(name, self.model, tokenizer=self.tokenizer, served_name=self.served_name)
        key = os.environ.get(self.api_key_env, "") if self.api_key_env is not None else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        http = Http(self.base_url, limits=HttpLimits(max_in_flight=self.max_in_flight), headers=headers)
        self._control = ServedControl(self.base_url, headers)
        self._weights = ServedWeights(self._ask_weights)
        self._progress = Progress(
            silent_s=self.silent_s, prefill_s=self.patience.prefill_s, probe=self._prove_alive, count=self._count
        )
        given = replace(kind.capabilities, context_length=self._known.context_length, logprobs=self.logprobs_mode)
        self._exchange = Exchange(
            Terms(kind.dialect(self._known.name), given),
            model=self._known,
            http=http,
            control=self._control,
            weights=self._weights,
            progress=self._progress,
            patience=self.patience,
        )
        self._is_met = False
        self._meeting = Inquiry(self.connect, is_settled=lambda: self._is_met)
        self._is_paused = False
        """Whether `pause` was called and succeeded, and `resume` was not called since."""
        self._orders = asyncio.Lock()

    @property
    def codec(self) -> Codec:
        return self._known.codec

    @property
    def capabilities(self) -> Capabilities:
        return self._exchange.terms.capabilities

    async def generate(self, request: Request) -> Generation:
        """Run one request, with one try; connects first if nobody has. Raises `EngineError`."""
        await self._meeting.settle()
        self._refuse_law(request.sampling)
        return await self._exchange.generate(request)

    async def abort(self, request_id: str) -> None:
        """End every request with this id at the server. They return what they had, if the server can say it."""
        await self._exchange.abort(request_id)

    async def close(self) -> None:
        await self._progress.close()
        await self._exchange.close()
        await self._control.close()

    async def is_healthy(self) -> bool:
        """Whether the server still produces tokens: by the progress clock or, if that stands still, by asking for one
        token."""
        return await self._progress.is_working()

    # -- what the server is ------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Ask the server what it runs, and sample one token."""
        if self._is_met and self._weights.are_broken:
            return  # it is paused and samples no token
        terms = await self._meet()
        if self.max_topk is not None:
            given = terms.capabilities
            terms = replace(terms, capabilities=replace(given, max_topk=min(given.max_topk, self.max_topk)))
        self._exchange.terms, self._weights.naming = terms, terms.naming
        self._weights.forget()
        self._is_met = True

    @abstractmethod
    async def _meet(self) -> Terms:
        """What the server is; samples one token to find out. Raises `ConfigError` for a server that this engine cannot
        use."""

    @abstractmethod
    async def _ask_weights(self) -> int | None:
        """Version of the server's weights; None = the server is not asked for it (`naming`). Raises `ConfigError` for
        another model."""

    @abstractmethod
    def _refuse_law(self, law: Sampling) -> None:
        """Raise `EngineError` for sampling parameters that the server would change silently."""

    async def _is_server_paused(self) -> bool:
        """Whether the server says that it was paused; False if it cannot say."""
        return False

    def _other_model(self, names: Iterable[str]) -> ConfigError:
        """The error that says that the server runs only models called `names`."""
        return ConfigError(
            f"the server at {self._control.address} runs {', '.join(map(repr, sorted(names))) or 'no model'}, not "
            f"{self._known.name!r}; if that is the same model, set engine.options.served_name"
        )

    async def _prove_alive(self, deadline_s: float) -> None:
        """Return if the server samples one token, or was paused on purpose; otherwise raise `EngineError`."""
        if not await self._is_server_paused():
            await self._exchange.probe(self._exchange.terms.dialect, deadline_s=deadline_s)

    async def _count(self) -> float | None:
        try:
            return counted(await self._control.get("/metrics"), self.kind.counter)
        except (EngineError, ValueError):
            return None

    # -- control -----------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stop sampling until `resume`. The option `pause_mode` says what happens to running requests."""
        async with self._orders:
            await self._quieten(self._order_pause())
            self._is_paused = True

    async def resume(self) -> None:
        async with self._orders:
            self._is_paused = False
            await self._go_on()

    async def update_weights(self, source: str, version: int) -> None:
        """Have the server load other weights while it is paused; later tokens carry `version`.

        `source` is the full path of a folder on the server's machine. If the server fails halfway, it stays paused, and
        no token counts until an update succeeds: its weights may be half loaded.
        """
        self._refuse_source(source)
        async with self._orders:
            try:
                await self._replace_weights(source, version)
            except ConfigError:
                raise
            except BaseException:
                # The server may be paused or not, with old weights, new ones, or a mix of both.
                self._progress.pause()
                self._weights.break_off(f"the update to version {version} ended in the middle")
                raise

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        """Free the memory of the tags; of all tags if none are given."""
        self._refuse_unknown(tags)
        async with self._orders:
            await self._quieten(self._order_offload(tags))

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        """Take back the memory that `offload` freed; all of it if no tags are given."""
        self._refuse_unknown(tags)
        async with self._orders:
            await self._order_onload(tags)
            if not self._is_paused:
                self._progress.resume()

    @abstractmethod
    async def _order_pause(self) -> None: ...

    @abstractmethod
    async def _order_resume(self) -> None: ...

    @abstractmethod
    async def _order_offload(self, tags: tuple[str, ...]) -> None: ...

    @abstractmethod
    async def _order_onload(self, tags: tuple[str, ...]) -> None: ...

    @abstractmethod
    async def _load(self, source: str, version: int) -> None:
        """Have the paused server load other weights and call them `version`. Afterwards no prefix computed by other
        weights is left. Raises `ConfigError` if the server refuses before it begins."""

    def _refuse_source(self, source: str) -> None:
        if not source.startswith("/"):
            raise ConfigError(f"weights from {source!r}: the full path of a folder on the server's machine is needed")

    def _refuse_unknown(self, tags: tuple[str, ...]) -> None:
        if unknown := set(tags) - self.kind.tags:
            raise ConfigError(f"unknown tags {sorted(unknown)}; known: {sorted(self.kind.tags)}")

    async def _replace_weights(self, source: str, version: int) -> None:
        if not self._is_paused:
            await self._quieten(self._order_pause())
        try:
            await self._load(source, version)
        except ConfigError:
            await self._go_on()
            raise
        self._weights.confirm(version)
        await self._go_on()

    async def _quieten(self, order: Awaitable[None]) -> None:
        """Run an order after which no token is expected. If it fails, tokens are expected as before."""
        self._progress.pause()
        try:
            await order
        except BaseException:
            if not self._is_paused:
                self._progress.resume()
            raise

    async def _go_on(self) -> None:
        """Have the server sample again, unless it was paused by `pause`."""
        if not self._is_paused:
            self._progress.resume()
            await self._order_resume()
