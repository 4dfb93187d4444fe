# ruff: noqa: ASYNC240 - one test, one loop: nothing else waits
"""Workspaces on other machines: what is sent, how branches are spread, and what happens when a machine is lost.

The contract of workspaces is in the other files, which run over ssh too. Tests without the mark `remote` start the
remote side as their own child.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.environments.test_repair import agent, known, leaves
from tests.workspaces import remote_machine
from tests.workspaces.parts import digest, open_folder, said, shell

import ramify
from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.core.tool import LOST, STATE_DIGEST
from ramify.core.tree import Tree
from ramify.environments.repair import CodeRepair
from ramify.environments.task import EnvironmentTask
from ramify.testing import Scripted
from ramify.version import __version__
from ramify.workspaces import frames
from ramify.workspaces.frames import MAX_CONTENT_BYTES, MAX_FRAME_BYTES
from ramify.workspaces.remote_host import MAX_STARTS, HostConnection
from ramify.workspaces.shell import RemoteSession, Shell, score_on_fork

remote = pytest.mark.remote
PROBLEM = Problem("p", "q")
WAIT_S = 20.0
REPAIR_S = 100.0
"""Timeout of a command of the environment: on a busy machine, hidden tests of many leaves at once take long."""


@pytest.fixture
def beside() -> Iterator[dict[str, Any]]:
    with remote_machine.without_sshd() as options:
        yield options


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[Shell]:
    tool = Shell(timeout_s=20.0, **options)
    try:
        yield tool
    finally:
        await tool.let_go()


def connection(tool: Shell, number: int = 0) -> HostConnection:
    found = tool.remote._hosts[number]._connection
    assert found is not None
    return found


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def commands_with(word: str) -> dict[int, bytes]:
    """Pid -> command line of the processes of this machine whose command line holds a word."""
    found: dict[int, bytes] = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found[int(path.parent.name)] = path.read_bytes()
    return {pid: line for pid, line in found.items() if word.encode() in line}


def is_empty(folder: Path) -> bool:
    return not any(path.is_dir() for path in folder.glob("*/*"))


# -- sessions ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_workspace_beside_this_process_is_as_one_of_its_own(beside: dict[str, Any]):
    found: list[Any] = []
    for options in ({}, beside):
        async with shell(**options, timeout_s=20.0) as session:
            await session.upload({"a": bytes(range(256))}, mode=0o755)
            fork = await session.fork()
            call = await fork.call("cd /tmp; export X=1; echo two >> /w/a; exit 3")
            texts = [await said(fork, "pwd; echo $X"), await said(session, "wc -c < a; pwd")]
            score = await score_on_fork(fork, {"t": b"cat /w/a | tail -c 4"}, "sh t")
            found.append((call.text, call.status, call.metadata, texts, score, await fork.download("a")))
            assert 0 < (call.took_s or 0) < 20
            await fork.close()
            await fork.close()
            with pytest.raises(ToolError, match="closed"):
                await fork.call("true")
    assert found[0] == found[1]


async def test_event_loops_share_a_connection(beside: dict[str, Any]):
    tool = Shell(**beside)
    await asyncio.to_thread(asyncio.run, tool.try_walls())
    session = await tool.open(PROBLEM)
    process = connection(tool)._process
    assert await asyncio.to_thread(asyncio.run, said(session, "echo one")) == "one\n"
    assert connection(tool)._process is process
    await tool.let_go()


@pytest.mark.slow
async def test_a_call_that_is_cancelled_is_killed_there_before_it_returns(beside: dict[str, Any]):
    async with opened(**beside) as tool:
        session = await tool.open(PROBLEM)
        for patience_s in (0.0, 0.3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.call(f"echo > a; sleep {os.getpid()}.4"), patience_s)
            assert not commands_with(f"sleep\0{os.getpid()}.4")
        assert await said(session, "ls") == ""
        for work in (session.fork, lambda: tool.open(PROBLEM)):
            task = asyncio.ensure_future(work())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.sleep(0.5)
        assert connection(tool).sessions == {session._number}


@remote
async def test_new_sessions_are_spread_and_a_fork_stays_on_its_machine():
    async with opened(**remote_machine.options("box1", "box2")) as tool:
        sessions = await asyncio.gather(*(tool.open(PROBLEM) for _ in range(6)))
        assert [len(connection(tool, number).sessions) for number in (0, 1)] == [3, 3]
        ours = [session for session in sessions if session._connection is connection(tool)]
        forks = [await ours[0].fork() for _ in range(4)]
        assert {fork._connection for fork in forks} == {connection(tool)}
        for each in (*ours, *forks):
            await each.close()
        more = [await tool.open(PROBLEM) for _ in range(3)]
        assert {session._connection for session in more} == {connection(tool)}


# -- files -------------------------------------------------------------------------------------------------------------


@remote
async def test_binary_files_go_in_and_out():
    content = os.urandom(3 << 20) + b"\0\r\n\x1a~.\n"
    async with shell(**remote_machine.options()) as session:
        await session.upload({"a": content, "b": b"", "d/\udcff\n": b"x"})
        assert await said(session, "wc -c < a; cat d/*") == f"{len(content)}\nx"
        assert (await session.download("a"), await session.download("b")) == (content, b"")
        assert await session.download("d/\udcff\n") == b"x"


@pytest.mark.slow
async def test_what_does_not_fit_into_a_message_is_refused_with_its_size(beside: dict[str, Any]):
    size = MAX_CONTENT_BYTES + 1
    async with shell(**beside) as session:
        with pytest.raises(ToolError, match=f"they hold {size} bytes, and {MAX_CONTENT_BYTES} go"):
            await session.upload({"a": bytes(size)})
        await said(session, f"truncate -s {size} a")
        with pytest.raises(ToolError, match=f"holds {size} bytes; at most {MAX_CONTENT_BYTES} are read"):
            await session.download("a", max_bytes=1 << 40)
        assert await said(session, f"truncate -s {size - 1} a; echo fits") == "fits\n"
        assert await session.download("a") == bytes(size - 1)
    async with shell(**beside, max_output_bytes=128 << 20, timeout_s=60.0) as session:
        with pytest.raises(ToolError, match=f"at most {MAX_FRAME_BYTES} can be sent at once"):
            await session.call("head -c 50M /dev/zero | tr '\\0' '\\377'")
        assert await said(session, "echo next") == "next\n"


LISTING = "find . -mindepth 1 -printf '%p %y %m %l\\n' | sort; find . -type f -printf '%f %s %T@\\n' | sort"
"""Everything, and the times of files."""


NOT_A_FLOAT_NS = 1_795_805_778_014_584_999
"""A time that a float of seconds moves by 19 ns, into another microsecond."""


def odd_folder(top: Path) -> None:
    """Everything that a start folder may hold."""
    (top / "d" / "e").mkdir(parents=True)
    (top / "d" / "e" / "run").write_text("#!/bin/sh\necho ran\n")
    (top / "d" / "e" / "run").chmod(0o4755)
    (top / "out").symlink_to("/etc/shadow")
    (top / "to").symlink_to("d")
    os.mkfifo(top / "pipe", 0o640)
    Path(os.fsdecode(os.fsencode(top) + b"/n\xff\n")).write_bytes(b"\0\xff")
    (top / ("long" * 50)).touch()
    (top / "locked").mkdir()
    (top / "locked" / "a").write_text("secret")
    (top / "locked" / "a").chmod(0)
    (top / "locked").chmod(0)
    (top / "d").chmod(0o2775)
    for file in (top / "d" / "e" / "run", top / ("long" * 50)):
        os.utime(file, ns=(NOT_A_FLOAT_NS, NOT_A_FLOAT_NS))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["beside", pytest.param("ssh", marks=remote)])
async def test_a_start_folder_arrives_as_it_is(place: str, tmp_path: Path, beside: dict[str, Any]):
    odd_folder(tmp_path)
    options = beside if place == "beside" else remote_machine.options()
    found: list[Any] = []
    for kind in ({}, options):
        async with shell(**kind, workspace=str(tmp_path)) as session:
            found.append((await session.digest(), await said(session, LISTING)))
    assert found[0] == found[1]
    (tmp_path / "locked").chmod(0o700)


@pytest.mark.slow
async def test_a_start_folder_is_sent_once_and_again_when_it_was_dropped(
    beside: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked, ask = Counter[str](), HostConnection.ask
    monkeypatch.setattr(HostConnection, "ask", lambda self, op, **values: asked.update([op]) or ask(self, op, **values))
    monkeypatch.setattr("ramify.workspaces.remote_host.PART_BYTES", 3000)

    def problem(number: int) -> Problem:
        return Problem("p", "q", {"workspace": str(tmp_path / f"s{number}")})

    for number in range(MAX_STARTS + 1):
        (tmp_path / f"s{number}").mkdir()
        (tmp_path / f"s{number}" / "a").write_text(f"{number}\n")
    async with opened(**beside) as tool:
        sessions = await asyncio.gather(*(tool.open(problem(0)) for _ in range(5)))
        num_parts = asked["start"]
        assert num_parts > 1
        assert [await said(session, "cat a") for session in sessions] == ["0\n"] * 5
        for number in range(1, MAX_STARTS + 1):
            assert await said(await tool.open(problem(number)), "cat a") == f"{number}\n"
        assert (asked["start"], asked["drop"]) == (num_parts * (MAX_STARTS + 1), 1)
        assert await said(await tool.open(problem(0)), "cat a") == "0\n"
        assert asked["start"] == num_parts * (MAX_STARTS + 2)


@pytest.mark.parametrize("names", [["../bad"], ["link", "link/bad"], ["a", "a"], ["/bad"], ["no/bad"], ["d", "d/.."]])
def test_a_packed_folder_that_leads_out_is_refused(names: list[str], tmp_path: Path):
    from ramify.workspaces.packed_start import unpack
    from ramify.workspaces.tree import TreeFault

    with tarfile.open(tmp_path / "packed", "w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            if name == "link":
                member.type, member.linkname = tarfile.SYMTYPE, str(tmp_path)
            if name == "d":
                member.type = tarfile.DIRTYPE
            archive.addfile(member)
    (tmp_path / "target").mkdir()
    with pytest.raises(TreeFault, match="may not hold"):
        unpack(tmp_path / "packed", tmp_path / "target")
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("time", ["", "soon", "1" * 20, "9" * 19, "1.5", "--1"])
def test_a_packed_time_that_is_none_is_refused(time: str, tmp_path: Path):
    from ramify.workspaces.packed_start import MTIME_NS, unpack
    from ramify.workspaces.tree import TreeFault

    with tarfile.open(tmp_path / "packed", "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("a")
        member.pax_headers = {MTIME_NS: time}
        archive.addfile(member)
    (tmp_path / "target").mkdir()
    with pytest.raises(TreeFault, match="may not hold the time"):
        unpack(tmp_path / "packed", tmp_path / "target")


# -- a machine that is lost --------------------------------------------------------------------------------------------


@remote
async def test_a_lost_connection_ends_its_calls_and_the_next_session_connects_again():
    async with opened(**remote_machine.options()) as tool:
        session, other = await tool.open(PROBLEM), await tool.open(PROBLEM)
        call = asyncio.ensure_future(session.call("echo one; sleep 60"))
        await asyncio.sleep(0.5)
        connection(tool)._process.kill()
        with pytest.raises(ToolError, match="connection to 'box1' was lost") as caught:
            await call
        assert caught.value.reason == LOST
        for work in (session.fork(), other.call("true"), other.digest(), other.upload({"a": b""})):
            with pytest.raises(ToolError) as caught:
                await work
            assert caught.value.reason == LOST
        await session.close()
        assert await said(await tool.open(PROBLEM), "echo again") == "again\n"


REMOTE_USER = """
import asyncio, json, sys
from ramify.workspaces.shell import open_shell

async def main():
    async with open_shell(**json.loads(sys.argv[1])) as shell:
        await shell.call("echo one > a")
        print("ready", flush=True)
        await shell.call(f"echo two > a; {sys.argv[2]} & setsid {sys.argv[2]}")

asyncio.run(main())
"""


@remote
@pytest.mark.parametrize("killed", ["ssh", "this process", "the remote side"])
def test_a_kill_leaves_no_process_and_no_file_on_the_remote_side(killed: str, tmp_path: Path):
    python, seconds = tmp_path / "python", f"sleep\0{os.getpid()}.5"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" {python}\n')
    python.chmod(0o755)
    with open_folder() as folder:
        options = {**remote_machine.options(), "folder": str(folder), "remote_python": str(python)}
        command = [sys.executable, "-c", REMOTE_USER, json.dumps(options), seconds.replace("\0", " ")]
        user = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert user.stdout is not None and user.stdout.readline() == b"ready\n"
        wait_until(lambda: len(commands_with(seconds)) == 2)
        assert not is_empty(folder)
        begins = {"ssh": b"ssh\0", "this process": b"\0".join(map(os.fsencode, command[:2]))}
        found = commands_with(str(python))
        pids = [pid for pid, line in found.items() if line.startswith(begins.get(killed, os.fsencode(sys.executable)))]
        if killed == "the remote side":
            pids.remove(user.pid)
        assert len(pids) == 1
        os.kill(pids[0], signal.SIGKILL)
        user.wait()
        user.stdout.close()
        wait_until(lambda: not commands_with(seconds))
        if killed == "the remote side":  # The next run there removes its files.
            asyncio.run(one_call(options))
        wait_until(lambda: is_empty(folder))


async def one_call(options: dict[str, Any]) -> None:
    async with shell(**options) as session:
        await said(session, "true")


@remote
@pytest.mark.parametrize("at", [2, 7, 12])
def test_a_run_whose_machine_is_lost_ends_as_an_undisturbed_one(at: int, tmp_path: Path):
    """The connection is killed in the middle, and from then on its machine cannot be reached."""
    config = tmp_path / "client"
    config.write_text(Path(remote_machine.client().split()[-1]).read_text())
    options = {**remote_machine.options("box1", "box2"), "ssh": f"ssh -F {config}", "timeout_s": REPAIR_S}
    wanted = grown(CodeRepair(shell={"timeout_s": REPAIR_S}), agent)
    environment, calls = CodeRepair(shell=options), count()

    def disturbed(turn: Any) -> Any:
        if next(calls) == at:
            config.write_text(config.read_text().replace("Host gone", "Host gone box1"))
            connection(environment._shell)._process.kill()
        return agent(turn)

    assert grown(environment, disturbed) == wanted
    assert next(calls) > at


@remote
def test_a_machine_that_is_lost_while_a_leaf_is_scored_is_replaced(monkeypatch: pytest.MonkeyPatch):
    environment, calls, scored = CodeRepair(shell={**remote_machine.options(), "timeout_s": REPAIR_S}), count(), []
    finish = RemoteSession.scored

    async def cut(self: RemoteSession, *arguments: Any) -> Any:
        scored.append(next(calls))
        if scored[-1] == 2:
            self._connection._process.kill()
        return await finish(self, *arguments)

    monkeypatch.setattr(RemoteSession, "scored", cut)
    found = grown(environment, agent)
    assert len(scored) > len(found)
    monkeypatch.undo()
    assert found == grown(CodeRepair(shell={"timeout_s": REPAIR_S}), agent)


def grown(environment: CodeRepair, script: Any) -> list[Any]:
    """Texts, calls, digests and rewards of all leaves."""
    problems = [problem for problem, _ in known().values()][:1]
    options: dict[str, Any] = {"seed": 5, "growth.max_response_tokens": 6000, "max_failed_share": 0.0}
    rollout = ramify.rollout_sync(
        problems, task=EnvironmentTask(environment), preset="arpo", engine=Scripted(script), **options
    )

    def shown(tree: Tree, leaf: int) -> Any:
        branch = tree.branch(leaf)
        calls = [(call.arguments, call.status, call.result, call.metadata[STATE_DIGEST]) for call in branch.tool_calls]
        return branch.text, calls, tree.reward(leaf)

    return [shown(tree, leaf) for tree, leaf in leaves(rollout)]


@remote
async def test_without_a_machine_that_is_left_the_error_names_all_of_them(tmp_path: Path):
    config = tmp_path / "client"
    config.write_text(Path(remote_machine.client().split()[-1]).read_text())
    async with opened(**{**remote_machine.options("box1", "gone"), "ssh": f"ssh -F {config}"}) as tool:
        session = await tool.open(PROBLEM)
        assert await said(session, "echo one") == "one\n"
        config.write_text(config.read_text().replace("Host gone", "Host gone box1"))
        connection(tool)._process.kill()
        with pytest.raises(ToolError, match=r"no machine of hosts is left: .*'box1' cannot.*'gone' cannot") as caught:
            await tool.open(PROBLEM)
        assert caught.value.reason == LOST
        config.write_text(config.read_text().replace("Host gone box1", "Host gone"))
        assert await said(await tool.open(PROBLEM), "echo two") == "two\n"


@pytest.mark.slow
async def test_a_remote_side_that_is_stopped_is_lost_and_one_that_is_quiet_is_not(
    beside: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(frames, "PING_S", 0.1)
    patched = "import ramify.workspaces.frames as f; f.PING_S = 0.1"
    async with opened(**beside | {"remote_python": program(tmp_path, patched)}) as tool:
        session = await tool.open(PROBLEM)
        monkeypatch.setattr(frames, "SILENCE_S", 3.0)
        assert await said(session, "sleep 4; echo awake") == "awake\n"
        os.kill(connection(tool)._process.pid, signal.SIGSTOP)
        with pytest.raises(ToolError, match="'box': it said nothing for 3 s") as caught:
            await session.call("true")
        assert caught.value.reason == LOST


def program(folder: Path, code: str) -> str:
    """A command that runs some code, then serves as the remote side."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable} -P\n{code}\nfrom ramify.workspaces.remote_server import main\nmain()\n")
    path.chmod(0o755)
    return str(path)


# -- a machine that cannot be used -------------------------------------------------------------------------------------


@remote
@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("gone", r"'gone' cannot be reached \(.*Connection refused\): `ssh gone true` must work"),
        ("stranger", r"'stranger' cannot be reached \(.*Host key verification failed\.\): `ssh stranger true`"),
        ("nobody@box1", r"'nobody@box1' cannot be reached \(.*Permission denied.*\): `ssh nobody@box1 true`"),
    ],
)
async def test_a_machine_that_cannot_be_reached_is_refused_in_the_words_of_ssh(host: str, words: str):
    async with opened(**remote_machine.options("box1", host)) as tool:
        with pytest.raises(ToolError, match=words):
            await tool.try_walls()


@pytest.mark.parametrize(
    ("python", "words"),
    [
        (
            "/no/python",
            r"ramify does not start on 'box' \(.*/no/python: No such file or directory\): set remote_python",
        ),
        (
            f"{sys.executable} -S",
            rf"\(.*No module named .*\): install ramify {__version__} there, and set remote_python",
        ),
        (
            f"echo Welcome to the box; {sys.executable}",
            r"'box': it printed 'Welcome to the box\\n' before .*~/\.bashrc",
        ),
        ("echo This account is not available; exit 1;", r"'box': it printed 'This account is not available\\n'"),
    ],
)
async def test_a_remote_side_that_does_not_start_is_told_with_a_remedy(python: str, words: str, beside: dict[str, Any]):
    async with opened(**beside | {"remote_python": python}) as tool:
        with pytest.raises(ToolError, match=words):
            await tool.try_walls()


async def test_another_version_is_refused_with_both_named(beside: dict[str, Any], tmp_path: Path):
    python = program(tmp_path, "import ramify.version as v; v.__version__ = '0.0.1'")
    async with opened(**beside | {"remote_python": python}) as tool:
        with pytest.raises(ToolError, match=f"'box' has ramify '0.0.1', and this machine '{__version__}': install"):
            await tool.try_walls()


async def test_ssh_that_is_missing_is_named():
    async with opened(hosts=["box"], ssh="/no/ssh -v") as tool:
        with pytest.raises(ToolError, match=r"'/no/ssh', which cannot be started .*: install openssh-client"):
            await tool.try_walls()


@pytest.mark.slow
async def test_walls_and_folders_are_those_of_the_remote_machine(beside: dict[str, Any]):
    async with opened(**beside) as tool:
        await tool.try_walls()
        name, why = await tool.back_end()
        assert name in ("overlay", "copy") and why
    for options, words in (
        ({"readable": ["/no"]}, "on 'box': readable names '/no', which is not on this machine"),
        ({"image": "/no"}, "on 'box': image = '/no'"),
        ({"walls": "podman", "image": "localhost/no-such:1"}, "on 'box': .*podman"),
    ):
        async with opened(**beside, **options) as tool:
            with pytest.raises(ToolError, match=words):
                await tool.try_walls()
    async with opened(**beside, workspace="/no") as tool:
        with pytest.raises(ConfigError, match="workspace = '/no': there is no such folder on this machine"):
            await tool.try_walls()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": ["-oProxyCommand=true"]}, "a machine as ssh names it"),
        ({"hosts": ["a b"]}, "a machine as ssh names it"),
        ({"hosts": [""]}, "a machine as ssh names it"),
        ({"hosts": ["a", "a"]}, "name each machine once"),
        ({"hosts": ["a"], "ssh": " "}, "ssh is empty"),
        ({"hosts": "a", "ssh": "ssh -F 'x"}, "No closing quotation"),
        ({"hosts": ["a"], "remote_python": ""}, "remote_python is empty"),
    ],
)
def test_options_that_name_no_machine_are_refused(options: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        Shell(**options)


# -- a remote side that is hostile -------------------------------------------------------------------------------------

HOSTILE = """
import msgspec, os
from ramify.version import __version__
from ramify.workspaces.frames import GREETING, RemoteRequest

def taken(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or os._exit(0)
    return data

def say(message):
    data = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
    os.write(1, len(data).to_bytes(4, "big") + data)

os.write(1, GREETING)
say({"id": 0, "text": __version__})
taken(len(GREETING))
while True:
    if size := int.from_bytes(taken(4), "big"):
        request = msgspec.msgpack.decode(taken(size), type=RemoteRequest)
        answer = {"id": request.id, "digest": "0" * 64}
        if request.op == OP:
            exec(BAD)
        say(answer)
"""
LIES = {
    "a huge message": ("call", "os.write(1, b'\\xff' * 8)", "announced a message of 4294967295 bytes"),
    "no message": ("call", "say(b'\\xc1')", "sent a message that is none"),
    "another type": ("call", "answer['text'] = 7", "sent a message that is none"),
    "nested deeply": ("call", "say(b'\\x91' * 100000)", "sent a message that is none"),
    "no text": ("call", "say(b'\\x82\\xa2id\\x01\\xa4text\\xa1\\xff')", "sent a message that is none"),
    "an unknown status": ("call", "answer['status'] = 'fine'", "sent a message that is none"),
    "an unknown reason": ("call", "answer['reason'] = 'replay_diverged'", "sent a message that is none"),
    "an answer to nothing": ("call", "answer['id'] = 999", "answered the request 999, which was not made"),
    "two answers": ("call", "say(answer)", "answered the request [0-9]+, which was not made"),
    "a long text": ("call", "answer['text'] = 'x' * 9000", "a text of 9000 bytes came, and max_output_bytes is 1000"),
    "no time": ("call", "answer['took_s'] = float('nan')", "a command took nan s"),
    "no digest": ("call", "answer['digest'] = '../../x'", "'../../x' is no digest"),
    "a long file": ("download", "answer['data'] = b'x' * 9", "a file of 9 bytes came, and 4 were asked for"),
    "terminal codes": ("call", "answer |= {'reason': 'tool_gave_up', 'text': '\\x1b[2Jbad' * 999}", "\ufffd\\[2Jbad"),
    "silence at the end": ("call", "os._exit(3)", "the connection to 'box' was lost"),
}


async def called(session: RemoteSession, op: str) -> None:
    if op == "download":
        await session.download("a", max_bytes=4)
    assert digest(await session.call("true"))
    await asyncio.sleep(0.5)
    await session.digest()


@pytest.mark.parametrize(("op", "bad", "words"), LIES.values(), ids=LIES.keys())
async def test_a_remote_side_that_lies_raises_a_tool_error_that_says_so(
    op: str, bad: str, words: str, beside: dict[str, Any], tmp_path: Path
):
    python = program(tmp_path, f"OP, BAD = {op!r}, {bad!r}\n{HOSTILE}")
    async with shell(**beside | {"remote_python": python}, max_output_bytes=1000) as session:
        assert isinstance(session, RemoteSession)
        with pytest.raises(ToolError, match=words) as caught:
            await called(session, op)
        assert len(str(caught.value)) < 3000
