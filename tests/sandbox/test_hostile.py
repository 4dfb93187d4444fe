"""Foreign code of every kind in real sandboxes: it ends in time, hurts nobody, and the next call is answered."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from ramify.core.problem import Problem
from ramify.sandbox.session import SandboxAnswer, Session
from ramify.tools.python import Python

pytestmark = pytest.mark.asyncio(loop_scope="module")

STEP_S = 2.0
LATE_S = 8.0
"""Beyond its limit, on a machine that does much else."""
LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
SPOT = "a canary of this test"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def base() -> AsyncIterator[Session]:
    """A session with a state worth keeping; every test works on forks of it."""
    os.environ["RAMIFY_TEST_SECRET"] = SPOT
    tool = Python(memory_bytes=128 << 20, num_spares=1, preload=())
    session = await tool.open(Problem("p", "q"))
    assert (await session.run("x = 41")).ok
    yield session
    await session.close()
    del os.environ["RAMIFY_TEST_SECRET"]


async def ran(base: Session, code: str, timeout_s: float = STEP_S) -> SandboxAnswer:
    """What `code` shows on a fork, which is then asked something honest."""
    fork = await base.fork()
    try:
        began = time.monotonic()
        answer = await fork.run(code, timeout_s)
        assert time.monotonic() - began < (LATE_S if answer.status == "crashed" else timeout_s + LATE_S)
        answer.text.encode()
        assert (await fork.run("x + 1", 20)).text == "42\n"
    finally:
        await fork.close()
    return answer


@dataclass(frozen=True)
class Case:
    """Code, how it must end, and a part of what it must show."""

    code: str
    status: str = "ok"
    text: str = ""


REFUSED = {
    "shadow": "open('/etc/shadow')",
    "a host folder": "import os; os.listdir('/root')",
    "its root folder": "import os; os.listdir('/')",
    "the siblings' files": "import os; os.listdir('/box/.parked')",
    "the box": "import os; os.listdir('/box')",
    "writing to the interpreter": "import os; open(os.__file__, 'a')",
    "writing to /usr": "open('/usr/x', 'w')",
    "writing to /dev": "open('/dev/x', 'w')",
    "moving its place": "import os; os.rename('/box/0', '/box/gone')",
    "a folder beside all others": "import os; os.mkdir('/box/mine')",
    "a file among those of states": "open('/box/.parked/mine', 'w')",
    "a device": "import os, stat; os.mknod('sda', 0o600 | stat.S_IFBLK, os.makedev(254, 0))",
    "a sysctl": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    "another process's memory": "import os; open(f'/proc/{os.getppid()}/mem', 'r+b')",
    "another process's environment": "open('/proc/1/environ').read() or 1/0",
    "another process's files": "import os; os.readlink(f'/proc/{os.getppid()}/fd/0')",
    "another process's folder": "import os; os.readlink(f'/proc/{os.getppid()}/cwd')",
    "a signal to its parent": "import os; os.kill(os.getppid(), 9)",
    "a loopback port": "import socket; socket.create_connection(('127.0.0.1', PORT), 1)",
    "a datagram": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "a raw socket": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "a vsock": "import socket; socket.socket(40, socket.SOCK_STREAM)",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "the host's abstract socket": "import socket; socket.socket(socket.AF_UNIX).connect('\\0ABSTRACT')",
    "memory by descriptor": "import os; os.memfd_create('x')",
    "chroot": "import os; os.chroot('.')",
    "becoming root": "import os; os.setuid(0)",
    "another niceness": "import os; os.nice(-5)",
    "the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
    "the host name": "import socket; socket.sethostname('x')",
    "more descriptors": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))",
    "another process's limits": "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "another process's priority": "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "everybody's priority": "import os; os.setpriority(os.PRIO_USER, 0, 19)",
    "another process's processors": "import os; os.sched_setaffinity(os.getppid(), {0})",
    "another process's scheduling": "import os\nos.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
    "waking itself by a file": "import fcntl; fcntl.fcntl(0, 10, 18)",
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_not_its_own_is_refused(base: Session, name: str) -> None:
    abstract = f"ramify-test-{os.getpid()}"
    async with await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with await asyncio.start_unix_server(lambda r, w: w.close(), f"\0{abstract}"):
            answer = await ran(base, REFUSED[name].replace("PORT", str(port)).replace("ABSTRACT", abstract))
    assert answer.status == "error"
    assert "Error" in answer.text


SYSCALLS = {
    "unshare": "libc.unshare(0x10000000)",
    "mount": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "umount": "libc.umount2(b'/proc', 2)",
    "setns": "libc.setns(0, 0)",
    "ptrace its parent": "libc.ptrace(16, __import__('os').getppid(), 0, 0)",
    "trace me": "libc.ptrace(0, 0, 0, 0)",
    "process_vm_readv": "libc.process_vm_readv(__import__('os').getppid(), None, 0, None, 0, 0)",
    "SysV memory": "libc.shmget(0, 4096, 0o1600)",
    "SysV messages": "libc.msgget(0, 0o1600)",
    "keyring": "libc.syscall(250, 0, -3, 0)",
    "io_uring": "libc.syscall(425, 1, None)",
    "bpf": "libc.syscall(321, 0, None, 0)",
    "userfaultfd": "libc.syscall(323, 0)",
    "perf": "libc.syscall(298, None, 0, -1, -1, 0)",
    "clone into a user namespace": "libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "clone3": "libc.syscall(435, None, 0)",
    "a brother instead of a child": "libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0)",
    "waking itself by a timer": "libc.syscall(222, 1, None, ctypes.byref(ctypes.c_int()))",
    "another's input and output": "libc.syscall(251, 1, __import__('os').getppid(), 0)",
    "a call newer than the list": "libc.syscall(9999)",
    "personality": "libc.personality(0x40000)",
    "no longer a subreaper": "libc.prctl(36, 0, 0, 0, 0)",
    "dumpable": "libc.prctl(4, 1, 0, 0, 0)",
    "huge pages again": "libc.prctl(41, 0, 0, 0, 0)",
    "pushing into a terminal": "libc.ioctl(0, 0x5412, b'x')",
    "settimeofday": "libc.syscall(164, b'0' * 16, None)",
    "sync of every disk": "libc.syscall(306, 0)",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls by their numbers")
async def test_calls_into_the_kernel_that_are_not_its_business_fail(base: Session) -> None:
    tries = "".join(
        f"print({name!r}, {call} == -1, ctypes.get_errno() in (1, 38))\n" for name, call in SYSCALLS.items()
    )
    answer = await ran(base, LIBC + tries)
    assert answer.text.splitlines() == [f"{name} True True" for name in SYSCALLS]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32")
async def test_calls_by_another_machines_table_end_the_process(base: Session) -> None:
    assert (await ran(base, LIBC + "libc.syscall(0x40000000 + 39)")).status == "crashed"


DEATHS = {
    "os._exit": "import os; os._exit(0)",
    "os._exit in silence": "import os, sys; print('said'); os._exit(3)",
    "os._exit with a child": "import os, time\nif os.fork() == 0: time.sleep(600)\nos._exit(0)",
    "abort": "import os; os.abort()",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "kill itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "closing everything": "import os; os.closerange(0, 1000)",
    "deep recursion": "import sys; sys.setrecursionlimit(10**8)\ndef f(n): return [f(n + 1)]\nclass A:\n"
    " def __repr__(self): return repr(self)\nA()",
    "writing into its socket": "import os\nfor fd in range(3, 20):\n try: os.write(fd, b'K' + bytes(16))\n"
    " except OSError: pass",
    "a flood into its socket at once": "import os, pickle\nfor fd in range(3, 20):\n"
    " try: os.write(fd, pickle.dumps(print) * 999)\n except OSError: pass",
    "descriptors into its socket": "import os, socket\nfor fd in range(3, 20):\n"
    " try: socket.send_fds(socket.socket(fileno=fd), [b'x'], [0] * 200)\n except OSError: pass",
    "guessing a nonce": "import os\nwhile True:\n for fd in range(3, 20):\n  try: os.write(fd, b'K' + os.urandom(16))\n"
    "  except OSError: pass",
    "replacing itself": "import os; os.execv('/bin/sh', ['sh', '-c', 'exit 0'])",
    "an output flood": "while True: print('x' * 10_000)",
    "a flood of one line": "for _ in range(5): print('x' * 20_000_000, end='')",
    "memory of many": "import os, time\nfor _ in range(6):\n if os.fork() == 0:\n  h = bytearray(b'x') * (60 << 20)\n"
    "  time.sleep(60)\ntime.sleep(60)",
    "shared memory": "import mmap, os, time\nfor _ in range(6):\n if os.fork() == 0:\n  h = mmap.mmap(-1, 60 << 20)\n"
    "  h.write(b'x' * (60 << 20))\n  time.sleep(60)\ntime.sleep(60)",
    "a fork bomb": "import os\nwhile True:\n try: os.fork()\n except OSError: pass",
    "a bomb of threads": "import threading, time\nwhile True:\n"
    " try: threading.Thread(target=time.sleep, args=(60,)).start()\n except RuntimeError: pass",
    "files that fill a state": "for n in range(3): open(f'f{n}', 'wb').write(bytes(40 << 20))",
    "more files than a state may have": "for n in range(5000): open(f'f{n}', 'w').close()",
}


@pytest.mark.parametrize("name", DEATHS)
async def test_what_ends_its_process_leaves_the_state_before(base: Session, name: str) -> None:
    answer = await ran(base, "x = 0\n" + DEATHS[name], 20)
    assert answer.status == "crashed", answer.text[-500:]
    assert "[crashed]" in answer.text[-200:]


HANGS = {
    "a busy loop": "while True: pass",
    "sleep": "import time; time.sleep(600)",
    "catching everything": "while True:\n try:\n  while True: pass\n except BaseException: pass",
    "ignoring signals": "import signal, time\nfor n in range(1, 65):\n try: signal.signal(n, signal.SIG_IGN)\n"
    " except (OSError, ValueError): pass\ntime.sleep(600)",
    "blocking signals": "import signal as s\ns.pthread_sigmask(s.SIG_BLOCK, s.valid_signals())\nwhile True: pass",
    "stopping itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "a lock": "import threading\nl = threading.Lock(); l.acquire(); l.acquire()",
    "waiting for a child": "import os, time\nif os.fork() == 0: time.sleep(600)\nos.wait()",
    "a group of its own": "import os, time; os.setsid(); time.sleep(600)",
}


@pytest.mark.parametrize("name", HANGS)
async def test_what_hangs_is_cut_at_its_time_and_leaves_the_state_before(base: Session, name: str) -> None:
    answer = await ran(base, "x = 0\nprint('so far', end='')\n" + HANGS[name], 0.3)
    assert (answer.status, answer.text) == ("timeout", "so far\n[timeout]")


ENDURED = {
    "exit": Case("import sys; sys.exit()"),
    "exit with a word": Case("import sys; sys.exit('bye')", "error", "bye"),
    "an exception": Case("def f(): 1/0\nf()", "error", 'File "<step 2>", line 1, in f'),
    "no Python": Case("a b", "error", "SyntaxError"),
    "a NUL in the code": Case("x\0", "error", "null bytes"),
    "a surrogate in the code": Case("'\ud800'", "error", "surrogate"),
    "recursion": Case("def f(): f()\nf()", "error", "RecursionError"),
    "an exception that cannot be shown": Case(
        "class E(Exception):\n def __str__(self): raise E\nraise E", "error", "exception str() failed"
    ),
    "KeyboardInterrupt": Case("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
    "too much memory": Case("bytearray(1 << 33)", "error", "MemoryError"),
    "no core to anybody": Case("import resource; resource.getrlimit(resource.RLIMIT_CORE)", "ok", "(1, 1)"),
    "first to go without memory": Case("open('/proc/self/oom_score_adj').read()", "ok", "1000"),
    "input": Case("input()", "error", "EOFError"),
    "NUL and surrogates": Case("print('a\\0b\\ud800')", "ok", "a\0b\\ud800\n"),
    "bytes that are no text": Case("import os; os.write(1, b'\\xff\\xfe')", "ok", "\ufffd\ufffd"),
    "a huge repr": Case("'x' * 3_000_000", "ok", "3000003 bytes in all"),
    "a closed stream": Case("import sys; sys.stdout.close()"),
    "closed descriptors": Case("import os; os.closerange(0, 3); print(1)", "error"),
    "no stream": Case("import sys; del sys.stdout, sys.stderr, sys.stdin"),
    "its folder removed": Case("import os; os.rmdir(os.getcwd())"),
    "another folder": Case("import os; os.chdir('/usr')"),
    "a locked folder": Case("import os; os.mkdir('d'); open('d/f', 'w').close(); os.chmod('d', 0)"),
    "folders in folders": Case("import os\nfor n in range(500): os.mkdir('d'); os.chdir('d')"),
    "a link to outside": Case("import os; os.symlink('/etc/shadow', 'l'); os.symlink('/', 'm'); os.symlink('.', 'n')"),
    "a pipe and a socket": Case("import os, socket; os.mkfifo('p'); socket.socket(socket.AF_UNIX).bind('s')"),
    "its folder gone elsewhere": Case("import os; os.chdir('/'); os.rename('/box/0/work', '/box/0/gone')"),
    "a link in place of its folder": Case(
        "import os; os.chdir('/'); os.rename('/box/0/work', '/box/0/gone'); os.symlink('/usr', '/box/0/work')"
    ),
    "more folders beside its own": Case("import os\nfor n in range(9): os.makedirs(f'/box/0/{n}/a/b')"),
    "a full /dev/shm": Case(
        "try:\n with open('/dev/shm/a', 'wb') as f:\n  for _ in range(200): f.write(bytes(1 << 20))\n"
        "except OSError as error: print(error.errno)\nimport os; os.unlink('/dev/shm/a')",
        "ok",
    ),
    "no inodes in /tmp": Case(
        "import os\ntry:\n for n in range(9999): open(f'/tmp/{n}', 'w').close()\nexcept OSError as e: print(e.errno)\n"
        "for name in os.listdir('/tmp'): os.unlink('/tmp/' + name)",
        "ok",
        "28",
    ),
    "a daemon": Case(
        "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n"
        "  open('/tmp/daemon', 'w').write(str(os.getpid()))\n  time.sleep(600)\n os._exit(0)\nos.wait()"
    ),
    "a daemon that holds the output": Case("import subprocess; subprocess.Popen(['sleep', '600'])"),
    "a chain of forks": Case(
        "import os\nif os.fork() == 0:\n for _ in range(100_000):\n  if os.fork(): os._exit(0)\n os._exit(0)"
    ),
    "a child that comes back": Case("import os\nif os.fork() == 0: y = 1\nelse: os.wait(); y = 2\ny", "ok", "2"),
    "a flood of a thread": Case(
        "import os, threading as t\nt.Thread(target=lambda: [os.write(1, b'y' * 999) for _ in range(10**6)]).start()"
    ),
    "threads left behind": Case(
        "import threading, time\nfor _ in range(5): threading.Thread(target=time.sleep, args=(99,)).start()"
    ),
    "a timer left behind": Case(
        "import signal; signal.signal(signal.SIGALRM, lambda *_: 1/0); signal.setitimer(0, 0.05, 0.05)"
    ),
    "everybody's death": Case("import os, signal\ntry: os.kill(-1, signal.SIGKILL)\nexcept OSError: pass"),
    "replaced builtins": Case("import builtins, os; builtins.print = None; os.fork = os._exit = os.write = None"),
    "a trace": Case("import sys; sys.settrace(lambda *a: 1/0)"),
    "descriptors to the last": Case(
        "import os\nfds = []\ntry:\n while True: fds.append(os.dup(0))\nexcept OSError: pass\n"
        "for fd in fds: os.close(fd)"
    ),
}


@pytest.mark.parametrize("name", ENDURED)
async def test_what_is_odd_is_answered_and_lived_with(base: Session, name: str) -> None:
    case = ENDURED[name]
    answer = await ran(base, case.code, 20)
    assert answer.status == case.status, answer.text[-500:]
    assert case.text in answer.text


async def test_no_secret_of_the_host_has_a_name_inside(base: Session) -> None:
    project, root = str(Path(__file__).parents[2]), "/root"
    code = f"import os; SEEN = dict(os.environ), os.path.exists({project!r}), os.path.exists({root!r}); SEEN"
    assert SPOT not in (await ran(base, code)).text
    assert "False, False" in (await ran(base, code)).text
    walk = "import os\nfor top, _, names in os.walk('/proc'):\n for n in names:\n  if n in ('environ', 'cmdline'):\n"
    walk += "   try: print(open(os.path.join(top, n)).read())\n   except OSError: pass"
    assert SPOT not in (await ran(base, walk, 20)).text
