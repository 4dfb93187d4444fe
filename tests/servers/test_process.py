import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.servers.programs import (
    children_of,
    guard_of,
    is_alive,
    kill,
    marked,
    program,
    python,
    until,
    wait_until,
)

from ramify.core.errors import ConfigError, EngineError
from ramify.edge.stdio_guard import MAX_LOG_BYTES
from ramify.servers.ports import Ports, listeners
from ramify.servers.process import Command, ServerProcess, tail

PARENT = """
import asyncio, json, sys, os
from pathlib import Path
from ramify.servers.process import Command, ServerProcess

async def main():
    argv, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    server = await ServerProcess.started(Command(tuple(argv), {"PATH": os.defpath}), log=folder / "log")
    await server.wait()

asyncio.run(main())
"""
LISTENS_APART = """
import os, socket, time
if not os.fork():
    os.setsid()
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
time.sleep(60)
"""


def crowd(tmp_path: Path) -> Command:
    """A server with four processes besides itself: deaf ones, one of its own session, an orphan of another."""
    ports = Ports()
    address = ports.address()
    ports.close()
    return program(crowd=str(tmp_path / "pids"))(address)


def family(tmp_path: Path) -> list[int]:
    wait_until((tmp_path / "pids").exists)
    pids = json.loads((tmp_path / "pids").read_text())
    assert len(pids) == 4 and all(map(is_alive, pids))
    return pids


async def test_output_exit_code_and_environment_are_the_servers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    code = "import os, sys; print(sorted(os.environ), flush=True); print('bye', file=sys.stderr); sys.exit(7)"
    server = await ServerProcess.started(python(code, PATH="/bin", A="1"), log=tmp_path / "logs" / "log")
    assert await server.wait() == 7
    said = tail(tmp_path / "logs" / "log")
    assert "'A'" in said and said.endswith("bye")
    assert "SOME_API_KEY" not in said
    assert await server.stop() == 7 and not server.is_running


async def test_a_program_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"'/no/such/python' cannot be started: No such file or directory"):
        await ServerProcess.started(Command(("/no/such/python",)), log=tmp_path / "log")


async def test_a_log_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(EngineError, match=r"server_not_started: .*log .*/file/log: "):
        await ServerProcess.started(python("pass"), log=tmp_path / "file" / "log")


@pytest.mark.covers("S3.2")
async def test_nothing_is_left_of_a_crowd_that_is_stopped(tmp_path: Path):
    server = await ServerProcess.started(crowd(tmp_path), log=tmp_path / "log")
    pids = await asyncio.to_thread(family, tmp_path)
    assert await server.stop() == -signal.SIGTERM
    assert not any(map(is_alive, pids))


async def test_a_server_deaf_to_being_asked_is_killed_after_the_grace(tmp_path: Path):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    server = await ServerProcess.started(python(code), log=tmp_path / "log")
    await until(lambda: tail(server.log) == "up")
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await server.stop(grace_s=0.3) == -signal.SIGKILL
    assert loop.time() - began >= 0.3
    assert not is_alive(server.pid)


async def test_a_stop_that_is_cancelled_kills_at_once(tmp_path: Path):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    server = await ServerProcess.started(python(code), log=tmp_path / "log")
    await until(lambda: tail(server.log) == "up")
    stopping = asyncio.create_task(server.stop(grace_s=60))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert await server.wait() == -signal.SIGKILL
    assert not is_alive(server.pid)


@pytest.mark.parametrize("steps", range(0, 12, 2))
async def test_a_start_that_is_cancelled_anywhere_leaves_nothing(
    tmp_path: Path, steps: int, begun: Callable[[], list[int]]
):
    starting = asyncio.create_task(ServerProcess.started(python("import time; time.sleep(60)"), log=tmp_path / "log"))
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not begun()


async def test_what_a_dead_server_leaves_behind_is_killed(tmp_path: Path):
    server = await ServerProcess.started(crowd(tmp_path), log=tmp_path / "log")
    pids = await asyncio.to_thread(family, tmp_path)
    kill(server.pid)
    assert await server.wait() == -signal.SIGKILL
    assert not any(map(is_alive, pids))


@pytest.mark.covers("S3.2")
@pytest.mark.parametrize("repeat", range(3))
def test_a_parent_that_is_killed_takes_everything_with_it(tmp_path: Path, repeat: int):
    argv = json.dumps(crowd(tmp_path).argv)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, argv, str(tmp_path)])
    pids = family(tmp_path)
    kill(parent.pid)
    assert parent.wait() == -signal.SIGKILL
    wait_until(lambda: not any(map(is_alive, pids)))


async def test_a_guard_that_is_killed_takes_its_server_with_it(tmp_path: Path):
    code = (
        "import subprocess, sys, time; subprocess.Popen(['/bin/sleep', '60']); print('up', flush=True); time.sleep(60)"
    )
    server = await ServerProcess.started(python(code), log=tmp_path / "log")
    await until(lambda: tail(server.log) == "up")
    children = children_of(server.pid)
    kill(guard_of(server))
    assert await server.wait() == -signal.SIGKILL
    assert not any(is_alive(pid) for pid in (server.pid, *children))


async def test_a_guard_told_to_end_stops_its_server(tmp_path: Path):
    server = await ServerProcess.started(python("import time; time.sleep(60)"), log=tmp_path / "log")
    os.kill(guard_of(server), signal.SIGTERM)
    assert await server.wait() == -signal.SIGKILL
    assert not is_alive(server.pid)


@pytest.mark.covers("S3.2")
def test_an_event_loop_that_ends_takes_its_servers_with_it(tmp_path: Path):
    command = python("import time; time.sleep(60)", TEST_MARK=str(tmp_path))
    server = asyncio.run(ServerProcess.started(command, log=tmp_path / "log"))
    assert not marked(tmp_path) and not server.is_running


async def test_a_listening_socket_is_known_to_be_the_servers_own(tmp_path: Path):
    server = await ServerProcess.started(python(LISTENS_APART), log=tmp_path / "log")
    await until(lambda: tail(server.log))
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert not server.owns(listeners(other.getsockname()[1]))
    its = listeners(int(tail(server.log)))
    assert len(its) == 1 and server.owns(its)
    await server.stop()


def test_keys_are_not_shown_with_a_command():
    command = Command(("/bin/server",), {"HF_TOKEN": "hf-secret"})
    assert "hf-secret" not in repr(command)
    with pytest.raises(ConfigError, match="'HF_TOKEN' holds a zero byte"):
        Command(("/bin/server",), {"HF_TOKEN": "hf-secret\0"})


async def test_a_server_is_out_of_reach_of_a_terminals_interrupt(tmp_path: Path):
    server = await ServerProcess.started(python("import time; time.sleep(60)"), log=tmp_path / "log")
    assert os.getsid(server.pid) == server.pid != os.getsid(guard_of(server)) != os.getsid(0)
    await server.stop()


@pytest.mark.slow
async def test_a_log_that_grows_too_long_is_moved_and_begun_again(tmp_path: Path):
    code = (
        f"print('x' * {MAX_LOG_BYTES}); print('first', flush=True); input() if 0 else None; import time; time.sleep(60)"
    )
    server = await ServerProcess.started(python(code), log=tmp_path / "log")
    await until(lambda: (tmp_path / "log.old").exists() and not (tmp_path / "log").stat().st_size)
    assert (tmp_path / "log.old").stat().st_size > MAX_LOG_BYTES
    await server.stop()


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path):
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_bytes(b"\xff" * 9000 + "\n".join(map(str, range(100))).encode())
    assert tail(log).splitlines() == [str(number) for number in range(60, 100)]
