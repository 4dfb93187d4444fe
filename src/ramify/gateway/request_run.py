"""RequestRun: the run of a gateway: one tree for each request, all on the same engines, each offer in a run folder.

It owns the numbers of the trees, the run folders and their logs, and who waits for which tree. Trees are recorded
before anybody hears of their answers. If the engines are down for longer than the run waits, all that wait are told,
and the run goes on with the next request. If a folder cannot be written, the run is over.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ramify.config.configure import to_toml
from ramify.core.errors import ContractError, EnginesDown, RamifyError, StoreError
from ramify.core.ledger import Spend
from ramify.core.tree import Tree
from ramify.edge.error_text import error_text
from ramify.gateway.api_error import ApiError
from ramify.gateway.offers import Offer, Offers
from ramify.gateway.tailored import Planting
from ramify.runner.deadline import finished
from ramify.runner.events import EngineFault, Event, OutcomeTold, StepGrown, TreeClosed, TreeOpened
from ramify.runner.folder import with_inputs
from ramify.runner.log import RunLog
from ramify.runner.permission import signed
from ramify.runner.recorder import Recorder
from ramify.runner.run import Run, Seedling
from ramify.store.commit import Writing
from ramify.store.store import FolderStore


@dataclass(frozen=True, slots=True)
class GrownTree:
    """The tree of a request, and how it ended."""

    index: int
    tree: Tree
    reason: str
    spent: Mapping[str, Spend]
    """What it billed, by role."""
    folder: Path
    """The run folder that has it."""
    record: int
    """Number of its last record there."""
    fault: EngineFault | None = None
    """The last fault of an engine at one of its requests."""


@dataclass(slots=True)
class Growing:
    """The tree of a request while it grows. Mutable."""

    index: int
    offer: "_OfferFolder"
    planting: Planting
    done: asyncio.Future[GrownTree]
    num_steps: int = 0
    num_tokens: int = 0
    """Tokens sampled so far, by all roles."""
    fault: EngineFault | None = None
    is_taken: bool = False
    is_unwanted: bool = False


@dataclass(frozen=True, slots=True)
class _OfferFolder:
    """The run folder of one offer."""

    path: Path
    store: FolderStore
    log: RunLog
    recorder: Recorder

    @classmethod
    def create(cls, path: Path, offer: Offer) -> "_OfferFolder":
        text = to_toml(offer.prepared.config)
        header = signed(with_inputs(offer.prepared), text)
        store = FolderStore.create(path, header, text, writing=Writing(durability=offer.prepared.config.durability))
        return cls(path, store, RunLog(store.log_path), Recorder(store))

    def close(self) -> None:
        try:
            self.log.close()
        finally:
            self.store.close()


@dataclass(slots=True)
class RequestRun:
    """Grows trees while it is entered (`async with`). `path` is the folder of the run folders."""

    offers: Offers
    path: Path
    fault: RamifyError | None = None
    """Why the run is over before it is left."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the run is over."""
    _growing: dict[int, Growing] = field(default_factory=dict[int, Growing])
    _queue: asyncio.Queue[Growing] = field(default_factory=asyncio.Queue[Growing])
    _folders: dict[str, _OfferFolder] = field(default_factory=dict[str, _OfferFolder])
    _num_trees: int = 0
    _run: Run = field(init=False)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._run = Run(next(iter(self.offers)).prepared)

    async def __aenter__(self) -> "RequestRun":
        """Connect to the engines. Raises `ConfigError` and `EngineError`."""
        try:
            await self._run.connect()
            for offer in self.offers:
                offer.prepared.check()
        except BaseException:
            await finished(self._close_parts())
            raise
        self._task = asyncio.create_task(self._grow_all(), name="ramify grows the trees of requests")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop every tree and close the folders and the engines."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail(ApiError(503, "the gateway is stopping; ask again", code="stopping"), is_all=True)
        try:
            for folder in self._folders.values():
                folder.close()
        finally:
            await finished(self._close_parts())

    def begin(self, offer: Offer, plant: Callable[[str], Planting]) -> Growing:
        """Begin the tree of a request. `plant` makes its parts from its uid. Raises what it raises, and `ApiError`
        (503) if the run is over."""
        if self.over.is_set():
            raise ApiError(503, f"the gateway cannot grow trees any more: {self.fault}", code="over")
        index = self._num_trees
        planting = plant(f"request-{index}")
        self._num_trees += 1
        growing = Growing(index, self._folder(offer), planting, asyncio.get_running_loop().create_future())
        self._growing[index] = growing
        self._queue.put_nowait(growing)
        return growing

    async def recorded(self, growing: Growing) -> None:
        """Return when the tree, which has ended, would survive the end of this process. Raises `ApiError` (500)."""
        if growing.done.exception() is None:
            try:
                await growing.offer.store.synced(growing.done.result().record)
            except StoreError as error:
                raise ApiError(500, f"the tree cannot be recorded: {error}", code="store") from error

    def stop(self, growing: Growing) -> None:
        """Stop a tree that nobody waits for. What it has is kept."""
        growing.is_unwanted = True
        if not growing.is_taken:
            self._growing.pop(growing.index, None)
        self._run.stop(growing.index)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _folder(self, offer: Offer) -> _OfferFolder:
        """The run folder of an offer; it is made when its first tree begins. Raises `ApiError` (500)."""
        if offer.folder not in self._folders:
            try:
                self._folders[offer.folder] = _OfferFolder.create(self.path / offer.folder, offer)
            except StoreError as error:
                raise ApiError(500, f"the tree cannot be recorded: {error}", code="store") from error
        return self._folders[offer.folder]

    async def _grow_all(self) -> None:
        """Grow until this is cancelled. Boundary: an error of the run is told to those who wait, and ends it."""
        while True:
            try:
                await self._run.grow_each(self._seedlings(), [self._record, self._hear], keep_up=self._room)
            except EnginesDown as error:
                self._fail(ApiError(503, str(error), code="engines_down", retry_after_s=30.0))
            except Exception as error:  # noqa: BLE001 - the boundary
                self.fault = error if isinstance(error, RamifyError) else ContractError(error_text(error))
                self.over.set()
                self._fail(ApiError(500, f"the gateway cannot grow trees any more: {error}", code="over"), is_all=True)
                return

    async def _seedlings(self) -> AsyncIterator[Seedling]:
        while True:
            growing = await self._queue.get()
            if not growing.is_unwanted:
                growing.is_taken = True
                planting = growing.planting
                yield Seedling(growing.index, planting.problem, prepared=planting.prepared, seed=planting.seed)

    async def _room(self) -> None:
        for folder in list(self._folders.values()):
            await folder.store.room()

    def _record(self, event: Event) -> None:
        """Write an event into the folder of its tree. Raises `StoreError`."""
        growing = self._growing.get(_tree_of(event))
        if growing is not None:
            growing.offer.recorder.observe(event)
            if isinstance(event, EngineFault | OutcomeTold):  # Phases of every request would only fill the log.
                growing.offer.log.observe(event)

    def _hear(self, event: Event) -> None:
        growing = self._growing.get(_tree_of(event))
        if growing is None:
            return
        match event:
            case TreeOpened() if growing.is_unwanted:
                self._run.stop(growing.index)
            case StepGrown(step=step):
                growing.num_steps += 1
                growing.num_tokens += sum(segment.usage.num_billed for segment in step.segments)
            case EngineFault():
                growing.fault = event
            case TreeClosed(index, tree, reason):
                del self._growing[index]
                if not growing.done.done():
                    grown = GrownTree(
                        index, tree, reason, event.spent, growing.offer.path, growing.offer.recorder.last, growing.fault
                    )
                    growing.done.set_result(grown)
            case _:
                pass

    def _fail(self, error: ApiError, *, is_all: bool = False) -> None:
        """Tell those who wait for a tree that has begun, or all, that there is none."""
        for index, growing in list(self._growing.items()):
            if growing.is_taken or is_all:
                del self._growing[index]
                if not growing.done.done():
                    growing.done.set_exception(error)
                    growing.done.exception()  # Retrieved here: the one who waits may be gone.

    async def _close_parts(self) -> None:
        judging = [offer.prepared.judging.close() for offer in self.offers]
        await asyncio.gather(self._run.close(), *judging)


NO_TREE: Final = -1


def _tree_of(event: Event) -> int:
    """The number of the tree that an event is about. A fault of an engine names it in its request."""
    if isinstance(event, EngineFault):
        number = event.request_id.partition("/")[0]
        return int(number) if number.isdecimal() else NO_TREE
    return event.index
