import asyncio
import json
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.servers.programs import (
    PROBE,
    QUICK,
    ask,
    children_of,
    is_alive,
    kill,
    marked,
    program,
    python,
    tell,
    until,
    wait_until,
)

from ramify.core.errors import ConfigError, EngineError
from ramify.servers.home import MAX_LOGS, Here, Home, log_folder
from ramify.servers.ports import Address, listeners
from ramify.servers.process import Command
from ramify.servers.server_pool import Down, Event, GivenUp, ServerPool, Up


class Told:
    """What a pool's observer was told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def pool(logs: Path, told: Told, **how: Any) -> ServerPool:
    home = Home(logs=logs, port=how.pop("port", None))
    here = Here(how.pop("command", None) or program(), home=home)
    options = {"count": 1, "probe": PROBE, "care": QUICK, "observe": told.events.append, **how}
    return ServerPool(here, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@asynccontextmanager
async def running(logs: Path, **how: Any) -> AsyncIterator[tuple[ServerPool, Told]]:
    told = Told()
    servers = pool(logs, told, **how)
    await servers.start()
    pids = servers.pids
    try:
        yield servers, told
    finally:
        await servers.stop()
        assert not any(is_alive(pid) for pid in pids if pid is not None)


@pytest.mark.covers("S3.2")
async def test_servers_are_ready_together_at_ports_of_their_own(tmp_path: Path):
    async with running(tmp_path, count=3) as (servers, told):
        assert len(set(servers.urls)) == 3
        assert sorted(event.index for event in told.of(Up)) == [0, 1, 2]
        pids = [(await ask(url))["pid"] for url in servers.urls]
        assert pids == list(servers.pids)
        assert names(tmp_path) == [f"server-{index}.1.log" for index in range(3)]


async def test_named_ports_are_those_from_the_first_on(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with running(tmp_path, port=port) as (servers, _):
        assert servers.urls == (f"http://127.0.0.1:{port}",)


async def test_a_named_port_that_is_taken_is_said_before_anything_starts(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        servers = pool(tmp_path, Told(), port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match=r"port \d+ of 127\.0\.0\.1 cannot be used"):
            await servers.start()
    assert not names(tmp_path)


async def test_a_server_that_dies_at_its_start_fails_all_with_the_end_of_its_log(tmp_path: Path):
    commands = iter([program(), program(dies="gpt-7"), program()])

    def command(address: Address) -> Command:
        return next(commands)(address)

    servers = pool(tmp_path, Told(), count=3, command=command)
    with pytest.raises(
        EngineError, match=r"(?s)server-1: exit code 1 at its start.*server-1\.1\.log.*no such model: gpt-7"
    ):
        await servers.start()
    assert servers.pids == ()


async def test_a_server_that_is_never_ready_is_stopped_at_the_deadline(tmp_path: Path):
    servers = pool(tmp_path, Told(), command=program(html=True), care=replace(QUICK, start_s=0.5))
    with pytest.raises(EngineError, match=r"server-0: not ready in 0\.5 s \(.*; its log .*server-0\.1\.log"):
        await servers.start()


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path):
    servers = pool(tmp_path, Told(), count=2, command=program(crowd=str(tmp_path / "pids"), html=True))
    starting = asyncio.create_task(servers.start())
    await until((tmp_path / "pids").exists)
    family = json.loads((tmp_path / "pids").read_text())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not any(map(is_alive, family))


async def test_a_dead_server_is_started_again_at_its_address(tmp_path: Path):
    async with running(tmp_path, count=2) as (servers, told):
        urls, pids = servers.urls, servers.pids
        await tell(urls[1], "/die")
        await until(lambda: len(told.of(Up)) == 3)
        (down,) = told.of(Down)
        assert down.index == 1
        assert "exit code 7" in down.reason and "I was told to die" in down.reason
        assert servers.urls == urls
        assert servers.pids[0] == pids[0] and servers.pids[1] != pids[1]
        assert (tmp_path / "server-1.2.log").exists()


@pytest.mark.slow
async def test_a_silent_server_is_killed_and_started_again(tmp_path: Path):
    async with running(tmp_path, command=program(deaf=True), care=replace(QUICK, grace_s=0.1)) as (servers, told):
        (pid,) = servers.pids
        await tell(servers.urls[0], "/hang")
        await until(lambda: len(told.of(Up)) == 2)
        assert "it is silent: timeout" in told.of(Down)[0].reason
        assert pid is not None and not is_alive(pid)


@pytest.mark.slow
async def test_a_server_that_is_there_and_cannot_generate_is_found_out_when_it_is_suspected(tmp_path: Path):
    async with running(tmp_path) as (servers, told):
        await tell(servers.urls[0], "/numb")
        servers.suspect(0)
        await until(lambda: len(told.of(Up)) == 2)
        assert "the engine is dead" in told.of(Down)[0].reason


async def test_a_suspicion_that_is_wrong_costs_nothing(tmp_path: Path):
    async with running(tmp_path) as (servers, told):
        for _ in range(5):
            servers.suspect(0)
            await ask(servers.urls[0])
        assert not told.of(Down)


async def test_a_server_that_goes_down_too_often_stays_down(tmp_path: Path):
    command = program(starts=str(tmp_path / "starts"), good_starts=1)
    async with running(tmp_path / "logs", command=command) as (servers, told):
        await tell(servers.urls[0], "/die")
        await until(lambda: told.of(GivenUp))
        assert len(told.of(Down)) == QUICK.max_restarts
        assert "this time it does not start" in told.of(GivenUp)[0].reason
        assert servers.pids == (None,)
        assert (tmp_path / "starts").read_text() == "x" * (2 + QUICK.max_restarts - 1)


@pytest.mark.slow
async def test_restarts_are_forgotten_when_a_server_was_up_for_long(tmp_path: Path):
    async with running(tmp_path, care=replace(QUICK, max_restarts=1, steady_s=0)) as (servers, told):
        for number in range(3):
            await tell(servers.urls[0], "/die")
            await until(lambda number=number: len(told.of(Up)) == number + 2)
        assert not told.of(GivenUp)


def test_pauses_double_up_to_a_limit():
    care = replace(QUICK, base_s=1.0, cap_s=60)
    assert [care.pause_s(number) for number in (*range(8), 2000)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_logs_need_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"/file' is a file; name a folder"):
        log_folder(tmp_path / "file")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(EngineError, match=r"server_not_started: no folder for logs: .*; name one"):
        log_folder(None)


async def test_a_key_that_a_server_writes_to_its_log_is_in_no_error(tmp_path: Path):
    code = "import os; print('my key is', os.environ['HF_TOKEN'], 'in', os.environ['HOME'])"
    command = python(code, HF_TOKEN="hf-secret", HOME="/home/mine")
    with pytest.raises(EngineError, match=r"my key is \$HF_TOKEN in /home/mine$"):
        await pool(tmp_path, Told(), command=lambda address: command).start()


async def test_a_folder_that_takes_no_logs_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match=r"server-0: no log in .*/file/logs: "):
        await pool(tmp_path / "file" / "logs", Told()).start()


@pytest.mark.parametrize("options", [{"shares_nothing": True}, {"loses_port": "lost"}])
async def test_an_address_in_use_costs_a_move_and_no_failure(tmp_path: Path, options: dict[str, Any]):
    if "loses_port" in options:
        options = {"loses_port": str(tmp_path / "lost")}
    async with running(tmp_path / "logs", command=program(**options)) as (servers, told):
        assert (await ask(servers.urls[0]))["pid"] == servers.pids[0]
        assert names(tmp_path / "logs") == ["server-0.1.log", "server-0.2.log"]
        assert len(told.events) == 1


async def test_a_stranger_that_took_the_port_is_not_taken_for_the_server(tmp_path: Path):
    strangers: list[subprocess.Popen[bytes]] = []

    def command(address: Address) -> Command:
        made = program()(address)
        if not strangers:
            strangers.append(subprocess.Popen(made.argv))
            wait_until(lambda: listeners(address.port))
        return made

    try:
        async with running(tmp_path, command=command) as (servers, told):
            assert (await ask(servers.urls[0]))["pid"] == servers.pids[0] != strangers[0].pid
            assert names(tmp_path) == ["server-0.1.log", "server-0.2.log"] and len(told.events) == 1
        assert strangers[0].poll() is None
    finally:
        strangers[0].kill()
        strangers[0].wait()


@pytest.mark.slow
async def test_pools_that_share_a_folder_share_no_log(tmp_path: Path):
    async with running(tmp_path), running(tmp_path):
        assert names(tmp_path) == ["server-0.1.log", "server-0.2.log"]
    async with running(tmp_path):
        assert len(names(tmp_path)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("num", [MAX_LOGS + 1, pytest.param(200, marks=pytest.mark.endurance)])
async def test_restarts_leave_neither_files_nor_processes_nor_logs_without_end(
    tmp_path: Path, num: int, begun: Callable[[], list[int]]
):
    async with running(tmp_path, care=replace(QUICK, steady_s=0)) as (servers, told):
        before = len(names(Path("/proc/self/fd")))
        (tmp_path / "server-0.1.log.old").touch()
        for number in range(num):
            await tell(servers.urls[0], "/die")
            await until(lambda number=number: len(told.of(Up)) == number + 2)
        assert sorted(names(tmp_path)) == sorted(f"server-0.{num + 1 - age}.log" for age in range(MAX_LOGS))
        (guard,) = begun()
        assert children_of(guard) == [servers.pids[0]]
        await until(lambda: len(names(Path("/proc/self/fd"))) <= before)


@pytest.mark.parametrize("moment", ["starting", "up", "stopping"])
async def test_a_guard_that_is_killed_at_any_moment_leaves_nothing(
    tmp_path: Path, moment: str, begun: Callable[[], list[int]]
):
    options = {"starting": {"html": True}, "up": {}, "stopping": {"deaf": True}}[moment]
    told = Told()
    command = program(mark=str(tmp_path), **options)
    servers = pool(tmp_path / "logs", told, command=command, care=replace(QUICK, grace_s=60))
    starting = asyncio.create_task(servers.start())
    if moment == "starting":
        await until(lambda: len(marked(tmp_path)) == 2)
        (guard,) = begun()
        kill(guard)
        with pytest.raises(EngineError, match=r"exit code -9 at its start|its guard died"):
            await starting
    else:
        await starting
        stopping = asyncio.create_task(servers.stop()) if moment == "stopping" else None
        (guard,) = begun()
        kill(guard)
        await (stopping or until(lambda: len(told.of(Up)) == 2))
    await servers.stop()
    # A server that its guard had not told us of yet is killed by the kernel, which takes its time.
    await until(lambda: not marked(tmp_path))


async def test_stopping_stops_servers_that_are_being_started_again(tmp_path: Path):
    async with running(tmp_path, care=replace(QUICK, base_s=60, cap_s=60)) as (servers, told):
        await tell(servers.urls[0], "/die")
        await until(lambda: told.of(Down))


async def test_a_stop_that_is_cancelled_kills_at_once(tmp_path: Path):
    told = Told()
    servers = pool(tmp_path, told, command=program(deaf=True), care=replace(QUICK, grace_s=60))
    await servers.start()
    (pid,) = servers.pids
    stopping = asyncio.create_task(servers.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert pid is not None and not is_alive(pid)


@pytest.mark.slow
async def test_no_file_is_left_open(tmp_path: Path):
    async with running(tmp_path):
        pass
    before = names(Path("/proc/self/fd"))
    for _ in range(3):
        async with running(tmp_path, count=2):
            pass
    assert len(names(Path("/proc/self/fd"))) <= len(before)


@pytest.mark.parametrize("wrong", [{"start_s": 0}, {"max_silent": 0}, {"base_s": -1}, {"max_restarts": -1}])
def test_impossible_care_is_refused(wrong: dict[str, float]):
    with pytest.raises(ConfigError, match="impossible care"):
        replace(QUICK, **wrong)  # pyright: ignore[reportArgumentType]


def test_a_pool_has_a_server(tmp_path: Path):
    with pytest.raises(ConfigError, match="at least 1 server"):
        pool(tmp_path, Told(), count=0)
