"""Workspaces: what a fork, a call and a digest cost on each back end.

For an empty folder, a git repository of 1,000 files, and 20,000 files: the start (one copy of the folder, made once a
problem), a fork with a call that changes one file, the same without a change, and the disk and the files that a fork
adds. Then eight siblings that commit to the repository, at once and one after another, and the digest of each tree,
whole and after one change. In the same run: bubblewrap alone and a copy by `cp -a`, the way before, for comparison.

With `--walls podman`, commands run in containers of an image that holds nothing but links to `/usr` of this machine.
With `--host`, the same calls go to another machine by ssh and to this one in turn; nothing else is measured.

Run: python bench/workspaces.py [--rounds N] [--trees empty git1000 files20000] [--walls bubblewrap podman]
     python bench/workspaces.py --host BOX [--remote-python PYTHON] [--ssh "ssh -F FILE"] [--rounds N] [--trees empty]
"""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from smoke import few

from ramify.core.problem import Problem
from ramify.workspaces.shell import RemoteSession, Shell
from ramify.workspaces.shell_session import ShellSession
from ramify.workspaces.tree_digest import tree_digest

SIBLINGS = 8
IMAGE = "localhost/ramify-bench:latest"
COMMIT = "echo {} > own.txt && git add own.txt && git commit -qm own"
GIT = ("git", "-c", "user.email=a@b", "-c", "user.name=n")
BARE = (
    "bwrap --unshare-user --unshare-pid --unshare-net --unshare-ipc --ro-bind /usr /usr --symlink usr/bin /bin "
    "--symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev /bin/bash -c true"
).split()


def make_empty(folder: Path) -> None:
    folder.mkdir()


def make_git(folder: Path) -> None:
    make_files(folder, 1000)
    for command in (("init", "-q"), ("config", "user.email", "a@b"), ("config", "user.name", "n"), ("add", ".")):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    subprocess.run([*GIT, "commit", "-qm", "start"], cwd=folder, check=True)


def make_files(folder: Path, number: int = 20_000) -> None:
    for at in range(number):
        path = folder / f"d{at % 40}" / f"f{at}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {at}\n" * 40)


TREES: dict[str, Callable[[Path], None]] = {"empty": make_empty, "git1000": make_git, "files20000": make_files}


def make_image() -> None:
    """An image whose programs are those of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("bin", "lib", "lib64"):
            Path(folder, name).symlink_to(f"usr/{name}")
        Path(folder, "usr").mkdir()
        tar = subprocess.run(["tar", "c", "."], cwd=folder, check=True, capture_output=True).stdout
    subprocess.run(["podman", "import", "-", IMAGE], input=tar, check=True, capture_output=True)


def disk(folder: Path) -> tuple[int, int]:
    """(KiB, files) that a folder takes. A file with several names counts once; what podman removes meanwhile, not."""
    found: dict[int, int] = {}
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                status = os.lstat(os.path.join(top, name))  # noqa: PTH118 - a walk gives texts
                found[status.st_ino] = status.st_blocks // 2
    return sum(found.values()), len(found)


async def ms(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return 1000 * (time.perf_counter() - began)


def shown(name: str, values: list[float], note: str = "") -> None:
    ordered = sorted(values)
    print(f"    {name:38}{statistics.median(ordered):9.1f}{ordered[-1]:9.1f}  {note}", flush=True)


async def called(session: ShellSession | RemoteSession, command: str) -> ShellSession | RemoteSession:
    """What the toolbox does for a call: a fork, and one call on it. The caller closes the fork."""
    fork = await session.fork()
    result = await fork.call(command)
    assert result.status == "ok", result
    return fork


async def measure(walls: str, back_end: str, tree: str, folder: Path, rounds: int) -> None:
    options = {"walls": walls, "image": IMAGE, "readable": ("/usr",)} if walls != "bubblewrap" else {}
    tool = Shell(files=back_end, timeout_s=600.0, **options)  # type: ignore[arg-type]
    await tool.try_walls()
    problem = Problem("bench", "bench", {"workspace": str(folder)})
    opened: list[ShellSession] = []

    async def start() -> None:
        opened.append(await tool.open(problem))

    first = await ms(start)
    session = opened[0]
    run = session._workspaces.store.run
    print(f"  {tree}, {back_end}, {walls}{'':16}    median      max")
    shown("start: one copy for all branches", [first])
    before = disk(run)
    forks: list[ShellSession] = []

    async def changed() -> None:
        forks.append(await called(session, "echo x > /w/new"))

    seconds = [await ms(changed) for _ in range(rounds)]
    after = disk(run)
    each = [(now - then) / rounds for now, then in zip(after, before, strict=True)]
    shown("fork + call that writes a file", seconds, f"{each[0] / 1024:.2f} MiB and {each[1]:.0f} files a fork")
    for fork in forks:
        await fork.close()

    async def unchanged() -> None:
        await (await called(session, "true")).close()

    shown("fork + call that writes nothing", [await ms(unchanged) for _ in range(rounds)])
    entries = session.state.entries

    async def whole() -> None:
        tree_digest(entries)

    shown(f"digest of {len(entries)} entries, contents known", [await ms(whole) for _ in range(rounds)])
    if tree.startswith("git"):
        await siblings(session)
    await tool.let_go()


async def siblings(session: ShellSession) -> None:
    """Eight forks with a commit each."""

    async def commit(number: int) -> None:
        forks.append(await called(session, COMMIT.format(number)))

    async def at_once() -> None:
        await asyncio.gather(*map(commit, range(SIBLINGS)))

    async def in_turn() -> None:
        for number in range(SIBLINGS):
            await commit(number)

    forks: list[ShellSession] = []
    for name, work in (("at once", at_once), ("in turn", in_turn)):
        seconds = [await ms(work) for _ in range(3)]
        shown(f"{SIBLINGS} siblings with a commit each, {name}", seconds)
    for fork in forks:
        await fork.close()


async def measure_remote(options: argparse.Namespace, tree: str, folder: Path, rounds: int) -> None:
    """The same calls on this machine and on another one, in turn."""
    remote = {"hosts": (options.host,), "ssh": options.ssh, "remote_python": options.remote_python}
    problem = Problem("bench", "bench", {"workspace": str(folder)})
    tools = {"here": Shell(), options.host: Shell(**remote)}
    sessions: dict[str, ShellSession | RemoteSession] = {}
    print(f"  {tree}, over ssh{'':30}    median      max")
    for place, tool in tools.items():

        async def opened(place: str = place, tool: Shell = tool) -> None:
            sessions[place] = await tool.open(problem)

        shown(f"{place}: connect, try walls", [await ms(tool.try_walls)])
        shown(f"{place}: start, first and second branch", [await ms(opened), await ms(opened)])
    works: dict[str, Callable[[ShellSession | RemoteSession], Awaitable[object]]] = {
        "digest": lambda session: session.digest(),
        "fork": lambda session: session.fork(),
        "call that writes nothing": lambda session: session.call("true"),
        "fork + call that writes a file": lambda session: called(session, "echo x > /w/new"),
        "8 siblings at once, a file each": lambda session: asyncio.gather(
            *(called(session, f"echo {number} > /w/own") for number in range(SIBLINGS))
        ),
    }
    for name, work in works.items():
        found: dict[str, list[float]] = {place: [] for place in tools}
        for _ in range(rounds):
            for place, session in sessions.items():
                found[place].append(await ms(lambda session=session, work=work: work(session)))
        for place, seconds in found.items():
            shown(f"{place}: {name}", seconds)
    for tool in tools.values():
        await tool.let_go()


async def ended(*command: str) -> None:
    assert not await (await asyncio.create_subprocess_exec(*command)).wait()


async def compare(folder: Path, tree: str, rounds: int) -> None:
    """The same without workspaces: a copy of the folder, and bubblewrap alone."""
    copies: list[Path] = []

    async def copy() -> None:
        target = folder.parent / f"copy{len(copies)}"
        await ended("cp", "-a", str(folder), str(target))
        copies.append(target)

    async def bare() -> None:
        await ended(*BARE)

    print(f"  {tree}, without ramify{'':23}    median      max")
    shown("cp -a", [await ms(copy) for _ in range(rounds)])
    shown("bwrap bash -c true", [await ms(bare) for _ in range(rounds)])
    for target in copies:
        shutil.rmtree(target)


@contextmanager
def made(tree: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / tree
        TREES[tree](folder)
        yield folder


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=few(20, 1))
    parser.add_argument("--trees", nargs="+", default=few(list(TREES), [*TREES][:1]), choices=list(TREES))
    parser.add_argument("--walls", nargs="+", default=["bubblewrap"], choices=["bubblewrap", "podman"])
    parser.add_argument("--host")
    parser.add_argument("--remote-python", default="python3")
    parser.add_argument("--ssh", default="ssh")
    options = parser.parse_args()
    if "podman" in options.walls:
        make_image()
    load = os.getloadavg()[0]
    print(f"Milliseconds; {os.cpu_count()} cores, load {load:.1f}, {os.uname().release}")
    for tree in options.trees:
        rounds = options.rounds if tree != "files20000" else max(3, options.rounds // 4)
        with made(tree) as folder:
            if options.host:
                await measure_remote(options, tree, folder, rounds)
                continue
            await compare(folder, tree, rounds)
            for walls in options.walls:
                for back_end in ("overlay", "copy"):
                    await measure(walls, back_end, tree, folder, rounds)


if __name__ == "__main__":
    asyncio.run(main())
