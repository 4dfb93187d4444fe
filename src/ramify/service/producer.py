"""Producer: grows trees ahead of the trainer, as far as staleness allows, and makes batches of the finished trees.

Admission: d is the number of batches that the trainer waits for (0 or 1). The buffer may hold as many trees as d +
max_staleness batches need. It may hold `over_sampling` more, unless d + max_staleness is 0. A dropped tree makes room
for another. So with `max_staleness` 0 no tree begins between two batches, and the gate pauses the trees that
over-sampling left unfinished.

Without over-sampling, a batch has the trees that began first. With it, a batch is made as soon as enough trees are
finished. Invariants: a tree is in at most one batch; asking for a batch again returns the same batch; the journal
records what happens to a tree before anybody is told.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ramify.config.run_config import RunConfig
from ramify.config.service_config import MIXED, ServiceConfig
from ramify.core.errors import ContractError, ExportError
from ramify.core.tree import Tree
from ramify.engines.gate import Gate
from ramify.rows.sample import Sample
from ramify.runner.events import Event, Observer, TreeClosed, TreeOpened
from ramify.runner.run import Run, Seedling
from ramify.runner.scheduler import MIN_COMMANDS_TO_JUDGE_FAULTS, TooManyFailures
from ramify.service.buffer import Buffer, ReadyGroup, chosen, versions_of
from ramify.service.functions import Function
from ramify.service.samples import group_samples, numbered, rewards_differ
from ramify.service.source import ProblemSource
from ramify.store.records import Dropped, Handed
from ramify.store.replay import Replayed
from ramify.store.store import Store

IDLE: Final = "idle"
"""This name holds the gate while no batch is asked for and `max_staleness` is 0."""


class Producer:
    """Mutable. `observers` see every event of the trees, after the observers that record them."""

    def __init__(
        self,
        run: Run,
        *,
        source: ProblemSource,
        buffer: Buffer,
        store: Store,
        gate: Gate,
        filters: Mapping[str, Function],
        args: Any,
        again: Callable[[Sequence[int]], Sequence[Tree]],
        observers: Iterable[Observer],
    ) -> None:
        """`again` reads the trees of earlier batches."""
        assert run.prepared.config.service is not None
        self._run = run
        self._config: RunConfig = run.prepared.config
        self._service: ServiceConfig = run.prepared.config.service
        self._source = source
        self.buffer = buffer
        self._store = store
        self._gate = gate
        self._filters = filters
        self._args = args
        self._again = again
        self._observers = tuple(observers)
        self._num_asked = 0
        self._changed = asyncio.Event()
        self._growing: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()
        self._fault: Exception | None = None

    async def start(self, known: Mapping[int, Replayed]) -> None:
        """Begin to grow trees, if the buffer has room. `known` are trees of a killed service that are in no batch
        yet."""
        if not self._service.max_staleness:
            await self._gate.hold("finish", by=IDLE)
        open_trees = {index: tree for index, tree in known.items() if not tree.is_closed}
        for index, tree in known.items():
            if tree.is_closed:
                self._check_later(index, tree.tree, tree.reason)
        self._growing = asyncio.create_task(self._grow(open_trees), name="ramify grows trees")

    async def close(self) -> None:
        """Stop growing. Commands in flight are cancelled; the journal keeps everything that was complete."""
        tasks = [task for task in (self._growing, *self._checks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- batches ------------------------------------------------------------------------------------------------------

    async def batch(self, rollout_id: int) -> list[ReadyGroup]:
        """Wait for the groups of the next batch and return them, or return a batch that was handed over before under
        this number. Numbers the samples. Raises the error that ended the growing; the service can then be resumed."""
        if (record := self.buffer.batches.get(rollout_id)) is not None:
            return await asyncio.to_thread(self._repeated, record)
        self._num_asked = 1
        self._gate.release(by=IDLE)
        self._note()
        try:
            groups = await self._when(self._next)
            if "buffer_filter" in self._filters:
                groups = await self._picked(rollout_id)
            if self._service.on_stale == "mask":
                groups = [self._masked(group) for group in groups]
            first, num = self.buffer.num_samples, sum(len(group.samples) for group in groups)
            numbered([group.samples for group in groups], first)
            record = Handed(
                rollout_id=rollout_id,
                trees=tuple(group.index for group in groups),
                version=self._gate.version,
                first_sample=first,
                num_samples=num,
            )
            number = self._store.append(record)
            # Before the next await: a caller that is cancelled there asks again and gets the same batch.
            self.buffer.handed(record)
            self._num_asked = 0
            await self._store.synced(number)
        finally:
            self._num_asked = 0
        self._run.forgive()
        if not self._service.max_staleness:
            await self._gate.hold(self._service.on_update, by=IDLE)
        return groups

    def _repeated(self, record: Handed) -> list[ReadyGroup]:
        """Rebuild a batch that was handed over before."""
        floor = record.version - self._service.max_staleness
        trees = zip(record.trees, self._again(record.trees), strict=True)
        groups = [ReadyGroup(index, tree, group_samples(index, tree, self._run, floor=floor)) for index, tree in trees]
        numbered([group.samples for group in groups], record.first_sample)
        return groups

    def lapse(self) -> None:
        """Call this after new weights were loaded. Under `on_stale = "drop"` it drops trees with tokens that are too
        old, and stops those that are still growing."""
        if self._service.on_stale != "drop":
            return
        for index in self.buffer.behind(self._floor):
            if index in self.buffer.growing:
                self._run.stop(index)
            self._drop(index, "stale")

    @property
    def _floor(self) -> int:
        """The oldest version of weights whose tokens may be trained."""
        return self._gate.version - self._service.max_staleness

    def _next(self) -> list[ReadyGroup] | None:
        return self.buffer.next(self._service.batch_size, in_order=not self._service.over_sampling)

    def _masked(self, group: ReadyGroup) -> ReadyGroup:
        """The group, with the tokens masked that became stale after it was finished."""
        return replace(group, samples=group_samples(group.index, group.tree, self._run, floor=self._floor))

    async def _picked(self, rollout_id: int) -> list[ReadyGroup]:
        """The groups that the user's buffer filter picks for the batch."""
        pick, size = self._filters["buffer_filter"], self._service.batch_size
        ready = [self.buffer.ready[index].samples for index in sorted(self.buffer.ready)]
        picked = await pick(self._args, rollout_id, ready, size, deadline_s=self._service.function_deadline_s)
        return chosen(self.buffer, picked, size, fault=pick.fault)

    async def _when(self, look: Callable[[], list[ReadyGroup] | None]) -> list[ReadyGroup]:
        """Wait until `look` finds something, and return it. Raises the error that ended the growing."""
        while (found := look()) is None:
            self._refuse_dead()
            self._changed.clear()
            await self._changed.wait()
        return found

    def _refuse_dead(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self._growing is None or self._growing.done():
            raise ContractError("the service is closed and grows no trees")

    def _note(self) -> None:
        """Wake whoever waits for a change."""
        self._changed.set()

    # -- growing ------------------------------------------------------------------------------------------------------

    async def _grow(self, known: Mapping[int, Replayed]) -> None:
        """Grow trees until the service is closed. Boundary: an error is stored here, and the next batch raises it."""
        observers = [*self._observers, self._observe]
        try:
            await self._run.grow_each(self._seedlings(known), observers, keep_up=self._store.room)
        except Exception as error:  # noqa: BLE001 - the boundary
            self._fault = error
        finally:
            self._note()

    async def _seedlings(self, known: Mapping[int, Replayed]) -> AsyncIterator[Seedling]:
        for index in sorted(known):
            yield Seedling(index, self._source.problem(index), known[index])
        while True:
            while not self._may_draw():
                self._changed.clear()
                await self._changed.wait()
            index = self.buffer.draw()
            yield Seedling(index, self._source.problem(index))

    def _may_draw(self) -> bool:
        num_batches = self._num_asked + self._service.max_staleness
        extra = self._service.over_sampling if num_batches else 0
        return len(self.buffer) < num_batches * self._service.batch_size + extra

    def _observe(self, event: Event) -> None:
        match event:
            case TreeOpened(index, tree):
                self.buffer.opened(index, tree)
            case TreeClosed(index, tree, reason) if index in self.buffer.growing:
                self.buffer.closed(index)
                self._check_later(index, tree, reason)
            case _:
                pass

    # -- between its end and a batch ----------------------------------------------------------------------------------

    def _check_later(self, index: int, tree: Tree, reason: str) -> None:
        check = asyncio.create_task(self._check(index, tree, reason), name=f"ramify checks tree {index}")
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def _check(self, index: int, tree: Tree, reason: str) -> None:
        """Pass a finished tree on, or drop it. Boundary: an error is stored here, and the next batch raises it."""
        try:
            why = await self._why_not(index, tree, reason)
            if why is not None and index in self.buffer.checking:
                self._drop(index, why)
        except Exception as error:  # noqa: BLE001 - the boundary
            self._fault = error
        finally:
            self._note()

    async def _why_not(self, index: int, tree: Tree, reason: str) -> str | None:
        """Why a tree is dropped. None = it is not: it is ready now, unless an update dropped it in the meantime. A
        failure is also a reason, and is counted."""
        if reason != "done":
            return f"failed: {reason}"
        versions = versions_of(tree)
        if max(versions, default=0) > self._gate.version:
            return f"failed: weights of version {max(versions)} sampled it and were never acknowledged: update_weights"
        if self._service.on_stale == "drop" and versions and min(versions) < self._floor:
            return "stale"
        try:
            samples = group_samples(index, tree, self._run, floor=self._floor)
        except ExportError as error:
            return f"no_rows: {error}"
        if (why := await self._filtered(samples)) is None and index in self.buffer.checking:
            self.buffer.passed(ReadyGroup(index, tree, samples))
        return why

    async def _filtered(self, samples: list[Sample]) -> str | None:
        """Why the group filter rejects a group; None = it accepts it."""
        if self._service.group_filter == MIXED:
            return None if rewards_differ(samples, self._service.reward_key) else MIXED
        if "group_filter" not in self._filters:
            return None
        keep = self._filters["group_filter"]
        try:
            said = await keep(self._args, samples, deadline_s=self._service.function_deadline_s)
            said = getattr(said, "keep", said)
            if not isinstance(said, bool):
                raise keep.fault(f"returned {said!r:.200}; it must return whether to keep the group")
        except ContractError as error:
            return f"filter_failed: {error}"
        return None if said else "filtered"

    def _drop(self, index: int, reason: str) -> None:
        self._store.append(Dropped(tree=index, reason=reason))
        self.buffer.drop(index, reason)
        self._note()
        self._refuse_too_many(reason)

    def _refuse_too_many(self, reason: str) -> None:
        """Raise `TooManyFailures` if a larger share of trees failed than the configuration allows: the cause would only
        repeat."""
        dropped = self.buffer.dropped
        num_failed = dropped["failed"] + dropped["filter_failed"] + dropped["no_rows"]
        num = self.buffer.num_handed + dropped.total()
        if num >= MIN_COMMANDS_TO_JUDGE_FAULTS and num_failed > self._config.max_failed_share * num:
            raise TooManyFailures(f"{num_failed} of {num} trees failed: {dict(dropped)}; the last: {reason}")
