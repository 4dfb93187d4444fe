"""Layers on disk: who may own them, what a killed run leaves, and that nothing of it runs on."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.workspaces.parts import open_folder

from ramify.core.errors import ToolError
from ramify.workspaces.layers import LayerStore, base_folder
from ramify.workspaces.run_folder import remove_left

KILLED = """
import asyncio, sys
from ramify.core.problem import Problem
from ramify.workspaces.shell import Shell

async def main():
    tool = Shell(folder=sys.argv[1])
    session = await tool.open(Problem("p", "q"))
    await session.call("echo > a; mkdir -p l/m; chmod 000 l")
    print(tool.workspaces.starter._process.pid, flush=True)
    await session.call(f"sleep {sys.argv[2]} & (setsid sleep {sys.argv[2]} &); sleep {sys.argv[2]}")

asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as opened:
        yield opened


@pytest.mark.parametrize("delay_ms", [0, 4, 8, 12, 16, 20])
def test_a_killed_run_leaves_no_process_and_the_next_run_removes_its_files(folder: Path, delay_ms: int):
    """Also where it is killed while a command starts: bubblewrap is not tied to its parent from its first moment."""
    mark = f"1{os.getpid()}7"
    run = subprocess.Popen([sys.executable, "-c", KILLED, str(folder), mark], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    with run.stdout:
        starter = os.pidfd_open(int(run.stdout.readline()))
        time.sleep(delay_ms / 1000)
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert run.returncode == -signal.SIGKILL
    assert _ended(starter)
    assert all(_ended(pidfd) for pidfd in _named(mark))
    base = base_folder(folder)
    assert len(os.listdir(base)) == 2  # noqa: PTH208 - one look
    assert remove_left(base) == 1
    assert not list(base.iterdir())


def _named(mark: str) -> list[int]:
    """Descriptors of all processes of this machine whose command holds a mark."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (process / "cmdline").read_bytes():
                found.append(os.pidfd_open(int(process.name)))
    return found


def _ended(pidfd: int) -> bool:
    watch = select.poll()
    watch.register(pidfd, select.POLLIN)
    try:
        return bool(watch.poll(20_000))
    finally:
        os.close(pidfd)


def test_the_folder_of_a_run_that_lives_is_left_alone(folder: Path):
    store = LayerStore(folder, owner=None)
    layer = store.new()
    assert remove_left(base_folder(folder)) == 0
    assert os.path.isdir(layer.files)  # noqa: PTH112 - bytes
    store.close()
    assert not list(base_folder(folder).iterdir())


def test_a_store_that_was_closed_begins_anew(folder: Path):
    store = LayerStore(folder, owner=None)
    first = store.new()
    store.close()
    assert store.new().run != first.run
    store.close()
    store.close()


def test_a_base_that_is_a_link_is_refused(folder: Path):
    (folder / f"ramify-workspaces-{os.getuid()}").symlink_to("/etc")
    with pytest.raises(ToolError, match="is a link or another user's"):
        base_folder(folder)


def test_a_base_that_cannot_be_made_is_refused(folder: Path):
    with pytest.raises(ToolError, match="workspaces need a folder"):
        base_folder(folder / "missing" / "more")


@pytest.mark.skipif(os.geteuid() != 0, reason="commands of others run as themselves")
def test_a_base_that_the_commands_user_may_not_pass_is_refused(folder: Path):
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ToolError, match=r"may not pass .*closed.* set TMPDIR"):
        base_folder(closed)
