"""Slime batch: grows trees for groups of a data source until a batch of them is full.

Groups are drawn in parts that may exceed the need, as in the trainer's own loop. Each group becomes exactly as many
rows as it has samples. Two kinds of groups go back to the data source unchanged: those whose tree failed or had too few
rows, and those that are still growing when the batch is full. They go back after everything has ended, so that they are
not drawn again at once. Groups that a filter dropped do not go back. Invariant: after an exception nothing is in
flight, and every drawn group is kept, dropped or returned, except those of a draw whose group sizes are wrong.

Source of the rules of drawing: THUDM/slime slime/rollout/sglang_rollout.py `generate_rollout_async`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ramify.core.errors import ConfigError, ExportError, RamifyError
from ramify.integrations.slime.args import SlimeArgs, checked_size, loaded
from ramify.integrations.slime.config import training_config
from ramify.integrations.slime.runs import standing_run
from ramify.integrations.slime.samples import SlimeGroup, fill, group_of
from ramify.integrations.tree_rows import rows_for
from ramify.rows.row import Row
from ramify.runner.deadline import finished
from ramify.runner.events import Event, TreeClosed
from ramify.runner.report import RunReport
from ramify.runner.run import Run, Seedling

FEWEST_FAULTS: Final = 4
"""At least this many groups may fail in a batch of any size."""


class GroupsFailed(RamifyError):
    """Too many groups of a batch failed, or no question of an evaluation set was answered. The batch's groups were
    returned to the data source."""


Filter = Callable[[Any, list[Any]], Any]
"""The trainer's filter: (args, samples of a group) -> whether it is kept, as a bool or an object with `keep`."""


@dataclass(slots=True, eq=False)
class SlimeBatch:
    """The groups of one call. Mutated while it fills."""

    kept: list[SlimeGroup] = field(default_factory=list[SlimeGroup])
    dropped: list[SlimeGroup] = field(default_factory=list[SlimeGroup])
    """Groups that the filter dropped; their samples are filled."""
    returned: list[SlimeGroup] = field(default_factory=list[SlimeGroup])
    """Groups to give back to the data source."""
    reasons: Counter[str] = field(default_factory=Counter[str])
    """Why groups were dropped."""
    faults: list[str] = field(default_factory=list[str])
    """Why groups failed."""
    rows: list[Row] = field(default_factory=list[Row])
    """Rows of the kept groups."""
    report: RunReport = field(default_factory=RunReport)
    """Report over all trees that closed."""
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Filling:
    """A batch that is being filled: `run` grows a tree for each group that `draw` gives."""

    run: Run
    args: SlimeArgs
    given_args: Any
    """The trainer's own arguments, for its functions."""
    rollout_id: int
    draw: Callable[[int], list[list[Any]]]
    keeps: Filter | None = None
    batch: SlimeBatch = field(default_factory=SlimeBatch)
    _growing: dict[int, SlimeGroup] = field(default_factory=dict[int, SlimeGroup])
    _seedlings: asyncio.Queue[Seedling | None] = field(default_factory=asyncio.Queue)
    _closed: asyncio.Queue[TreeClosed | None] = field(default_factory=asyncio.Queue)
    """None = no tree is growing any more."""
    _num_drawn: int = 0

    async def full(self, num_groups: int) -> SlimeBatch:
        """Fill the batch with `num_groups` kept groups, in the order of their samples. Other groups that were not
        dropped are in `returned`. If this raises, all groups that were not dropped are in `returned`."""
        began = asyncio.get_running_loop().time()
        growing = asyncio.create_task(self.run.grow_each(self._named(), [self._observe]))
        growing.add_done_callback(lambda _: self._closed.put_nowait(None))
        try:
            try:
                await self._fill(num_groups, growing)
            finally:
                await self._end(growing)
        except BaseException:
            self.batch.returned += self.batch.kept
            raise
        self.batch.kept.sort(key=_order)
        self.batch.seconds = asyncio.get_running_loop().time() - began
        return self.batch

    async def _fill(self, num_groups: int, growing: asyncio.Task[None]) -> None:
        while len(self.batch.kept) < num_groups:
            while self._num_in_hand < num_groups:
                self._draw(num_groups)
            event = await self._closed.get()
            if event is None:
                await growing
                raise RamifyError("the run ended before the batch was full")
            self._settle(event, num_groups)

    @property
    def _num_in_hand(self) -> int:
        return len(self.batch.kept) + len(self._growing)

    async def _named(self) -> AsyncIterator[Seedling]:
        while (seedling := await self._seedlings.get()) is not None:
            yield seedling

    def _observe(self, event: Event) -> None:
        if isinstance(event, TreeClosed):
            self._closed.put_nowait(event)

    def _draw(self, num_groups: int) -> None:
        drawn = self.draw(self.args.num_drawn or num_groups)
        if not drawn:
            raise ConfigError(
                f"the data source gave no more groups; the batch has {len(self.batch.kept)} of {num_groups}"
            )
        checked_size(drawn, self.args.num_samples)
        groups = [self._group(given, self._num_drawn + place) for place, given in enumerate(drawn)]
        self._num_drawn += len(groups)
        for group in groups:
            self._growing[group.number] = group
            self._seedlings.put_nowait(Seedling(group.number, group.problem))

    def _group(self, given: list[Any], number: int) -> SlimeGroup:
        config = self.run.prepared.config
        return group_of(
            given,
            number,
            rollout_id=self.rollout_id,
            system=config.opening_system,
            args=self.given_args,
            reward_key=self.args.reward_key,
        )

    def _settle(self, event: TreeClosed, num_groups: int) -> None:
        """Keep, drop or return a group whose tree has closed."""
        batch, group = self.batch, self._growing.pop(event.index)
        batch.report.observe(event)
        try:
            rows = rows_for(self.run, event, len(group.samples))
            fill(group, rows, codec=event.tree.codec, rollouts=self.args.rollouts, reward_key=self.args.reward_key)
        except ExportError as error:
            self._fail(group, str(error), num_groups)
            return
        if self._is_kept(group, num_groups):
            batch.kept.append(group)
            batch.rows += rows

    def _fail(self, group: SlimeGroup, fault: str, num_groups: int) -> None:
        self.batch.returned.append(group)
        self.batch.faults.append(fault)
        if len(self.batch.faults) > max(FEWEST_FAULTS, num_groups):
            raise GroupsFailed(f"{len(self.batch.faults)} groups failed; the last: {fault}")

    def _is_kept(self, group: SlimeGroup, num_groups: int) -> bool:
        """Whether the trainer's filter keeps a group; records a dropped one. A filter may set `keep_when_insufficient`:
        then the group is kept if dropping it would make more draws necessary."""
        if self.keeps is None:
            return True
        said = self.keeps(self.given_args, group.samples)
        if getattr(said, "keep", said):
            return True
        if getattr(said, "keep_when_insufficient", False) and self._num_in_hand + 1 <= num_groups:
            return True
        self.batch.dropped.append(group)
        self.batch.reasons[getattr(said, "reason", None) or "filtered"] += 1
        return False

    async def _end(self, growing: asyncio.Task[None]) -> None:
        """Stop the trees that still grow. Their groups, and those whose end was not handled, are returned."""
        growing.cancel()
        try:
            await finished(_ended(growing))
        finally:
            self.batch.returned += self._growing.values()
            self._growing.clear()


async def drawn_batch(args: Any, rollout_id: int, source: Any) -> tuple[SlimeBatch, int]:
    """A full batch for a trainer's arguments, and how many groups the source did not take back. Raises `ConfigError`
    before anything is drawn. On a later error, all drawn groups that were not dropped go back to the source."""
    said = SlimeArgs.of(args)
    config = training_config(said)
    keeps = None if said.filter_path is None else loaded(said.filter_path)
    async with standing_run(config, said) as run:
        filling = Filling(run, said, args, rollout_id, source.get_samples, keeps)
        try:
            batch = await filling.full(said.num_groups or config.prompts)
        except BaseException:
            give_back(source, filling.batch.returned)
            raise
        return batch, give_back(source, batch.returned)


def give_back(source: Any, groups: list[SlimeGroup]) -> int:
    """Give groups back to the data source, in the order they were drawn. Returns how many it did not take. A read-only
    source has no `add_samples`, or one that raises (THUDM/slime slime/rollout/data_source.py)."""
    if not groups:
        return 0
    given = [group.samples for group in sorted(groups, key=lambda group: group.number)]
    if (add := getattr(source, "add_samples", None)) is not None:
        with suppress(RuntimeError, NotImplementedError):
            add(given)
            return 0
    return len(groups)


async def _ended(task: asyncio.Task[None]) -> None:
    """Wait until the task has ended, with or without an error."""
    await asyncio.gather(task, return_exceptions=True)


def _order(group: SlimeGroup) -> tuple[bool, int]:
    """Sort key: the index of the group's samples; groups without one come last, in the order of drawing."""
    index = group.samples[0].index
    return index is None, group.number if index is None else index
