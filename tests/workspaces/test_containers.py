# ruff: noqa: ASYNC220, ASYNC221, ASYNC240, ASYNC251 - one test, one loop: nothing else waits
"""Commands in containers: what the image gives, what is left behind by whom, and what a person is told.

The contract of workspaces is in the other files, which run behind these walls too.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.workspaces.parts import (
    IN_CONTAINERS,
    PROGRAM,
    exit_code,
    image,
    imported,
    open_folder,
    options_of,
    said,
    shell,
)

from ramify.core.errors import ToolError
from ramify.sandbox.syscalls import REFUSED
from ramify.workspaces.container_seccomp import narrowed
from ramify.workspaces.containers import LABEL, asked
from ramify.workspaces.shell import Shell, score_on_fork
from ramify.workspaces.shell_session import ShellSession

in_containers = pytest.mark.containers


@pytest_asyncio.fixture(params=IN_CONTAINERS)
async def session(request: pytest.FixtureRequest) -> AsyncIterator[ShellSession]:
    with open_folder() as folder:
        async with shell(**options_of(request.param), folder=str(folder), timeout_s=20.0) as opened:
            yield opened
            assert containers(opened) == []


def containers(session: ShellSession) -> list[str]:
    """Names of the containers of a session's tool, also of those that have ended."""
    base = session._workspaces.store.run.parent
    return asked(PROGRAM, "ps", "-a", "--filter", f"label={LABEL}={base}", "--format", "{{.Names}}").split()


# -- the image ---------------------------------------------------------------------------------------------------------


async def test_the_image_is_the_root_and_its_variables_come_first(session: ShellSession):
    text = await said(session, "cat /etc/mark; echo $FRUIT $HOME $USER; unset FRUIT; ls /w")
    assert text == "an image\npear /tmp user\n"
    assert await said(session, "echo ${FRUIT-none}") == "none\n"
    score = await score_on_fork(session, {"a": b"x"}, "echo $FRUIT; cat a; cat /etc/mark")
    assert score.output == "pear\nxan image\n"


async def test_nothing_can_be_written_outside_the_folders_that_are_kept(session: ShellSession):
    places = "/ /etc /usr /run /run/ramify /var/tmp /dev /proc/sys/kernel"
    text = await said(session, f"for d in {places}; do (echo x > $d/x) 2>/dev/null && echo wrote $d; done; true")
    assert text == ""


@in_containers
async def test_a_problem_names_its_image_and_a_small_one_is_enough(tmp_path: Path):
    busybox = shutil.which("busybox")
    assert busybox is not None, "needs busybox: apt-get install busybox-static"
    for name in ("bin", "data"):
        (tmp_path / name).mkdir()
    shutil.copy(busybox, tmp_path / "bin" / "busybox")
    for name in subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split():
        if name != "busybox":
            (tmp_path / "bin" / name).symlink_to("busybox")
    image()  # It names the runtime.
    volumes = ["VOLUME /data"] if PROGRAM == "podman" else []  # Docker lets commands write there: refused.
    async with shell(walls=PROGRAM, public={"image": imported(tmp_path, "small", volumes)}) as session:
        await said(session, "echo one > a; export X=1; cd /tmp")
        assert await said(session, "pwd; cat /w/a; echo $X; ls /usr 2>/dev/null || echo none") == "/tmp\none\n1\nnone\n"
        assert "Read-only file system" in (await session.call("echo > /data/x")).text
        assert exit_code(await session.call("exit 126")) == 126
        assert exit_code(await session.call("kill -9 $$")) == 137


@in_containers
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "needs the name of an image"),
        ({"image": "--privileged"}, "needs the name of an image"),
        ({"image": "localhost/no-such:1"}, rf"image.*; fetch it: `{PROGRAM} pull localhost/no-such:1`"),
    ],
)
async def test_an_image_that_is_not_there_is_named_with_a_remedy(options: dict[str, Any], word: str):
    image()
    with pytest.raises(ToolError, match=word):
        async with shell(walls=PROGRAM, **options):
            pass


@in_containers
async def test_an_image_without_a_shell_is_refused_in_the_program_s_words(tmp_path: Path):
    (tmp_path / "a").write_text("nothing\n")
    image()
    with pytest.raises(ToolError, match=rf"(?s){PROGRAM} cannot run .*/bin/sh.*; the image needs /bin/sh and env"):
        async with shell(walls=PROGRAM, image=imported(tmp_path, "bare")):
            pass


# -- what is left behind -----------------------------------------------------------------------------------------------


async def test_no_container_is_left_after_a_timeout_a_kill_or_a_cancelled_call(session: ShellSession):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(session.call("sleep 60"), 0.05)
    assert containers(session) == []
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(session.call("sleep 60"), 2)
    assert containers(session) == []
    assert (await session.call("yes")).status == "crashed"
    assert containers(session) == []
    assert (await session.call("(setsid sleep 60 &) > /dev/null 2>&1")).status == "ok"


HOST = """
import asyncio, json, sys
from ramify.workspaces.shell import open_shell

async def main():
    async with open_shell(**json.loads(sys.argv[1])) as shell:
        await shell.call("echo one > a")
        print("ready", flush=True)
        await shell.call("echo two > a; sleep 600")

asyncio.run(main())
"""


def guards(host: int) -> list[int]:
    """Pids of the guards below a process."""
    found: list[int] = []
    of_threads = (path.read_text().split() for path in Path(f"/proc/{host}/task").glob("*/children"))
    for child in map(int, chain.from_iterable(of_threads)):
        is_guard = b"container_guard.py" in Path(f"/proc/{child}/cmdline").read_bytes()
        found += [child] if is_guard else guards(child)
    return found


@in_containers
@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "with its guard"])
async def test_a_host_that_is_killed_leaves_no_container(is_guarded: bool):
    with open_folder() as folder:
        options = options_of(f"{PROGRAM} copy") | {"folder": str(folder)}
        async with shell(**options) as session:
            command = [sys.executable, "-c", HOST, json.dumps(options)]
            host = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert host.stdout is not None and host.stdout.readline() == b"ready\n"
            while not containers(session):
                time.sleep(0.05)
            if not is_guarded:
                (guard,) = guards(host.pid)
                os.kill(guard, signal.SIGKILL)
            host.kill()
            host.wait()
            host.stdout.close()
            if is_guarded:
                deadline = time.monotonic() + 60
                while containers(session) and time.monotonic() < deadline:
                    time.sleep(0.05)
                assert containers(session) == []
        async with shell(**options) as session:  # A run removes what an earlier one left.
            assert containers(session) == []


@in_containers
async def test_memory_that_the_kernel_takes_back_is_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ramify.workspaces.process_watch.ProcessWatch.fault", lambda _: "")
    async with shell(**options_of(f"{PROGRAM} copy"), memory_bytes=32 << 20) as session:
        result = await session.call("python3 -c 'x = bytearray(1 << 29)'; echo > a; true")
        assert (result.status, "more than 32 MiB of memory" in result.text) == ("crashed", True)
        assert await said(session, "ls") == ""


@in_containers
async def test_the_network_of_the_host_is_there_when_it_is_named():
    async with shell(**options_of(f"{PROGRAM} copy"), network="host") as session:
        assert await said(session, "readlink /proc/self/ns/net") == f"{Path('/proc/self/ns/net').readlink()}\n"


# -- a machine without -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["podman", "docker"])
async def test_a_program_that_is_missing_is_named(program: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolError, match=f"walls = '{program}' needs {program}, which is not installed"):
        await Shell(walls=program).try_walls()


SAID = {
    "Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?": "start the daemon",
    "permission denied while trying to connect to the Docker daemon socket": "add your user to the group docker",
    'Error: default OCI runtime "crun" not found: invalid argument': "name a runtime that works here",
}


@pytest.mark.parametrize(("words", "remedy"), SAID.items(), ids=["daemon", "group", "runtime"])
async def test_what_the_program_says_is_told_with_a_remedy(
    words: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ToolError) as refused:
        await Shell(walls="docker", image="python:3.12-slim").try_walls()
    assert words in str(refused.value) and remedy in str(refused.value)


def test_podmans_list_of_system_calls_loses_what_bubblewraps_filter_refuses(tmp_path: Path):
    base = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read", "unshare", "clone"], "action": "ALLOW"}]}
    (tmp_path / "seccomp.json").write_text(json.dumps(base))
    first, *rules = json.loads(narrowed(tmp_path / "seccomp.json"))["syscalls"]
    assert first["names"] == ["read"]
    refused = {name for rule in rules if rule["action"] == "SCMP_ACT_ERRNO" for name in rule["names"]}
    assert {"unshare", "mount", "ptrace", "setxattr", "clone3"} <= refused <= {*REFUSED, "clone3"}
    with pytest.raises(ToolError, match="install containers-common"):
        narrowed(tmp_path / "missing")
