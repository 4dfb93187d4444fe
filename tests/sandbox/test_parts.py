"""Parts of a sandbox by themselves: folders, output, what is shown of this Python, limits, and what errors say."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ramify.core.errors import ConfigError
from ramify.sandbox import bubblewrap, folders
from ramify.sandbox.capture import Capture
from ramify.sandbox.channel import Broken, Channel
from ramify.sandbox.interpreter import interpreter
from ramify.sandbox.leftovers import Leftovers
from ramify.sandbox.limits import SandboxLimits
from ramify.sandbox.processes import Processes
from ramify.sandbox.running import new_step


def box_in(folder: Path) -> str:
    folders.make_box(str(folder), None)
    folder.chmod(0o700)
    (folder / folders.PARKED).chmod(0o700)
    return str(folder)


def held(box: Path) -> Leftovers:
    return Leftovers(os.open(box, os.O_PATH))


def test_a_copy_keeps_files_modes_and_links_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "x")
    box = box_in(tmp_path)
    folders.take(box, "0", "")
    work = tmp_path / "0" / folders.WORK
    (work / "d").mkdir()
    (work / "d" / "run").write_text("#!")
    (work / "d" / "run").chmod(0o750)
    (work / "shadow").symlink_to("/etc/shadow")
    os.mkfifo(work / "pipe")
    assert folders.fits(f"{box}/0", max_bytes=20, max_files=8)
    left = held(tmp_path)
    assert left.park("0", "one")
    left.close()
    folders.take(box, "1", "one")
    copy = tmp_path / "1" / folders.WORK
    assert sorted(path.name for path in copy.rglob("*")) == ["d", "run", "shadow"]
    assert (copy / "d" / "run").stat().st_mode & 0o777 == 0o750
    assert (copy / "shadow").readlink() == Path("/etc/shadow")
    assert Path.cwd() == copy and os.environ["TMPDIR"] == f"{box}/1/tmp"


@pytest.mark.parametrize(("max_bytes", "max_files"), [(4, 99), (99, 3)])
def test_too_much_does_not_fit(tmp_path: Path, max_bytes: int, max_files: int) -> None:
    for name in "abcd":
        (tmp_path / folders.WORK).mkdir(exist_ok=True)
        (tmp_path / folders.WORK / name).write_text("xy")
    assert not folders.fits(str(tmp_path), max_bytes=max_bytes, max_files=max_files)
    assert folders.fits(str(tmp_path), max_bytes=8, max_files=4)


@pytest.mark.parametrize("source", ["", "one"])
def test_a_place_where_somebody_put_something_is_not_taken(tmp_path: Path, source: str) -> None:
    box = box_in(tmp_path)
    (tmp_path / folders.PARKED / "one" / folders.WORK).mkdir(parents=True)
    (tmp_path / "3" / folders.WORK).mkdir(parents=True)
    (tmp_path / "3" / folders.WORK / "json.py").touch()
    with pytest.raises(FileExistsError):
        folders.take(box, "3", source)


def test_leftovers_go_at_once_where_they_are_empty_and_no_link_is_followed(tmp_path: Path) -> None:
    box_in(tmp_path)
    precious = tmp_path / "precious"
    for folder in (tmp_path / "0" / folders.WORK, tmp_path / "1" / "d" / "e", precious / folders.WORK):
        folder.mkdir(parents=True)
    (tmp_path / "1" / "link").symlink_to(precious)
    left = held(tmp_path)
    assert left.park("0", "kept") and not left.park("0", "kept")
    (tmp_path / folders.PARKED / "link").symlink_to(precious)
    for name in ("kept", "link", "none"):
        left.drop(name)
    left.clear("1")
    left.clear("99")
    left.close()
    assert [path.name for path in (tmp_path / folders.PARKED).iterdir()] == ["link"]
    assert [*(tmp_path / "1").iterdir()] == [] == [*(tmp_path / "0").iterdir()]
    (junk,) = (tmp_path / folders.TRASH).iterdir()
    assert (junk / "e").is_dir() and (precious / folders.WORK).is_dir()


@pytest.mark.slow
def test_a_folder_of_any_depth_is_removed_and_no_link_is_followed(tmp_path: Path) -> None:
    top, precious = tmp_path / "top", tmp_path / "precious"
    precious.mkdir()
    here = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("top", dir_fd=here)
    for name in ("top", *["d" * 200] * 3000):
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
        os.mkdir("d" * 200, dir_fd=here)
        os.close(os.open("f", os.O_CREAT, dir_fd=here))
    os.close(here)
    (top / "link").symlink_to(precious)
    folders.remove(str(top))
    folders.remove(str(top))
    assert [*tmp_path.iterdir()] == [precious]


async def test_output_is_kept_at_both_ends_and_a_flood_is_told_once() -> None:
    floods: list[int] = []
    capture = Capture(max_bytes=8, killed_bytes=100, on_flood=lambda: floods.append(1))
    for _ in range(40):
        os.write(capture.written, b"abcde")
        await asyncio.sleep(0)
    capture.close()
    capture.close()
    assert capture.text == "abcd\n[… 200 bytes in all, cut to 8 …]\nbcde"
    assert floods == [1]


async def test_a_channel_takes_what_is_expected_and_breaks_on_a_byte_more() -> None:
    lost: list[int] = []
    channel = Channel()
    channel.on_lost = lambda: lost.append(1)
    channel.num_expected = 4
    channel.peer.send(b"abcd")
    assert (await channel.message(2), await channel.message(2)) == (b"ab", b"cd")
    assert channel.sender_pid == os.getpid()
    channel.peer.send(b"e")
    with pytest.raises(Broken):
        await channel.message(1)
    assert lost == [1] and not channel.is_open
    with pytest.raises(Broken):
        await channel.send(b"x")


async def test_what_was_expected_is_still_read_where_more_came_with_it() -> None:
    channel = Channel()
    channel.num_expected = 4
    channel.peer.send(b"abcd" + bytes(900))
    assert await channel.message(4) == b"abcd"
    with pytest.raises(Broken):
        await channel.message(1)
    channel.close()


async def test_what_was_said_before_the_end_is_still_read() -> None:
    channel = Channel()
    channel.num_expected = 4
    channel.peer.send(b"ab")
    channel.peer.close()
    assert await channel.message(2) == b"ab"
    with pytest.raises(Broken):
        await channel.message(2)


def test_a_word_counts_only_with_its_nonce() -> None:
    step = new_step("1", number=1, folder="0", source="")
    assert step.word(b"K" + step.nonce) == b"K"
    for message in (b"K" + bytes(16), b"?" + step.nonce, b"K" + step.nonce[:-1], b""):
        assert step.word(message) == b""
    assert step.nonce != new_step("1", number=1, folder="0", source="").nonce


def test_a_process_is_looked_at_and_its_descendants_are_found() -> None:
    read, write = os.pipe()
    child = os.posix_spawn(
        "/bin/sh", ["sh", "-c", "(read x; :) & read x"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, read, 0)]
    )
    procfs = os.open("/proc", os.O_RDONLY)
    processes = Processes(procfs, keeper=os.getpid(), has_namespace=False)
    look = processes.look(child)
    assert look is not None and look.parent == os.getpid() and look.num_threads == 1
    assert child in processes.pids()
    assert processes.groups({child}, {}).keys() >= {child}
    processes.signal(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert processes.look(child) is None
    os.close(read)
    os.close(write)
    processes.close()


def test_only_what_is_preloaded_is_shown_with_all_it_needs() -> None:
    python = interpreter(("numpy",))
    assert "numpy" in python.packages
    assert not any("ramify" in name or "pytest" in name for name in python.packages)
    assert interpreter(("math", "json")).packages == {}
    with pytest.raises(ConfigError, match="no_such_module"):
        interpreter(("no_such_module",))


def test_the_command_binds_nothing_but_the_system_and_the_interpreter() -> None:
    python = interpreter(())
    command = bubblewrap.command(python, ["-c", "pass"])
    binds = [command[n + 1] for n, word in enumerate(command) if word in ("--ro-bind", "--ro-bind-try")]
    assert set(binds) <= {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", str(python.prefix)} | {
        "/etc/ld.so.cache",
        "/etc/alternatives",
    }
    assert "--bind" not in command and "--dev-bind" not in command and "--share-net" not in command


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "a private /proc"),
        ("bwrap: No permissions to create new namespace, likely because ...", "namespaces"),
        ("bwrap: setting up uid map: Permission denied", "apparmor_restrict_unprivileged_userns"),
        ("bwrap: Creating new namespace failed: Operation not permitted", "CAP_SYS_ADMIN"),
        ("bwrap: Unknown option --as-pid-1", "bubblewrap (Unknown option"),
    ],
)
def test_what_bubblewrap_says_becomes_the_wall_and_its_remedy(said: str, named: str) -> None:
    assert named in bubblewrap.missing_wall(said)


@pytest.mark.parametrize(
    "wrong", [{"max_nodes": 0}, {"memory_bytes": 1}, {"max_files": 1.5}, {"killed_output_bytes": 9}]
)
def test_impossible_limits_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        SandboxLimits(**wrong)
