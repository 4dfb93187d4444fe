"""MCP branches: the state of a server on one branch: its working folder, its process, and the calls that made both.

A server runs on until its branch forks. The first fork goes on with the process and the folder, and the forked state
keeps a copy of the folder, made while no call is in flight. A state without a process gets one when it is needed:

- its calls are repeated by a new server in a new folder, and the folder after each call is compared. So a server that
  keeps something in memory has it again;
- if the folders differ, or `way` is `fork`, a new server is started on the copy. That is right if the server keeps
  everything in its folder.

In a workspace that other tools act on, too, a state begins when the server is started on the files (`ServerStart`) and
ends when another tool is called. What the server keeps in memory is lost with it, in every branch at the same calls.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeVar

from ramify.core.errors import ToolError
from ramify.core.problem import Problem
from ramify.core.tool import STATE_DIGEST, ToolResult
from ramify.tools.mcp_client import Connection, McpServer
from ramify.tools.mcp_content import Folder, result_of
from ramify.tools.mcp_folders import BranchFolder, FolderFault, Folders, mapped
from ramify.tools.mcp_workspaces import WorkspaceFolders
from ramify.workspaces.back_ends import WorkspaceState
from ramify.workspaces.shell_session import ServerStart

T = TypeVar("T")

Way = Literal["auto", "fork", "replay", "refuse"]
"""How a state gets a new process: `auto` repeats its calls, or else starts on a copy; `fork` does the latter alone,
`replay` the former alone, `refuse` neither."""
MAX_IDLE: Final = 32
"""Most servers of one kind that run and wait for their branch. A server in node takes about 70 MB."""

REPEAT_S: Final = 10.0
"""Most time to repeat the calls of a state whose folder can be copied instead. Below the deadline of a fork, which is
that of a call (`tools.deadline_s`). The start of the server does not count: it is slow on a busy machine."""


@dataclass(frozen=True, slots=True)
class Made:
    """A call that was made, and what came of it."""

    name: str
    given: Mapping[str, Any]
    result: ToolResult

    @property
    def digest(self) -> str | None:
        """Of the folder after the call; None = it is not compared."""
        return self.result.metadata.get(STATE_DIGEST)

    def is_as(self, other: "Made") -> bool:
        """Whether both had the same result and left the same files."""
        one, two = self.result, other.result
        return (one.status, one.text, self.digest) == (two.status, two.text, other.digest)


@dataclass(slots=True)
class Branches:
    """All states of one server in one run."""

    server: McpServer
    folders: Folders | WorkspaceFolders
    way: Way
    compares: bool
    """Whether the files behind a call are compared when it is repeated."""
    attachments: Folder
    idle: dict["BranchState", None] = field(default_factory=dict["BranchState", None])
    """States whose server waits, longest first."""
    is_repeatable: bool = True
    """False once a repeated call left other files, or repeating took too long."""
    ending: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def opened(self, problem: Problem | ServerStart) -> "BranchState":
        """The state before any call. Nothing is started or copied yet."""
        return BranchState(self, problem)

    async def filled(self, problem: Problem | ServerStart, source: BranchFolder | None = None) -> BranchFolder:
        """A new folder with a copy of another, or of what the branches of a problem begin with. Raises `ToolError`."""
        folder = self.folders.new()
        try:
            await self.done(lambda: self.folders.fill(folder, source, problem))
        except BaseException:
            self.folders.remove(folder)
            raise
        return folder

    async def done(self, work: Callable[[], T]) -> T:
        """Run work on folders in a thread. Raises `ToolError` that names no branch."""
        try:
            return await in_thread(work)
        except (FolderFault, OSError) as error:
            raise ToolError("tool_gave_up", self.folders.shown(str(error))) from error

    def keep(self, state: "BranchState") -> None:
        """Note that a state's server waits. If too many do, the one that has waited longest ends."""
        self.idle[state] = None
        while len(self.idle) > MAX_IDLE:
            oldest = next(iter(self.idle))
            del self.idle[oldest]
            assert oldest.connection is not None
            oldest.connection.end()

    def drop(self, folder: BranchFolder | None, connection: Connection | None) -> asyncio.Task[None]:
        """End a server, then remove its folder. This happens even if nobody waits for it."""
        task = asyncio.get_running_loop().create_task(self._dropped(folder, connection), name="mcp branch ends")
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)
        return task

    async def _dropped(self, folder: BranchFolder | None, connection: Connection | None) -> None:
        try:
            if connection is not None:
                await connection.close()
        finally:
            if folder is not None:
                self.folders.remove(folder)

    async def let_go(self) -> None:
        """End every server and remove every folder."""
        self.idle.clear()
        try:
            await self.server.let_go()
            if self.ending:
                await asyncio.wait(set(self.ending))
        finally:
            self.folders.close()


@dataclass(slots=True, eq=False)
class BranchState:
    """The state of a server behind some calls. One user at a time."""

    branches: Branches
    problem: Problem | ServerStart
    """What it begins with."""
    folder: BranchFolder | None = None
    """None = no call was made yet."""
    connection: Connection | None = None
    """None = its server is not running."""
    history: tuple[Made, ...] = ()

    async def call(self, name: str, given: Mapping[str, Any]) -> ToolResult:
        """Call a tool in this state, which moves on. Raises `ToolError` if the server fails."""
        folder, connection = await self._awake()
        self.branches.idle.pop(self, None)
        made = await self._made(folder, connection, name, given)
        self.history = (*self.history, made)
        if self.branches.way != "refuse":
            self.branches.keep(self)
        return made.result

    async def fork(self) -> "BranchState":
        """A copy of this state. It gets the running server, if there is one."""
        branches = self.branches
        branches.idle.pop(self, None)
        if self.folder is None:
            return branches.opened(self.problem)
        if self._is_running:
            copy = await branches.filled(self.problem, self.folder)
            child = replace(self)
            self.folder, self.connection = copy, None
            return child
        await self._ended()
        child = replace(self, folder=await branches.filled(self.problem, self.folder))
        if isinstance(self.problem, ServerStart):  # The next call may be another tool's.
            return child
        try:
            await child._awake()
        except BaseException:
            branches.drop(child.folder, child.connection)
            raise
        return child

    async def give_back(self) -> WorkspaceState | None:
        """As `WorkspaceServer.give_back`. The server ends later, and what it writes until then is lost."""
        branches = self.branches
        branches.idle.pop(self, None)
        if not self._is_running:
            await self._ended()
        if self.folder is None:
            return None
        copy = await branches.filled(self.problem, self.folder)
        self._end_soon()
        assert isinstance(branches.folders, WorkspaceFolders)
        return branches.folders.taken(copy)

    async def close(self) -> None:
        """End the server and remove the folder. If cancelled, this still happens."""
        await asyncio.shield(self._end_soon())

    def _end_soon(self) -> asyncio.Task[None]:
        self.branches.idle.pop(self, None)
        task = self.branches.drop(self.folder, self.connection)
        self.folder = self.connection = None
        return task

    @property
    def _is_running(self) -> bool:
        return self.connection is not None and not self.connection.is_over

    async def _ended(self) -> None:
        """Wait until a server that ends has written its last."""
        if self.connection is not None:
            await self.connection.close()
            self.connection = None

    async def _awake(self) -> tuple[BranchFolder, Connection]:
        """The folder and its running server, which is started if needed."""
        if self.folder is not None and self.connection is not None and self._is_running:
            return self.folder, self.connection
        if self.connection is not None and self.branches.way == "refuse":
            raise ToolError("tool_crashed", f"the server ended, and its state with it{self.connection.words}")
        await self._ended()
        if self.folder is None:
            self.folder = await self.branches.filled(self.problem)
        elif self.history and not await self._repeated():
            await self._settled(self.folder)
        if self.connection is None:
            self.connection = await self._started(self.folder)
        return self.folder, self.connection

    async def _repeated(self) -> bool:
        """Whether the calls could be repeated. Then the state has their new folder and server."""
        branches = self.branches
        is_copied = branches.way == "fork" or (branches.way == "auto" and not branches.compares)
        if is_copied or not branches.is_repeatable:
            return False
        folder = await branches.filled(self.problem)
        connection = None
        try:
            connection = await self._started(folder)
            async with asyncio.timeout(REPEAT_S if branches.way == "auto" else None):
                await self._repeat(folder, connection)
        except BaseException as error:
            branches.drop(folder, connection)
            branches.is_repeatable = not isinstance(error, _Diverged | TimeoutError)
            if isinstance(error, ToolError | TimeoutError) and branches.way == "auto":
                return False
            raise
        branches.drop(self.folder, None)
        self.folder, self.connection = folder, connection
        return True

    async def _repeat(self, folder: BranchFolder, connection: Connection) -> None:
        """Repeat the calls. Raises `_Diverged` if the files differ; with the way `replay`, also if a result does."""
        for made in self.history:
            again = await self._made(folder, connection, made.name, made.given)
            is_same = again.is_as(made) if self.branches.way == "replay" else again.digest == made.digest
            if not is_same:
                was, now = (f"{each.result.status} {each.result.text[:80]!r}" for each in (made, again))
                raise _Diverged(
                    "replay_diverged", f"{made.name} had given {was} and now gave {now}, or left other files"
                )

    async def _settled(self, folder: BranchFolder) -> None:
        if self.branches.way == "replay":
            raise ToolError("replay_diverged", "its server ended, and the calls cannot be repeated")
        await self.branches.done(lambda: self.branches.folders.settle(folder))

    async def _started(self, folder: BranchFolder) -> Connection:
        branches, server = self.branches, self.branches.server
        connection = server.connect(await branches.done(lambda: branches.folders.address(server.address, folder)))
        try:
            with self._unnamed():
                await connection.ready()
        except BaseException:
            connection.end()
            raise
        return connection

    async def _made(self, folder: BranchFolder, connection: Connection, name: str, given: Mapping[str, Any]) -> Made:
        """Make one call, and look at what it left in the folder. The result names no branch."""
        branches = self.branches
        with self._unnamed():
            said = await connection.call(name, mapped(dict(given), lambda text: branches.folders.meant(text, folder)))
            result = result_of(said, branches.attachments)
        metadata = mapped(dict(result.metadata), branches.folders.shown)
        if branches.compares:
            with contextlib.suppress(FolderFault, OSError):
                metadata[STATE_DIGEST] = await in_thread(lambda: branches.folders.digest_of(folder))
        return Made(name, given, replace(result, text=branches.folders.shown(result.text), metadata=metadata))

    @contextlib.contextmanager
    def _unnamed(self) -> Any:
        """Take the paths of branches out of errors, which the model reads."""
        try:
            yield
        except ToolError as error:
            shown = self.branches.folders.shown(str(error)).removeprefix(f"{error.reason}: ")
            raise ToolError(error.reason, shown) from error


class _Diverged(ToolError):
    """A repeated call gave another result, or left other files."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread. If cancelled, wait for its end: it acts on files that are removed next."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
