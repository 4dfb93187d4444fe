"""Workspaces: what all workspaces of one tool share: layers, the back end, and the process that starts commands.

The back end is chosen by a trial on this machine, so a file system that cannot be mounted over is found before a run.
"""

import asyncio
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.edge.daemon_threads import DaemonThreads
from ramify.sandbox.setup import NUM_UIDS, UID_BASE
from ramify.workspaces.back_ends import BackEnd, CopyFiles, FileDraft, OverlayFiles, WorkspaceState
from ramify.workspaces.command import CommandEnd, StopFlag, run
from ramify.workspaces.containers import Container, ContainerProgram, remove_left, write_seccomp
from ramify.workspaces.layers import LayerStore
from ramify.workspaces.process_watch import CommandLimits
from ramify.workspaces.shell_order import FIRST, CommandRules, ShellOrder, ShellVariables
from ramify.workspaces.starter import CommandStarter
from ramify.workspaces.system import around, shell_of
from ramify.workspaces.tree import TreeFault

if TYPE_CHECKING:
    from ramify.workspaces.shell import Shell

T = TypeVar("T")

MAX_THREADS: Final = 64
"""Calls that run at once; each holds a thread and 8 descriptors of this process."""
MAX_STARTS: Final = 16
"""Start folders whose copies are kept while no branch uses them."""

_HOLDING: Final[set[tuple[str, str, str]]] = set()
"""Walls, back ends and networks that were tried in this process and hold."""


class Workspaces:
    """The workspaces of one tool: their layers, their back end, and the process that starts their commands."""

    def __init__(self, tool: "Shell", limits: CommandLimits) -> None:
        self.tool = tool
        self.limits = limits
        self.owner = UID_BASE + secrets.randbelow(NUM_UIDS) if os.geteuid() == 0 else None
        self.store = LayerStore(Path(tool.folder) if tool.folder else None, owner=self.owner)
        self.starter = CommandStarter()
        self.threads = DaemonThreads(MAX_THREADS)
        self.why = ""
        """Why the back end is the one it is."""
        self._back_end: BackEnd | None = None
        self._lock = threading.Lock()
        self._starts: dict[str, WorkspaceState] = {}
        self._images: dict[str, CommandRules] = {}
        """Rules of containers, by their image."""

    @property
    def back_end(self) -> BackEnd:
        assert self._back_end is not None
        return self._back_end

    async def ready(self, image: str = "") -> None:
        """Choose the back end. Raises `ToolError`."""
        await self.in_thread(lambda: self._choose(image))

    async def tried(self, image: str = "") -> None:
        """Choose the back end, and attack the walls once per process, with the programs of an image if they are a
        container's."""
        from ramify.workspaces.walls import attack

        await self.ready(image)
        kind = (self.tool.walls, self.back_end.name, self.tool.network)
        if kind not in _HOLDING:
            await self.in_thread(lambda: attack(self, image))
            _HOLDING.add(kind)

    async def start(self, problem: Problem) -> tuple[CommandRules, WorkspaceState]:
        """The rules and the first state of a problem's branches; the caller is the state's user. Raises `ToolError`."""
        image = column(problem, "image", self.tool.image)
        rules = await self.in_thread(lambda: self.rules(image))
        await self.tried("" if rules.container is None else image)
        source = column(problem, "workspace", self.tool.workspace)
        return rules, await self.in_thread(lambda: self._start(source))

    def rules(self, image: str = "") -> CommandRules:
        """The rules of all commands in an image. Raises `ToolError` if it is none. Blocks where it is a container's."""
        if self.tool.walls != "bubblewrap":
            return self._container_rules(self.tool.walls, image)
        root = Path(image) if image else None
        if root is not None and not root.is_dir():
            raise ToolError("tool_gave_up", f"the image {image!r} is no folder: unpack or export one there")
        options = around(root, network=self.tool.network, readable=self.tool.readable)
        return CommandRules(
            limits=self.limits,
            network=self.tool.network,
            shell=shell_of(root),
            root=tuple(options),
            has_own_users=root is None,
            owner=self.owner,
        )

    def _container_rules(self, program: ContainerProgram, image: str) -> CommandRules:
        if image not in self._images:
            seccomp = write_seccomp(program, self.store.run / "seccomp.json")
            container = Container(program, image, self.tool.readable, seccomp)
            self._images[image] = CommandRules(
                limits=self.limits,
                network=self.tool.network,
                shell="",
                root=(),
                has_own_users=False,
                owner=self.owner,
                container=container,
                first=ShellVariables(FIRST.folder, container.environment),
            )
        return self._images[image]

    def run(self, order: ShellOrder, stop: StopFlag) -> CommandEnd:
        """Run a command on a draft. Blocks. Raises `ToolError`, and then the draft is discarded."""
        return self._run(self.back_end, order, stop)

    def check_folders(self) -> None:
        """Raises `ConfigError` for an option that names no folder of this machine."""
        image = self.tool.image if self.tool.walls == "bubblewrap" else ""
        for name, path in (("workspace", self.tool.workspace), ("image", image)):
            if path and not Path(path).exists():
                raise ConfigError(f"{name} = {path!r}: there is no such folder on this machine")
        for path in self.tool.readable:
            if not Path(path).exists():
                raise ConfigError(
                    f"readable names {path!r}, which is not on this machine: name a folder that is, or leave it out"
                )

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work in a thread. If cancelled, wait for its end: it acts on files that may be removed next."""
        task = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(self.threads, work))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.gather(task, return_exceptions=True)
            raise

    def close(self) -> None:
        self.starter.close()
        self.store.close()

    def _choose(self, image: str) -> None:
        with self._lock:
            if self._back_end is not None:
                return
            if self.tool.walls != "bubblewrap":
                remove_left(self.tool.walls, self.store.run.parent)
            wanted = self.tool.files
            overlay, copy = (kind(self.store, self.limits.of_tree) for kind in (OverlayFiles, CopyFiles))
            if wanted == "copy":
                self._back_end, self.why = copy, "files = 'copy'"
                return
            fault = self._fault_of(overlay, image)
            if fault and wanted == "overlay":
                raise ToolError("tool_gave_up", f"files = 'overlay' does not work here: {fault}; use 'auto' or 'copy'")
            if fault and (other := self._fault_of(copy, image)):
                raise ToolError("tool_gave_up", other)
            self._back_end = copy if fault else overlay
            self.why = f"an overlay cannot be mounted here: {fault}" if fault else "overlays can be mounted here"

    def _fault_of(self, back_end: BackEnd, image: str) -> str:
        """Why a back end does not work; empty = it does."""
        state = back_end.start(None)
        try:
            kept = back_end.keep(self._probed(back_end, state, self.rules(image)))
            back_end.release(kept)
        except (ToolError, TreeFault, OSError) as error:
            return str(error).removeprefix("tool_gave_up: ")
        return "" if kept.entries.keys() > state.entries.keys() else "what a command wrote was not there"

    def _probed(self, back_end: BackEnd, state: WorkspaceState, rules: CommandRules) -> FileDraft:
        draft = back_end.draft(state)
        back_end.release(state)
        stop = StopFlag()
        try:
            order = ShellOrder(rules=rules, draft=draft, command="echo > /w/a", variables=rules.first, is_tmp_kept=True)
            self._run(back_end, order, stop)
        finally:
            stop.close()
        return draft

    def _run(self, back_end: BackEnd, order: ShellOrder, stop: StopFlag) -> CommandEnd:
        try:
            return run(self.starter, order, timeout_s=self.tool.timeout_s, stop=stop)
        except BaseException:
            back_end.discard(order.draft)
            raise

    def _start(self, source: str) -> WorkspaceState:
        """The start state of a source, which the caller uses. Copies are kept for the next branch."""
        with self._lock:
            state = self._starts.pop(source, None)
            if state is None:
                try:
                    state = self.back_end.start(Path(source) if source else None)
                except (TreeFault, OSError) as error:
                    raise ToolError("tool_gave_up", f"the workspace {source!r} cannot be copied: {error}") from error
            self._starts[source] = state
            self.back_end.hold(state)
            while len(self._starts) > MAX_STARTS:
                self.back_end.release(self._starts.pop(next(iter(self._starts))))
            return state


def column(problem: Problem, name: str, default: str) -> str:
    """A path in a public column. Raises `ToolError` for what is none."""
    value = problem.public.get(name) or default
    if not isinstance(value, str):
        raise ToolError("tool_gave_up", f"the column {name!r} holds {value!r}: a path is needed")
    return value
