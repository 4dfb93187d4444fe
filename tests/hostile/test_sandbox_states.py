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


PLACES = ("/tmp", "/dev/shm", "os.environ['HOME']", "os.environ['TMPDIR']", "os.getcwd()")


@pytest.mark.parametrize("place", PLACES)
async def test_a_siblings_files_are_never_there(session: Session, place: str) -> None:
    """What a step writes to /tmp, /dev/shm or its home is seen by its own forks and by no sibling."""
    where = place if place.startswith("os") else repr(place)
    left, right = await session.fork(), await session.fork()
    assert (
        await left.run(f"where = {where}\nos.makedirs(where + '/d/e'); open(where + '/d/secret', 'w').write('x')")
    ).ok
    look = f"[(at, names) for at, _, names in os.walk({where}) if 'secret' in names]"
    assert (await right.run(look)).text == "[]\n" == (await session.run(look)).text
    fork = await left.fork()
    assert (await fork.run("open(where + '/d/secret').read()")).text == "'x'\n"
    for one in (left, right, fork):
        await one.close()


@pytest.mark.parametrize("end", ["os._exit(1)", "time.sleep(60)"])
async def test_a_step_that_fails_leaves_no_file_to_its_siblings(session: Session, end: str) -> None:
    """What a step that crashed or was late wrote to /tmp and /dev/shm is gone."""
    write = "for at in ('/tmp', '/dev/shm'): os.mkdir(at + '/d'); open(at + '/d/secret', 'w')\n"
    assert (await session.run(write + end, 1)).status in ("crashed", "timeout")
    assert (await session.run("os.listdir('/tmp'), os.listdir('/dev/shm')")).text == "([], [])\n"


async def test_steps_that_run_at_once_do_not_reach_each_other_by_any_name(session: Session) -> None:
    """Two steps that run at the same moment reach no file and no process of each other, by whatever name."""
    write = "for at in ('/tmp', '/dev/shm', '.'): open(at + '/secret', 'w').write('mine')\n"
    assert (await session.run(write + "os.mkfifo('pipe'); at = os.path.abspath('secret')")).ok
    hunt = """
tops = ['/tmp', '/dev/shm', *[f'/box/{n}/{d}' for n in range(64) for d in ('work', 'tmp')]]
names = {at} | {f'{top}/secret' for top in tops}
end = time.monotonic() + 1.5
while time.monotonic() < end:
    for name in names:
        try: open(name, 'r+').write('EVIL')
        except OSError: pass
    for pid in os.listdir('/proc'):
        try:
            if pid.isdigit() and int(pid) != os.getpid(): print(os.listdir(f'/proc/{pid}/cwd'))
        except OSError: pass
"""
    calm = "time.sleep(1.5); [open(at + '/secret').read() for at in ('/tmp', '/dev/shm', '.')]"
    one, two = await session.fork(), await session.fork()
    said = await asyncio.gather(one.run(hunt, 20), two.run(calm, 20))
    assert [answer.text for answer in said] == ["", "['mine', 'mine', 'mine']\n"]
    for fork in (one, two):
        await fork.close()


KEPT = "open('mine', 'w').write('kept'); os.chmod('mine', 0o640); os.utime('mine', (1000, 1000)); import socket\n"
IN_FLIGHT = """
ours, theirs = socket.socketpair()
held = [os.open('mine', os.O_RDWR), os.open('.', os.O_RDONLY), os.open('/tmp', os.O_RDONLY)]
socket.send_fds(theirs, [b'x'] * 9, held)
for number in held: os.close(number)
os.close(os.open('/tmp/mine', os.O_CREAT, 0o640))
"""
SEEN = "m = os.stat('mine'); m.st_mode, m.st_mtime, open('mine').read(), m.st_nlink, os.stat('/tmp/mine').st_mode"
CHANGES = {
    "its mode": "os.fchmod(file, 0)",
    "its mode by its folder": "os.chmod('mine', 0, dir_fd=folder)",
    "the mode of the folder": "os.fchmod(folder, 0)",
    "the mode of /tmp": "os.fchmod(tmp, 0); os.chmod('mine', 0, dir_fd=tmp)",
    "its times": "os.utime(file, (1, 1)); os.utime('mine', (2, 2), dir_fd=folder)",
    "its text": "os.write(file, b'EVIL')",
    "its length": "os.ftruncate(file, 0)",
    "its name": "os.rename('mine', 'other', src_dir_fd=folder, dst_dir_fd=folder)",
    "its links": "os.link('mine', 'linked', src_dir_fd=folder)",
    "its owner": "os.fchown(file, os.getuid(), 5)",
    "itself": "os.unlink('mine', dir_fd=folder)",
    "its attributes": "os.setxattr(file, 'user.x', b'EVIL')",
    "a file beside it": "os.close(os.open('new', os.O_CREAT, dir_fd=folder))",
}


@pytest.mark.parametrize("what", CHANGES)
async def test_what_a_descriptor_in_flight_changes_is_not_the_parents(session: Session, what: str) -> None:
    """A step cannot change files of the state before it through descriptors that it hid from the copy."""
    assert (await session.run(KEPT + IN_FLIGHT)).ok
    fork = await session.fork()
    await fork.run(f"_, (file, folder, tmp), _, _ = socket.recv_fds(ours, 9, 3)\n{CHANGES[what]}")
    await fork.close()
    assert (await session.run(SEEN)).text == f"({0o100640}, 1000.0, 'kept', 1, {0o100640})\n"
    assert (await session.run("sorted(os.listdir('.'))")).text == "['mine']\n"


NAMED = """
import sys
frame, names = sys._getframe(), set()
while frame:
    names |= {value.source for value in frame.f_locals.values() if type(value).__name__ == 'SandboxStep'}
    frame = frame.f_back
before = '/box/.parked/' + max(names)
assert os.path.exists(before + '/work/mine')
"""
BY_NAME = {
    "mode": "os.chmod(before + '/work/mine', 0o600)",
    "mode of the folder": "os.chmod(before + '/work', 0)",
    "mode of all": "os.chmod(before, 0)",
    "mode of all states": "os.chmod('/box/.parked', 0)",
    "times": "os.utime(before + '/work/mine', (1, 1))",
    "owner": "os.chown(before + '/work/mine', os.getuid(), os.getgid())",
    "attributes": "os.setxattr(before + '/work/mine', 'user.x', b'x')",
    "a link": "os.link(before + '/work/mine', 'linked')",
    "a link to a link": "os.symlink(before + '/work/mine', 'linked'); os.chmod('linked', 0)",
    "text": "os.open(before + '/work/mine', os.O_WRONLY)",
}


@pytest.mark.parametrize("what", BY_NAME)
async def test_a_parents_file_cannot_be_changed_by_its_name(session: Session, what: str) -> None:
    """A step cannot change modes, times or attributes of the files of the state before it, even by their names."""
    assert (await session.run(KEPT + "os.close(os.open('/tmp/mine', os.O_CREAT, 0o640))")).ok
    fork = await session.fork()
    said = (await fork.run(f"{NAMED}\nprint('found')\n{BY_NAME[what]}")).text
    assert said.startswith("found") and "Error" in said
    await fork.close()
    assert (await session.run(SEEN)).text == f"({0o100640}, 1000.0, 'kept', 1, {0o100640})\n"


async def test_discarded_files_are_out_of_reach(session: Session) -> None:
    """No step finds the files of a state that is gone."""
    fork = await session.fork()
    assert (await fork.run("os.makedirs('d/e'); open('d/e/secret', 'w').write('x')")).ok
    await fork.close()
    look = "try: os.chmod('/box/.trash', 0o777)\nexcept OSError: pass\nos.listdir('/box/.trash')"
    assert "PermissionError" in (await session.run(look)).text


async def test_discarded_files_are_removed_when_room_is_low(session: Session) -> None:
    """Files of states that are gone never fill the room of those that follow."""
    for _ in range(12):
        fork = await session.fork()
        answer = await fork.run("os.makedirs('d/e'); open('d/e/f', 'wb').write(bytes(60 << 20))", 30)
        assert (answer.status, answer.text) == ("ok", f"{60 << 20}\n")
        assert (await fork.run("os.path.getsize('d/e/f')", 30)).text == f"{60 << 20}\n"
        await fork.close()


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/box/0", "/box/1", "/box/.parked", "/box"])
async def test_a_place_that_a_step_locks_is_open_to_the_next(session: Session, place: str) -> None:
    """A step that locks or marks the folders that all states use one after another hurts nobody, and tells nothing."""
    fork = await session.fork()
    lock = f"try: os.utime({place!r}, (77, 77)); os.chmod({place!r}, 0)\nexcept OSError: pass\n"
    mark = f"os.setxattr({place!r}, 'user.x', b'x')"
    assert "Error" in (await fork.run(mark)).text
    await fork.run(lock)
    await fork.close()
    assert (
        await session.run(f"os.stat({place!r}).st_mtime == 77, open('/tmp/f', 'w').write('x')")
    ).text == "(False, 1)\n"
