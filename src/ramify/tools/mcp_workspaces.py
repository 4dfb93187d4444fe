"""MCP workspaces: the working folders of a server's branches as workspaces, and a server that runs on in one.

Every branch has its files at `/w`, wherever they lie, so texts name no branch and nothing is replaced in them. A folder
is a state of files (`workspaces/back_ends.py`) until a server acts on it, then a draft, and a state again when the
server has ended. A fork copies what was written since the draft was made (the whole folder where overlays cannot be
mounted); a fork of a state copies nothing.

`workspaces/launcher.py` starts the server, as a command of the tool `shell` and with the same walls. The limits are of
the server with all its processes, as long as it runs. A server beyond one is killed.
"""

import asyncio
import contextlib
import hashlib
import itertools
import json
import marshal
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ramify.core.errors import ToolError
from ramify.core.problem import Problem
from ramify.tools.mcp_folders import NUM_TRIES, BranchFolder, FolderFault
from ramify.workspaces import launcher
from ramify.workspaces.back_ends import FileDraft, WorkspaceState
from ramify.workspaces.command import polled
from ramify.workspaces.process_watch import REST, CommandLimits, ProcessWatch
from ramify.workspaces.shell import Shell
from ramify.workspaces.shell_order import FIRST, CommandRules, ShellOrder, ShellVariables
from ramify.workspaces.shell_session import ServerStart
from ramify.workspaces.tree import Stamp, TreeFault, entry_of, hashed, walk
from ramify.workspaces.tree_digest import tree_digest

if TYPE_CHECKING:
    from ramify.tools.mcp_address import McpAddress
    from ramify.tools.mcp_process import LastWords

T = TypeVar("T")
OPTIONS: Final = ("files", "folder", "image", "max_files", "max_processes", "memory_bytes", "network", "readable")
"""Options of the tool `shell` that hold for a server, too."""
NO_PROBLEM: Final = Problem("none", "a folder outside any tree")
LOOK_S: Final = 0.1
"""Time between two looks at a server; each takes 0.3 ms of a processor."""
LIFE_S: Final = 1e9
"""CPU time of a server, which may live as long as its run."""


@dataclass(slots=True)
class _Files:
    """The files of one branch, and the rules of its server."""

    rules: CommandRules
    held: WorkspaceState | FileDraft
    """A draft once a server was started on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOrder(ShellOrder):
    """A server on a draft, in place of a command."""

    argv: tuple[str, ...]

    def _inner(self) -> tuple[str, ...]:
        return (self.rules.shell, "-c", 'cd -- "$1" && shift && exec "$@"', "sh", self.variables.folder, *self.argv)


class WorkspaceFolders:
    """All folders of one server in one run, as `Folders`. Methods block, and raise `FolderFault`."""

    def __init__(self, shell: Shell, *, is_shared: bool = False) -> None:
        """`is_shared`: the files of the tool `shell` itself, which removes them."""
        self._shell = shell
        self._is_shared = is_shared
        self._names = itertools.count()
        self._files: dict[BranchFolder, _Files] = {}

    def check_start(self) -> None:
        """Try the walls, and copy the start folder, before a run."""
        self._shell.workspaces.check_folders()
        folder = self.new()
        self.fill(folder)
        self.remove(folder)

    def check_template(self) -> str:
        """The digest of the start folder or tar file. Needs no walls."""
        top = os.fsencode(self._shell.workspace)
        if not Path(self._shell.workspace).exists():
            raise FolderFault("there is no such folder or tar file")
        with _told("the template"):
            if Path(self._shell.workspace).is_file():
                return hashed(top).hex()
            found = {path: entry_of(top, path, status) for path, status in walk(top)}
            lines = [b"%s %o %s %s\0" % (e[0].encode(), e.mode, e.said, path) for path, e in sorted(found.items()) if e]
            return hashlib.sha256(b"".join(lines)).hexdigest()

    def new(self) -> BranchFolder:
        """The name of a new folder, still without files."""
        return BranchFolder(Path(str(next(self._names))))

    def fill(
        self,
        folder: BranchFolder,
        source: BranchFolder | None = None,
        problem: Problem | ServerStart | None = None,
    ) -> None:
        """Give a new folder the files of another branch, or those that its server starts on: by default those that the
        branches of a problem begin with."""
        with _told("the start folder" if source is None else "the working folder"):
            if source is not None:
                files = self._found(source)
                self._files[folder] = replace(files, held=self._copied(files.held))
            elif isinstance(problem, ServerStart):
                limits = replace(problem.rules.limits, cpu_s=LIFE_S)
                self._files[folder] = _Files(replace(problem.rules, limits=limits), self._copied(problem.state))
            else:
                self._files[folder] = _Files(*_ran(self._shell.workspaces.start(problem or NO_PROBLEM)))

    def settle(self, folder: BranchFolder) -> None:
        """Nothing: a copy has the same path."""

    def address(self, address: "McpAddress", folder: BranchFolder) -> "McpAddress":
        """The address of a server that acts on a folder, behind walls. Only after the last one on it has ended."""
        back_end, files = self._shell.workspaces.back_end, self._found(folder)
        with _told("the working folder"):
            if isinstance(files.held, FileDraft):
                del self._files[folder]  # It is lost if this raises.
                files.held = back_end.keep(files.held)
                self._files[folder] = files
            state = files.held
            files.held = draft = back_end.draft(state)
            back_end.release(state)
            environment = {**files.rules.first.environment, **address.environment()}
            order = ServerOrder(
                rules=files.rules,
                draft=draft,
                command="",
                variables=ShellVariables(str(PurePosixPath(FIRST.folder, address.cwd or "")), environment),
                is_tmp_kept=True,
                argv=(str(address.command), *address.args),
            )
            home = draft.layer.run / draft.layer.name
            (home / "order").touch(0o600)
            (home / "order").write_bytes(marshal.dumps(order.files()))
        started = ("-I", "-S", "-B", launcher.__file__, "server", str(home))
        watch = ServerWatch(home / "status", draft.layer.files, files.rules.limits).beside
        return replace(address, command=sys.executable, args=started, env={}, env_from=(), cwd=None, watch=watch)

    def digest_of(self, folder: BranchFolder) -> str:
        """The workspace's digest of what a folder holds now."""
        held = self._found(folder).held
        with _told("the working folder"):
            entries = self._shell.workspaces.back_end.entries(held) if isinstance(held, FileDraft) else held.entries
            return tree_digest(entries)

    def meant(self, text: str, folder: BranchFolder) -> str:
        """The text: it names no branch."""
        return text

    def shown(self, text: str) -> str:
        """The text: it names no branch."""
        return text

    def taken(self, folder: BranchFolder) -> WorkspaceState:
        """Remove a folder on which no server was started, except its state, which the caller uses."""
        state = self._files.pop(folder).held
        assert isinstance(state, WorkspaceState)
        return state

    def remove(self, folder: BranchFolder) -> None:
        """Only after its server has ended."""
        match files.held if (files := self._files.pop(folder, None)) else None:
            case FileDraft() as draft:
                self._shell.workspaces.back_end.discard(draft)
            case WorkspaceState() as state:
                self._shell.workspaces.back_end.release(state)
            case None:
                """It was never filled."""

    def close(self) -> None:
        """Remove everything. Folders made later have a new place."""
        self._files.clear()
        if not self._is_shared:
            _ran(self._shell.let_go())

    def _found(self, folder: BranchFolder) -> _Files:
        if folder not in self._files:
            raise FolderFault("the working folder could not be kept, and is gone")
        return self._files[folder]

    def _copied(self, held: WorkspaceState | FileDraft) -> WorkspaceState:
        """A state of the same files, which the caller uses."""
        back_end = self._shell.workspaces.back_end
        if isinstance(held, WorkspaceState):
            back_end.hold(held)
            return held
        for _ in range(NUM_TRIES):
            before = _stamps(held)
            state = back_end.copy(held)
            if _stamps(held) == before:
                return state
            back_end.release(state)
        raise TreeFault("its files are written while no call is in flight")


@dataclass(frozen=True, slots=True)
class ServerWatch:
    """Kills a server that exceeds a limit."""

    status: Path
    """The file in which bubblewrap says the pid of its first process."""
    files: bytes
    """The folder that it changes."""
    limits: CommandLimits

    @contextlib.contextmanager
    def beside(self, words: "LastWords") -> Iterator[None]:
        """Watch in a thread in this block, which begins before the server. `words` get the limit that it exceeded."""
        say = asyncio.get_running_loop().call_soon_threadsafe
        stop, held = os.pipe2(os.O_CLOEXEC)
        try:
            threading.Thread(
                target=self._watch, args=(stop, lambda said: say(words.add, said)), name="mcp watch", daemon=True
            ).start()
            yield
        finally:
            os.close(held)  # The thread closes the other end.

    def _watch(self, stop: int, say: Callable[[bytes], object]) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, stop)
            while (pid := self._pid()) is None:
                if polled([stop], LOOK_S):
                    return
            try:
                first = os.pidfd_open(pid)
            except ProcessLookupError:
                return
            stack.callback(os.close, first)
            fault = self._fault(pid, [stop, first])
            if fault:
                with contextlib.suppress(RuntimeError):  # The loop has ended.
                    say(f"\n[killed: {fault}]".encode())
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(first, signal.SIGKILL)

    def _fault(self, pid: int, ends: list[int]) -> str:
        """Which limit the server exceeds, once it does; empty = it has ended."""
        try:
            with contextlib.closing(ProcessWatch(pid, self.limits, self.files)) as watch:
                wait_s = LOOK_S
                while not polled(ends, wait_s):
                    began = time.monotonic()
                    if fault := watch.fault():
                        return fault
                    wait_s = max(LOOK_S, REST * (time.monotonic() - began))
        except OSError as error:
            return f"it could not be watched: {error}"
        return ""

    def _pid(self) -> int | None:
        """The first process of the server's namespace; None = it has not begun."""
        with contextlib.suppress(OSError, ValueError, LookupError):
            return int(json.loads(self.status.read_bytes().splitlines()[0])["child-pid"])
        return None


def _stamps(draft: FileDraft) -> dict[bytes, Stamp]:
    """What changes when a file of a draft is written."""
    return {path: Stamp.of(found) for path, found in walk(draft.layer.files) if stat.S_ISREG(found.st_mode)}


def _ran(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in a thread of its own: this one may have a loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn other rooms' words into a fault of the folder."""
    try:
        yield
    except ToolError as error:
        raise FolderFault(str(error).removeprefix(f"{error.reason}: ")) from error
    except (TreeFault, OSError) as error:
        raise FolderFault(f"{what} cannot be copied: {error}") from error
