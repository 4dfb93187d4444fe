"""Tools of an MCP server. The server is started here (standard input and output) or reached by a URL.

Each tool of the server is a tool here. If the tools only read (`readOnlyHint`), the server is shared: all branches call
it through one session of the run. Otherwise all its tools act on one state and each branch has its own session. Then
the most careful tool decides how the server branches: `replay` if all calls may be repeated (`idempotentHint`), else
`refuse`. A tool that only reads then uses the session of its branch, to see what the branch has done. `branching`
overrides this for each tool.

A process of its own is not a state of its own: servers keep files. With `workdir = "branch"` every branch has a working
folder too (`mcp_branches.py`), and all tools act on its state, whatever their annotations say. Without it, a run that
uses a tool which may change something does not start, unless `branches_share_state` says that this is meant.
`workdir = "workspace"` also keeps the server behind walls, with the folder at `/w` (`mcp_workspaces.py`); this may be
the `/w` of a tool `shell` of the run.

A recorded run stores its tools, so reading the run does not ask the server.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ramify.core.errors import ConfigError, nearest
from ramify.core.tool import Tool, ToolSet
from ramify.tools.mcp_folders import PLACEHOLDER, FolderFault, Folders, mapped
from ramify.tools.mcp_tools import Listed, McpBranching, McpSource, McpTool, Stateful
from ramify.workspaces.shell import Shell

if TYPE_CHECKING:
    from mcp_types import Tool as ServersTool

    from ramify.tools.mcp_client import McpServer
    from ramify.tools.mcp_workspaces import WorkspaceFolders
CAREFUL: Final[tuple[McpBranching, ...]] = ("refuse", "replay", "share")
"""Without a working folder; most careful first."""
CAREFUL_WITH_FOLDER: Final[tuple[Stateful, ...]] = ("refuse", "replay", "fork")
MAX_WORKDIR_BYTES: Final = 256 << 20
UNSEEN: Final = " (in a workspace it sees /w, the programs of this machine, and what `{}` names)"
OF_COMMANDS: Final = ("args", "env", "env_from", "cwd", "workdir", "workspace", "template")
"""Options of servers that are started here."""
CALLABLE: Final = re.compile(r"[\w.-]{1,128}")
"""Names that all formats can call, in tags and in JSON calls (the protocol's own rule)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mcp:
    """Options of one server, and the set of its tools. `tools` asks the server unless `listed` is set."""

    name: str = "mcp"
    """Name of the server in messages."""
    command: str | None = None
    """Program that starts the server. Set this or `url`."""
    args: Sequence[str] = ()
    """Arguments of the program."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables for the server. They are saved with the run: put keys in `env_from`."""
    env_from: Sequence[str] = ()
    """Names of our own variables that the server also gets. Of the others it gets only HOME, LOGNAME, PATH, SHELL, TERM
    and USER."""
    cwd: str | None = None
    """Working directory of the server; None = the working folder of its branch, or ours if it has none."""
    workdir: Literal["branch", "workspace"] | None = None
    """`branch`: every branch has a working folder of its own. `{branch}` in `args`, `env` and `cwd` is its path.
    `workspace`: its path is `/w`, and the server sees nothing else that it could change."""
    workspace: Mapping[str, Any] | str = field(default_factory=dict[str, Any])
    """With `workdir = "workspace"`: options of the tool `shell` that hold for the server, such as `readable`,
    `memory_bytes` and `network`. Or the name of a tool `shell` of the run: the server acts on its `/w`, by its
    options."""
    template: str | None = None
    """Folder that is copied into a new working folder, in a workspace also a tar file; None = it is empty."""
    max_workdir_bytes: int = MAX_WORKDIR_BYTES
    """Most bytes in a working folder, of which every branch has a copy."""
    compare_folder: bool = True
    """Whether a repeated call must leave the same files. Say false if files hold times or random names."""
    branches_share_state: bool = False
    """Whether tools that may change something may be used without a working folder: branches see each other's files."""
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
    template_sha256: str | None = None
    """Digest of the template; filled in when the run begins, so that a resumed run has the same."""
    shell: Shell | None = field(default=None, init=False)
    """The tool that `workspace` names; `joined` finds it."""

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ConfigError(f"command = {self.command!r}, url = {self.url!r}: set exactly one of them")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"url = {self.url!r}: it must begin with http:// or https://")
        for key in OF_COMMANDS if self.url is not None else ("headers",):
            if given := asdict(self)[key]:
                raise ConfigError(f"{key} = {given!r}: a server of a {'url' if self.url else 'command'} takes none")
        allowed = CAREFUL if self.workdir is None else CAREFUL_WITH_FOLDER
        for name, kind in self.branching.items():
            if kind not in allowed:
                where = "" if self.workdir is None else f' with workdir = "{self.workdir}"'
                raise ConfigError(f"branching.{name} = {kind!r}: allowed are {', '.join(map(repr, allowed))}{where}")
        self._check_workdir()
        if not self.start_s > 0:
            raise ConfigError(f"start_s = {self.start_s!r}: it must be above 0")

    def _check_workdir(self) -> None:
        """Refuse options that contradict each other. Raises `ConfigError`."""
        if self.workdir not in (None, "branch", "workspace"):
            raise ConfigError(
                f'workdir = {self.workdir!r}: allowed are "branch" and "workspace"; leave it out for no working folder'
            )
        if self.workdir is None:
            if self.template is not None:
                raise ConfigError(
                    f'template = {self.template!r}: it is copied into a working folder; set workdir = "branch"'
                )
        elif self.branches_share_state:
            raise ConfigError(
                f'workdir = "{self.workdir}", branches_share_state = True: branches either share or do not; set one'
            )
        found = [text for text in (*self.args, *self.env.values(), self.cwd or "") if PLACEHOLDER in text]
        if found and self.workdir != "branch":
            why = 'without a working folder; set workdir = "branch"'
            if self.workdir == "workspace":
                why = "in a workspace, whose folder is /w in every branch: write /w"
            raise ConfigError(f"{found[0]!r}: there is no {PLACEHOLDER} {why}")
        self._check_workspace()
        if not self.max_workdir_bytes > 0:
            raise ConfigError(f"max_workdir_bytes = {self.max_workdir_bytes!r}: it must be above 0")

    def _check_workspace(self) -> None:
        if self.workdir != "workspace":
            if self.workspace:
                raise ConfigError(f'workspace = {self.workspace!r}: there is none; set workdir = "workspace"')
            return
        if not self.is_shared:
            self._own_shell()
            return
        where = f"in the workspace of {self.workspace!r}"
        if self.template is not None or self.max_workdir_bytes != MAX_WORKDIR_BYTES:
            raise ConfigError(f"template and max_workdir_bytes: {where} its options hold; take these out")
        for name, kind in self.branching.items():
            if kind != "fork":
                raise ConfigError(
                    f"branching.{name} = {kind!r}: {where} a server ends when another tool is called, and loses what "
                    "it keeps in memory, so allowed is 'fork'"
                )

    @property
    def is_shared(self) -> bool:
        """Whether the server acts on the workspaces of a tool `shell`."""
        return self.workdir == "workspace" and isinstance(self.workspace, str)

    def joined(self, tools: Mapping[str, Tool | ToolSet]) -> "Mcp":
        """See `JoinsState`. Raises `ConfigError`."""
        if not self.is_shared:
            return self
        shell = tools.get(str(self.workspace))
        if not isinstance(shell, Shell):
            shells = [name for name, tool in tools.items() if isinstance(tool, Shell)]
            what = f"MCP server {self.name!r}: workspace = {self.workspace!r} names no tool `shell` of tools.use"
            raise ConfigError(f"{what}; {nearest(str(self.workspace), shells)}")
        if shell.hosts or shell.walls != "bubblewrap":
            raise ConfigError(
                f"MCP server {self.name!r}: workspace = {self.workspace!r}: a server runs behind bubblewrap on this "
                "machine; take `hosts` and `walls` out of the options of that tool"
            )
        joined = replace(self)
        object.__setattr__(joined, "shell", shell)
        return joined

    @property
    def tools(self) -> Sequence[Tool]:
        """The server's tools. Raises `ConfigError` if the server does not answer or its list does not fit the
        options."""
        tools = self._chosen(self._listing())
        if self.workdir is not None:
            return self._tools_on_a_folder(tools)
        branching: dict[str, McpBranching] = {t.name: self.branching.get(t.name, t.branching) for t in tools}
        source = McpSource(self, _writer(branching))
        state = _most_careful(branching.values())
        made: list[Tool] = []
        for tool in tools:
            is_shared = self.branching.get(tool.name) == "share" or state == "share"
            name = self.rename.get(tool.name, tool.name)
            made.append(McpTool(name, tool, "share" if is_shared else state, source))
        return made

    def _tools_on_a_folder(self, tools: Sequence[Listed]) -> Sequence[Tool]:
        """The tools, all of which act on the state of a branch."""
        said = [self.branching[tool.name] for tool in tools if tool.name in self.branching]
        way: Stateful | None = next((kind for kind in CAREFUL_WITH_FOLDER if kind in said), None)
        source = McpSource(self, None, way or "auto")
        names = {tool.name: self.rename.get(tool.name, tool.name) for tool in tools}
        return [McpTool(names[tool.name], tool, way or "fork", source) for tool in tools]

    def recorded(self) -> Mapping[str, Any]:
        """The options that make the same tools again, from any folder and without asking the server."""
        cwd = "." if self.cwd is None and self.url is None and self.workdir is None else self.cwd
        folders = {"attachments": self.attachments, "template": self.template}
        folders |= {} if cwd is None or self.workdir == "workspace" or PLACEHOLDER in cwd else {"cwd": cwd}
        absolute = {key: str(Path(folder).resolve()) for key, folder in folders.items() if folder is not None}
        known = {"listed": msgspec.json.encode(self._listing()).decode(), **absolute}
        return known if self.template is None else {**known, "template_sha256": self.template_sha256 or self._digest()}

    def folders(self) -> "Folders | WorkspaceFolders":
        """Working folders of its own; none is made yet."""
        if self.workdir == "workspace":
            from ramify.tools.mcp_workspaces import WorkspaceFolders

            return WorkspaceFolders(self._own_shell())
        template = None if self.template is None else Path(self.template).resolve()
        return Folders(template, max_bytes=self.max_workdir_bytes)

    def _own_shell(self) -> Shell:
        """The options of a workspace of its own. Raises `ConfigError`."""
        from ramify.tools.mcp_workspaces import LIFE_S, OPTIONS

        if self.shell is not None:
            return replace(self.shell)
        if isinstance(self.workspace, str):
            raise ConfigError(f"workspace = {self.workspace!r}: a run finds this tool; without one, call `joined`")
        if unknown := sorted(self.workspace.keys() - set(OPTIONS)):
            raise ConfigError(f"workspace names the option {unknown[0]!r}; allowed are {', '.join(OPTIONS)}")
        template = "" if self.template is None else str(Path(self.template).resolve())
        return Shell(**self.workspace, workspace=template, disk_bytes=self.max_workdir_bytes, cpu_s=LIFE_S)

    def check_template(self) -> None:
        """Raise `ConfigError` if the template cannot be copied, or has changed since the run began."""
        if self.template is not None and (now := self._digest()) != (self.template_sha256 or now):
            raise ConfigError(
                f"MCP server {self.name!r}: template = {self.template!r} has changed since the run began (sha256 "
                f"{self.template_sha256}, now {now}): put back what it held"
            )

    def _digest(self) -> str:
        try:
            return self.folders().check_template()
        except FolderFault as error:
            raise ConfigError(f"MCP server {self.name!r}: template = {self.template!r}: {error}") from error

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
        try:
            return self._asked()
        except ConfigError as error:
            raise ConfigError(f"MCP server {self.name!r}: {error}") from error

    def _asked(self) -> list[Listed]:
        """Ask the server; one with a working folder gets one for the question."""
        from ramify.tools.mcp_client import listed_by

        address = self.server().address
        if self.workdir is None:
            return [_listed(tool) for tool in listed_by(address)]
        folders = self.folders()
        try:
            folder = folders.new()
            folders.fill(folder)
            listing = [_listed(tool) for tool in listed_by(folders.address(address, folder))]
            return [msgspec.convert(mapped(asdict(tool), folders.shown), Listed) for tool in listing]
        except FolderFault as error:
            of_what = f"template = {self.template!r}: " if self.workdir == "branch" else ""
            raise ConfigError(f"{of_what}{error}") from error
        except ConfigError as error:
            hint = "" if self.cwd else " (it was started in the folder of its branch: name its files by absolute paths)"
            if self.workdir == "workspace":
                hint = UNSEEN.format(f"{self.workspace}.readable" if self.is_shared else "workspace.readable")
            raise ConfigError(f"{error}{hint}") from error
        finally:
            folders.close()

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


def _writer(branching: Mapping[str, McpBranching]) -> str | None:
    """The first tool that may change something."""
    return next((name for name, kind in branching.items() if kind != "share"), None)


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
