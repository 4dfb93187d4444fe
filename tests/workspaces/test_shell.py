"""Commands on workspaces: what they see, what a branch keeps, what a fork shares, and what is refused."""

import asyncio
import os
import resource
import socket
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.workspaces.parts import (
    BACK_ENDS,
    EVERYWHERE,
    HERE,
    REMOTE,
    STRAYS,
    digest,
    exit_code,
    open_folder,
    options_of,
    said,
    shell,
)

from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.core.tool import Lasting, Sandboxed
from ramify.workspaces.back_ends import MAX_LAYERS
from ramify.workspaces.layers import base_folder
from ramify.workspaces.shell import Shell, check, open_shell, score_on_fork
from ramify.workspaces.shell_order import MAX_COMMAND_BYTES, told
from ramify.workspaces.shell_session import ShellSession


@pytest_asyncio.fixture(params=EVERYWHERE)
async def session(request: pytest.FixtureRequest) -> AsyncIterator[ShellSession]:
    async with shell(**options_of(request.param), timeout_s=20.0) as opened:
        yield opened


@pytest_asyncio.fixture(params=HERE)
async def here(request: pytest.FixtureRequest) -> AsyncIterator[ShellSession]:
    """A session whose files lie on this machine."""
    async with shell(**options_of(request.param), timeout_s=20.0) as opened:
        assert isinstance(opened, ShellSession)
        yield opened


@pytest.fixture
def passable() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


# -- one branch --------------------------------------------------------------------------------------------------------


async def test_files_stay_between_calls(session: ShellSession):
    await said(session, "echo one > a")
    assert await said(session, "cat a; pwd; ls /w") == "one\n/w\na\n"


async def test_the_folder_and_exported_variables_are_carried(session: ShellSession):
    await said(session, "mkdir -p 'd d'; cd 'd d'; export X=$'a\\nb' Y=; Z=1")
    assert await said(session, 'pwd; echo "$X:${Y-none}:${Z-none}"') == "/w/d d\na\nb::none\n"
    await said(session, "unset X")
    assert await said(session, "echo ${X-none}") == "none\n"


async def test_the_folder_is_carried_out_of_a_command_that_exits(session: ShellSession):
    result = await session.call("mkdir d; cd d; exit 7")
    assert (result.status, exit_code(result), result.text) == ("error", 7, "[exit code 7]")
    assert await said(session, "pwd") == "/w/d\n"


async def test_a_folder_that_is_gone_leads_back_to_w(session: ShellSession):
    await said(session, "mkdir d; cd d; rmdir ../d")
    assert await said(session, "pwd") == "/w\n"


async def test_both_streams_come_in_order(session: ShellSession):
    assert await said(session, "echo a; echo b >&2; echo c") == "a\nb\nc\n"


async def test_a_call_without_output_is_ok_and_its_digest_is_that_of_the_files(session: ShellSession):
    first, second = await session.call("true"), await session.call("echo > a")
    assert first.text == "" and exit_code(first) == 0
    assert digest(first) != digest(second) == await session.digest()


async def test_tmp_is_kept_and_not_in_the_digest(session: ShellSession):
    before = await session.digest()
    await said(session, "mktemp; echo x > /tmp/x")
    assert await said(session, "cat /tmp/x") == "x\n"
    assert await session.digest() == before


async def test_a_touched_file_keeps_its_new_time(session: ShellSession):
    await said(session, "echo > a; touch -d 2001-01-01 a")
    before = await session.digest()
    await said(session, "touch -d 2011-11-11 a")
    assert await said(session, "date -r a +%Y") == "2011\n"
    assert await session.digest() == before


@pytest.mark.slow
@pytest.mark.parametrize("place", ["auto", *REMOTE])
async def test_a_timeout_kills_the_whole_tree_and_leaves_the_state_before(place: str):
    async with shell(**options_of(place), timeout_s=1.0) as session:
        await said(session, "echo one > a; export X=1")
        before = await session.digest()
        result = await session.call("echo two > a; cd /; export X=2; echo so far; sleep 60 & sleep 60")
        assert (result.status, result.text) == ("timeout", "so far\n[timeout]")
        assert digest(result) == before
        assert await said(session, "cat a; pwd; echo $X; " + STRAYS) == "one\n/w\n1\n0\n"


@pytest.mark.parametrize("place", ["auto", *REMOTE])
async def test_output_is_capped_and_says_how_much_was_left_out(place: str):
    async with shell(**options_of(place), max_output_bytes=1000) as session:
        text = await said(session, "echo first; seq 100000; echo last")
        assert len(text) < 1100 and text.startswith("first\n1\n") and text.endswith("100000\nlast\n")
        assert "bytes left out" in text


async def test_a_cancelled_call_is_killed_and_the_state_is_that_before(session: ShellSession):
    await said(session, "echo one > a")
    began = time.monotonic()
    for patience_s in (0.0, 0.01, 0.3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.call("echo two > a; mkfifo p; echo > p"), patience_s)
    assert time.monotonic() - began < 15
    assert await said(session, "cat a; ls") == "one\na\n"


async def test_nothing_stays_on_disk_after_the_run(passable: Path):
    async with shell(folder=str(passable)) as session:
        await said(session, "mkdir -p a/b; echo > a/b/c")
        fork = await session.fork()
        await said(fork, "rm -r a")
    assert not os.listdir(base_folder(passable))  # noqa: PTH208 - one look


async def test_layers_that_no_branch_uses_are_removed(here: ShellSession):
    for number in range(5):
        fork = await here.fork()
        await said(fork, f"echo {number} > a")
        await fork.close()
        await fork.close()
    assert here._workspaces.store.num_layers <= 1


async def test_a_long_branch_stays_under_the_most_layers():
    async with shell(files="overlay") as session:
        for number in range(MAX_LAYERS + 4):
            await session.upload({f"f{number}": b"x"})
        assert len(session.state.layers) <= MAX_LAYERS
        await said(session, "rm f0; echo y > f1; mkdir d")
        assert await said(session, "ls | wc -l; cat f1 f2") == f"{MAX_LAYERS + 4}\ny\nx"


async def test_everyday_programs_do_not_complain(session: ShellSession):
    command = (
        "printf 'b\\na\\n' > f; sed -i s/b/c/ f; cp -a f g; mv g h; tar cf t.tar f h; tar xf t.tar; sort -o f f; cat f;"
        " git init -q r; mkdir -p d/e; cp -rp d x; rm -r d x; find . -name f; timeout 5 true; chmod +x f; install f i;"
        " python3 -c 'import subprocess, tempfile; subprocess.run([\"true\"]); tempfile.mkdtemp()'; ln f k"
    )
    assert await said(session, command) == "a\nc\n./f\n"


async def test_a_pipe_that_nobody_reads_ends_its_writer_without_a_word(session: ShellSession):
    assert await said(session, "yes | head -1; seq 1000000 | head -1") == "y\n1\n"


async def test_variables_that_are_too_large_are_not_carried_and_the_model_is_told(session: ShellSession):
    text = await said(session, "cd /tmp; export X=$(head -c 70000 /dev/zero | tr '\\0' a)")
    assert "variables and working directory not kept" in text
    assert await said(session, "pwd; echo ${#X}") == "/w\n0\n"


async def test_bytecode_with_its_times_does_not_move_the_digest(session: ShellSession):
    await said(session, "echo 'x = 1' > m.py")
    before = await session.digest()
    await said(session, "PYTHONDONTWRITEBYTECODE= python3 -c 'import m'; ls __pycache__")
    assert await session.digest() == before


# -- forks -------------------------------------------------------------------------------------------------------------


async def test_neither_a_fork_nor_its_parent_moves_the_other(session: ShellSession):
    await said(session, "mkdir d; echo one > d/a; echo keep > k; export X=1")
    fork = await session.fork()
    before = await session.digest()
    await said(fork, "rm -r d; mkdir d; echo two > d/b; cd d; export X=2; mv ../k .")
    assert await session.digest() == before
    await said(session, "echo three > d/a")
    assert await said(session, "cat d/a k; ls d; pwd; echo $X") == "three\nkeep\na\n/w\n1\n"
    assert await said(fork, "cat b k; ls; pwd; echo $X") == "two\nkeep\nb\nk\n/w/d\n2\n"


async def test_siblings_run_at_once(session: ShellSession):
    await said(session, "echo 0 > a")
    forks = [await session.fork() for _ in range(6)]
    await asyncio.gather(*(fork.call(f"echo {n} > a; sync; cat a") for n, fork in enumerate(forks)))
    assert [await said(fork, "cat a") for fork in forks] == [f"{n}\n" for n in range(6)]


@pytest.mark.slow
async def test_the_same_commands_leave_the_same_digest_on_every_back_end():
    commands = (
        "mkdir -p a/b; echo one > a/b/c; ln -s nowhere l; mkfifo p; chmod 600 a/b/c",
        "git init -q r; cd r; git config user.email a@b; git config user.name n; echo x > f; git add f",
        "git commit -qm m",
        "rm -r /w/a; mkdir /w/a; git tag t; git checkout -q -b other; git tag -a u -m u; git add .",
    )
    found: list[list[str]] = []
    for second, back_end in enumerate((*BACK_ENDS, *BACK_ENDS)):
        async with shell(files=back_end) as session:
            await said(session, f"export GIT_COMMITTER_DATE='{1_000_000_000 + second} +0000'")
            found.append([digest(await session.call(command)) for command in commands])
    assert len({tuple(each) for each in found}) == 1 and len(set(found[0])) == 4


async def test_scores_are_made_on_a_fork_that_the_branch_never_sees(session: ShellSession):
    await said(session, "echo 'def f(): return 1' > m.py; export X=1; echo > /tmp/left; mkdir d; cd d")
    before = await session.digest()
    test = (
        b"import os, m\nassert m.f() == 1\nassert 'X' not in os.environ and not os.listdir('/tmp')\nprint('passed')\n"
    )
    score = await score_on_fork(session, {"tests/test_m.py": test}, "PYTHONPATH=. python3 -B tests/test_m.py")
    assert (score.exit_code, score.output, score.status) == (0, "passed\n", "ok")
    assert await session.digest() == before
    assert await said(session, "ls /w; pwd") == "d\nm.py\n/w/d\n"
    failed = await score_on_fork(session, {}, "exit 3")
    assert (failed.exit_code, failed.status) == (3, "error")


@pytest.mark.parametrize("place", ["auto", *REMOTE])
async def test_a_score_that_reaches_the_timeout_has_no_exit_code(place: str):
    async with shell(**options_of(place), timeout_s=0.5) as session:
        score = await score_on_fork(session, {}, "echo hi; sleep 60")
        assert (score.exit_code, score.status, score.output) == (None, "timeout", "hi\n[timeout]")


# -- files in and out --------------------------------------------------------------------------------------------------


async def test_files_go_in_and_out(session: ShellSession):
    await said(session, "mkdir -m 700 d; echo old > d/a")
    await session.upload({"d/a": b"new\0", "/w/e/f/g": b"true"}, mode=0o755)
    assert (
        await said(session, "od -c d/a | head -1; e/f/g; stat -c %a d d/a e")
        == "0000000   n   e   w  \\0\n700\n755\n755\n"
    )
    assert await session.download("d/a") == b"new\0"
    await said(session, "rm -r e; echo -n own >> d/a")
    assert await session.download("/w/d/a") == b"new\0own"


@pytest.mark.parametrize("name", ["", ".", "..", "/", "/etc/passwd", "../x", "a/../../x", "/w", "a\0b"])
async def test_a_path_that_leads_out_is_refused(name: str, session: ShellSession):
    with pytest.raises(ToolError, match="no path of a file in /w"):
        await session.upload({name: b""})
    with pytest.raises(ToolError, match="no path of a file in /w"):
        await session.download(name)


async def test_an_upload_follows_no_link_and_replaces_no_folder(session: ShellSession, tmp_path: Path):
    await said(session, f"ln -s {tmp_path} l; ln -s {tmp_path}/x f; mkdir d")
    for name in ("l/x", "f", "d", "f/y"):
        with pytest.raises(ToolError, match=r"is a (link|folder)"):
            await session.upload({name: b"bad"})
    assert not os.listdir(tmp_path)  # noqa: PTH208 - one look
    assert await said(session, "ls") == "d\nf\nl\n"


async def test_a_download_follows_no_link_and_reads_no_more_than_asked(session: ShellSession):
    await said(session, "ln -s /etc/hostname l; mkfifo p; mkdir d; echo 12345 > a")
    for name, word in (("l", "is a link"), ("p", "is a pipe"), ("d", "is a folder"), ("no", "is missing")):
        with pytest.raises(ToolError, match=word):
            await session.download(name)
    with pytest.raises(ToolError, match="holds 6 bytes; at most 3"):
        await session.download("a", max_bytes=3)


# -- where a branch starts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [*BACK_ENDS, *REMOTE])
async def test_a_problem_names_its_start_folder(place: str, tmp_path: Path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "d" / "run").chmod(0o755)
    (tmp_path / "out").symlink_to("/etc/shadow")
    async with shell(**options_of(place), public={"workspace": str(tmp_path)}) as session:
        assert await said(session, "d/run; ls; readlink out; echo x > d/run; rm out") == "ran\nd\nout\n/etc/shadow\n"
    assert (tmp_path / "d" / "run").read_text().endswith("ran\n") and (tmp_path / "out").is_symlink()


@pytest.mark.parametrize("place", ["auto", *REMOTE])
async def test_a_problem_names_a_tar_file(place: str, tmp_path: Path):
    (tmp_path / "a").write_text("one\n")
    with tarfile.open(tmp_path / "start.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "a", "d/a")
    async with shell(**options_of(place), public={"workspace": str(tmp_path / "start.tar.gz")}) as session:
        assert await said(session, "cat d/a; ls -A") == "one\nd\n"


@pytest.mark.parametrize("place", ["auto", *REMOTE])
async def test_a_tar_file_that_leads_out_is_refused(place: str, tmp_path: Path):
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        archive.add(__file__, "../../bad")
    with pytest.raises(ToolError, match=r"bad\.tar.* cannot be unpacked"):
        async with shell(**options_of(place), public={"workspace": str(tmp_path / "bad.tar")}):
            pass
    assert not (tmp_path.parent / "bad").exists()


@pytest.mark.parametrize(
    ("public", "word"),
    [
        ({"workspace": "/no/such/folder"}, "neither a folder nor a tar file"),
        ({"workspace": 7}, "holds 7: a path is needed"),
        ({"workspace": __file__}, "cannot be unpacked as a tar file"),
        ({"image": "/no/such/folder"}, "is no folder"),
        ({"image": str(Path(__file__).parent)}, "has no /bin/bash and no /bin/sh"),
    ],
)
async def test_a_bad_column_says_what_is_wrong(public: dict[str, Any], word: str):
    with pytest.raises(ToolError, match=word):
        async with shell(public=public):
            pass


@pytest.mark.parametrize("place", ["auto", *REMOTE])
async def test_a_start_folder_that_is_too_large_is_refused(place: str, tmp_path: Path):
    (tmp_path / "a").write_bytes(b"x" * 2000)
    with pytest.raises(ToolError, match="more than 1000 bytes"):
        async with shell(**options_of(place), disk_bytes=1000, public={"workspace": str(tmp_path)}):
            pass
    for name in "bcd":
        (tmp_path / name).touch()
    with pytest.raises(ToolError, match="more than 2 files"):
        async with shell(**options_of(place), max_files=2, public={"workspace": str(tmp_path)}):
            pass


def image_of(folder: Path) -> Path:
    """A root file system that takes its programs from `/usr` of this machine."""
    image = folder / "image"
    for name in ("bin", "etc", "w", "home"):
        (image / name).mkdir(parents=True)
    for name in ("sh", "cat", "ls", "env"):
        (image / "bin" / name).symlink_to(f"/usr/bin/{name}")
    for name in ("lib", "lib64"):
        (image / name).symlink_to(f"usr/{name}")
    (image / "etc" / "mark").write_text("an image\n")
    (image / "w" / "hidden").touch()
    return image


@pytest.mark.parametrize("place", ["auto", *REMOTE])
async def test_an_image_is_the_root_and_read_only(place: str, passable: Path):
    image = image_of(passable)
    async with shell(**options_of(place), public={"image": str(image)}, readable=["/usr"]) as session:
        text = (await session.call("cat /etc/mark; ls /w; echo > /etc/x; pwd")).text
    assert text.startswith("an image\n") and "Read-only file system" in text and text.endswith("/w\n")


# -- the machine -------------------------------------------------------------------------------------------------------


async def test_a_command_sees_no_variable_process_file_or_network_of_this_machine(
    here: ShellSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAMIFY_TEST_SECRET", "tweety")
    (tmp_path / "bird").write_text("tweety")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = await said(
            here,
            f"env; cat {tmp_path}/bird; cat /proc/*/environ | tr '\\0' '\\n'; cat /proc/*/cmdline; ls /root /home;"
            f" (exec 3<>/dev/tcp/127.0.0.1/{port}) && echo rea''ched; hostname; id -u; ls -l /proc/self/fd; true",
        )
    assert "tweety" not in text and "reached" not in text
    assert "memfd" not in text and str(here._workspaces.store.run) not in text
    uid = 1000 if here._workspaces.tool.walls == "bubblewrap" else here._workspaces.owner or os.getuid()
    assert f"workspace\n{uid}\n" in text


@pytest.mark.parametrize("place", ["auto", *REMOTE])
async def test_the_network_of_the_host_is_there_when_it_is_named(place: str):
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with shell(**options_of(place), network="host") as session:
            command = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo reached"
            assert await said(session, command) == "reached\n"


async def test_a_loopback_of_its_own_is_there(session: ShellSession):
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
    await said(session, f'python3 -c "{code}"')


async def test_the_starter_may_be_killed(here: ShellSession):
    await said(here, "echo one > a")
    process = here._workspaces.starter._process
    assert process is not None
    process.kill()
    process.wait()
    assert await said(here, "cat a") == "one\n"


async def test_a_command_that_is_no_text_is_an_error_for_the_model(session: ShellSession):
    for command, word in (("a\0b", "NUL"), ("x" * (MAX_COMMAND_BYTES + 1), "bytes"), ("\ud800", "UTF-8")):
        result = await session.call(command)
        assert result.status == "error" and word in result.text
    assert (await session.call(f": {'x' * (MAX_COMMAND_BYTES - 2)}")).status == "ok"


async def test_a_closed_session_says_so(session: ShellSession):
    await session.close()
    with pytest.raises(ToolError, match="closed"):
        await session.call("true")


# -- the tool ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"name": "no name"},
        {"files": "btrfs"},
        {"network": "lan"},
        {"walls": "glass"},
        {"timeout_s": 0},
        {"timeout_s": 1e9},
        {"timeout_s": float("nan")},
        {"readable": ["relative"]},
        {"cpu_s": 0},
        {"cpu_s": "1"},
        {"memory_bytes": 1000},
        {"max_processes": 0},
        {"max_processes": True},
        {"disk_bytes": -1},
        {"max_files": 1.5},
        {"max_output_bytes": 0},
    ],
)
def test_a_bad_option_is_refused_when_the_tool_is_made(options: dict[str, Any]):
    with pytest.raises(ConfigError, match=r" = |identifier|absolute"):
        Shell(**options)


@pytest.mark.parametrize("options", [{"workspace": "/no"}, {"image": "/no"}, {"readable": ["/no"]}])
async def test_a_folder_that_is_not_there_is_refused_before_a_run(options: dict[str, Any]):
    tool = Shell(**options)
    try:
        with pytest.raises(ConfigError, match="/no"):
            await tool.try_walls()
    finally:
        await tool.let_go()


async def test_the_tool_says_how_it_is_isolated_and_holds_nothing_after_a_run():
    tool = Shell()
    assert isinstance(tool, Sandboxed) and isinstance(tool, Lasting)
    assert (tool.branching, tool.isolation, tool.name) == ("fork", "strict", "shell")
    assert tool.schema["parameters"]["required"] == ["command"]
    await tool.try_walls()
    name, why = await tool.back_end()
    assert name in BACK_ENDS and why
    await tool.let_go()
    await tool.let_go()


async def test_a_machine_without_overlays_copies_and_says_so(passable: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ramify.workspaces.shell_order.OVERLAY_OPTIONS", "no_such_option")
    tool = Shell(folder=str(passable))
    name, why = await tool.back_end()
    assert name == "copy" and "an overlay cannot be mounted here" in why and "Invalid argument" in why
    session = await tool.open(Problem("p", "q"))
    assert await said(session, "echo one > a; cat a") == "one\n"
    await tool.let_go()
    other = Shell(folder=str(passable), files="overlay")
    with pytest.raises(ToolError, match="files = 'overlay' does not work here"):
        await other.try_walls()
    await other.let_go()


async def test_a_machine_without_bubblewrap_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolError, match="bubblewrap"):
        await Shell().try_walls()


async def test_the_check_of_a_machine_says_how_states_lie_on_disk():
    assert "the tool shell runs here: every wall holds; states are " in await check()


async def test_open_shell_closes_what_it_opened():
    async with open_shell(files="copy") as session:
        assert await said(session, "echo hi") == "hi\n"
    with pytest.raises(ToolError, match="closed"):
        await session.call("true")


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"S\0",
        b"S\0R\0",
        b"S\0R\0relative\n\0A=1\0",
        b"S\0xR\0/w\n\0",
        b"S\0R\0/w\n\0A=1",
        b"S\0R\0/w",
        b"\xff" * 99,
    ],
)
def test_a_forged_report_carries_nothing(report: bytes):
    assert told(report) is None


def test_a_report_carries_bytes_that_are_no_text_and_no_variable_that_runs_code():
    found = told(b"S\0R\0/w/\xff\na\n\0A=\xfe\nb\0=x\0BASH_ENV=/w/x\0LD_PRELOAD=x\0_=y\0nonsense\0")
    assert found is not None
    assert os.fsencode(found.folder) == b"/w/\xff\na" and os.fsencode(found.environment["A"]) == b"\xfe\nb"
    assert list(found.environment) == ["A"]


async def test_a_process_without_descriptors_fails_the_call_and_leaves_nothing_running(here: ShellSession):
    await said(here, "echo one > a")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    failed = 0
    for room in range(24):
        highest = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208 - one look
        fillers = [os.dup(0)]
        while fillers[-1] < highest:
            fillers.append(os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + room, limit[1]))
        try:
            await here.call("echo two > a; exit 1")
        except (ToolError, OSError):
            failed += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            for filler in fillers:
                os.close(filler)
    assert failed > 3
    assert (await said(here, "cat a; " + STRAYS)).endswith("\n0\n")
    assert here._workspaces.store.num_layers <= len(here.state.layers) + 1
