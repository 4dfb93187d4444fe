"""MCP tools: the tools of one server, and their sessions: the run's, a branch's, or a branch's with a working folder
(`mcp_branches.py`), which may be the workspace of a tool `shell`. `mcp.py` makes them from the options of a server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult, ToolSession
from ramify.tools.arguments import read_arguments
from ramify.tools.mcp_folders import PLACEHOLDER, FolderFault, Folders

if TYPE_CHECKING:
    from ramify.tools.mcp import Mcp
    from ramify.tools.mcp_branches import Branches, BranchState, Way
    from ramify.tools.mcp_client import Connection, McpServer
    from ramify.tools.mcp_workspaces import WorkspaceFolders
    from ramify.workspaces.shell import Shell
    from ramify.workspaces.shell_session import ShellSession

Stateful = Literal["refuse", "replay", "fork"]
McpBranching = Stateful | Literal["share"]
"""How calls branch. `fork` copies the working folder; without one, the state of a server cannot be copied."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One tool as a server lists it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    branching: McpBranching
    """Derived from its annotations."""


@dataclass(slots=True)
class McpSource:
    """The server of a set of tools; made when the first session opens."""

    options: "Mcp"
    writer: str | None
    """A tool that may change something that branches share; None = there is none."""
    way: "Way" = "auto"
    """How a state with a working folder gets a new process."""
    _server: "McpServer | None" = None
    _branches: "Branches | None" = None
    _ending: "asyncio.Task[None] | None" = None
    _is_checked: bool = False

    @property
    def server(self) -> "McpServer":
        if self._server is None:
            self._server = self.options.server()
        return self._server

    @property
    def shell(self) -> "Shell | None":
        """The tool whose workspaces the server acts on; None = it has its own."""
        return self.options.shell

    @property
    def branches(self) -> "Branches":
        """The states of branches with working folders."""
        from ramify.tools.mcp_branches import Branches
        from ramify.tools.mcp_content import Folder

        if self._branches is None:
            options = self.options
            attachments = Folder(None if options.attachments is None else Path(options.attachments))
            self._branches = Branches(
                self.server, self._folders(), self.way, compares=options.compare_folder, attachments=attachments
            )
        return self._branches

    def _folders(self) -> "Folders | WorkspaceFolders":
        if self.shell is None:
            return self.options.folders()
        from ramify.tools.mcp_workspaces import WorkspaceFolders

        self.shell.servers.append(self)
        return WorkspaceFolders(self.shell, is_shared=True)

    def check_start(self) -> None:
        """Raise `ConfigError` if branches would share state unasked, or the template is not what it was."""
        if self._is_checked:
            return
        options = self.options
        if self.writer is not None and not options.branches_share_state:
            raise ConfigError(_shared_state(options, self.writer))
        if options.workdir is not None:
            options.check_template()
            try:
                self.branches.folders.check_start()
            except FolderFault as error:
                raise ConfigError(f"MCP server {options.name!r}: {error}") from error
        self._is_checked = True

    async def let_go(self) -> None:
        """All tools of the server call this at once; they all wait for the same end."""
        if self._server is None:
            return
        if self._ending is None or self._ending.done():
            ending = self._server.let_go() if self._branches is None else self._branches.let_go()
            self._ending = asyncio.get_running_loop().create_task(ending)
        await asyncio.shield(self._ending)


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool of a server."""

    name: str
    listed: Listed
    branching: McpBranching
    source: McpSource

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"name": self.name, "description": self.listed.description, "parameters": self.listed.parameters}

    @property
    def state(self) -> str:
        """Name of the state that this tool uses: the server's on a branch, or its session of the run. It differs from
        the states of other servers and from every tool name, but that of a shell whose workspaces it acts on."""
        if self.source.shell is not None:
            return self.source.shell.name
        return f"MCP server {self.source.options.name} ({id(self.source)}), {self.branching}"

    def on(self, session: ToolSession) -> ToolSession:
        if self.source.shell is not None:
            return McpOnShell(self, cast("ShellSession", session))
        assert isinstance(session, McpSession | McpBranch)
        return replace(session, tool=self)

    def check_start(self) -> None:
        """Raise `ConfigError` for what a run must not begin with."""
        self.source.check_start()

    def fault(self, arguments: str) -> str | None:
        """What is wrong with the arguments; None = they fit the server's schema."""
        try:
            read_arguments(arguments, self.listed.parameters)
        except ValueError as error:
            return str(error)
        return None

    async def open(self, problem: Problem) -> ToolSession:
        """Open a session. Raises `ToolError` if the server does not answer; one with a working folder is started by its
        first call."""
        if self.source.shell is not None:
            return await self.source.shell.open(problem)
        if self.source.options.workdir is not None:
            return McpBranch(self, self.source.branches.opened(problem))
        server = self.source.server
        if self.branching == "share":
            return McpSession(self, None)
        connection = server.connect()
        try:
            await connection.ready()
        except BaseException:
            connection.end()
            raise
        return McpSession(self, connection)

    async def let_go(self) -> None:
        await (self.source if self.source.shell is None else self.source.shell).let_go()


@dataclass(frozen=True, slots=True)
class McpSession:
    """A session with the server, used by one of its tools."""

    tool: McpTool
    connection: "Connection | None"
    """None = the session of the run."""

    async def call(self, arguments: str) -> ToolResult:
        """The server's answer. Raises `ToolError` if the call fails."""
        from ramify.tools.mcp_content import Folder, result_of

        listed, source = self.tool.listed, self.tool.source
        try:
            given = read_arguments(arguments, listed.parameters)
        except ValueError as error:
            return ToolResult(str(error), "error")
        connection = source.server.shared() if self.connection is None else self.connection
        said = await connection.call(listed.name, given)
        folder = source.options.attachments
        return result_of(said, Folder(None if folder is None else Path(folder)))

    async def fork(self) -> "McpSession":
        if self.connection is not None:
            raise ToolError("tool_gave_up", "the state of an MCP server cannot be copied")
        return self

    async def close(self) -> None:
        if self.connection is not None:
            await self.connection.close()


@dataclass(frozen=True, slots=True)
class McpBranch:
    """A session with a server that has a working folder, used by one of its tools."""

    tool: McpTool
    state: "BranchState"

    async def call(self, arguments: str) -> ToolResult:
        """The server's answer. Raises `ToolError` if the call fails."""
        return await _answer(self.tool.listed, arguments, self.state.call)

    async def fork(self) -> "McpBranch":
        return replace(self, state=await self.state.fork())

    async def close(self) -> None:
        await self.state.close()


@dataclass(frozen=True, slots=True)
class McpOnShell:
    """A session of a tool `shell`, used by one of the tools of a server that acts on its files."""

    tool: McpTool
    session: "ShellSession"

    async def call(self, arguments: str) -> ToolResult:
        """The server's answer. Raises `ToolError` if the call fails."""
        return await _answer(self.tool.listed, arguments, partial(self.session.serve, self.tool.source.branches))

    async def fork(self) -> "McpOnShell":
        return replace(self, session=await self.session.fork())

    async def close(self) -> None:
        await self.session.close()


async def _answer(
    listed: Listed, arguments: str, call: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]
) -> ToolResult:
    try:
        given = read_arguments(arguments, listed.parameters)
    except ValueError as error:
        return ToolResult(str(error), "error")
    return await call(listed.name, given)


def _shared_state(options: "Mcp", writer: str) -> str:
    """Why a run must not start with a server that has no working folders, and what to do."""
    own = (
        'a server behind a url has no working folder here: start it by a command, with workdir = "branch"'
        if options.command is None
        else f'give every branch a working folder of its own by workdir = "branch", and write {PLACEHOLDER} in args or '
        "env where the server is told its folder"
    )
    return (
        f"MCP server {options.name!r}: its tool {writer!r} may change something (its readOnlyHint does not say "
        f"otherwise), and all branches would share what it changes, such as files: {own}; or, if branches may read and "
        "overwrite what other branches wrote, say branches_share_state = true; or, if the tool changes nothing, say "
        f'branching = {{ {writer} = "share" }}'
    )
