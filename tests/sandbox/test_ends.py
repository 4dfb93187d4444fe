"""However a session, a call or a whole program ends, nothing of its sandboxes is left on the machine."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sandbox.processes import group_of, is_there, until

from ramify.core.errors import ToolError
from ramify.core.problem import Problem
from ramify.sandbox.session import Session
from ramify.tools.python import Python

PROBLEM = Problem("p", "q")

HOST = """
import asyncio, os, sys
from ramify.tools.python import open_session

DEEP = '''
import os, time
print(os.getcwd())
os.mkdir("locked"); open("locked/f", "w").close(); os.chmod("locked", 0)
for _ in range(1050): os.mkdir("d"); os.chdir("d")
if os.fork() == 0: os.setsid(); time.sleep(600)
'''
FORKS = '''
import os, time
os.fork(); os.fork()
open(f'FOLDER/{os.getpid()}', 'w').close()
time.sleep(600)
'''.replace('FOLDER', sys.argv[1])

async def main():
    options = {"may_be_root_without_walls": True, "isolation": "none"}
    async with open_session(preload=(), num_spares=0, **options) as session:
        print((await session.run(DEEP, 60)).text.splitlines()[0])
        task = asyncio.create_task(session.run(FORKS, 600))
        while len(os.listdir(sys.argv[1])) < 4: await asyncio.sleep(0.01)
        print(session.sandbox_pid, flush=True)
        await WAITING
asyncio.run(main())
"""


def held() -> tuple[int, int, int]:
    """Living children, open descriptors and tasks of this process."""
    own = os.getpid()
    pids = [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    living = [pid for pid in pids if is_there(pid)]
    return len(living), len([*Path("/proc/self/fd").iterdir()]), len(asyncio.all_tasks())


@pytest.mark.slow
@pytest.mark.parametrize("way", ["killed", "closed"])
async def test_without_walls_too_neither_a_folder_nor_a_process_stays(way: str, tmp_path: Path) -> None:
    wait = "task" if way == "killed" else "asyncio.sleep(0); task.cancel()"
    host = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", HOST.replace("WAITING", wait), tmp_path], stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    try:
        box = Path((await asyncio.to_thread(host.stdout.readline)).strip()).parent.parent
        pid = int(await asyncio.to_thread(host.stdout.readline))
        pids = group_of(pid) if way == "killed" else [pid]
        assert way == "closed" or (box.is_dir() and len(pids) >= 4)
    finally:
        if way == "killed":
            host.kill()
        await asyncio.to_thread(host.wait)
        host.stdout.close()
    await until(lambda: not box.exists() and not any(map(is_there, pids)))


@pytest.mark.slow
async def test_closing_cancelled_at_any_moment_leaves_nothing() -> None:
    tool = Python(preload=(), num_spares=1)
    await (await tool.open(PROBLEM)).close()
    before = held()
    for number in range(8):
        session = await tool.open(PROBLEM)
        await session.run("x = 1")
        task = asyncio.create_task(session.close())
        for _ in range(number):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await session.close()
    await until(lambda: held() == before)


async def test_opening_cancelled_twice_leaves_nothing() -> None:
    tool = Python(preload=(), num_spares=0)
    await (await tool.open(PROBLEM)).close()
    before = held()
    for number in range(8):
        task = asyncio.create_task(tool.open(PROBLEM))
        await asyncio.sleep(0.01 * number)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        opened = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(opened, Session):
            await opened.close()
    await until(lambda: held() == before)


@pytest.mark.slow
async def test_a_replay_that_diverges_or_is_cancelled_keeps_no_sandbox() -> None:
    tool = Python(preload=(), num_spares=0)
    other = await tool.open(PROBLEM)
    await other.run("x = 1")
    before = held()
    for code in ("import os; os.urandom(8)", "import time; time.sleep(1)"):
        session = await tool.open(PROBLEM)
        assert (await session.run(code)).ok
        pid = session.sandbox_pid
        assert pid is not None
        num = len(group_of(os.getpid()))
        os.kill(pid, signal.SIGKILL)
        await until(lambda pid=pid: not is_there(pid))
        task = asyncio.create_task(session.run("1"))
        # A step that is repeated has the place of the state that it led to.
        await until(lambda task=task, num=num: task.done() or len(group_of(os.getpid())) == num)
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, ToolError | asyncio.CancelledError)
        await until(lambda: held() == before)
        await session.close()
    assert (await other.run("x")).text == "1\n"
    await other.close()
