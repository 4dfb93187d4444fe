"""MCP servers that keep files: branches of a tree share none of them unless they were told to."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.tools.mcp_calls import PROBLEM, ask, forked_reads, is_alive, until, used

from ramify import rollout_sync
from ramify.config.configure import from_toml
from ramify.config.run_config import EngineConfig, RunConfig, ToolConfig, ToolsConfig
from ramify.core.errors import ConfigError, ToolError
from ramify.core.segment import ToolCall
from ramify.core.tool import STATE_DIGEST, Tool
from ramify.runner.folder import begin, resume
from ramify.runner.saved import Saved
from ramify.runner.toolbox import Toolbox
from ramify.testing import Scripted, check_tool
from ramify.tools.mcp import Mcp
from ramify.tools.mcp_folders import Folders, base_folder

pytestmark = pytest.mark.hostile
SERVER = str(Path(__file__).with_name("notes_server.py"))
LISTED: dict[tuple[str, ...], str] = {}


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees only the folders that it left itself."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


def notes(*ways: str, **options: Any) -> Mcp:
    """A server with a working folder, which was asked once for its tools."""
    args = [SERVER, "{branch}/notes.txt", *ways]
    if ways not in LISTED:
        LISTED[ways] = str(Mcp(command=sys.executable, args=args, workdir="branch").recorded()["listed"])
    return Mcp(**{"command": sys.executable, "args": args, "workdir": "branch", "listed": LISTED[ways], **options})


def tools_of(made: Mcp) -> dict[str, Tool]:
    return {tool.name: tool for tool in made.tools}


def shared(file: Path, *ways: str, **options: Any) -> Mcp:
    """The same server without a working folder: all its processes keep one file."""
    return Mcp(command=sys.executable, args=[SERVER, str(file), *ways], **options)


def left() -> list[str]:
    """What is left of the working folders."""
    return [path.name for path in base_folder().rglob("*")]


READ = ["root red", "root green", "root blue", "root"]


# -- what branches see ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ways", "options"),
    [
        ([], {}),
        ([], {"branching": {"write": "fork"}}),
        ([], {"branching": {"write": "replay"}}),
        (["memory"], {}),
        (["clock"], {}),
        (["clock", "memory"], {}),
        (["clock"], {"branching": {"write": "fork"}}),
        (["log"], {}),
        (["absolute"], {"branching": {"write": "fork"}}),
        (["readers"], {}),
        (["log"], {"compare_folder": False}),
    ],
    ids=lambda given: "-".join(map(str, given)) if isinstance(given, list) else json.dumps(given),
)
def test_a_branch_reads_what_it_wrote(ways: list[str], options: dict[str, Any]) -> None:
    """Branches of a server with working folders read their own writes and those before the fork, whatever the server
    declares, and whether it keeps them in files or in memory."""
    assert used(tools_of(notes(*ways, **options)), forked_reads) == READ
    assert left() == []


def test_branches_at_once_read_what_they_wrote() -> None:
    """Branches that call a server at the same time read only their own writes."""

    async def one(box: Toolbox, root: ToolCall, number: int) -> str:
        own = await ask(box, "write", f"n{number}", after=[root])
        return (await ask(box, "read", after=[root, own])).result

    async def work(box: Toolbox) -> list[str]:
        root = await ask(box, "write", "root")
        return await asyncio.gather(*(one(box, root, number) for number in range(6)))

    assert used(tools_of(notes()), work) == [f"root n{number}" for number in range(6)]


def test_a_state_that_was_evicted_is_made_again() -> None:
    """A branch whose session was closed to make room reads what it wrote."""
    assert used(tools_of(notes()), forked_reads, max_parked=1) == READ


def test_a_server_that_was_killed_between_calls_is_made_again() -> None:
    """A branch whose server was killed between two calls reads what it wrote."""

    async def work(box: Toolbox) -> str:
        one = await ask(box, "write", "red")
        where = await ask(box, "where", "pid", after=[one])
        os.kill(int(where.result), signal.SIGKILL)
        until(lambda: not is_alive(int(where.result)))
        return (await ask(box, "read", after=[one])).result

    assert used(tools_of(notes()), work) == "red"


def test_servers_that_wait_are_ended_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch whose waiting server was ended, because too many waited, reads what it wrote."""
    monkeypatch.setattr("ramify.tools.mcp_branches.MAX_IDLE", 1)
    assert used(tools_of(notes()), forked_reads) == READ


def test_calls_that_take_long_are_not_repeated_where_a_copy_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch whose calls take long to repeat starts on a copy of the folder, and reads what it wrote."""
    monkeypatch.setattr("ramify.tools.mcp_branches.REPEAT_S", 0.0)
    assert used(tools_of(notes()), forked_reads) == READ


def test_the_server_with_a_folder_keeps_the_contract_of_tools() -> None:
    """Two forks of a server with working folders that act differently are as two replays of their calls."""
    (write,) = notes(only=["write"]).tools
    check_tool(lambda: tools_of(notes(only=["write"]))["write"], calls=("one", "two"), other="four")
    assert write.branching == "fork"


# -- what a run refuses -----------------------------------------------------------------------------------------------


def of_run(made: dict[str, Any]) -> RunConfig:
    return RunConfig(
        prompts=1,
        engine=EngineConfig(name="scripted"),
        tools=ToolsConfig(use={"notes": ToolConfig(kind="mcp", options=made)}),
    )


def options_of(made: Mcp) -> dict[str, Any]:
    kept = {"command": made.command, "args": list(made.args), "url": made.url, "workdir": made.workdir}
    kept |= {"branching": dict(made.branching), "branches_share_state": made.branches_share_state}
    kept |= {"template": made.template, "listed": made.listed, "only": made.only}
    return {key: value for key, value in kept.items() if value}


@pytest.mark.parametrize("branching", [{}, {"write": "replay"}, {"write": "refuse"}])
def test_a_server_whose_branches_would_share_is_refused_before_the_run(
    tmp_path: Path, branching: dict[str, Any]
) -> None:
    """A run with a server that may change something, and no working folders, does not start."""
    with pytest.raises(ConfigError) as caught:
        begin(of_run(options_of(shared(tmp_path / "notes.txt", branching=branching))), tmp_path / "run")
    for part in ("'notes'", "'write' may change", 'workdir = "branch"', "{branch}", "branches_share_state = true"):
        assert part in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_server_behind_a_url_is_refused_before_the_run(tmp_path: Path) -> None:
    """A run with a server behind a URL that may change something does not start."""
    options = {"url": "http://127.0.0.1:1/mcp", "listed": str(notes().listed)}
    with pytest.raises(ConfigError, match=r"a server behind a url has no working folder here.*branches_share_state"):
        begin(of_run(options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"branches_share_state": True},
        {"branching": {"write": "share", "read": "share", "where": "share"}},
        {"only": ["read"]},
    ],
    ids=json.dumps,
)
def test_a_run_that_is_told_so_shares(tmp_path: Path, options: dict[str, Any]) -> None:
    """A run whose configuration says that branches share, or whose tools only read, starts without working folders."""
    begin(of_run(options_of(shared(tmp_path / "notes.txt", **options))), tmp_path / "run")
    assert len(list(Saved.open(tmp_path / "run").trees())) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "http://127.0.0.1", "workdir": "branch"}, "workdir = 'branch': a server of a url takes none"),
        ({"command": "x", "workdir": "tree"}, 'workdir = \'tree\': allowed are "branch" and "workspace"'),
        ({"command": "x", "template": "t"}, "set workdir"),
        ({"command": "x", "args": ["{branch}/x"]}, "there is no {branch} without a working folder"),
        ({"command": "x", "env": {"FILE": "{branch}/x"}}, "there is no {branch} without a working folder"),
        ({"command": "x", "workdir": "branch", "branches_share_state": True}, "either share or do not"),
        ({"command": "x", "workdir": "branch", "branching": {"a": "share"}}, "allowed are 'refuse', 'replay', 'fork'"),
        ({"command": "x", "workdir": "branch", "max_workdir_bytes": 0}, "it must be above 0"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    """Options of a server that contradict each other are refused with what is allowed."""
    with pytest.raises(ConfigError) as caught:
        Mcp(**options)
    assert message in str(caught.value)


# -- templates --------------------------------------------------------------------------------------------------------


def test_every_branch_begins_with_the_template(tmp_path: Path) -> None:
    """Every branch begins with a copy of the template, which no branch changes."""
    template = tmp_path / "template"
    (template / "sub").mkdir(parents=True)
    (template / "notes.txt").write_text("given\n")
    (template / "sub" / "link").symlink_to("../notes.txt")
    (template / "own").symlink_to(template / "notes.txt")
    made = notes(template=str(template))
    assert used(tools_of(made), forked_reads) == [f"given {said}" for said in READ]
    assert (template / "notes.txt").read_text() == "given\n"


def _link_out(top: Path) -> None:
    (top / "out").symlink_to("/etc")


def _link_up(top: Path) -> None:
    (top / "sub").mkdir()
    (top / "sub" / "up").symlink_to("../../other")


def _link_by_link(top: Path) -> None:
    (top / "deep" / "er").mkdir(parents=True)
    (top / "in").symlink_to("deep/er")
    (top / "out").symlink_to("in/../../../x")


def _socket(top: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(top)
        made.bind("s")
        os.chdir(here)


def _hole(top: Path) -> None:
    with (top / "hole").open("wb") as file:
        file.truncate(1 << 40)


def _loop(top: Path) -> None:
    (top / "loop").symlink_to("loop")


def _many(top: Path) -> None:
    for number in range(30):
        (top / str(number)).touch()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_link_out, "the link 'out' leads to '/etc', out of the folder"),
        (_link_up, "the link 'sub/up' leads to '../../other', out of the folder"),
        (_link_by_link, "the link 'out' leads to"),
        (_loop, "the link 'loop' leads nowhere"),
        (lambda top: os.mkfifo(top / "pipe"), "'pipe' is no file, folder or link: take it out"),
        (_socket, "'s' is no file, folder or link"),
        (_hole, "it holds more than 268435456 bytes, and every branch has a copy of it; max_workdir_bytes allows more"),
        (_many, "it holds more than 20 files"),
        (shutil.rmtree, "is no folder"),
    ],
    ids=["link out", "link up", "link by link", "loop", "pipe", "socket", "hole", "many", "none"],
)
def test_a_template_that_cannot_be_copied_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, message: str
) -> None:
    """A template with links out of it, pipes, sockets or too much in it is refused before the run."""
    monkeypatch.setattr("ramify.tools.mcp_folders.MAX_FILES", 20)
    template = tmp_path / "template"
    template.mkdir()
    spoil(template)
    with pytest.raises(ConfigError) as caught:
        begin(of_run(options_of(notes(template=str(template)))), tmp_path / "run")
    assert message in str(caught.value)
    assert "'mcp'" in str(caught.value) or "'notes'" in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert left() == []


def test_a_template_that_holds_the_copies_is_refused(tmp_path: Path) -> None:
    """A template in which its own copies would lie is refused."""
    with pytest.raises(ConfigError, match="where the copies of it are made"):
        begin(of_run(options_of(notes(template=str(tmp_path)))), tmp_path / "run")


def test_a_template_that_changed_is_refused_at_resume(tmp_path: Path) -> None:
    """A run is not resumed with another template than it was begun with."""
    template = tmp_path / "template"
    template.mkdir()
    begin(of_run(options_of(notes(template=str(template)))), tmp_path / "run")
    (template / "new").touch()
    with pytest.raises(ConfigError, match=r"template = .* has changed since the run began"):
        resume(tmp_path / "run")
    assert len(list(Saved.open(tmp_path / "run").trees())) == 1, "it can still be read"
    shutil.rmtree(template)
    assert len(list(Saved.open(tmp_path / "run").trees())) == 1
    assert from_toml((tmp_path / "run" / "config.toml").read_text()).tools.use["notes"].options["template_sha256"]


# -- paths ------------------------------------------------------------------------------------------------------------


def test_no_text_names_the_folder_of_a_branch() -> None:
    """Neither results nor errors nor metadata name the path of a branch's folder, and the model can name it itself."""

    async def work(box: Toolbox) -> list[ToolCall]:
        one = await ask(box, "write", "see /workdir/notes.txt, not /home/workdir/x")
        calls = [one, *[await ask(box, "where", thing, after=[one]) for thing in ("cwd", "tmp", "fault", "die")]]
        return [*calls, await ask(box, "read", after=[one])]

    wrote, cwd, tmp, fault, died, read = used(tools_of(notes()), work, max_retries=0)
    assert wrote.result.startswith("note 1 in /workdir/notes.txt")
    assert (cwd.result, tmp.result) == ("/workdir", "/tmp")
    assert "no such file: /workdir/x" in fault.result
    assert died.status == "crashed"
    assert "lost /workdir" in died.result
    assert read.result == "see /workdir/notes.txt, not /home/workdir/x"
    base = str(base_folder())
    for call in (wrote, cwd, tmp, fault, died, read):
        assert base not in call.result + json.dumps(call.metadata)


def test_a_binary_file_that_names_its_folder_is_not_copied(tmp_path: Path) -> None:
    """A file that would lead a copy back into another branch is an error that says so."""
    folders = Folders(None, max_bytes=1 << 20)
    one, two = folders.new(), folders.new()
    folders.fill(one)
    (one.path / "text").write_text(f"{one.path}/x")
    (one.path / "link").symlink_to(one.path / "text")
    folders.fill(two, one)
    assert folders.digest(one.path) == folders.digest(two.path)
    folders.settle(two)
    assert (two.path / "text").read_text() == f"{two.path}/x"
    assert (two.path / "link").readlink() == two.path / "text"
    (two.path / "binary").write_bytes(b"\0" + str(one.path).encode())
    with pytest.raises(Exception, match="'binary' holds the path of its branch's folder and is no text"):
        folders.settle(two)
    folders.close()


# -- digests ----------------------------------------------------------------------------------------------------------


def test_a_digest_is_of_names_modes_contents_and_links(tmp_path: Path) -> None:
    """The digest of a folder is that of its copy, and changes with any name, mode, content or link target."""
    folders = Folders(None, max_bytes=1 << 20)
    top = tmp_path / "top"
    (top / "sub" / "empty").mkdir(parents=True)
    (top / "sub" / "file").write_text("one")
    (top / "link").symlink_to("sub")
    seen = [folders.digest(top)]

    def changed() -> None:
        seen.append(folders.digest(top))
        assert seen[-1] not in seen[:-1]

    shutil.copytree(top, tmp_path / "copy", symlinks=True)
    os.utime(top / "sub" / "file", (1, 1))
    assert folders.digest(tmp_path / "copy") == seen[0] == folders.digest(top)
    (top / "sub" / "file").write_text("two")
    changed()
    (top / "sub" / "file").chmod(0o700)
    changed()
    (top / "link").unlink()
    (top / "link").symlink_to("sub/file")
    changed()
    (top / "sub" / "empty").rmdir()
    changed()
    (top / "sub" / "file").rename(top / "sub" / "elif")
    changed()


def test_a_replay_that_leaves_other_files_is_raised() -> None:
    """A replay that says the same but leaves other files in the folder is not taken for the state."""

    async def first(box: Toolbox) -> ToolCall:
        return await ask(box, "write", "red")

    was = used(tools_of(notes("log")), first)
    assert re.fullmatch("[0-9a-f]{64}", was.metadata[STATE_DIGEST])

    async def again(box: Toolbox) -> str:
        return (await ask(box, "read", after=[was])).result

    with pytest.raises(ToolError, match=r"replay_diverged: write 'red' had left the state sha256 .* and now left"):
        used(tools_of(notes("log")), again)
    plain = used(tools_of(notes("log", compare_folder=False)), first)
    assert STATE_DIGEST not in plain.metadata


# -- what is left -----------------------------------------------------------------------------------------------------


def test_a_cancelled_call_leaves_no_folder() -> None:
    """A call that is cancelled at any time leaves neither its folder nor its server."""

    async def cancelled(work: Coroutine[Any, Any, Any], after_s: float) -> None:
        task = asyncio.create_task(work)
        await asyncio.wait({task}, timeout=after_s)
        task.cancel()
        await asyncio.wait({task})

    async def main() -> None:
        tool = tools_of(notes())["write"]
        for after_s in (0.0, 0.005, 0.05, 0.5):
            session = await tool.open(PROBLEM)
            await cancelled(session.call("red"), after_s)
            await cancelled(session.close(), 0.01)
        source = tool.source  # type: ignore[attr-defined]
        while source.branches.ending:
            await asyncio.wait(set(source.branches.ending))
        assert [path.name for path in base_folder().glob("*/*") if path.name != "template"] == []
        await tool.let_go()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert left() == []


KILLED = """
import sys, tempfile
tempfile.tempdir = {temporary!r}
from ramify.config.configure import from_toml
from ramify.runner.folder import begin
begin(from_toml({config!r}), {path!r})
"""


def test_the_folders_of_a_killed_run_are_removed_at_resume(tmp_path: Path) -> None:
    """The working folders of a run that was killed are found and removed when it is resumed, and those of a run that
    lives are not."""
    base, living = base_folder(), Folders(None, max_bytes=1)
    kept = living.new()
    living.fill(kept)
    child = (
        f"import tempfile; tempfile.tempdir = {str(tmp_path / 'temporary')!r}\n"
        "from ramify.tools.mcp_folders import Folders\n"
        "folders = Folders(None, max_bytes=1); folder = folders.new(); folders.fill(folder)\n"
        "print(folder.home, flush=True); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", child], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None and process.stdin is not None
    with process.stdout, process.stdin:
        killed = Path(process.stdout.readline().strip())
        begin(of_run(options_of(notes())), tmp_path / "run")
        assert killed.exists() and kept.home.exists()
        process.kill()
        process.wait()
    assert killed.exists()
    resume(tmp_path / "run")
    assert not killed.parent.exists()
    assert kept.home.exists()
    living.close()
    assert list(base.iterdir()) == []


# -- whole runs -------------------------------------------------------------------------------------------------------


def say(turn: Any) -> str:
    """Writes and reads, as the seed says, and answers behind the fourth result."""
    if turn.context.count("<result>") >= 4:
        return "<answer>done</answer>"
    return f"<write>w{turn.seed % 100000}</write>" if turn.seed >> 20 & 1 else "<read>{}</read>"


def wrong_reads(trees: Sequence[Any]) -> tuple[int, int]:
    """(reads, reads that are not exactly what the branch wrote)."""
    calls = {}
    for tree in trees:
        for leaf in tree.leaves():
            wrote: list[str] = []
            for call in tree.branch(leaf).tool_calls:
                if call.tool == "write":
                    wrote.append(call.arguments)
                else:
                    calls[id(call)] = call.status == "ok" or not wrote, call.result.split() == wrote
    return len(calls), sum(not (is_read and is_right) for is_read, is_right in calls.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset", ["aepo", "arpo", "at2po", "chains", "self_consistency", "tree_grpo", "treepo", "treerl"]
)
def test_no_preset_reads_what_another_branch_wrote(preset: str) -> None:
    """Under every preset that forks, a branch reads exactly what it wrote."""
    use = {"notes": {"kind": "mcp", "options": options_of(notes(only=["write", "read"]))}}
    result = rollout_sync(["Note it."], preset=preset, engine=Scripted(say), tools__use=use, growth__max_turns=5)
    num_reads, num_wrong = wrong_reads(result.trees)
    assert num_reads > 3
    assert num_wrong == 0
    assert left() == []


def test_the_same_run_reads_other_branches_where_it_is_told_to_share(tmp_path: Path) -> None:
    """The check of wrong reads finds them where branches share."""
    made = shared(tmp_path / "notes.txt", branches_share_state=True, only=["write", "read"])
    use = {"notes": {"kind": "mcp", "options": options_of(made)}}
    result = rollout_sync(["Note it."], preset="chains", engine=Scripted(say), tools__use=use, growth__max_turns=5)
    assert wrong_reads(result.trees)[1] > 0


def test_an_object_for_one_text_is_unwrapped() -> None:
    """An object that a model writes between the tags of a tool of one text is taken as that text."""

    async def work(box: Toolbox) -> list[ToolCall]:
        one = await ask(box, "write", {"note": "red"})
        return [one, await ask(box, "write", '{"note": 3}', after=[one]), await ask(box, "read", after=[one])]

    one, odd, read = used(tools_of(notes()), work)
    assert (one.arguments, odd.arguments, read.result) == ("red", '{"note": 3}', "red")
