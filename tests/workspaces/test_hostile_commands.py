"""Hostile commands of every kind on both back ends, behind all walls: they end in time, leave nothing, and the next
call is answered."""

import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from tests.workspaces.parts import BACK_ENDS, EVERYWHERE, PROGRAM, STRAYS, digest, options_of, said, shell

from ramify.core.problem import Problem
from ramify.workspaces.shell import Shell
from ramify.workspaces.shell_session import ShellSession

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.hostile]

CALL_S = 5.0
LATE_S = 12.0
"""Beyond its timeout, on a machine that does much else."""
BYTES = 32 << 20


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=EVERYWHERE)
async def base(request: pytest.FixtureRequest) -> AsyncIterator[ShellSession]:
    """A session with a file worth keeping; every test works on forks of it."""
    tool = Shell(
        **options_of(request.param), timeout_s=CALL_S, disk_bytes=BYTES, memory_bytes=96 << 20, max_processes=32,
        cpu_s=3.0, max_files=12_000,
    )  # fmt: skip
    session = await tool.open(Problem("p", "q"))
    await said(session, "echo canary > keep")
    yield session
    assert not isinstance(session, ShellSession) or session._workspaces.store.num_layers <= 3
    await tool.let_go()


@dataclass(frozen=True)
class Case:
    """A command, how it must end, and a part of what it must show."""

    command: str
    status: str = "ok"
    text: str = ""


PYTHON = "python3 -c '{}'"
DEEP = 'import os\nfor _ in range(3000):\n os.mkdir("dddd"); os.chdir("dddd")'
SOCKET = 'import socket; s = socket.socket(socket.AF_UNIX); s.bind("s")'
SMALL = PYTHON.format("x = bytearray(40 << 20); import time; time.sleep(60)")
GONE = {
    "fork bomb": Case("f() { f | f & }; f; sleep 60", "crashed", "processes and threads at once"),
    "threads": Case(
        PYTHON.format(
            "import threading, time\ntry:\n while 1: threading.Thread(target=time.sleep, args=(60,)).start()\n"
            "except RuntimeError: time.sleep(60)"
        ),
        "crashed",
        "processes and threads at once",
    ),
    "memory": Case(PYTHON.format("x = bytearray(1 << 29); import time; time.sleep(60)"), "crashed", "96 MiB of memory"),
    "many small memories": Case(f"for i in 1 2 3 4 5 6; do {SMALL} & done; wait", "crashed", "96 MiB of memory"),
    "processor": Case("while :; do :; done & while :; do :; done & wait", "crashed timeout"),
    "one large file": Case("head -c 100M /dev/zero > a; sleep 1", "crashed", "more than 33554432 bytes"),
    "many files": Case("for i in $(seq 99); do head -c 1M /dev/zero > a$i; done; sleep 9", "crashed", "bytes"),
    "files in tmp": Case("for i in $(seq 99); do head -c 1M /dev/zero > /tmp/a$i; done; sleep 9", "crashed", "bytes"),
    "too many files": Case(
        "mkdir d; cd d; seq 13000 | xargs touch; sleep 9", "crashed timeout", "12000 files|timeout|CPU time"
    ),
    "sparse files": Case("truncate -s 30M a b c", "crashed", "more than 33554432 bytes"),
    "endless output": Case("yes", "crashed", "it printed more than"),
    "endless wait": Case("read x < /dev/zero; sleep 600", "timeout crashed"),
    "stopped": Case("kill -STOP $$", "timeout"),
    "nested deeply": Case(PYTHON.format(DEEP), "crashed", "File name too long"),
}
KEPT = {
    "large and sparse": Case("truncate -s 1T a; ls", "ok", "keep"),
    "nameless file": Case("exec 5> a; rm a; head -c 20M /dev/zero >&5; ls", "ok", "keep"),
    "kills everything": Case("kill -9 -1; kill -9 1; echo alive", "ok", "alive"),
    "shared memory": Case("head -c 200M /dev/zero > /dev/shm/a; true", "ok", "No space left|File size limit exceeded"),
    "waits for input": Case("cat; read x; echo $?", "ok", "1"),
    "writes devices": Case("echo > /dev/sda; mknod n b 8 0; echo", "ok", "Permission denied|Read-only|not permitted"),
    "leaves the root": Case("chroot / true; unshare -r true; mount -t tmpfs x /w; echo", "ok", "not permitted"),
    "traces": Case("cat /proc/1/environ /proc/1/mem; echo", "ok", "Permission denied|Input/output error"),
    "writes the system": Case("echo > /usr/bin/x; echo > /etc/passwd; rm -rf /etc 2>&1 | tail -1", "ok", "Read-only"),
    "forged report": Case(r"printf 'R\0/etc\n\0PATH=/evil\0' >&9; true"),
    "code before the next command": Case("echo 'exit 9' > /w/rc; export BASH_ENV=/w/rc ENV=/w/rc LD_PRELOAD=/w/rc"),
    "no path": Case("export PATH="),
    "large variables": Case("export X=$(head -c 90000 /dev/zero | tr '\\0' a)"),
    "replaced shell": Case("cd /tmp; exec true"),
    "own trap": Case("trap 'echo mine' EXIT; cd /tmp", "ok", "mine"),
    "syntax": Case("if then", "error", "syntax error"),
}


async def ran(base: ShellSession, case: Case) -> ShellSession:
    """A fork on which the command was run; the caller closes it."""
    fork = await base.fork()
    before, began = await fork.digest(), time.monotonic()
    result = await fork.call(case.command)
    assert time.monotonic() - began < CALL_S + LATE_S
    result.text.encode()
    assert result.status in case.status.split(), result
    assert any(word in result.text for word in case.text.split("|")), result.text[-500:]
    if result.status in ("crashed", "timeout"):
        assert digest(result) == before
    return fork


@pytest.mark.parametrize("case", GONE.values(), ids=GONE.keys())
async def test_a_command_beyond_a_limit_is_killed_and_the_state_is_that_before(base: ShellSession, case: Case):
    fork = await ran(base, case)
    assert await said(fork, f"ls -A /w /tmp; cat keep; {STRAYS}") == "/tmp:\n\n/w:\nkeep\ncanary\n0\n"
    await fork.close()


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT.keys())
async def test_a_hostile_command_hurts_nobody_and_the_next_call_is_answered(base: ShellSession, case: Case):
    fork = await ran(base, case)
    assert await said(fork, "/bin/cat /w/keep; /bin/pwd") in {
        f"canary\n{folder}\n" for folder in ("/w", "/tmp", "/etc")
    }
    await fork.close()


async def test_a_daemon_is_gone_before_the_files_are_looked_at(base: ShellSession):
    fork = await base.fork()
    loop = "while :; do echo x >> /w/log; done"
    result = await fork.call(f"(setsid nohup sh -c '{loop}' &) >/dev/null 2>&1; while ! test -s log; do :; done")
    assert result.status == "ok"
    assert digest(result) == await fork.digest()
    size = await said(fork, "wc -c < log")
    assert await said(fork, "wc -c < log; ps -e | grep -c nohup || true") == f"{size}0\n"
    await fork.close()


async def test_links_out_of_the_folder_are_kept_as_links_and_never_followed(base: ShellSession, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("tweety")
    fork = await base.fork()
    await said(fork, f"ln -s {secret} a; ln -s / b; ln -s ../../../../../../etc/passwd c; ln -s d d")
    before = await fork.digest()
    secret.write_text("sylvester")
    assert await said(fork, "readlink a b c d; true") == f"{secret}\n/\n../../../../../../etc/passwd\nd\n"
    assert await fork.digest() == before
    assert (await fork.call("cat a")).status == "error"
    await fork.close()


async def test_pipes_are_kept_and_sockets_and_devices_are_not_waited_for(base: ShellSession):
    fork = await base.fork()
    await said(fork, f"mkfifo p; {PYTHON.format(SOCKET)}; mknod w c 0 0 2>&1; chmod 600 p")
    assert "p" in (await said(fork, "ls; stat -c %A p")).split()
    if isinstance(fork, ShellSession):
        assert {os.path.basename(path) for path in fork.state.entries} >= {b"p", b"keep"}  # noqa: PTH119 - bytes
        assert not {b"w/s", b"w/w"} & fork.state.entries.keys()
    again = await fork.fork()
    assert await said(again, "stat -c %A p") == "prw-------\n"
    await again.close()
    await fork.close()


async def test_names_may_be_any_bytes(base: ShellSession):
    fork = await base.fork()
    names = r"$'a\nb' $'\xff\xfe' ' ' '-rf' '*' $'\\' $'\x01'"
    await said(fork, f'mkdir d; cd d; for n in {names}; do echo "$n" > ./"$n"; done')
    again = await fork.fork()
    await said(again, f'cd /w/d; for n in {names}; do test "$(cat ./"$n")" = "$n" || exit 1; rm ./"$n"; done')
    assert await said(again, "ls -A") == ""
    assert await said(fork, "ls -A | wc -l") == "8\n"
    await again.close()
    await fork.close()


async def test_a_locked_folder_can_be_forked_and_removed(base: ShellSession):
    fork = await base.fork()
    await said(fork, "mkdir -p l/m; echo one > l/m/a; chmod 000 l/m/a; chmod 000 l/m; chmod 000 l")
    again = await fork.fork()
    await said(again, "echo > new")
    assert await said(again, "stat -c %a l; chmod 700 l l/m l/m/a; cat l/m/a") == "0\none\n"
    assert (await fork.call("ls l")).status == "error"
    await said(again, "chmod 000 /w")
    assert await said(again, "pwd") == "/\n"
    await again.close()
    await fork.close()


@pytest.mark.parametrize("back_end", BACK_ENDS)
async def test_ten_thousand_files_are_kept(back_end: str):
    async with shell(files=back_end, timeout_s=100.0) as session:
        await said(session, "mkdir m; cd m; seq 10000 | xargs touch")
        fork = await session.fork()
        assert await said(fork, "ls | wc -l; rm -r ../m; ls /w") == "10000\n"
        assert await said(session, "ls | wc -l") == "10000\n"


async def test_attributes_that_mean_something_to_an_overlay_cannot_be_set(base: ShellSession):
    fork = await base.fork()
    code = 'import os; os.mkdir("d"); os.setxattr("d", "user.overlay.opaque", b"y")'
    text = (await fork.call(PYTHON.format(code))).text
    assert "not supported" in text or PROGRAM == "docker"  # Nothing is mounted over a layer there.
    await fork.close()
