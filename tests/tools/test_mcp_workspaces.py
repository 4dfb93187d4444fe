"""MCP servers in workspaces: real processes behind walls, with the folder of their branch at `/w`."""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.tools.mcp_calls import PROBLEM, ask, called, forked_reads, is_alive, until, used
from tests.workspaces.parts import BACK_ENDS, open_folder

from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.core.segment import ToolCall
from ramify.core.tool import STATE_DIGEST, Tool
from ramify.runner.toolbox import Toolbox
from ramify.tools.mcp import Mcp
from ramify.workspaces.shell import open_shell

PYTHON = "/usr/bin/python3"
ACTING = Path(__file__).with_name("acting_server.py").read_text("utf-8")
NOTES = (Path(__file__).parents[1] / "hostile" / "notes_server.py").read_text("utf-8")
SMALL = {"memory_bytes": 96 << 20, "max_processes": 16}
BYTES = 32 << 20


@pytest.fixture(params=BACK_ENDS)
def files(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for all files of workspaces, in which a test leaves nothing."""
    with open_folder() as folder:
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        yield folder
        assert [path.name for path in folder.glob("ramify-workspaces-*/*")] == []


def made(*args: str, files: str = "auto", workspace: Any = None, **options: Any) -> Mcp:
    options |= {"workdir": "workspace", "workspace": {"files": files, **(workspace or {})}}
    return Mcp(command=PYTHON, args=args, **options)


@cache
def listed(*args: str) -> str:
    return str(made(*args).recorded()["listed"])


def tools_of(*args: str, **options: Any) -> dict[str, Tool]:
    return {tool.name: tool for tool in made(*args, listed=listed(*args), **options).tools}


def acting(**options: Any) -> dict[str, Tool]:
    return tools_of("-c", ACTING, **options)


def notes(*ways: str, **options: Any) -> dict[str, Tool]:
    return tools_of("-c", NOTES, "/w/notes.txt", *ways, **options)


async def act(box: Toolbox, code: str, *after: ToolCall) -> ToolCall:
    return await ask(box, "act", {"code": code}, after=after)


async def ended(box: Toolbox) -> None:
    """Wait until the server that waits for its branch has ended."""
    (tool,) = box._tools.values()
    (state,) = tool.source.branches.idle  # type: ignore[attr-defined]
    await state.connection._is_to_close.wait()


def acted(code: str, **options: Any) -> ToolCall:
    return called(acting(**options), "act", {"code": code})


WRITE = "open('/w/note', 'a').write('{}\\n')"
READ = "out = open('/w/note').read().split()"


# -- branches ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ways", "options"),
    [
        ((), {}),
        ((), {"branching": {"write": "fork"}}),
        ((), {"branching": {"write": "replay"}}),
        (("memory",), {}),
        (("clock", "log"), {}),
        (("absolute",), {"branching": {"write": "fork"}}),
        (("log",), {"compare_folder": False}),
    ],
    ids=str,
)
def test_siblings_that_write_one_file_do_not_see_each_other(files: str, ways: tuple[str, ...], options: Any) -> None:
    """Each branch reads what it wrote and what was written before the fork. The branch that was forked is unmoved."""
    expected = ["root red", "root green", "root blue", "root"]
    assert used(notes(*ways, files=files, **options), forked_reads) == expected


@pytest.mark.slow
def test_a_state_that_was_evicted_is_made_again(files: str) -> None:
    assert used(notes(files=files), forked_reads, max_parked=1)[3] == "root"


@pytest.mark.slow
def test_a_fork_has_what_the_server_deleted_and_replaced(files: str, own_folder: Path) -> None:
    """Files and folders of the start folder that the server took away stay away in every branch behind it."""
    start = own_folder / "start"
    (start / "deep" / "er").mkdir(parents=True)
    for name in ("gone", "kept", "deep/old", "deep/er/old"):
        (start / name).write_text(name)
    change = (
        "import os, shutil; os.remove('gone'); shutil.rmtree('deep'); os.mkdir('deep'); open('deep/new', 'w');"
        "os.rename('kept', 'moved'); os.symlink('moved', 'link')"
    )
    look = "import os; out = sorted(os.path.join(top, n)[2:] for top, _, names in os.walk('.') for n in names)"

    async def work(box: Toolbox) -> list[ToolCall]:
        root = await act(box, change)
        one = await act(box, "import os; os.remove('moved')", root)
        return [await act(box, look, root, one), await act(box, look, root), await act(box, look, root)]

    tools = acting(files=files, template=str(start), branching={"act": "fork"})
    said = [call.result for call in used(tools, work)]
    assert said == ["['deep/new', 'link']", *["['deep/new', 'link', 'moved']"] * 2]
    assert sorted(path.name for path in start.iterdir()) == ["deep", "gone", "kept"]


def test_a_server_that_ended_goes_on_with_its_folder(files: str) -> None:
    """A server that was killed between two calls is started again on what it left, and on nothing else."""

    async def work(box: Toolbox) -> list[str]:
        one = await act(box, WRITE.format("red"))
        two = await act(box, "import os; x = 1; open('/tmp/note', 'w').write('tmp'); out = os.getpid()", one)
        after = [one, two, await act(box, "import threading; threading.Timer(0.1, os._exit, (0,)).start()", one, two)]
        await ended(box)
        return [(await act(box, f"{READ}, open('/tmp/note').read(), 'x' in globals()", *after)).result]

    assert used(acting(files=files, branching={"act": "fork"}), work) == ["(['red'], 'tmp', False)"]


def test_a_server_that_dies_in_a_call_leaves_the_state_before_it(files: str) -> None:
    async def work(box: Toolbox) -> list[ToolCall]:
        one = await act(box, WRITE.format("red"))
        died = await act(box, f"import os; {WRITE.format('late')}; os._exit(3)", one)
        return [one, died, await act(box, READ, one)]

    one, died, read = used(acting(files=files), work, max_retries=0)
    assert (died.status, read.status, read.result) == ("crashed", "ok", "['red']")
    assert read.metadata[STATE_DIGEST] == one.metadata[STATE_DIGEST]


@pytest.mark.slow
def test_the_digest_is_that_of_the_workspace_and_a_new_run_repeats_it() -> None:
    """A state has one digest: on both back ends, after a fork, after a replay in another run, and in the tool shell."""

    async def work(box: Toolbox) -> list[ToolCall]:
        root = await act(box, WRITE.format("root"))
        return [root, await act(box, WRITE.format("red"), root), await act(box, WRITE.format("red"), root)]

    async def in_shell() -> str:
        async with open_shell() as shell:
            return (await shell.call("printf 'root\\nred\\n' > note")).metadata[STATE_DIGEST]

    root, *first = used(acting(files="overlay"), work)
    digests = [call.metadata[STATE_DIGEST] for call in (*first, *used(acting(files="copy"), work)[1:])]
    assert set(digests) == {asyncio.run(in_shell())}
    read = used(acting(branching={"act": "replay"}), lambda box: act(box, READ, root, first[0]))
    assert (read.result, read.metadata[STATE_DIGEST]) == ("['root', 'red']", digests[0])


def test_a_repeated_call_that_leaves_other_files_is_raised() -> None:
    code = "import time; open('/w/now', 'w').write(str(time.time_ns()))"
    was = acted(code)
    with pytest.raises(ToolError, match=r"replay_diverged: act .* had left the state sha256 .* and now left"):
        used(acting(), lambda box: act(box, "pass", was))


def test_a_folder_that_changes_while_it_is_copied_is_not_forked(files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that writes while no call is in flight has no state that could be copied."""
    seen = itertools.count()
    monkeypatch.setattr("ramify.tools.mcp_workspaces._stamps", lambda draft: next(seen))  # As if it always wrote.

    async def main() -> None:
        (tool,) = acting(files=files).values()
        session = await tool.open(PROBLEM)
        await session.call(WRITE.format("red"))
        with pytest.raises(ToolError, match="the working folder cannot be copied: its files are written while no call"):
            await session.fork()
        assert (await session.call(READ)).text == "['red']"
        await session.close()
        await tool.let_go()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_fork_of_a_large_folder_copies_only_what_was_written(own_folder: Path) -> None:
    start = own_folder / "start"
    start.mkdir()
    for number in range(300):
        (start / str(number)).write_bytes(bytes(10_000))

    def files_of_layers() -> list[int]:
        layers = own_folder.glob("ramify-workspaces-*/*/*/f")
        return sorted(sum(path.is_file() for path in layer.rglob("*")) for layer in layers)

    async def main() -> list[int]:
        (tool,) = acting(files="overlay", template=str(start)).values()
        session = await tool.open(PROBLEM)
        await session.call(WRITE.format("red"))
        fork = await session.fork()
        counts = await asyncio.to_thread(files_of_layers)
        await session.close()
        await fork.close()
        await tool.let_go()  # type: ignore[attr-defined]
        return counts

    assert asyncio.run(main()) == [1, 1, 300]


# -- the start folder -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_branches_begin_with_the_folder_of_their_problem(own_folder: Path) -> None:
    """The public column `workspace` comes before the option `template`; both may be tar files."""
    for name in ("one", "two"):
        (own_folder / name).mkdir()
        (own_folder / name / "note").write_text(name)
    with tarfile.open(own_folder / "three.tar", "w") as archive:
        archive.add(own_folder / "two" / "note", "note")

    async def read(problem: Problem, template: str) -> str:
        (tool,) = acting(template=str(own_folder / template)).values()
        session = await tool.open(problem)
        said = (await session.call(READ)).text
        await session.close()
        await tool.let_go()  # type: ignore[attr-defined]
        return said

    own = Problem("p", "q", {"workspace": str(own_folder / "two")})
    assert asyncio.run(read(own, "one")) == "['two']"
    assert asyncio.run(read(PROBLEM, "one")) == "['one']"
    assert asyncio.run(read(PROBLEM, "three.tar")) == "['two']"


def test_a_template_that_changed_or_is_missing_is_refused_before_the_run(own_folder: Path) -> None:
    start = own_folder / "start"
    start.mkdir()
    options = {"template": str(start), "listed": listed("-c", ACTING)}
    digest = made("-c", ACTING, **options).recorded()["template_sha256"]
    (start / "new").touch()
    (tool,) = made("-c", ACTING, **options, template_sha256=digest).tools
    with pytest.raises(ConfigError, match="has changed since the run began"):
        tool.check_start()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"template = .*none': there is no such folder or tar file"):
        made("-c", ACTING, template=str(start / "none"), listed=listed("-c", ACTING)).recorded()


def test_a_template_beyond_the_limit_is_refused_before_the_run(own_folder: Path) -> None:
    (own_folder / "start").mkdir()
    (own_folder / "start" / "large").write_bytes(bytes(2000))
    (tool,) = acting(template=str(own_folder / "start"), max_workdir_bytes=1000).values()
    with pytest.raises(
        ConfigError, match=r"MCP server 'mcp': the workspace .*start' cannot be copied: the files hold more"
    ):
        tool.check_start()  # type: ignore[attr-defined]
    asyncio.run(tool.let_go())  # type: ignore[attr-defined]


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"args": ["{branch}/x"]}, "'{branch}/x': there is no {branch} in a workspace, whose folder is /w"),
        ({"workdir": None}, "workspace = {'network': 'none'}: there is none; set workdir = \"workspace\""),
        ({"workdir": "branch"}, "workspace = {'network': 'none'}: there is none; set workdir"),
        ({"workdir": "w"}, 'workdir = \'w\': allowed are "branch" and "workspace"'),
        ({"branches_share_state": True}, "either share or do not; set one"),
        ({"branching": {"a": "share"}}, "allowed are 'refuse', 'replay', 'fork' with workdir = \"workspace\""),
        ({"workspace": {"timeout_s": 3}}, "workspace names the option 'timeout_s'; allowed are files, folder, image"),
        ({"workspace": {"network": "some"}}, "network = 'some': it is one of none, host"),
        ({"workspace": {"memory_bytes": 1}}, "memory_bytes = 1: a shell needs at least"),
        ({"workspace": {"readable": ["x"]}}, "readable names 'x': an absolute path is needed"),
        ({"workspace": {"readable": ["/tmp/x"]}}, "readable names '/tmp/x': /w and /tmp are the branch's own"),
        ({"command": None, "url": "http://127.0.0.1"}, "workdir = 'workspace': a server of a url takes none"),
    ],
    ids=json.dumps,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Mcp(**{"command": "x", "workdir": "workspace", "workspace": {"network": "none"}, **options})
    assert message in str(caught.value)


def test_a_program_that_walls_hide_is_refused_with_what_helps(own_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"No such file.*what `workspace.readable` names"):
        _ = Mcp(command=str(own_folder / "server"), workdir="workspace").tools
    (tool,) = acting(workspace={"readable": ["/no/such"]}).values()
    with pytest.raises(ConfigError, match="readable names '/no/such', which is not on this machine"):
        tool.check_start()  # type: ignore[attr-defined]


def test_a_server_has_the_variables_and_the_folder_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILES_KEY", "sesame")
    monkeypatch.setenv("OTHER_KEY", "canary")
    code = "import os; out = os.environ['FILES_KEY'], os.environ['PLACE'], os.getcwd(), 'OTHER_KEY' in os.environ"
    said = acted(code, env={"PLACE": "/w/x"}, env_from=["FILES_KEY"], cwd="/usr")
    assert said.result == "('sesame', '/w/x', '/usr', False)"
    assert acted("import os; out = os.getcwd()").result == "/w"


# -- what the walls and the limits hold -------------------------------------------------------------------------------

OUTSIDE = {
    "reads": "out = open({secret!r}).read()",
    "lists": "import os; out = os.listdir({folder!r})",
    "writes": "open({secret!r}, 'w').write('x')",
    "writes the system": "open('/usr/x', 'w')",
    "writes the root": "open('/x', 'w')",
    "follows a link": "import os; os.symlink({secret!r}, '/w/link'); out = open('/w/link').read()",
    "reaches a port": "import socket; socket.create_connection(('127.0.0.1', {port}), 3)",
    "makes namespaces": "import ctypes, os\nif ctypes.CDLL(None).unshare(0x10000000): raise OSError('refused')",
    "signals": "import os; os.kill({pid}, 0)",
}


@pytest.mark.hostile
@pytest.mark.parametrize("code", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_a_server_acts_on_nothing_outside_its_folder(code: str, own_folder: Path) -> None:
    (own_folder / "open").mkdir()
    secret = own_folder / "open" / "secret"
    secret.write_text("canary")
    with socket.create_server(("127.0.0.1", 0)) as server:
        names = {"secret": str(secret), "folder": str(secret.parent), "port": server.getsockname()[1]}
        said = acted(code.format(**names, pid=os.getpid()))
    assert (said.status, "canary" in said.result) == ("error", False), said
    assert secret.read_text() == "canary"


MANY_HOGS = (
    "import os, time\nfor _ in range(6):\n  if not os.fork(): x = bytearray(30 << 20); time.sleep(60)\ntime.sleep(60)"
)
FILL = "import time\nfor n in range(99): open(f'{}/{{n}}', 'wb').write(bytes(1 << 20))\ntime.sleep(60)"
HOGS = {
    "memory": ("x = bytearray(300 << 20)\nimport time; time.sleep(60)", "it used more than 96 MiB of memory"),
    "memory of many": (MANY_HOGS, "it used more than 96 MiB of memory"),
    "fork bomb": (
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        "it ran more than 16 processes and threads at once",
    ),
    "many files": (FILL.format("/w"), "its files hold more than 33554432 bytes"),
    "files in tmp": (FILL.format("/tmp"), "its files hold more than 33554432 bytes"),
}


@pytest.mark.hostile
@pytest.mark.parametrize(("code", "reason"), HOGS.values(), ids=HOGS.keys())
def test_a_server_beyond_a_limit_is_killed_and_the_state_is_that_before(files: str, code: str, reason: str) -> None:
    async def work(box: Toolbox) -> list[ToolCall]:
        one = await act(box, WRITE.format("red"))
        return [await act(box, code, one), await act(box, READ, one)]

    tools = acting(files=files, workspace=SMALL, max_workdir_bytes=BYTES)
    killed, read = used(tools, work, max_retries=0, deadline_s=40.0)
    assert killed.status == "crashed"
    assert f"[killed: {reason}]" in killed.result
    assert (read.status, read.result) == ("ok", "['red']")


@pytest.mark.hostile
def test_a_server_that_waits_is_watched_too() -> None:
    """A limit holds between calls as well; the branch goes on from the state that its last call left."""
    late = "import threading\ndef work():\n  global x; x = bytearray(300 << 20); threading.Event().wait(60)\n"

    async def work(box: Toolbox) -> ToolCall:
        one = await act(box, WRITE.format("red"))
        two = await act(box, f"{late}\nthreading.Timer(0.3, work).start()", one)
        await ended(box)
        return await act(box, READ, one, two)

    read = used(acting(workspace=SMALL), work)
    assert (read.status, read.result) == ("ok", "['red']")


def acting_processes(server: str = ACTING) -> list[int]:
    """Processes of servers with this text, as this machine numbers them."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            found += [int(process.name)] if words[1:3] == [b"-c", server.encode()] else []
    return found


@pytest.mark.hostile
def test_nothing_is_left_of_a_server_that_will_not_end() -> None:
    """A server that ignores signals and the end of its input, with a daemon, is gone when its session is closed."""
    code = (
        "import os, signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
        "if not os.fork():\n  os.setsid(); time.sleep(600)\n"
        "import threading; threading.Thread(target=time.sleep, args=(600,)).start()"
    )

    async def main() -> list[int]:
        (tool,) = acting().values()
        session = await tool.open(PROBLEM)
        await session.call(code)
        inside = await asyncio.to_thread(acting_processes)
        await session.close()
        await tool.let_go()  # type: ignore[attr-defined]
        return inside

    pids = asyncio.run(main())
    assert len(pids) >= 2
    until(lambda: not any(is_alive(pid) for pid in pids))


@pytest.mark.hostile
def test_a_cancelled_call_leaves_nothing() -> None:
    async def main() -> None:
        (tool,) = acting().values()
        for after_s in (0.0, 0.01, 0.1, 0.4):
            session = await tool.open(PROBLEM)
            task = asyncio.create_task(session.call("import time; time.sleep(60)"))
            await asyncio.wait({task}, timeout=after_s)
            task.cancel()
            await asyncio.wait({task})
            await session.close()
        await tool.let_go()  # type: ignore[attr-defined]

    asyncio.run(main())
