import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.servers.engine_folders import engine_python
from tests.servers.programs import PROBE, QUICK, ask, program, tell, until

from ramify.core.errors import EngineError
from ramify.edge.http import Http
from ramify.servers.home import Here, Home
from ramify.servers.launch import RouterLaunch
from ramify.servers.ports import Address
from ramify.servers.process import Command
from ramify.servers.router import PROBE as ROUTER_PROBE
from ramify.servers.router import Router
from ramify.servers.server_pool import Down, Event, ServerPool, Up
from ramify.servers.site import Site


def launch(tmp_path: Path, *arguments: str) -> RouterLaunch:
    python = engine_python(tmp_path / "engine", ["sglang_router"])
    return RouterLaunch(python=python, policy="round_robin", arguments=arguments)


def home_of(tmp_path: Path) -> Home:
    return Home(logs=tmp_path / "logs")


def here(tmp_path: Path, command: Callable[[Address], Command]) -> Here:
    return Here(command, home=home_of(tmp_path))


def site(tmp_path: Path, said: list[str], *arguments: str, **options: object) -> Site:
    router = launch(tmp_path, *arguments)
    return Site(
        lambda observe: ServerPool(
            here(tmp_path, program(**options)), count=2, probe=PROBE, care=QUICK, observe=observe
        ),
        lambda workers, observe: Router(
            router, workers, home=home_of(tmp_path), ours=os.environ, care=QUICK, observe=observe
        ),
        say=said.append,
    )


@pytest.mark.slow
@pytest.mark.covers("S3.3")
async def test_a_router_is_started_over_its_workers_and_goes_before_them(tmp_path: Path):
    said: list[str] = []
    served = site(tmp_path, said)
    await served.start()
    try:
        assert served.base_url == served.router_url
        urls = served.urls
        own = {(await ask(url))["pid"] for url in urls}
        assert {(await ask(served.base_url))["pid"] for _ in range(4)} == own
        await is_ready(served.base_url)
    finally:
        await served.stop()
    for url in urls:
        async with closed(Http(url)) as http:
            with pytest.raises(EngineError, match="unreachable"):
                await PROBE.is_there(http, deadline_s=QUICK.health_s)
    assert [line.split()[0] for line in said] == ["server", "server", "router"]


@pytest.mark.slow
@pytest.mark.covers("S3.3")
async def test_a_router_that_dies_is_started_again_over_the_workers_of_now(tmp_path: Path):
    events: list[Event] = []
    pool = ServerPool(here(tmp_path, program()), count=1, probe=PROBE, care=QUICK)
    (worker,) = await pool.start()
    router = Router(
        launch(tmp_path),
        [worker],
        home=home_of(tmp_path),
        ours=os.environ,
        care=QUICK,
        observe=events.append,
    )
    try:
        url = await router.start()
        before = (await ask(url))["pid"]
        await tell(worker, "/die")
        await tell(url, "/die")
        await until(lambda: [e for e in events if isinstance(e, Up)])
        await until(lambda: pool.pids[0] not in (None, before))
        assert await router_answers(url) == pool.pids[0]
        assert not [e for e in events if isinstance(e, Down) and e.index]
    finally:
        await router.stop()
        await pool.stop()


async def is_ready(url: str) -> None:
    """Wait until the router has a worker that it may ask."""
    async with asyncio.timeout(QUICK.start_s), closed(Http(url)) as http:
        await ROUTER_PROBE.until_ready(http, health_s=QUICK.health_s, probe_s=QUICK.probe_s, tell=lambda _: None)


@asynccontextmanager
async def closed(http: Http) -> AsyncIterator[Http]:
    """Close the connections behind the block."""
    try:
        yield http
    finally:
        await http.close()


async def router_answers(url: str) -> object:
    await is_ready(url)
    return (await ask(url))["pid"]


@pytest.mark.slow
@pytest.mark.covers("S3.3")
async def test_a_router_whose_workers_are_all_down_waits_for_them(tmp_path: Path):
    workers: list[Event] = []
    events: list[Event] = []
    care = replace(QUICK, base_s=1)
    pool = ServerPool(here(tmp_path, program()), count=1, probe=PROBE, care=care, observe=workers.append)
    (worker,) = await pool.start()
    router = Router(
        launch(tmp_path), [worker], home=home_of(tmp_path), ours=os.environ, care=QUICK, observe=events.append
    )
    try:
        url = await router.start()
        await tell(worker, "/die")
        await until(lambda: len([event for event in workers if isinstance(event, Up)]) == 2)
        assert (await ask(url))["pid"] == pool.pids[0]
        assert len(events) == 1
    finally:
        await router.stop()
        await pool.stop()


@pytest.mark.slow
@pytest.mark.covers("S3.3")
async def test_a_worker_that_moved_takes_the_place_of_the_old_one(tmp_path: Path):
    pool = ServerPool(here(tmp_path, program()), count=2, probe=PROBE, care=QUICK)
    first, second = await pool.start()
    router = Router(launch(tmp_path), [first], home=home_of(tmp_path), ours=os.environ, care=QUICK)
    try:
        url = await router.start()
        await router.replace(0, first)
        assert await workers(url) == [first]
        await router.replace(0, second)
        assert await workers(url) == [second]
        assert (await ask(url))["pid"] == pool.pids[1]
    finally:
        await router.stop()
        await pool.stop()


@pytest.mark.slow
@pytest.mark.covers("S3.3")
async def test_what_a_router_did_not_take_is_told_again(tmp_path: Path):
    """One server moves, which the router refuses to hear; then another one comes up again."""
    said: list[str] = []
    (tmp_path / "lost").touch()
    served = site(tmp_path, said, "--refuses", str(tmp_path / "refused"), loses_port=str(tmp_path / "lost"))
    await served.start()
    try:
        first, second = served.urls
        (tmp_path / "lost").unlink()
        await tell(first, "/die")
        await until(lambda: any(line.startswith("the router was not told of http") for line in said))
        assert served.urls[0] != first and set(await workers(served.base_url)) == {first, second}
        await tell(second, "/die")
        await until(lambda: asyncio.run(workers(served.base_url)) == [second, served.urls[0]])
    finally:
        await served.stop()


async def workers(url: str) -> list[str]:
    listed = (await ask(url, "/workers"))["workers"]
    assert isinstance(listed, list)
    return [worker["url"] for worker in listed]


@pytest.mark.slow
@pytest.mark.covers("S3.3")
async def test_a_router_without_a_healthy_worker_is_not_ready(tmp_path: Path):
    router = Router(
        launch(tmp_path),
        ["http://127.0.0.1:9"],
        home=home_of(tmp_path),
        ours=os.environ,
        care=replace(QUICK, start_s=1),
    )
    with pytest.raises(EngineError, match="router-0: not ready in 1 s"):
        await router.start()


async def test_a_site_whose_servers_are_all_given_up_is_over(tmp_path: Path):
    said: list[str] = []
    command = program(starts=str(tmp_path / "starts"), good_starts=1)
    served = Site(
        lambda observe: ServerPool(here(tmp_path, command), count=1, probe=PROBE, care=QUICK, observe=observe),
        say=said.append,
    )
    await served.start()
    try:
        assert served.router_url is None and served.base_url == served.urls[0]
        await tell(served.base_url, "/die")
        await until(served.over.is_set)
        assert said[-1].startswith("server 0 at http://127.0.0.1:") and "it went down too often" in said[-1]
    finally:
        await served.stop()
