"""A gateway in this process, and a client that knows nothing of it."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from ramify.config.configure import Resolved, resolve
from ramify.gateway.offers import Offers, offers_of
from ramify.gateway.request_run import RequestRun
from ramify.gateway.server import Gateway, GatewayConfig

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "What is 6 times 7?"}]


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer of the gateway."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def content(self) -> Any:
        """What the first choice says."""
        return self.body["choices"][0]["message"]["content"]

    @property
    def error(self) -> Any:
        return self.body["error"]

    @property
    def place(self) -> tuple[Path, int]:
        """The run folder and the number of the tree."""
        return Path(self.headers["x-ramify-run"]), int(self.headers["x-ramify-tree"])


@dataclass(slots=True)
class Asking:
    """A client of a gateway."""

    url: str
    session: aiohttp.ClientSession
    run: RequestRun
    headers: dict[str, str] = field(default_factory=dict)

    async def chat(self, model: str = "m", messages: Sequence[Mapping[str, Any]] = ASKED, **fields: Any) -> Heard:
        return await self.post(json.dumps({"model": model, "messages": messages, **fields}))

    async def post(self, body: str | bytes, *, path: str = "/v1/chat/completions", **headers: str) -> Heard:
        sent = {"Content-Type": "application/json", **self.headers, **headers}
        async with self.session.post(f"{self.url}{path}", data=body, headers=sent) as response:
            return Heard(response.status, response.headers, await response.json())

    async def get(self, path: str, **headers: str) -> Heard:
        async with self.session.get(f"{self.url}{path}", headers={**self.headers, **headers}) as response:
            return Heard(response.status, response.headers, await response.json())

    async def stream(self, model: str = "m", **fields: Any) -> tuple[Heard, list[str]]:
        """An answer with its events as a list: of JSON, but for the last, and its lines without the empty ones."""
        body = json.dumps({"model": model, "messages": ASKED, "stream": True, **fields})
        sent = {"Content-Type": "application/json", **self.headers}
        async with self.session.post(f"{self.url}/v1/chat/completions", data=body, headers=sent) as response:
            lines = [line for line in (await response.text()).splitlines() if line]
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return Heard(response.status, response.headers, [*map(json.loads, events[:-1]), events[-1]]), lines


def offers(url: str | None, presets: Sequence[str] = (), **settings: Any) -> Offers:
    """What is served of the model `m` at `url`; None = of the built-in model. Settings have `__` for the dot."""
    engine = {} if url is None else {"engine.name": "openai", "engine.model": "m", "engine.base_url": url}
    given = {name.replace("__", "."): value for name, value in settings.items()}

    def resolved(preset: str | None, more: Mapping[str, Any]) -> Resolved:
        return resolve(preset=preset, flags={"seed": 1, **engine, **given, **more})

    return offers_of(resolved, presets)


@asynccontextmanager
async def gateway(
    url: str | None, folder: Path, presets: Sequence[str] = (), config: GatewayConfig | None = None, **settings: Any
) -> AsyncIterator[Asking]:
    """A gateway in front of the endpoint at `url`, and a client of it."""
    async with (
        RequestRun(offers(url, presets, **settings), folder) as run,
        Gateway(run, config) as served,
        aiohttp.ClientSession() as session,
    ):
        yield Asking(served.url, session, run)
