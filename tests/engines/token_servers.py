"""Small servers that speak what vLLM and SGLang speak, over token ids that a test writes down.

What they answer has the shape and the words of the real ones (vLLM 0.32.0, SGLang 0.5.23): a stop text is found in the
server's own text, its tokens are kept, the token that ends a sequence is among the ids.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ramify.core.engine import Engine, Generation, Request
from ramify.core.errors import EngineError
from ramify.core.segment import token_array
from ramify.engines.builtin import FOLDER
from ramify.engines.served.engine import Served
from ramify.engines.tokenizer import TokenizerFile

E = TypeVar("E", bound=Served)

CODEC = TokenizerFile(FOLDER / "tokenizer.json")
Script = Callable[[list[int]], list[int]]
"""Context -> what the model goes on with."""


def ids_of(text: str) -> list[int]:
    return CODEC.encode(text, allow_special=True)


REQUEST = Request(
    token_array(ids_of("<|user|>make 8 from 7 1<|end|><|assistant|>")),
    max_tokens=40,
    seed=2**64 - 1,
    stops=("</calc>", "</answer>"),
    request_id="tree/00ff",
)


@dataclass
class Sampling:
    """One request as a server sees it."""

    context: list[int]
    max_tokens: int
    stops: list[str]
    end_ids: set[int]


@dataclass
class Said:
    ids: list[int]
    finish: str
    matched: int | str | None = None


def sampled(script: Script, asked: Sampling) -> Said:
    """What a server of ids does with a request: token by token, until a stop, an end or the limit."""
    said = Said([], "length")
    for token in script(asked.context)[: asked.max_tokens]:
        said.ids.append(token)
        text = b"".join(map(CODEC.token_bytes, said.ids)).decode(errors="replace")
        if token in asked.end_ids or token == CODEC.eos_id:
            return Said(said.ids, "stop", token)
        for stop in asked.stops:
            if stop in text:
                return Said(said.ids, "stop", stop)
    return said


@dataclass
class Fake:
    """What the two have in common: what came, what is held, what is refused."""

    script: Script = lambda context: ids_of("<calc>7+1</calc> and more, as far as one wants to read on")
    change: Callable[[dict[str, Any]], Any] = lambda answer: answer
    """Spoils an answer before it is sent: a value, or bytes as they are."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of requests for tokens, probes left out."""
    orders: list[str] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    """Path -> status."""
    unanswered: set[str] = field(default_factory=set)
    """Paths of orders that are carried out, and answered by status 500."""
    is_holding: bool = False
    """Whether requests for tokens get no answer until `go_on` is set, or an abort."""
    holds_probes: bool = False
    num_gone: int = 0
    """Requests whose client left."""
    is_paused: bool = False
    """Whether nothing is sampled: requests for tokens wait."""
    model: str = str(FOLDER)
    """Folder of the model it runs."""
    version: str = "default"
    counted: str = "0.0"
    """Its count of sampled tokens, as its metrics have it."""
    is_loading: bool = False
    loads: asyncio.Event = field(default_factory=asyncio.Event)
    """Unless it is set, weights are loading for ever."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: dict[str, asyncio.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loads.set()

    async def load(self, request: web.Request) -> web.Response:
        """New weights; what they are called is in the order itself, or in the next one."""
        told = await request.json()
        self.is_loading = True
        await self.loads.wait()
        self.version = told.get("weight_version", self.version)
        return web.json_response({"success": True, "message": "ok", "num_paused_requests": 0})

    async def held(self, wire_id: str) -> bool:
        """Wait as long as answers are held; whether the request was aborted meanwhile."""
        mark = self.aborted.setdefault(wire_id, asyncio.Event())
        self.came.set()
        while self.is_paused:  # noqa: ASYNC110 - a test may set it as well as an order
            await asyncio.sleep(0.002)
        is_probe = wire_id.startswith("probe:")
        if not (self.holds_probes if is_probe else self.is_holding):
            return False
        waits = [asyncio.ensure_future(self.go_on.wait()), asyncio.ensure_future(mark.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.num_gone += 1
            raise
        finally:
            for wait in waits:
                wait.cancel()
        return mark.is_set()

    async def pause(self, request: web.Request) -> web.Response:
        self.is_paused = True
        return web.json_response({})

    async def resume(self, request: web.Request) -> web.Response:
        self.is_paused = False
        return web.json_response({})

    def answer(self, value: dict[str, Any], *, is_probe: bool) -> web.Response:
        changed = value if is_probe else self.change(value)
        body = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
        return web.Response(body=body, content_type="application/json")

    @web.middleware
    async def refuse(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if status := self.refused.get(request.path):
            return web.json_response({"error": {"message": f"no {request.path} here"}}, status=status)
        if request.method == "POST" and request.path not in TOKEN_ROUTES:
            self.orders.append(str(request.rel_url))
        answer = await handler(request)
        return web.json_response({}, status=500) if request.path in self.unanswered else answer


TOKEN_ROUTES = {"/v1/completions", "/inference/v1/generate", "/generate"}


class FakeVllm(Fake):
    """Version 0.32.0 in development mode; `/inference/v1/generate` is off unless `refused` is emptied."""

    def app(self) -> web.Application:
        self.refused.setdefault("/inference/v1/generate", 403)
        app = web.Application(middlewares=[self.refuse])
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/version", _said(lambda: {"version": "0.32.0"})),
                web.get("/weight_info", _said(lambda: {"weight_version": self.version})),
                web.get("/is_paused", _said(lambda: {"is_paused": self.is_paused})),
                web.get("/metrics", self._metrics),
                web.post("/v1/completions", self._completions),
                web.post("/inference/v1/generate", self._generate),
                web.post("/inference/v1/abort_requests", self._abort),
                web.post("/update_weight_version", self._rename),
                web.post("/finish_weight_update", self._rename),
                web.post("/reset_prefix_cache", _said(lambda: {"success": True})),
                web.post("/collective_rpc", self.load),
                web.post("/start_weight_update", _said(dict)),
                web.post("/update_weights", _said(dict)),
                *(web.post(path, _said(dict)) for path in ("/sleep", "/wake_up")),
                web.post("/pause", self.pause),
                web.post("/resume", self.resume),
                web.post("/release_kv_cache_memory", _said(dict)),
            ]
        )
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "builtin", "root": self.model, "max_model_len": 512}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f'vllm:generation_tokens_total{{engine="0"}} {self.counted}\nother 5\n')

    async def _rename(self, request: web.Request) -> web.Response:
        told = await request.json()
        self.version = told.get("new_version") or told["weight_version"]
        return web.json_response({"success": True})

    async def _abort(self, request: web.Request) -> web.Response:
        for name in (await request.json())["request_ids"]:
            wire_id = name.removeprefix("cmpl-").removesuffix("-0").removeprefix("generate-tokens-")
            if wire_id in self.aborted:
                self.aborted[wire_id].set()
        return web.Response()

    async def _said(self, body: dict[str, Any], asked: Sampling) -> Said:
        if not body["request_id"].startswith("probe:"):
            self.asked.append(body)
        is_aborted = await self.held(body["request_id"])
        said = sampled(self.script, asked)
        return Said(said.ids[:2], "abort") if is_aborted else said

    def _choice(self, said: Said) -> dict[str, Any]:
        reason = None if said.matched == CODEC.eos_id else said.matched
        return {"index": 0, "finish_reason": said.finish, "stop_reason": reason, "token_ids": said.ids}

    def _usage(self, asked: Sampling, said: Said) -> dict[str, Any]:
        num, num_context = len(said.ids), len(asked.context)
        details = {"cached_tokens": num_context // 2}
        return {"prompt_tokens": num_context, "completion_tokens": num, "prompt_tokens_details": details}

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        asked = Sampling(body["prompt"], body["max_tokens"], body["stop"], set(body["stop_token_ids"]))
        said = await self._said(body, asked)
        logprobs = {
            "token_logprobs": [-0.5] * len(said.ids),
            "tokens": [f"token_id:{i}" for i in said.ids],
            "top_logprobs": [
                {f"token_id:{i}": -0.5, **{f"token_id:{i + n}": -0.5 - n for n in range(1, body["logprobs"])}}
                for i in said.ids
            ],
        }
        choice = {**self._choice(said), "text": "", "logprobs": logprobs}
        answer = {
            "id": f"cmpl-{body['request_id']}",
            "model": body["model"],
            "choices": [choice],
            "usage": self._usage(asked, said),
        }
        return self.answer(answer, is_probe=body["request_id"].startswith("probe:"))

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        law = body["sampling_params"]
        asked = Sampling(body["token_ids"], law["max_tokens"], law["stop"], set(law["stop_token_ids"]))
        said = await self._said(body, asked)
        content = [
            {
                "token_id": i,
                "logprob": -0.5,
                "rank": 1,
                "top_logprobs": [{"token_id": i + n, "logprob": -0.5 - n} for n in range(max(1, law["logprobs"]))],
            }
            for i in said.ids
        ]
        spans = [{"version": self.version, "start": 0, "end": len(said.ids)}]
        choice = {**self._choice(said), "logprobs": {"content": content}, "weight_versions": spans}
        told = {"request_id": f"generate-tokens-{body['request_id']}", "model": body["model"]}
        answer = {**told, "choices": [choice], "usage": self._usage(asked, said)}
        return self.answer(answer, is_probe=body["request_id"].startswith("probe:"))


class FakeSglang(Fake):
    """Version 0.5.23."""

    is_deterministic = False

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.refuse])
        app.add_routes(
            [
                web.get("/model_info", _said(self._model_info)),
                web.get("/server_info", _said(self._server_info)),
                web.get("/v1/models", _said(lambda: {"data": [{"id": "builtin", "max_model_len": 512}]})),
                web.post("/generate", self._generate),
                web.post("/abort_request", self._abort),
                web.post("/update_weights_from_disk", self.load),
                web.post("/pause_generation", self.pause),
                web.post("/continue_generation", self.resume),
                *(web.post(f"/{verb}_memory_occupation", _said(dict)) for verb in ("release", "resume")),
            ]
        )
        return app

    def _model_info(self) -> dict[str, Any]:
        return {"model_path": self.model, "served_model_name": "builtin", "weight_version": self.version}

    def _server_info(self) -> dict[str, Any]:
        deterministic = self.is_deterministic
        return {"version": "0.5.23", "max_req_input_len": 506, "enable_deterministic_inference": deterministic}

    async def _abort(self, request: web.Request) -> web.Response:
        named = (await request.json())["rid"]
        for wire_id, mark in self.aborted.items():
            if wire_id.startswith(named):
                mark.set()
        return web.Response()

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        is_probe = body["rid"].startswith("probe:")
        if not is_probe:
            self.asked.append(body)
        law = body["sampling_params"]
        asked = Sampling(body["input_ids"], law["max_new_tokens"], law["stop"], set(law["stop_token_ids"]))
        is_aborted = await self.held(body["rid"])
        said = sampled(self.script, asked)
        if is_aborted:
            said = Said(said.ids[:2], "abort")
        finish = {"type": said.finish, "matched": said.matched} if said.finish == "stop" else {"type": said.finish}
        meta = {
            "id": body["rid"],
            "finish_reason": finish,
            "prompt_tokens": len(asked.context),
            "completion_tokens": len(said.ids),
            "cached_tokens": len(asked.context) // 2,
            "weight_version": self.version,
            "weight_versions": [{"version": self.version, "start": 0, "end": len(said.ids)}],
            "output_token_logprobs": [[-0.5, i, None] for i in said.ids],
        }
        if body["top_logprobs_num"]:
            others = [[-1.0 - n, 500 + n, None] for n in range(body["top_logprobs_num"])]
            meta["output_top_logprobs"] = [others for _ in said.ids]
        return self.answer({"text": "", "output_ids": said.ids, "meta_info": meta}, is_probe=is_probe)


def _said(value: Callable[[], Any]) -> Any:
    async def handler(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(value())

    return handler


@asynccontextmanager
async def serving(fake: FakeVllm | FakeSglang) -> AsyncIterator[str]:
    """The address of a fake server while it runs."""
    server = TestServer(fake.app(), host="127.0.0.1")
    await server.start_server()
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        fake.go_on.set()
        fake.loads.set()
        fake.is_paused = False
        await server.close()


@asynccontextmanager
async def served(fake: FakeVllm | FakeSglang, kind: type[E], **options: Any) -> AsyncIterator[E]:
    """An engine of this kind in front of a fake server, while both run."""
    async with serving(fake) as url:
        engine = kind(options.pop("model", FOLDER), base_url=url, **options)
        try:
            yield engine
        finally:
            await engine.close()


async def failure(engine: Engine, request: Request = REQUEST) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await engine.generate(request)
    return caught.value


async def on_its_way(engine: Served, fake: Fake, request: Request = REQUEST) -> asyncio.Task[Generation]:
    """A request that the server has and holds."""
    await engine.connect()
    fake.is_holding = True
    num = len(fake.asked)
    task = asyncio.create_task(engine.generate(request))
    await until(lambda: len(fake.asked) > num)
    return task


async def until(happened: Callable[[], bool]) -> None:
    """Wait for what a server sees, five seconds at most."""
    async with asyncio.timeout(5):
        while not happened():  # noqa: ASYNC110 - what is waited for is a fact of several counters
            await asyncio.sleep(0.005)
