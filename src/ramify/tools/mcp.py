"""Tools of an MCP server. The server is started here (standard input and output) or reached by a URL.

Each tool of the server is a tool here. If the tools only read (`readOnlyHint`), the server is shared: all branches call
it through one session of the run. Otherwise all its tools act on one state and each branch has its own session. Then
the most careful tool decides how the server branches: `replay` if all calls may be repeated (`idempotentHint`), else
`refuse`. A tool that only reads then uses the session of its branch, to see what the branch has done. `branching`
overrides this for each tool.

A recorded run stores its tools, so reading the run does not ask the server.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ramify.core.errors import ConfigError, ToolError, nearest
from ramify.core.problem import Problem
from ramify.core.tool import Tool, ToolResult, ToolSession
from ramify.tools.arguments import read_arguments

if TYPE_CHECKING:
    from mcp_types import Tool as ServersTool

    from ramify.tools.mcp_client import Connection, McpServer

McpBranching = Literal["share", "replay", "refuse"]
"""How calls branch. There is no `fork`: the state of a server cannot be copied."""
CAREFUL: Final[tuple[McpBranching, ...]] = ("refuse", "replay", "share")
"""Most careful first."""
CALLABLE: Final = re.compile(r"[\w.-]{1,128}")
"""Names that all formats can call, in tags and in JSON calls (the protocol's own rule)."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One tool as a server lists it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    branching: McpBranching
    """Derived from its annotations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mcp:
    """Options of one server, and the set of its tools. `tools` asks the server unless `listed` is set."""

    name: str = "mcp"
    """Name of the server in messages."""
    command: str | None = None
    """Program that starts the server. Set this or `url`."""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables for the server. They are saved with the run: put keys in `env_from`."""
    env_from: Sequence[str] = ()
    """Names of our own variables that the server also gets. Of the others it gets only HOME, LOGNAME, PATH, SHELL, TERM
    and USER."""
    cwd: str | None = None
    """Working directory of the server; None = ours."""
    url: str | None = None
    """URL of a server that speaks streamable HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Header -> name of our variable with its value."""
    only: Sequence[str] | None = None
    """Names of the server's tools to use; None = all."""
    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    """The server's name of a tool -> its name for the model."""
    branching: Mapping[str, McpBranching] = field(default_factory=dict[str, McpBranching])
    """The server's name of a tool -> how it branches. Set this if the annotations are missing or wrong."""
    attachments: str | None = None
    """Folder for images and other files that tools return; None = a temporary folder."""
    start_s: float = 30.0
    """Timeout for the server to start and identify itself (the SDK's own limit for a connection)."""
    listed: str | None = None
    """The server's list of tools; filled in when the run begins."""

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ConfigError(f"command = {self.command!r}, url = {self.url!r}: set exactly one of them")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"url = {self.url!r}: it must begin with http:// or https://")
        for key in ("args", "env", "env_from", "cwd") if self.url is not None else ("headers",):
            if given := asdict(self)[key]:
                raise ConfigError(f"{key} = {given!r}: a server of a {'url' if self.url else 'command'} takes none")
        for name, kind in self.branching.items():
            if kind not in CAREFUL:
                raise ConfigError(f"branching.{name} = {kind!r}: allowed are {', '.join(map(repr, CAREFUL))}")
        if not self.start_s > 0:
            raise ConfigError(f"start_s = {self.start_s!r}: it must be above 0")

    @property
    def tools(self) -> Sequence[Tool]:
        """The server's tools. Raises `ConfigError` if the server does not answer or its list does not fit the
        options."""
        tools = self._chosen(self._listing())
        branching: dict[str, McpBranching] = {t.name: self.branching.get(t.name, t.branching) for t in tools}
        source = McpSource(self)
        state = _most_careful(branching.values())
        made: list[Tool] = []
        for tool in tools:
            is_shared = self.branching.get(tool.name) == "share" or state == "share"
            name = self.rename.get(tool.name, tool.name)
            made.append(McpTool(name, tool, "share" if is_shared else state, source))
        return made

    def recorded(self) -> Mapping[str, Any]:
        """The options that make the same tools again, from any folder and without asking the server."""
        folders = {"attachments": self.attachments, "cwd": "." if self.cwd is None and self.url is None else self.cwd}
        absolute = {key: str(Path(folder).resolve()) for key, folder in folders.items() if folder is not None}
        return {"listed": msgspec.json.encode(self._listing()).decode(), **absolute}

    def server(self) -> "McpServer":
        """The server's sessions; none is open yet. Raises `ConfigError` without the package mcp."""
        from ramify.tools.mcp_client import McpAddress, McpServer

        return McpServer(
            McpAddress(
                command=self.command,
                args=self.args,
                env=self.env,
                env_from=self.env_from,
                cwd=self.cwd,
                url=self.url,
                headers=self.headers,
                start_s=self.start_s,
            )
        )

    def _listing(self) -> list[Listed]:
        if self.listed is not None:
            try:
                return msgspec.json.decode(self.listed, type=list[Listed])
            except msgspec.DecodeError as error:
                raise ConfigError(f"listed = {self.listed!r:.80}: this is no list of tools: {error}") from error
        from ramify.tools.mcp_client import listed_by

        try:
            return [_listed(tool) for tool in listed_by(self.server().address)]
        except ConfigError as error:
            raise ConfigError(f"MCP server {self.name!r}: {error}") from error

    def _chosen(self, listing: Sequence[Listed]) -> list[Listed]:
        """The tools to use, in the server's order."""
        names = {tool.name for tool in listing}
        for key, named in (("only", self.only or ()), ("rename", self.rename), ("branching", self.branching)):
            if unknown := [name for name in named if name not in names]:
                raise ConfigError(
                    f"MCP server {self.name!r}: {key} names the tool {unknown[0]!r}, which it does not list; "
                    f"{nearest(unknown[0], names)}"
                )
        chosen = [tool for tool in listing if self.only is None or tool.name in self.only]
        for name, number in Counter(self.rename.get(tool.name, tool.name) for tool in chosen).items():
            if number > 1:
                raise ConfigError(f"MCP server {self.name!r}: two of its tools are called {name!r}; a name calls one")
            if not CALLABLE.fullmatch(name):
                raise ConfigError(
                    f"MCP server {self.name!r}: no format can call a tool {name!r:.80}; give it a name of letters, "
                    "digits, `_`, `-` and `.` by `rename`, or leave it out by `only`"
                )
        if not chosen:
            raise ConfigError(f"MCP server {self.name!r} offers no tools")
        return chosen


@dataclass(slots=True)
class McpSource:
    """The server of a set of tools; made when the first session opens."""

    options: Mcp
    _server: "McpServer | None" = None

    @property
    def server(self) -> "McpServer":
        if self._server is None:
            self._server = self.options.server()
        return self._server

    async def let_go(self) -> None:
        if self._server is not None:
            await self._server.let_go()


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
        the states of other servers and from every tool name."""
        return f"MCP server {self.source.options.name} ({id(self.source)}), {self.branching}"

    def on(self, session: ToolSession) -> ToolSession:
        assert isinstance(session, McpSession)
        return replace(session, tool=self)

    def fault(self, arguments: str) -> str | None:
        """What is wrong with the arguments; None = they fit the server's schema."""
        try:
            read_arguments(arguments, self.listed.parameters)
        except ValueError as error:
            return str(error)
        return None

    async def open(self, problem: Problem) -> "McpSession":
        """Open a session. Raises `ToolError` if the server does not answer."""
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
        await self.source.let_go()


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


def _most_careful(kinds: Collection[McpBranching]) -> McpBranching:
    for kind in CAREFUL:
        if kind in kinds:
            return kind
    return "share"


def _listed(tool: "ServersTool") -> Listed:
    """A listed tool, with its branching from the annotations. A tool without annotations may do anything."""
    hints = tool.annotations
    is_reader = hints is not None and hints.read_only_hint is True
    is_repeatable = hints is not None and hints.idempotent_hint is True
    branching: McpBranching = "share" if is_reader else "replay" if is_repeatable else "refuse"
    parameters: dict[str, Any] = {"properties": {}, **tool.input_schema, "type": "object"}
    if not isinstance(parameters["properties"], Mapping):
        parameters["properties"] = {}
    return Listed(tool.name, tool.description or "", parameters, branching)
