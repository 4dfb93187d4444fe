"""MCP servers and the tool `shell` on one `/w`: real processes that act in turn on the files of a branch."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.environments.cut_runs import resumed_at_cuts, tenths
from tests.tools.mcp_calls import PROBLEM, ask, is_alive, until, used
from tests.tools.test_mcp_workspaces import (
    ACTING,
    BYTES,
    FILL,
    PYTHON,
    SMALL,
    acting_processes,
    listed,
)
from tests.workspaces.parts import BACK_ENDS, open_folder

import ramify
from ramify.config.run_config import EngineConfig, GrowthConfig, RunConfig, ToolConfig, ToolsConfig
from ramify.core.errors import ConfigError, ToolError
from ramify.core.segment import ToolCall
from ramify.core.tool import STATE_DIGEST, STATEFUL, Tool
from ramify.runner.folder import begin
from ramify.runner.saved import Saved
from ramify.runner.toolbox import Toolbox
from ramify.runner.tools import listed as with_listed
from ramify.runner.tools import tools_of
from ramify.tasks.countdown import Countdown
from ramify.testing import Scripted, ScriptedTurn, check_tool
from ramify.tools.mcp import Mcp
from ramify.workspaces.shell import Shell, open_shell, score_on_fork

pytestmark = pytest.mark.slow


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


OURS = f"{ACTING}\n# of {os.getpid()}"
"""Its processes are not those of tests beside this one."""
WRITE = "open('/w/note', 'a').write('{}\\n')"
READ = "out = open('/w/note').read().split()"
LATE = "import atexit; atexit.register(lambda: open('/w/note', 'a').write('late\\n'))\n"


def server(shell: Shell, **options: Any) -> Mcp:
    given = {"args": ["-c", OURS], "workdir": "workspace", "workspace": shell.name, "listed": listed("-c", ACTING)}
    return Mcp(command=PYTHON, **{**given, **options}).joined({shell.name: shell})


def tools(*, branching: Any = None, **options: Any) -> dict[str, Tool]:
    """A shell, the tool `act` of one server, and `other` of another, on one `/w`."""
    shell = Shell(**options)
    servers = (server(shell, branching=branching or {}), server(shell, name="two", rename={"act": "other"}))
    return {"shell": shell, **{tool.name: tool for each in servers for tool in each.tools}}


class Line:
    """The calls of one branch, which go on from each other."""

    def __init__(self, box: Toolbox, calls: Sequence[ToolCall] = ()) -> None:
        self.box, self.calls = box, list(calls)

    def fork(self) -> "Line":
        return Line(self.box, self.calls)

    async def call(self, tool: str, text: str) -> ToolCall:
        arguments = text if tool == "shell" else {"code": text}
        made = await ask(self.box, tool, arguments, after=self.calls)
        self.calls += [made] if made.status in STATEFUL else []
        return made

    async def says(self, tool: str, text: str) -> str:
        made = await self.call(tool, text)
        assert made.status in ("ok", "empty"), made
        return made.result


async def all_ended(*tools: Tool) -> None:
    """Wait until servers that end have ended."""
    for tool in tools:
        while ending := tool.source.branches.ending:  # type: ignore[attr-defined]
            await asyncio.wait(set(ending))


def digests(calls: Sequence[ToolCall]) -> list[str]:
    return [call.metadata[STATE_DIGEST] for call in calls]


# -- one state --------------------------------------------------------------------------------------------------------


def test_the_shell_and_two_servers_see_what_each_other_wrote(files: str) -> None:
    """A state has one digest, whichever tool made it: that of a shell alone."""

    async def work(box: Toolbox) -> list[ToolCall]:
        line = Line(box)
        await line.says("act", WRITE.format("red"))
        assert await line.says("shell", "cat note; echo green >> note; echo x > /tmp/mine") == "red\n"
        assert await line.says("other", f"{READ}; open('/w/more', 'w')") == "['red', 'green']"
        assert await line.says("act", "import os; out = os.listdir('/w'), open('/tmp/mine').read()") == (
            "(['more', 'note'], 'x\\n')"
        )
        await line.says("shell", "rm more; mkdir folder; cd folder")
        await line.says("act", WRITE.format("blue"))
        assert await line.says("shell", "pwd; cat ../note; ls ..") == "/w/folder\nred\ngreen\nblue\nfolder\nnote\n"
        return line.calls

    async def in_shell() -> list[str]:
        async with open_shell() as shell:
            commands = ("echo red > note", "echo green >> note", "touch more", "true", "rm more; mkdir folder")
            return [(await shell.call(each)).metadata[STATE_DIGEST] for each in (*commands, "echo blue >> note")]

    made = digests(used(tools(files=files), work))
    assert made == [*asyncio.run(in_shell()), made[-1]] and made[-1] == made[-2]


def test_forks_are_independent_in_all_tools(files: str) -> None:
    """Each branch reads what stood before the fork and what it wrote itself; the branch that was forked is unmoved."""

    async def one(line: Line, first: str, second: str) -> tuple[str, str]:
        writes = {"shell": "echo {} >> note", "act": WRITE, "other": WRITE}
        await line.says(first, writes[first].format(first))
        await line.says(second, writes[second].format(second))
        return (await line.says("shell", "cat note")).split(), eval(await line.says("act", READ))

    async def work(box: Toolbox) -> None:
        names = ("act", "shell", "other")
        by_server, by_shell = Line(box), Line(box)
        await by_server.says("act", WRITE.format("root"))
        await by_shell.says("shell", "echo root > note")
        pairs = [(one, two) for one in names for two in names]
        for root in (by_server, by_shell):
            found = await asyncio.gather(*(one(root.fork(), *pair) for pair in pairs))
            assert found == [(["root", *pair], ["root", *pair]) for pair in pairs]
            assert await root.fork().says("shell", "cat note") == "root\n"
            assert await root.fork().says("other", READ) == "['root']"

    used(tools(files=files), work)


@pytest.mark.parametrize("options", [{"max_parked": 1}, {"max_parked": 2}])
def test_states_that_were_evicted_are_made_again(options: Any) -> None:
    async def work(box: Toolbox) -> str:
        line = Line(box)
        await line.says("act", WRITE.format("root"))
        await line.says("shell", "echo shell >> note")
        await line.says("other", WRITE.format("other"))
        for name in ("red", "green"):
            await line.fork().says("act", WRITE.format(name))
        return await line.says("shell", "cat note")

    assert used(tools(), work, **options) == "root\nshell\nother\n"


def test_a_server_whose_place_others_took_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of servers that wait for their branch, the one that has waited longest ends."""
    monkeypatch.setattr("ramify.tools.mcp_branches.MAX_IDLE", 1)

    async def work(box: Toolbox) -> list[str]:
        lines = [Line(box) for _ in range(3)]
        for number, line in enumerate(lines):
            await line.says("act", f"x = {number}; {WRITE.format(number)}")
        return [await line.says("act", f"{READ}, x") + await line.says("shell", "cat note") for line in lines]

    assert used(tools(), work) == [f"(['{number}'], {number}){number}\n" for number in range(3)]


def test_forks_of_a_server_are_as_replays() -> None:
    check_tool(
        lambda: tools()["act"], calls=(f"{WRITE.format('one')}; {READ}", READ), other=f"{WRITE.format('two')}; {READ}"
    )


def test_a_new_run_repeats_the_calls_to_the_same_digests(files: str) -> None:
    async def first(box: Toolbox) -> list[ToolCall]:
        line = Line(box)
        for number in range(2):
            await line.says("act", WRITE.format(number))
            await line.says("act", READ)
            await line.says("shell", f"cat note; chmod 60{number} note")
            await line.says("other", f"open('/w/{number}', 'w')")
        return line.calls

    made = used(tools(files=files), first)

    async def again(box: Toolbox) -> list[ToolCall]:
        return [await Line(box, made).call("shell", "true"), await Line(box, made).call("other", "pass")]

    assert set(digests(used(tools(files=files), again))) == {made[-1].metadata[STATE_DIGEST]}


def test_a_repeated_call_that_leaves_other_files_is_raised() -> None:
    async def first(box: Toolbox) -> list[ToolCall]:
        line = Line(box)
        await line.says("shell", "echo red > note")
        await line.says("act", "import time; open('/w/now', 'w').write(str(time.time_ns()))")
        return line.calls

    made = used(tools(), first)
    with pytest.raises(ToolError, match=r"replay_diverged: act .* had left the state sha256 .* and now left"):
        used(tools(), lambda box: ask(box, "shell", "true", after=made))


def test_a_workspace_of_a_python_program_holds_what_a_server_wrote(files: str) -> None:
    """Digests, files, uploads and scores are those of the state that the last call left."""

    async def main() -> None:
        shell = Shell(files=files)
        (tool,) = server(shell).tools
        session = await tool.open(PROBLEM)
        on = tool.on(session)  # type: ignore[attr-defined]
        wrote = await on.call(WRITE.format("red"))
        score = await score_on_fork(session, {"test": b"cat note; exit 3"}, "sh test")  # type: ignore[arg-type]
        assert (score.output, score.exit_code) == ("red\n", 3)
        assert await session.digest() == wrote.metadata[STATE_DIGEST]  # type: ignore[attr-defined]
        await on.call(WRITE.format("green"))
        assert await session.download("note") == b"red\ngreen\n"  # type: ignore[attr-defined]
        await on.call(WRITE.format("blue"))
        await session.upload({"more": b""})  # type: ignore[attr-defined]
        assert (await session.call("ls; cat note")).text == "more\nnote\nred\ngreen\nblue\n"
        await session.close()
        with pytest.raises(ToolError, match="the workspace is closed"):
            await on.call(READ)
        await all_ended(tool)
        assert shell.workspaces.store.num_layers == 1, "more than the start folder is kept"
        await shell.let_go()

    asyncio.run(main())


# -- one actor at a time ----------------------------------------------------------------------------------------------


def test_a_server_keeps_its_memory_until_another_tool_acts() -> None:
    """And loses it then in every branch: in those that were forked before, and in a replay."""
    count = "x = globals().get('x', 0) + 1; out = x"

    async def count_up(line: Line) -> list[str]:
        calls = (("act", count), ("act", count), ("shell", "true"), ("act", count), ("act", count), ("other", "pass"))
        return [await line.says(*call) for call in calls] + [await line.says("act", count)]

    async def work(box: Toolbox) -> list[list[str]]:
        root = Line(box)
        await root.says("act", count)
        return [await count_up(root.fork()) for _ in range(2)]

    seen = used(tools(), work)
    assert [[text for text in line if text.isdigit()] for line in seen] == [["2", "3", "1", "2", "1"]] * 2
    assert used(tools(), work, max_parked=1) == seen


def test_a_server_has_ended_when_another_acts() -> None:
    async def work(box: Toolbox) -> None:
        line = Line(box)
        await line.says("act", "pass")
        running = set(acting_processes(OURS))
        await line.says("shell", "true")
        until(lambda: not running & set(acting_processes(OURS)))
        await line.says("other", "pass")
        await line.says("act", "pass")
        assert len(running) == 1

    used(tools(), work)


def test_what_a_server_writes_when_it_ends_reaches_no_branch(files: str) -> None:
    """The state is that behind the last call, as its digest says, in each branch alike."""

    async def work(box: Toolbox) -> list[str]:
        root = Line(box)
        await root.says("act", LATE + WRITE.format("red"))
        return [await root.fork().says(*call) for call in (("shell", "cat note"), ("other", READ)) * 2]

    assert used(tools(files=files), work) == ["red\n", "['red']"] * 2


def test_a_command_that_times_out_leaves_what_the_server_had_written(files: str) -> None:
    async def main() -> None:
        shell = Shell(files=files, timeout_s=0.5)
        (tool,) = server(shell).tools
        session = await shell.open(PROBLEM)
        on = tool.on(session)  # type: ignore[attr-defined]
        wrote = await on.call(WRITE.format("red"))
        late = await session.call("echo late >> note; sleep 60")
        assert (late.status, late.metadata[STATE_DIGEST]) == ("timeout", wrote.metadata[STATE_DIGEST])
        assert (await on.call(READ)).text == "['red']"
        await session.close()
        await shell.let_go()

    asyncio.run(main())

    async def work(box: Toolbox) -> list[ToolCall]:
        line = Line(box)
        await line.says("act", WRITE.format("red"))
        return [await line.call("shell", "echo late >> note; sleep 60"), await line.call("act", READ)]

    late, read = used(tools(files=files, timeout_s=0.5), work)
    assert (late.status, read.result) == ("timeout", "['red']")


def test_a_server_that_dies_leaves_the_state_before_the_call(files: str) -> None:
    async def work(box: Toolbox) -> list[ToolCall]:
        line = Line(box)
        await line.says("shell", "echo red > note")
        await line.says("act", WRITE.format("green"))
        died = await line.call("act", f"import os; {WRITE.format('late')}; os._exit(3)")
        return [died, await line.call("shell", "cat note"), await line.call("act", READ)]

    died, shown, read = used(tools(files=files), work, max_retries=0)
    assert (died.status, shown.result, read.result) == ("crashed", "red\ngreen\n", "['red', 'green']")


def test_a_server_that_died_between_calls_leaves_its_files() -> None:
    async def work(box: Toolbox) -> str:
        line = Line(box)
        await line.says(
            "act", f"import os, threading; {WRITE.format('red')}; threading.Timer(0.1, os._exit, (0,)).start()"
        )
        tool = box._tools["act"]
        (state,) = tool.source.branches.idle  # type: ignore[attr-defined]
        await state.connection._is_to_close.wait()
        return await line.says("shell", "cat note")

    assert used(tools(), work) == "red\n"


@pytest.mark.hostile
def test_a_server_beyond_a_limit_is_killed_and_the_state_is_that_before(files: str) -> None:
    """The limits of the shell hold for the server, which may run on for longer than a command."""

    async def work(box: Toolbox) -> list[ToolCall]:
        line = Line(box)
        await line.says("shell", "echo red > note")
        await line.says("act", "import time\nwhile time.process_time() < 2.5: pass")
        killed = [
            await line.call("act", f"{WRITE.format('late')}; x = bytearray(300 << 20); import time; time.sleep(60)"),
            await line.call("act", FILL.format("/w")),
        ]
        return [*killed, await line.call("shell", "ls; cat note"), await line.call("act", READ)]

    given = {**SMALL, "disk_bytes": BYTES, "cpu_s": 1.0, "files": files}
    *killed, shown, read = used(tools(**given), work, max_retries=0, deadline_s=90.0)
    for call, reason in zip(killed, ("96 MiB of memory", f"its files hold more than {BYTES} bytes"), strict=True):
        assert call.status == "crashed" and "[killed: it" in call.result and reason in call.result
    assert (shown.result, read.result) == ("note\nred\n", "['red']")


def test_a_folder_that_changes_while_it_is_copied_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that writes while no call is in flight has no state that a command could start on."""
    seen = iter(range(1000))

    async def main() -> None:
        shell = Shell()
        (tool,) = server(shell).tools
        session = await shell.open(PROBLEM)
        await tool.on(session).call(WRITE.format("red"))  # type: ignore[attr-defined]
        monkeypatch.setattr("ramify.tools.mcp_workspaces._stamps", lambda draft: next(seen))  # As if it always wrote.
        with pytest.raises(ToolError, match="its files are written while no call is in flight"):
            await session.call("cat note")
        await session.close()
        await shell.let_go()

    asyncio.run(main())


@pytest.mark.hostile
def test_a_cancelled_call_leaves_nothing() -> None:
    """Also if it is cancelled while one tool takes the files from the other."""

    async def main() -> None:
        shell = Shell()
        both = [tool for name in ("one", "two") for tool in server(shell, name=name).tools]
        for after_s in (0.0, 0.005, 0.02, 0.1, 0.4):
            session = await shell.open(PROBLEM)
            one, two = (tool.on(session) for tool in both)  # type: ignore[attr-defined]
            await one.call(WRITE.format("red"))
            for work in (session.call("sleep 60"), two.call("import time; time.sleep(60)")):
                task = asyncio.create_task(work)
                await asyncio.wait({task}, timeout=after_s)
                task.cancel()
                await asyncio.wait({task})
            assert (await session.call("cat note")).text == "red\n"
            await session.close()
        await all_ended(*both)
        assert shell.workspaces.store.num_layers == 1, "more than the start folder is kept"
        await shell.let_go()

    asyncio.run(main())
    assert not acting_processes(OURS)


@pytest.mark.hostile
def test_nothing_is_left_of_a_server_that_will_not_end() -> None:
    """Nor does a command, or the end of the run, wait until it does."""
    code = (
        "import os, signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
        "if not os.fork():\n  os.setsid(); time.sleep(600)\n"
        "import threading; threading.Thread(target=time.sleep, args=(600,)).start()"
    )

    async def work(box: Toolbox) -> set[int]:
        line = Line(box)
        await line.says("act", code)
        began = asyncio.get_running_loop().time()
        await line.fork().says("shell", "true")
        assert asyncio.get_running_loop().time() - began < 4.0  # Its end takes at least that long.
        await line.says("act", code)
        return set(acting_processes(OURS))

    pids = used(tools(), work)
    assert len(pids) >= 2
    until(lambda: not any(is_alive(pid) for pid in pids))


# -- whole runs -------------------------------------------------------------------------------------------------------

PLAYER = f"""
import json, random
from ramify.testing import Scripted

MOVES = ("echo s >> note; cat note", "cat note", "rm -f note", "mkdir -p a; ls")
CODES = ({WRITE.format("m")!r}, {READ!r}, "x = globals().get('x', 0) + 1; out = x")


def says(turn):
    draw = random.Random(turn.seed)
    if turn.context.count("<result>") >= 5:
        return "<answer>1</answer>"
    if draw.random() < 0.5:
        return f"<shell>{{draw.choice(MOVES)}}</shell>"
    name = draw.choice(("act", "other"))
    return f"<{{name}}>{{json.dumps({{'code': draw.choice(CODES)}})}}</{{name}}>"


class Player(Scripted):
    def __init__(self):
        super().__init__(says)
"""


def entries() -> Mapping[str, ToolConfig]:
    options = {"command": PYTHON, "args": ["-c", ACTING], "workdir": "workspace", "workspace": "shell"}
    two = {**options, "rename": {"act": "other"}}
    return {
        "one": ToolConfig(kind="mcp", options=options),
        "shell": ToolConfig(),
        "two": ToolConfig(kind="mcp", options=two),
    }


def test_a_saved_run_that_was_cut_resumes_to_the_same_texts(tmp_path: Path) -> None:
    (tmp_path / "player.py").write_text(PLAYER)
    engine = EngineConfig(name=f"{tmp_path / 'player.py'}:Player")
    growth = GrowthConfig(max_turns=6, max_response_tokens=4000)
    config = RunConfig(prompts=1, engine=engine, growth=growth, tools=ToolsConfig(use=entries()))
    begin(config, tmp_path / "run")
    whole = Saved.open(tmp_path / "run").tree(0)
    assert whole is not None
    calls = [call for leaf in whole.leaves() for call in whole.branch(leaf).tool_calls]
    assert {call.tool for call in calls} == {"act", "other", "shell"}
    assert {call.status for call in calls} <= STATEFUL
    assert len(resumed_at_cuts(tmp_path / "run", tenths(tmp_path / "run", (3, 5, 7, 9)))) == 4


# -- options ----------------------------------------------------------------------------------------------------------


def test_a_server_is_asked_for_its_tools_behind_the_walls_of_the_shell(own_folder: Path) -> None:
    """The options of the shell hold, such as its readable folders, whichever entry comes first."""
    (own_folder / "open").mkdir()
    (own_folder / "open" / "server.py").write_text(ACTING)
    options = {"command": PYTHON, "args": [str(own_folder / "open" / "server.py")], "workdir": "workspace"}
    use = {
        "files": ToolConfig(kind="mcp", options={**options, "workspace": "sh"}),
        "sh": ToolConfig(kind="shell", options={"readable": [str(own_folder / "open")]}),
    }
    with pytest.raises(ConfigError, match=r"readable names .*: /w and /tmp are the branch's own"):
        tools_of(Countdown(), ToolsConfig(use=use))
    use["sh"] = ToolConfig(kind="shell")
    with pytest.raises(ConfigError, match=r"No such file.*what `sh.readable` names"):
        with_listed(ToolsConfig(use=use))
    use["files"] = ToolConfig(kind="mcp", options={**options, "args": ["-c", ACTING], "workspace": "sh"})
    kept = with_listed(ToolsConfig(use=use))
    assert "listed" in kept.use["files"].options and kept.use["files"].options["workspace"] == "sh"
    made = {tool.name: tool for tool in tools_of(Countdown(), kept)}
    assert made["act"].state == "sh" and made["act"].branching == made["sh"].branching == "fork"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "shell", "message"),
    [
        ({"workspace": "shel"}, {}, "workspace = 'shel' names no tool `shell` of tools.use; did you mean 'shell'?"),
        ({"workspace": "files"}, {}, "workspace = 'files' names no tool `shell` of tools.use; known: shell"),
        ({"workdir": "branch"}, {}, "workspace = 'shell': there is none; set workdir = \"workspace\""),
        ({"template": "x"}, {}, "in the workspace of 'shell' its options hold; take these out"),
        ({"max_workdir_bytes": 1}, {}, "in the workspace of 'shell' its options hold; take these out"),
        ({"branching": {"act": "replay"}}, {}, "loses what it keeps in memory, so allowed is 'fork'"),
        ({"branching": {"act": "refuse"}}, {}, "loses what it keeps in memory, so allowed is 'fork'"),
        ({}, {"hosts": ["box"]}, "take `hosts` and `walls` out"),
        ({}, {"walls": "podman"}, "take `hosts` and `walls` out"),
    ],
    ids=json.dumps,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], shell: dict[str, Any], message: str) -> None:
    given = {"command": "x", "workdir": "workspace", "workspace": "shell", **options}
    use = {"files": ToolConfig(kind="mcp", options=given), "shell": ToolConfig(options=shell)}
    with pytest.raises(ConfigError) as caught:
        tools_of(Countdown(), ToolsConfig(use=use))
    assert message in str(caught.value)


def test_a_server_alone_does_not_find_the_shell() -> None:
    with pytest.raises(ConfigError, match="workspace = 'shell': a run finds this tool; without one, call `joined`"):
        _ = Mcp(command=PYTHON, workdir="workspace", workspace="shell").tools


def test_a_run_grows_with_both(own_folder: Path) -> None:
    """As a user writes it: the start folder is that of the shell."""
    (own_folder / "start").mkdir()
    (own_folder / "start" / "note").write_text("given\n")

    def says(turn: ScriptedTurn) -> str:
        code = json.dumps({"code": f"{READ}; {WRITE.format('m')}"})
        moves = (f"<act>{code}</act>", "<shell>cat note; echo s >> note</shell>", f"<act>{code}</act>")
        count = turn.context.count("<result>")
        return moves[count] if count < len(moves) else "<answer>done</answer>"

    use = {
        "files": {
            "kind": "mcp",
            "options": {"command": PYTHON, "args": ["-c", ACTING], "workdir": "workspace", "workspace": "shell"},
        },
        "shell": {"options": {"workspace": str(own_folder / "start")}},
    }
    settings = {"strategy__options": {"n": 2}, "growth__max_response_tokens": 2000, "growth__max_turns": 4}
    rollout = ramify.rollout_sync(["Note it."], engine=Scripted(says), tools__use=use, **settings)
    for tree in rollout.trees:
        for leaf in tree.leaves():
            said = [call.result for call in tree.branch(leaf).tool_calls]
            assert said == ["['given']", "given\nm\n", "['given', 'm', 's']"]
