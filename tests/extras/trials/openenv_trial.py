"""An environment behind a server that speaks OpenEnv's protocol grows trees."""

import asyncio
import threading
from typing import Any

from ramify import rollout_sync
from ramify.environments.openenv import OpenEnv
from ramify.environments.task import EnvironmentTask
from ramify.testing import Scripted

OpenEnv(url="http://127.0.0.1:9").check_start()  # Without the extra, this is refused.
from aiohttp import web  # noqa: E402

PORTS: list[int] = []
IS_UP = threading.Event()


async def schema(request: Any) -> Any:
    return web.json_response({"action": {"properties": {"message": {"type": "string"}}}})


async def session(request: Any) -> Any:
    line = web.WebSocketResponse()
    await line.prepare(request)
    said: list[str] = []
    async for message in line:
        asked = message.json()
        if asked["type"] == "step":
            said.append(asked["data"]["message"])
        seen = {"observation": {"echo": f"{len(said)} words"}, "reward": float(len(said)), "done": len(said) == 2}
        await line.send_json({"type": "answer", "data": {"said": said} if asked["type"] == "state" else seen})
    return line


async def serve() -> None:
    app = web.Application()
    app.add_routes([web.get("/schema", schema), web.get("/ws", session)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    PORTS.append(runner.addresses[0][1])
    IS_UP.set()
    await asyncio.Event().wait()


threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
IS_UP.wait()
server = OpenEnv(url=f"http://127.0.0.1:{PORTS[0]}", action_field="message", text_field="echo")
grown = rollout_sync(task=EnvironmentTask(server), preset="chains", prompts=1, engine=Scripted(lambda turn: "hello"))
(tree,) = grown.trees
assert {tree.reward(leaf) for leaf in tree.leaves()} == {3.0}, tree
