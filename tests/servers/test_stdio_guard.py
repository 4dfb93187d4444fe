"""What could get a server past its guard, or the guard to take a server down for nothing."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from tests.servers.programs import guard_of, is_alive, kill, marked, python, until

from ramify.edge.stdio_guard import MAX_LOG_BYTES
from ramify.servers.process import ServerProcess, tail

COMET = """
import os, time
end = time.monotonic() + 20
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
"""
"""It forks and ends, again and again: no process id of it is good for a millisecond."""
FLOCK = """
import os, subprocess, time
for _ in range(60):
    subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
print("up", flush=True)
time.sleep(60)
"""


async def test_a_program_that_flees_by_forking_is_caught(tmp_path: Path):
    server = await ServerProcess.started(python(COMET, TEST_MARK=str(tmp_path)), log=tmp_path / "log")
    assert await server.wait() == 0
    assert not marked(tmp_path)


async def test_a_guard_that_is_told_to_end_many_times_kills_to_the_end(tmp_path: Path):
    server = await ServerProcess.started(python(FLOCK, TEST_MARK=str(tmp_path)), log=tmp_path / "log")
    await until(lambda: tail(server.log) == "up")
    guard = guard_of(server)
    kill(server.pid)

    def pester() -> None:
        with contextlib.suppress(ProcessLookupError):
            while is_alive(guard):
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    os.kill(guard, number)

    await asyncio.gather(asyncio.to_thread(pester), server.wait())
    assert not marked(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["deleted", "in the way"])
async def test_a_log_that_cannot_be_moved_costs_no_server(tmp_path: Path, fault: str):
    log, has_said = tmp_path / "log", tmp_path / "said"
    code = f"import time; print('x' * {MAX_LOG_BYTES + 1}, flush=True); open({str(has_said)!r}, 'w'); time.sleep(60)"
    (tmp_path / "log.old").mkdir()
    server = await ServerProcess.started(python(code), log=log)
    with log.open("rb") as file:
        if fault == "deleted":
            log.unlink()
        await until(lambda: has_said.exists() and not os.fstat(file.fileno()).st_size)
    assert server.is_running and is_alive(server.pid)
    await server.stop()
