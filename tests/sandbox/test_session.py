"""Sessions in real sandboxes: what a state keeps, what siblings do not share, and how a lost state comes back."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from tests.sandbox.processes import group_of, is_there, until

from ramify.core.errors import ToolError
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.sandbox.channel import Channel
from ramify.sandbox.session import Session
from ramify.tools.python import Python, open_session

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROBLEM = Problem("p", "q")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Session]:
    session = await Python(preload=()).open(PROBLEM)
    yield session
    await session.close()


@pytest_asyncio.fixture(loop_scope="module")
async def session(shared: Session) -> AsyncIterator[Session]:
    """A session in its first state."""
    fork = await shared.fork()
    yield fork
    await fork.close()


async def texts(session: Session, *codes: str) -> list[str]:
    return [(await session.run(code)).text for code in codes]


async def test_variables_imports_and_functions_are_kept(session: Session) -> None:
    said = await texts(session, "import math\nx = 2", "def f(n): return n * x", "f(math.pi) > 6", "_", "f(3); None")
    assert said == ["", "", "True\n", "True\n", ""]


async def test_both_streams_and_the_last_value_are_shown_in_order(session: Session) -> None:
    code = "import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c', end=' ')\n'd'"
    assert await texts(session, code) == ["a\nb\nc 'd'\n"]


async def test_an_exception_is_an_answer_and_what_happened_before_it_is_kept(session: Session) -> None:
    answer = await session.run("x = 1\nraise ValueError('no')")
    assert (answer.ok, answer.status) == (False, "error")
    assert answer.text == (
        'Traceback (most recent call last):\n  File "<step 1>", line 2, in <module>\n'
        "    raise ValueError('no')\nValueError: no\n"
    )
    assert await texts(session, "x") == ["1\n"]


async def test_a_program_may_use_processes_threads_and_classes_of_its_own(session: Session) -> None:
    code = """
import pickle, subprocess, threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
@dataclass
class Point: x: int
def square(n): return n * n
seen = []
thread = threading.Thread(target=seen.append, args=(1,)); thread.start(); thread.join()
with ProcessPoolExecutor(2) as pool: squares = list(pool.map(square, range(4)))
subprocess.run(["echo", "hello"])
seen, squares, pickle.loads(pickle.dumps(Point(3)))
"""
    assert await texts(session, code) == ["hello\n([1], [0, 1, 4, 9], Point(x=3))\n"]


async def test_a_module_of_its_own_can_be_imported(session: Session) -> None:
    assert await texts(session, "open('mine.py', 'w').write('A = 1'); None", "import mine; mine.A") == ["", "1\n"]


async def test_siblings_share_neither_objects_nor_modules_nor_files(session: Session) -> None:
    await session.run(
        "import json\nthings = [1]\nopen('f', 'w').write('before')\nimport os; os.mkdir('d'); os.chdir('d')"
    )
    left, right = await session.fork(), await session.fork()
    poison = "json.dumps = None; things.append(2); open('../f', 'w').write('left'); open('new', 'w'); os.rmdir('../d')"
    await left.run(poison)
    look = "json.dumps(things), open('../f').read(), os.listdir('.'), os.getcwd()"
    assert await texts(right, look) == ["('[1]', 'before', [], '/box/0/work/d')\n"]
    assert await texts(session, look) == ["('[1]', 'before', [], '/box/0/work/d')\n"]
    assert "left" in (await texts(left, "things, open('../f').read()"))[0]
    await left.close()
    await right.close()


@pytest.mark.slow
async def test_siblings_that_run_at_once_see_nothing_of_each_other(session: Session) -> None:
    forks = [await session.fork() for _ in range(6)]
    code = "import os, time, tempfile\nopen('f', 'w').write('{n}')\n"
    code += "f = tempfile.NamedTemporaryFile('w+'); f.write('{n}')\n"
    code += "time.sleep(0.2); f.seek(0); open('f').read(), os.listdir('.'), f.read()"
    said = await asyncio.gather(*(texts(fork, code.replace("{n}", str(n))) for n, fork in enumerate(forks)))
    assert said == [[f"('{n}', ['f'], '{n}')\n"] for n in range(6)]
    for fork in forks:
        await fork.close()


@pytest.mark.slow
async def test_a_sibling_cannot_find_or_end_the_other_processes(session: Session) -> None:
    other = await session.fork()
    await other.run("secret = 'abc'; open('secret', 'w').write(secret)")
    waiting = asyncio.create_task(other.run("import time; time.sleep(1); secret"))
    hunt = """
import os, signal
found = []
for name in os.listdir('/proc'):
    if name.isdigit() and int(name) != os.getpid():
        for what in ('environ', 'mem', 'maps', 'cwd/secret', 'root/box'):
            try: found.append(open(f'/proc/{name}/{what}', 'rb').read(1))
            except OSError: pass
        try: os.kill(int(name), signal.SIGKILL); found.append(name)
        except OSError: pass
for top in ('/', '/box', '/box/.parked', '/tmp', '/dev/shm'):
    try: found += [name for name in os.listdir(top) if name == 'secret']
    except OSError: pass
try: os.kill(-1, signal.SIGKILL)
except OSError: pass
[one for one in found if one]  # the files of a process that has just ended open, and are empty
"""
    fork = await session.fork()
    assert await texts(fork, hunt) == ["[]\n"]
    assert (await waiting).text == "'abc'\n"
    await fork.close()
    await other.close()


async def test_an_open_file_is_each_branchs_own(session: Session) -> None:
    await session.run("f = open('log', 'w+'); f.write('one'); f.flush()")
    left, right = await session.fork(), await session.fork()
    assert await texts(left, "f.write('L'); f.close(); open('log').read()") == ["'oneL'\n"]
    assert await texts(right, "f.write('R'); f.close(); open('log').read()") == ["'oneR'\n"]
    assert await texts(session, "f.seek(0); f.read()") == ["'one'\n"]
    await left.close()
    await right.close()


async def test_a_step_that_is_late_is_cut_and_the_session_goes_on_from_before(session: Session) -> None:
    await session.run("x = 1")
    began = time.monotonic()
    answer = await session.run("x = 2\nprint('héllo', end='')\nwhile True: pass", 0.3)
    assert time.monotonic() - began < 5
    assert (answer.status, answer.text) == ("timeout", "héllo\n[timeout]")
    assert await texts(session, "x") == ["1\n"]


async def test_streams_that_were_closed_are_there_again(session: Session) -> None:
    assert (await session.run("import os, subprocess, sys; os.closerange(0, 3)")).ok
    code = "print(1); print(2, file=sys.stderr); subprocess.run(['echo', '3']); os.read(0, 1), sys.stdin.read()"
    assert await texts(session, code) == ["1\n2\n3\n(b'', '')\n"]


async def test_much_output_keeps_its_head_and_tail() -> None:
    async with open_session(max_output_bytes=1000, preload=(), num_spares=0) as session:
        text = (await session.run("for n in range(10_000): print(n)")).text
    assert text.startswith("0\n1\n") and text.endswith("9998\n9999\n")
    assert len(text) < 1100 and "48890 bytes in all, cut to 1000" in text


async def test_what_a_step_leaves_running_is_gone_with_it(session: Session) -> None:
    leave = """
import os, subprocess, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
subprocess.Popen(['sleep', '600'], start_new_session=True)
if os.fork() == 0:
    if os.fork() == 0: time.sleep(600)
    os._exit(0)
"""
    assert (await session.run(leave)).ok
    look = """
import os, threading
def sleepers():
    for name in os.listdir('/proc'):
        try: stat = open(f'/proc/{name}/stat').read()
        except OSError: continue  # no process, or one that was dead and is no longer listed
        if '(sleep) ' in stat and '(sleep) Z' not in stat and '(sleep) X' not in stat: yield stat
threading.active_count(), [*sleepers()]
"""
    assert await texts(session, look) == ["(1, [])\n"]


async def test_nothing_runs_between_two_steps(session: Session) -> None:
    await session.run(
        "import threading, time, itertools\nn = [0]\ndef count():\n while True: n[0] += 1; time.sleep(0.001)"
    )
    await session.run("threading.Thread(target=count, daemon=True).start(); time.sleep(0.05)")
    first, second = await texts(session, "n[0]", "n[0]")
    assert int(first) > 0 and first == second


async def test_a_lost_sandbox_is_replayed(session: Session) -> None:
    await session.run("import random; x = [random.random()]; open('f', 'w').write('kept'); None")
    await session.run("1/0")
    await session.run("import os; os._exit(1)")
    before = (await session.run("x, open('f').read()")).text
    pid = session.sandbox_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_there(pid))
    fork = await session.fork()
    assert (await session.run("x, open('f').read()")).text == before
    assert session.sandbox_pid != pid
    assert (await fork.run("x, open('f').read()")).text == before
    await fork.close()


async def test_a_sandbox_that_is_killed_in_the_middle_of_a_step_costs_nothing(session: Session) -> None:
    await session.run("x = 1")
    pid = session.sandbox_pid
    assert pid is not None
    num = len(group_of(pid))
    running = asyncio.create_task(session.run("import time; time.sleep(0.5); x + 1", 10))
    await until(lambda: len(group_of(pid)) > num)
    os.kill(pid, signal.SIGKILL)
    assert (await running).text == "2\n"


async def test_a_replay_that_shows_something_else_is_no_state() -> None:
    async with open_session(preload=(), num_spares=0) as session:
        assert (await session.run("import os; os.urandom(8)")).ok
        pid = session.sandbox_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_there(pid))
        with pytest.raises(ToolError, match="replay_diverged") as caught:
            await session.run("1")
        assert caught.value.reason == "replay_diverged"


async def test_states_beyond_the_limit_are_dropped_and_come_back() -> None:
    async with open_session(preload=(), num_spares=0, max_nodes=4) as session:
        forks = [await session.fork() for _ in range(10)]
        for n, fork in enumerate(forks):
            assert (await fork.run(f"x = {n}")).ok
        assert [(await fork.run("x")).text for fork in forks] == [f"{n}\n" for n in range(10)]
        for fork in forks:
            await fork.close()


@pytest.mark.slow
async def test_sandboxes_beyond_the_limit_are_ended_and_come_back() -> None:
    tool = Python(preload=(), num_spares=0, max_sandboxes=2)
    sessions = [await tool.open(PROBLEM) for _ in range(4)]
    for n, session in enumerate(sessions):
        assert (await session.run(f"x = {n}")).ok
    assert [(await session.run("x")).text for session in sessions] == ["0\n", "1\n", "2\n", "3\n"]
    for session in sessions:
        await session.close()


async def test_a_long_path_of_steps_works_beyond_what_the_kernel_stacks() -> None:
    async with open_session(preload=(), num_spares=0) as session:
        await session.run("n = 0")
        for _ in range(40):
            assert (await session.run("n += 1")).ok
        assert (await session.run("n")).text == "40\n"


async def test_calls_without_state_begin_afresh() -> None:
    async with open_session(preload=(), num_spares=0, is_stateful=False) as session:
        assert await texts(
            session, "x = 1; open('f', 'w').write('1')", "import os; 'x' in globals(), os.listdir('.')"
        ) == [
            "1\n",
            "(False, [])\n",
        ]


async def test_siblings_apart_share_not_even_tmp() -> None:
    tool = Python(preload=(), num_spares=0, siblings="apart")
    assert tool.branching == "replay"
    session = await tool.open(PROBLEM)
    await session.run("x = 1")
    fork = await session.fork()
    await session.run("open('/tmp/f', 'w').write('mine')")
    assert await texts(fork, "import os; x, os.listdir('/tmp')") == ["(1, [])\n"]
    assert fork.sandbox_pid != session.sandbox_pid
    await fork.close()
    await session.close()


@pytest.mark.slow
async def test_memory_that_waiting_states_hold_is_bounded() -> None:
    async with open_session(preload=(), num_spares=0, memory_bytes=64 << 20) as session:
        forks = [await session.fork() for _ in range(8)]
        for fork in forks:
            assert (await fork.run("held = bytearray(b'x') * (40 << 20)")).ok
        assert [(await fork.run("len(held)")).text for fork in forks] == [f"{40 << 20}\n"] * 8
        for fork in forks:
            await fork.close()


@pytest.mark.slow
async def test_a_step_cancelled_at_any_moment_leaves_the_state_before_and_no_process(session: Session) -> None:
    await session.run("import os; x = 0")
    for number in range(60):
        task = asyncio.create_task(session.run("x += 1\nos.fork()\nwhile True: pass", 30))
        for _ in range(number % 20):
            await asyncio.sleep(0)
        await asyncio.sleep(0.0005 * number)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    count = """
import time
def busy():
    for pid in os.listdir('/proc'):
        try: fields = open(f'/proc/{pid}/stat').read().rsplit(')')[1].split()
        except (OSError, IndexError): continue
        if pid.isdigit() and int(pid) != os.getpid() and fields[0] == 'R': yield pid
end = time.monotonic() + 10
left = set(busy())
while left and time.monotonic() < end:
    time.sleep(0.01)
    left &= set(busy())  # those that woke for a moment are at rest in another one
x, len(left)
"""
    assert await texts(session, count) == ["(0, 0)\n"]


@pytest.mark.slow
async def test_opening_cancelled_at_any_moment_leaves_nothing() -> None:
    tool = Python(preload=(), num_spares=1)
    before = children()
    for number in range(12):
        task = asyncio.create_task(tool.open(PROBLEM))
        await asyncio.sleep(0.02 * number)
        task.cancel()
        opened = await asyncio.gather(task, return_exceptions=True)
        if isinstance(opened[0], Session):
            await opened[0].close()
    await until(lambda: children() <= before)


@pytest.mark.slow
async def test_the_sandbox_of_a_session_whose_step_was_cancelled_ends_with_it_while_others_go_on() -> None:
    tool = Python(preload=(), num_spares=0)
    other = await tool.open(PROBLEM)
    before = children()
    for number in range(24):
        session = await tool.open(PROBLEM)
        task = asyncio.create_task(session.run("open('file', 'w').write('x' * 4096)"))
        await asyncio.sleep(0.001 * number)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await session.close()
    await until(lambda: children() == before)
    assert await texts(other, "1 + 1") == ["2\n"]
    await other.close()


async def test_a_closed_session_leaves_no_process_no_descriptor_and_no_task() -> None:
    before = children(), num_descriptors(), len(asyncio.all_tasks())
    session = await Python(preload=(), num_spares=2).open(PROBLEM)
    fork = await session.fork()
    await session.run("import subprocess; subprocess.Popen(['sleep', '600'])")
    await fork.run("x = 1")
    await session.close()
    await fork.close()
    await fork.close()
    await until(lambda: (children(), num_descriptors(), len(asyncio.all_tasks())) == before)
    with pytest.raises(ToolError, match="closed"):
        await fork.run("1")


def num_descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def children() -> set[int]:
    own = os.getpid()
    found = {int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()}
    return {pid for pid in found if is_there(pid)}


HOST = """
import asyncio, os
from ramify.tools.python import open_session

def inside(session):
    own, found = os.readlink(f"/proc/{session.sandbox_pid}/ns/pid"), []
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        try: found += [pid] * (os.readlink(f"/proc/{pid}/ns/pid") == own)
        except OSError: continue
    return found

async def main():
    async with open_session(preload=(), num_spares=1) as session:
        await session.run("x = 1")
        num = len(inside(session))
        task = asyncio.create_task(session.run("import os\\nos.setsid(); os.fork()\\nwhile True: pass", 60))
        while len(inside(session)) < num + 2: await asyncio.sleep(0.01)
        print(*inside(session), "ready", sep="\\n", flush=True)
        await task
asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_host_that_is_killed_takes_its_sandboxes_along() -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert host.stdout is not None
    said = [await asyncio.to_thread(host.stdout.readline)]
    while said[-1] not in ("ready\n", ""):
        said.append(await asyncio.to_thread(host.stdout.readline))
    pids = [*map(int, said[:-1])]
    assert len(pids) >= 4
    host.kill()
    host.wait()
    host.stdout.close()
    await until(lambda: not any(map(is_there, pids)))


STARTING = """
import asyncio, sys
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.tools.python import Python

async def main():
    tool = Python(preload=(), num_spares=0)
    await tool.open(Problem("p", "q"))
    print("ready", flush=True)
    while True:
        session = await tool.open(Problem("p", "q"))
        await session.close()
asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_host_that_is_killed_while_it_starts_sandboxes_leaves_none() -> None:
    def launched() -> set[int]:
        return {
            pid
            for pid in map(int, (path.name for path in Path("/proc").iterdir() if path.name.isdigit()))
            if is_launched(pid)
        }

    def is_launched(pid: int) -> bool:
        try:
            return b"module.main(life" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    before = launched()
    for number in range(30):
        host = subprocess.Popen([sys.executable, "-c", STARTING], stdout=subprocess.PIPE)  # noqa: ASYNC220
        assert host.stdout is not None
        await asyncio.to_thread(host.stdout.readline)
        await asyncio.sleep(0.005 * number)
        host.kill()
        host.wait()
        host.stdout.close()
    await until(lambda: launched() <= before)


async def busy(work: asyncio.Task[ToolResult]) -> ToolResult:
    """What comes of work whose event loop stands still for most of the time."""
    while not work.done():
        await asyncio.sleep(0.005)
        time.sleep(0.5)  # noqa: ASYNC251 - what is tested
    return work.result()


@pytest.mark.slow
@pytest.mark.covers("S0.5")
async def test_the_seconds_of_a_step_are_its_own_and_not_those_of_a_busy_event_loop(session: Session) -> None:
    for code, status in (("import time\ntime.sleep(0.05)\n7", "ok"), ("import time\ntime.sleep(0.05)\n1 / 0", "error")):
        result = await busy(asyncio.create_task(session.call(code)))
        assert result.status == status
        assert result.took_s is not None and 0.05 <= result.took_s < 0.45  # the loop stood still for 0.5


@pytest.mark.covers("S0.5")
async def test_a_host_that_is_stopped_while_it_hands_over_a_step_does_not_shorten_its_seconds(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Channel.send

    async def stopped(channel: Channel, framed: bytes, descriptors: Sequence[int] = ()) -> None:
        await send(channel, framed, descriptors)
        time.sleep(0.1)  # noqa: ASYNC251 - what is tested

    monkeypatch.setattr(Channel, "send", stopped)
    result = await session.call("import time\ntime.sleep(0.15)")
    assert result.took_s is not None and result.took_s >= 0.15


async def test_a_step_that_did_not_end_by_itself_has_no_seconds_of_its_own(session: Session) -> None:
    for code in ("import os\nos._exit(1)", "while True: pass"):
        answer = await session.run(code, timeout_s=0.3)
        assert answer.status in ("crashed", "timeout") and answer.took_s is None
