"""Live tree: one tree of a run, drawn anew on the screen at each of its steps, and an engine slow enough to watch."""

import asyncio
from types import TracebackType

from rich.live import Live

from ramify.cli.plain_tree import GrowingPath, plain_tree
from ramify.cli.terminal import Terminal
from ramify.core.command import Grow
from ramify.core.engine import Engine, Generation, Request
from ramify.core.tree import Step, Tree
from ramify.engines.in_front import InFront
from ramify.runner.events import CommandsAsked, Event, OutcomeTold, StepGrown, TreeOpened


class LiveTree:
    """Draws tree `index` of a run while it grows. A context manager, which leaves nothing on the screen; `observe` is
    an observer. Steps are drawn as they arrive, before the outcome of their command puts them on the tree."""

    def __init__(self, terminal: Terminal, *, index: int = 0) -> None:
        self._index = index
        # Messages on stderr appear above the tree, unless they go elsewhere.
        self._live = Live(
            console=terminal.out, auto_refresh=False, transient=True, redirect_stderr=terminal.err.is_terminal
        )
        self._tree: Tree | None = None
        self._parents: dict[int, int] = {}
        """Command that grows -> the node where it began."""
        self._steps: dict[int, list[Step]] = {}

    def __enter__(self) -> "LiveTree":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def observe(self, event: Event) -> None:
        """Take one event of the run."""
        if event.index != self._index:
            return
        match event:
            case TreeOpened(_, tree):
                self._tree = tree
                self._draw()
            case CommandsAsked(_, asked):
                grows = enumerate(asked.commands, asked.first_id)
                self._parents.update((number, grow.node) for number, grow in grows if isinstance(grow, Grow))
            case StepGrown(_, command_id, _, step):
                self._steps.setdefault(command_id, []).append(step)
                self._draw()
            case OutcomeTold(_, told):
                self._steps.pop(told.command_id, None)
            case _:
                pass

    def _draw(self) -> None:
        if self._tree is not None:
            growing = [GrowingPath(self._parents[number], steps) for number, steps in sorted(self._steps.items())]
            self._live.update(plain_tree(self._tree, growing), refresh=True)


class Paced(InFront):
    """An engine whose answers come one by one, at least `step_s` apart, for its first `most_s` seconds. What it answers
    is unchanged."""

    def __init__(self, engine: Engine, *, step_s: float, most_s: float) -> None:
        super().__init__(engine)
        self._step_s = step_s
        self._left_s = most_s
        self._turn = asyncio.Lock()

    async def generate(self, request: Request) -> Generation:
        generation = await self.engine.generate(request)
        async with self._turn:
            pause_s = min(self._step_s, self._left_s)
            self._left_s -= pause_s
            await asyncio.sleep(pause_s)
        return generation
