"""What one branch does never reaches another that shares its sandbox, and nothing of it runs on between two steps."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.sandbox.processes import group_of, until

from ramify.core.problem import Problem
from ramify.sandbox.session import Session
from ramify.tools.python import Python

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROBLEM = Problem("p", "q")
MIB = 1 << 20
on_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls by their numbers")

SHARING = """
import fcntl, mmap, multiprocessing, os, tempfile
memory = mmap.mmap(-1, 9 << 20); memory[:4] = memory[-4:] = b'base'
value, lock = multiprocessing.Value('i', 1), multiprocessing.Lock()
nameless = tempfile.TemporaryFile(); nameless.write(b'base'); nameless.flush()
open('data', 'wb').write(b'base' * 9000); data = open('data', 'r+b'); mapped = mmap.mmap(data.fileno(), 0)
gone = open('gone', 'w+'); gone.write('base'); gone.flush(); os.unlink('gone')
appended = open('gone', 'ab'); os.unlink('gone'); appended.write(b'base'); appended.flush()
folder = os.open('.', os.O_RDONLY)
os.mkdir('d'); lost = os.open('d', os.O_RDONLY); os.rmdir('d')
"""
CHANGE = """
memory[:4] = memory[-4:] = b'LEFT'; value.value = 2; lock.acquire()
nameless.seek(0); nameless.write(b'LEFT'); nameless.flush()
mapped[:4] = b'LEFT'; mapped.flush()
gone.seek(0); gone.write('LEFT'); gone.flush()
appended.write(b'LEFT'); appended.flush()
os.close(os.open('new', os.O_CREAT, dir_fd=folder))
try: os.close(os.open('../new', os.O_CREAT, dir_fd=lost))
except OSError: pass
"""
LOOK = """
nameless.seek(0); gone.seek(0)
said = bytes(memory[:4]), bytes(memory[-4:]), value.value, lock.acquire(timeout=0.1), nameless.read(), bytes(mapped[:4])
lock.release()
said, open('data', 'rb').read(4), gone.read(), os.fstat(appended.fileno()).st_size, sorted(os.listdir('.'))
"""
SEEN = "((b'base', b'base', 1, True, b'base', b'base'), b'base', 'base', 4, ['data'])\n"
NAME_OF_BEFORE = """
import os, sys
frame, names = sys._getframe(), set()
while frame:
    names |= {value.source for value in frame.f_locals.values() if type(value).__name__ == 'SandboxStep'}
    frame = frame.f_back
before = '/box/.parked/' + max(names)
assert os.path.exists(before + '/work/mine.py')
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def base() -> AsyncIterator[Session]:
    session = await Python(memory_bytes=128 * MIB, preload=()).open(PROBLEM)
    assert (await session.run("import ctypes, os, signal, time; libc = ctypes.CDLL(None, use_errno=True)")).ok
    yield session
    await session.close()


@pytest_asyncio.fixture(loop_scope="module")
async def session(base: Session) -> AsyncIterator[Session]:
    fork = await base.fork()
    yield fork
    await fork.close()


async def ran(session: Session, *codes: str) -> str:
    """What the last of `codes` shows on a fork that ends then."""
    fork = await session.fork()
    text = ""
    for code in codes:
        text = (await fork.run(code, 20)).text
    await fork.close()
    return text


async def test_shared_memory_and_files_without_a_name_are_each_branchs_own(session: Session) -> None:
    assert (await session.run(SHARING)).text == ""
    left = await session.fork()
    assert (await left.run(CHANGE)).text == ""
    assert await ran(session, LOOK) == SEEN == await ran(session, "1", LOOK)
    assert "LEFT" in (await left.run(LOOK.replace("lock.release()", ""))).text
    await left.close()


async def test_processes_of_a_step_share_memory_that_an_earlier_step_made(session: Session) -> None:
    await session.run("import multiprocessing, mmap; value = multiprocessing.Value('i', 1); raw = mmap.mmap(-1, 4096)")
    await session.run("def add():\n with value.get_lock(): value.value += 1\n raw[0] = 7")
    start = (
        "ps = [multiprocessing.Process(target=add) for _ in range(3)]; [p.start() for p in ps]; [p.join() for p in ps]"
    )
    assert await ran(session, f"{start}\nvalue.value, raw[0]") == "(4, 7)\n"
    assert await ran(session, "value.value, raw[0]") == "(1, 0)\n"


@pytest.mark.parametrize(
    "poison",
    [
        "open(before + '/work/mine.py', 'w')",
        "open(before + '/work/json.py', 'w')",
        "os.unlink(before + '/work/mine.py')",
        "os.rename(before, before + 'x')",
        "os.rename(before + '/work', before + '/../../0/stolen')",
        "os.link(before + '/work/mine.py', 'mine2.py'); open('mine2.py', 'w')",
        "os.truncate(before + '/work/mine.py', 0)",
    ],
)
async def test_the_files_of_the_state_before_cannot_be_changed_by_who_knows_their_name(
    session: Session, poison: str
) -> None:
    await session.run("open('mine.py', 'w').write('A = 1'); None")
    assert "Error" in await ran(session, f"{NAME_OF_BEFORE}\n{poison}")
    assert await ran(session, "import mine, os; mine.A, os.listdir('.')") == "(1, ['mine.py'])\n"


async def test_what_is_put_where_a_sibling_will_run_is_not_found_by_it(session: Session) -> None:
    plant = "for n in range(64):\n try: os.makedirs(f'/box/{n}/work'); open(f'/box/{n}/work/json.py', 'w')\n"
    plant += " except OSError: pass"
    pid = session.sandbox_pid
    assert pid is not None
    before = {*group_of(pid)}
    hold = asyncio.create_task(ran(session, "time.sleep(0.5)"))
    await until(lambda: not before.issuperset(group_of(pid)))
    assert await ran(session, plant) == ""
    assert await ran(session, "os.path.exists('json.py')") == "False\n"
    await hold


async def test_limits_and_priorities_of_others_are_out_of_reach(session: Session) -> None:
    others = (
        "others = [int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()]\nimport resource\n"
    )
    tries = "done = []\nfor pid in others:\n for call in (lambda: resource.prlimit(pid, resource.RLIMIT_AS, (1, 1)),\n"
    tries += "  lambda: os.setpriority(os.PRIO_PROCESS, pid, 19), lambda: os.sched_setaffinity(pid, {0}),\n"
    tries += "  lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))):\n"
    tries += "  try: call(); done.append(pid)\n  except OSError: pass\nlen(others) > 1, done"
    assert await ran(session, others + tries) == "(True, [])\n"
    own = "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); os.nice(3); os.sched_setaffinity(0, {0})\n"
    assert await ran(session, f"import resource\n{own}os.nice(0)") == f"{min(os.nice(0) + 3, 19)}\n"


BEAT = "def beat(*_): open('/tmp/beat', 'a').write('.')\n"
WAKING = {
    "a timer": """
signal.signal(signal.SIGCONT, beat)
event, timer = (ctypes.c_int * 16)(0, 0, 18, 0), ctypes.c_void_p()
libc.syscall(222, 1, event, ctypes.byref(timer))
libc.syscall(223, timer.value or 0, 0, (ctypes.c_long * 4)(0, 10**8, 0, 10**7), None)
""",
    "the death of a child": """
signal.signal(signal.SIGCONT, lambda *_: [(beat(), time.sleep(0.01)) for _ in range(10_000)])
if libc.syscall(56, 18, 0, 0, 0, 0) == 0: time.sleep(100)
""",
    "a child that wakes it": """
signal.signal(signal.SIGCONT, lambda *_: [(beat(), time.sleep(0.01)) for _ in range(10_000)])
own = os.getpid()
if os.fork() == 0:
    os.closerange(0, 100)
    time.sleep(0.02)
    while True: os.kill(own, signal.SIGCONT)
""",
    "a chain of processes": """
if os.fork() == 0:
    os.closerange(0, 100)
    while True:
        beat()
        if os.fork(): os._exit(0)
""",
}


@on_x86
@pytest.mark.parametrize("way", WAKING)
async def test_nothing_of_a_step_runs_on_behind_it(base: Session, session: Session, way: str) -> None:
    look = "os.path.getsize('/tmp/beat')"
    assert (await session.run(f"open('/tmp/beat', 'w').close()\n{BEAT}{WAKING[way]}", 20)).ok
    first = await ran(base, look)
    await asyncio.sleep(0.3)  # Time in which nothing may happen.
    assert await ran(base, look) == first


@on_x86
async def test_a_brother_of_a_step_counts_as_its_child_or_is_not_there(session: Session) -> None:
    brothers = "for _ in range(40):\n if libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0: time.sleep(60)\n"
    count = "len([p for p in os.listdir('/proc') if p.isdigit()]) < 40"
    assert await ran(session, f"{brothers}{count}") == "True\n"


HOOKED = """
held = []
def hook():
    if os.fork() == 0:
        os.closerange(0, 99)
        held.append(bytearray(b'x') * (90 << 20)); time.sleep(60); os._exit(0)
for _ in range(12): os.register_at_fork(before=hook)
"""


async def test_what_a_state_starts_while_it_forks_is_bounded_too(session: Session) -> None:
    fork = await session.fork()
    assert (await fork.run(HOOKED)).ok
    pid = fork.sandbox_pid
    assert pid is not None
    step = asyncio.create_task(fork.run("time.sleep(1)", 3))
    most = 0
    while not step.done():
        await asyncio.sleep(0.02)
        most = max(most, memory_in(pid))
    assert most < 6 * 128 * MIB
    await fork.close()
    assert await ran(session, "1 + 1") == "2\n"


async def test_a_state_that_hangs_while_it_forks_stops_no_sibling(session: Session) -> None:
    fork = await session.fork()
    assert (await fork.run("os.register_at_fork(before=lambda: time.sleep(60))")).ok
    hung = asyncio.create_task(fork.run("1", 0.5))
    await asyncio.sleep(0.1)  # A state that hangs in a hook of its own shows that to nobody.
    began = time.monotonic()
    assert await ran(session, "1 + 1") == "2\n"
    assert time.monotonic() - began < 3 and not hung.done()
    hung.cancel()
    await asyncio.gather(hung, return_exceptions=True)
    await fork.close()


def memory_in(keeper: int) -> int:
    """Resident bytes of all that is in the pid namespace of `keeper`."""
    try:
        inside = Path(f"/proc/{keeper}/ns/pid").readlink()
    except OSError:
        return 0
    total = 0
    for name in [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]:
        try:
            if Path(f"/proc/{name}/ns/pid").readlink() == inside:
                total += int(Path(f"/proc/{name}/statm").read_text().split()[1]) * 4096
        except OSError:
            continue
    return total
