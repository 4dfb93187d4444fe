"""What a search costs the client of a slow endpoint: CPU a request with 256 in flight.

A small server in a process of its own answers every chat completion after 200 ms with a fixed message. 64 searches of
best-of-n ask it, four requests in flight each, twice: once to warm up, once to be measured. CPU is the client process's
own time. Target: at most 2 ms a request. Beside it a bare aiohttp loop with the same requests.

Run: python bench/endpoint_flight.py
"""

import asyncio
import json
import subprocess
import sys
import time

import aiohttp
from smoke import few

from ramify.core.problem import Problem
from ramify.runner import loop
from ramify.runner.library import rollout

IN_FLIGHT, SEARCHES, ANSWERS = few((256, 64, 16), (4, 2, 2))
DELAY_S = 0.2
TARGET_MS = 2.0
MESSAGE = {"role": "assistant", "content": "Some words of thought.\n<answer> 42 </answer>"}
REPLY = {
    "id": "c",
    "object": "chat.completion",
    "model": "fixed",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 40, "completion_tokens": 12, "total_tokens": 52},
}
SERVER = f"""
import asyncio, json
from aiohttp import web
reply = json.loads({json.dumps(json.dumps(REPLY))})
async def complete(request):
    await request.read()
    await asyncio.sleep({DELAY_S})
    return web.json_response(reply)
async def models(request):
    return web.json_response({{"object": "list", "data": [{{"id": "fixed", "object": "model"}}]}})
async def main():
    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def searched(url: str) -> int:
    """Search every problem; returns the requests made."""
    problems = [Problem(f"p{i}", f"What is question {i} worth?") for i in range(SEARCHES)]
    grown = await rollout(
        problems,
        preset="self_consistency",
        task__name="data",
        data__questions=["-"],
        format="messages",
        engine__name="openai",
        engine__model="fixed",
        engine__base_url=url,
        engine__options={"max_in_flight": IN_FLIGHT},
        strategy__options={"n": ANSWERS, "vote": "majority"},
        max_trees=SEARCHES,
    )
    assert all(answers.answer == "42" for answers in grown.answers())
    return grown.report.engine_calls


async def bare(url: str) -> int:
    """The same number of requests by a plain loop."""
    body = {"model": "fixed", "messages": [{"role": "user", "content": "What is it worth?"}], "max_tokens": 256}
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def post(session: aiohttp.ClientSession) -> None:
        async with slots, session.post(f"{url}/chat/completions", json=body) as response:
            await response.json()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:
        await asyncio.gather(*(post(session) for _ in range(SEARCHES * ANSWERS)))
    return SEARCHES * ANSWERS


def timed(name: str, work: object, url: str) -> float:
    """Milliseconds of CPU a request; printed with the wall time."""
    loop.run(work(url))  # type: ignore[operator]
    cpu, wall = time.process_time(), time.perf_counter()
    num_requests = loop.run(work(url))  # type: ignore[operator]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{name}: {num_requests} requests in {wall:.2f} s, {cpu / num_requests * 1000:.2f} ms of CPU each")
    return cpu / num_requests * 1000


def main() -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        plain, ours = timed("bare aiohttp", bare, url), timed("ramify search", searched, url)
    finally:
        server.kill()
        server.wait()
    print(f"{ours / plain:.2f} times a bare loop; target {TARGET_MS} ms: {'met' if ours <= TARGET_MS else 'MISSED'}")


if __name__ == "__main__":
    main()
