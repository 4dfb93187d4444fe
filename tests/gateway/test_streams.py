"""Answers as server-sent events, and clients that do not wait for them."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.engines.endpoint import Endpoint, call, calling, said
from tests.engines.fault_server import FaultServer, Hang, Received, until
from tests.gateway.gateways import gateway

from ramify.edge.web_server import WebLimits
from ramify.gateway.server import GatewayConfig
from ramify.runner.saved import Saved
from ramify.store.survey import survey

QUICK = GatewayConfig(progress_s=0.02)


def hangs_when_asked_to(received: Received) -> Hang | None:
    return Hang() if b"hang" in received.body else None


def answer(received: Received) -> bytes:
    return json.dumps({"data": [{"id": "m"}]} if received.path.endswith("/models") else said("42")).encode()


def joined(events: list[Any]) -> dict[str, Any]:
    """The deltas of a stream put together."""
    whole: dict[str, Any] = {"content": "", "tool_calls": []}
    for event in events[:-1]:
        for choice in event["choices"]:
            whole["content"] += choice["delta"].get("content") or ""
            whole["tool_calls"] += choice["delta"].get("tool_calls", [])
    return whole


async def test_a_stream_gives_the_answer_in_chunks_then_the_end(tmp_path: Path) -> None:
    text = "Forty-two. " * 100
    with Endpoint(lambda body: said(text)) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            heard, _ = await asking.stream("self_consistency", ramify={"options": {"n": 2}})
    assert heard.headers["Content-Type"].startswith("text/event-stream")
    assert heard.place == (tmp_path / "self_consistency", 0)
    *chunks, end = heard.body
    assert end == "[DONE]"
    assert joined(heard.body)["content"] == text
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "stop"]
    assert not any("usage" in chunk for chunk in chunks)


async def test_a_stream_ends_with_the_usage_where_it_is_asked_for(tmp_path: Path) -> None:
    with Endpoint(lambda body: said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            heard, _ = await asking.stream("m", stream_options={"include_usage": True})
    last = heard.body[-2]
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 10
    assert last["ramify"]["tree"] == 0


async def test_a_stream_of_calls_numbers_them(tmp_path: Path) -> None:
    made = [call("f", '{"x": 1}'), call("g", "{}", "call_b")]
    with Endpoint(lambda body: calling(*made)) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            heard, _ = await asking.stream("m", tools=[{"type": "function", "function": {"name": "f"}}])
    assert joined(heard.body)["tool_calls"] == [{"index": number, **each} for number, each in enumerate(made)]
    assert heard.body[-2]["choices"][0]["finish_reason"] == "tool_calls"


async def test_comments_keep_a_stream_alive_while_the_search_goes_on(tmp_path: Path) -> None:
    async with (
        FaultServer(answer, hangs_when_asked_to) as server,
        gateway(server.url, tmp_path, config=QUICK) as asking,
    ):
        body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hang"}]})
        headers = {"Content-Type": "application/json"}
        async with asking.session.post(f"{asking.url}/v1/chat/completions", data=body, headers=headers) as response:
            assert await response.content.readline() == b": progress 0 steps, 0 tokens\n"
            await response.content.readline()
            assert await response.content.readline() == b": progress 0 steps, 0 tokens\n"


@pytest.mark.slow
async def test_a_request_that_fails_at_once_has_the_status_of_its_error_and_a_late_one_an_event(tmp_path: Path) -> None:
    async with (
        FaultServer(answer, hangs_when_asked_to) as server,
        gateway(server.url, tmp_path, config=QUICK) as asking,
    ):
        heard = await asking.chat("nobody", stream=True)
        assert (heard.status, heard.error["code"]) == (404, "model_not_found")
        hanging = [{"role": "user", "content": "hang"}]
        body = {"model": "m", "messages": hanging, "stream": True, "ramify": {"budget": {"seconds": 0.2}}}
        headers = {"Content-Type": "application/json"}
        async with asking.session.post(
            f"{asking.url}/v1/chat/completions", data=json.dumps(body), headers=headers
        ) as response:
            lines = [line for line in (await response.text()).splitlines() if line.startswith("data: ")]
    assert response.status == 200
    assert json.loads(lines[0].removeprefix("data: "))["error"]["type"] == "timeout_error"
    assert lines[1] == "data: [DONE]"


async def test_a_client_that_disconnects_stops_its_tree(tmp_path: Path) -> None:
    async with FaultServer(answer, hangs_when_asked_to) as server, gateway(server.url, tmp_path) as asking:
        for is_stream in (False, True):
            async with aiohttp.ClientSession() as leaving:
                fields = {"stream": is_stream, "ramify": {"options": {"n": 3}}}
                body = {"model": "self_consistency", "messages": [{"role": "user", "content": "hang"}], **fields}
                headers = {"Content-Type": "application/json"}
                asked = asyncio.create_task(
                    leaving.post(f"{asking.url}/v1/chat/completions", data=json.dumps(body), headers=headers)
                )
                before = server.num_given_up
                await until(lambda: server.num_active == 3)
                asked.cancel()
                await asyncio.wait([asked])
            await until(lambda before=before: server.num_given_up == before + 3)
        assert (await asking.chat("m")).status == 200, "the gateway goes on"
        assert (await asking.get("/health")).body["in_flight"] == 0
        num_requests = len([each for each in server.received if each.method == "POST"])
    assert num_requests == 7
    stopped = Saved.open(tmp_path / "self_consistency")
    assert survey(stopped.path).num_unfinished == 0
    for number in (0, 1):
        tree = stopped.tree(number)
        assert tree is not None and tree.is_broken


async def test_a_gateway_that_is_left_while_requests_are_in_flight_answers_them_first(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def late(received: Received) -> bytes:
        if b"late" in received.body:
            await gone.wait()
        return answer(received)

    async with FaultServer(late) as server, aiohttp.ClientSession() as session:
        async with gateway(server.url, tmp_path, ["self_consistency"]) as asking:
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "late"}]})
            headers = {"Content-Type": "application/json"}
            asked = asyncio.create_task(session.post(f"{asking.url}/v1/chat/completions", data=body, headers=headers))
            await until(lambda: server.num_active == 1)
            asyncio.get_running_loop().call_later(0.05, gone.set)
        async with await asked as response:
            heard: Mapping[str, Any] = await response.json()
    assert heard["choices"][0]["message"]["content"] == "42"


async def test_what_is_not_done_in_time_when_the_gateway_is_left_is_stopped_and_kept(tmp_path: Path) -> None:
    hurried = GatewayConfig(web=WebLimits(stop_s=0.05))
    served = lambda url: gateway(url, tmp_path, ["self_consistency"], hurried)  # noqa: E731
    async with FaultServer(answer, hangs_when_asked_to) as server, aiohttp.ClientSession() as session:
        async with served(server.url) as asking:
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hang"}]})
            headers = {"Content-Type": "application/json"}
            asked = asyncio.create_task(session.post(f"{asking.url}/v1/chat/completions", data=body, headers=headers))
            await until(lambda: server.num_active == 1)
        with pytest.raises(aiohttp.ClientError):
            await asked
        await until(lambda: server.num_given_up == 1)
    folder = tmp_path / "one-sample"
    assert survey(folder).num_opened == 1
    assert Saved.open(folder).config.preset == "chains"
