"""Attacks of one state of a sandbox on another: on what waits, on what came before, and on what runs beside it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.sandbox.processes import group_of

from ramify.core.problem import Problem
from ramify.sandbox.session import Session
from ramify.tools.python import Python

pytestmark = [pytest.mark.hostile, pytest.mark.asyncio(loop_scope="module")]

MIB = 1 << 20
WAIT_S, WAKE_S = 1.0, 0.6
"""How long a state waits in a test, and how long before a step its own wake-up may be."""
PREPARED = "import ctypes, mmap, os, signal, time, threading; libc = ctypes.CDLL(None, use_errno=True)"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def base() -> AsyncIterator[Session]:
    session = await Python(memory_bytes=64 * MIB, preload=()).open(Problem("p", "q"))
    assert (await session.run(PREPARED)).ok
    yield session
    await session.close()


@pytest_asyncio.fixture(loop_scope="module")
async def session(base: Session) -> AsyncIterator[Session]:
    fork = await base.fork()
    yield fork
    await fork.close()


WAKING = {
    "its parent's death signal": ("1", "libc.prctl(1, 18, 0, 0, 0)"),
    "an orphaned process group": ("libc.setpgid(0, 0)", "libc.setpgid(0, 0)"),
    "an orphaned session": ("os.setsid()", "libc.setpgid(0, 0)"),
}


@pytest.mark.parametrize("way", WAKING)
async def test_a_waiting_state_is_not_woken_by_the_end_of_its_parent(session: Session, way: str) -> None:
    """A waiting state runs nothing, whatever its code asked the kernel to do when the state before it ends."""
    before, poison = WAKING[way]
    assert (await session.run(before)).ok
    fork = await session.fork()
    assert (await fork.run("woken = []\nsignal.signal(18, lambda *_: woken.append(time.monotonic()))\n" + poison)).ok
    await session.close()
    await asyncio.sleep(WAIT_S)  # Time in which nothing may happen.
    assert (await fork.run(f"[at for at in woken if time.monotonic() - at > {WAKE_S}]")).text == "[]\n"
    await fork.close()


@pytest.mark.parametrize("target", ["os.getppid()", "os.getpid()", "0", "-1"])
async def test_no_step_sends_the_signal_that_wakes_a_state(session: Session, target: str) -> None:
    """No step can send the signal that wakes a waiting state, however deep its path is."""
    assert "Error" in (await session.run(f"os.kill({target}, signal.SIGCONT)")).text
    deep = "for pid in os.listdir('/proc'):\n if pid.isdigit():\n  try: os.kill(int(pid), signal.SIGCONT); print(pid)\n"
    assert (await session.run(deep + "  except OSError: pass")).text == ""


HOLDING = {
    "plain": "held = bytearray(b'x') * (40 << 20)",
    "beside a thread": "held = bytearray(b'x') * (40 << 20)\n"
    "t = threading.Thread(target=time.sleep, args=(99,), daemon=True); t.start()",
    "written by a child": "held = mmap.mmap(-1, 40 << 20)\n"
    "if os.fork() == 0: held.write(b'x' * (40 << 20)); os._exit(0)\nos.wait()",
}


@pytest.mark.parametrize("way", HOLDING)
async def test_the_memory_of_waiting_states_counts(way: str) -> None:
    """The memory of waiting states counts towards the limit, however they came to hold it."""
    session = await Python(memory_bytes=64 * MIB, preload=(), num_spares=0).open(Problem("p", "q"))
    assert (await session.run(PREPARED)).ok
    forks = [await session.fork() for _ in range(8)]
    for fork in forks:
        assert (await fork.run(HOLDING[way], 20)).ok
    pid = session.sandbox_pid
    assert pid is not None
    keeper, first, prepared, held = 1, 1, 1, 2 * 64 // 40
    assert len([*group_of(pid)]) <= keeper + first + prepared + held + 1
    for fork in [*forks, session]:
        await fork.close()
