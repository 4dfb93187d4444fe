"""Manager: the rollout service of a trainer, from its start to its end (requirement S3.1).

Owns the run folder, the engines and who may change them, and the controller that makes batches. The same class serves
in one process and as a Ray actor (`ray.py`). Everything that must outlive it is in the journal of its folder: a manager
that is opened there again goes on where the last one stood, whether that was closed or killed, and a folder has one
manager at a time. Invariants: engines change under one lock, with nothing on its way that samples for training; a
version of weights is acknowledged when it is written down, and never an older one than before.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ramify.config.configure import from_toml, to_toml
from ramify.config.run_config import RunConfig
from ramify.config.service_config import ServiceConfig
from ramify.core.engine import Engine
from ramify.core.errors import ConfigError, StoreError
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.core.task import Task
from ramify.core.tree import Tree
from ramify.engines.gate import Gate
from ramify.runner import api
from ramify.runner.deadline import finished
from ramify.runner.events import Observer
from ramify.runner.log import RunLog
from ramify.runner.recorder import Recorder
from ramify.runner.run import Run
from ramify.service.arguments import arguments
from ramify.service.controller import Batch, RolloutController
from ramify.service.functions import Functions
from ramify.service.producer import Producer
from ramify.service.recall import Recalled, trees_again
from ramify.service.reward import RewardFunction, WithReward
from ramify.service.source import SampleSource, Source
from ramify.store.commit import Writing
from ramify.store.records import Marked, RunRecord, Updated
from ramify.store.rewind import finish_rewind, rewind
from ramify.store.store import JOURNAL, FolderStore, header_and_config, stream
from ramify.tasks.data import DataConfig, read_problems

UPDATE: Final = "update"
OFFLOADED: Final = "offloaded"
"""Who holds the gate."""
CACHE_TAGS: Final = frozenset({"kv_cache"})
"""Memory without which engines sample nothing: they are back when it is."""


class RolloutManager:
    """A rollout service in the folder `path`. Mutable; to be started before anything else, and closed.

    `config` None = that of the folder. `engine` and `task` win over what it names; an engine handed in stays open.
    Raises `ConfigError` for what can be known to be wrong before the start.
    """

    def __init__(
        self,
        config: RunConfig | None,
        path: Path,
        *,
        engine: Engine | None = None,
        task: Task | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self.path = path
        self.config = config = _settled(config, path)
        assert config.service is not None
        self.service: ServiceConfig = config.service
        self._functions = Functions.of(self.service)
        self._observers = tuple(observers)
        self._is_engine_ours = engine is None
        self._args = arguments(config)
        self.run, self.gate = self._assembled(engine, task)
        self._args.engine, self._args.run = self.gate, self.run
        self._source = Source(self.run.problems, seed=config.seed, shuffle=self.service.shuffle)
        self._engines = asyncio.Lock()
        self._generating = asyncio.Lock()
        self._store: FolderStore | None = None
        self._log: RunLog | None = None
        self._controller: RolloutController | None = None
        self._marks: set[int] = set()
        """Numbers that the service can be brought back to."""
        self._loaded = 0
        """Version of the weights that the engines are known to have."""

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> "RolloutManager":
        """Open the folder, go on with what is in it, and begin to grow. Raises `StoreError` where another manager has
        it, `ConfigError` or `EngineError` where engines do not answer."""
        try:
            if self.service.debug != "train_only":
                await self.run.connect()
                self.gate.check(self.service.on_update)
            await self._open()
        except BaseException:
            await finished(self.close())
            raise
        return self

    async def close(self) -> None:
        """Stop growing, close the engines that are ours and the journal. Harmless when repeated."""
        if self._controller is not None and self._controller.producer is not None:
            await self._controller.producer.close()
        self._controller = None
        try:
            await (self.run.close() if self._is_engine_ours else self.run.close_others())
        finally:
            self._close_folder()

    async def save(self, rollout_id: int) -> None:
        """Make all that was done durable, and a place to come back to: `load(rollout_id)`. Raises `StoreError` where it
        cannot be written; the places of before stay."""
        async with self._generating:
            store, controller = self._opened
            state = controller.data_source.state() if controller.producer is None else {}
            await store.synced(store.append(Marked(rollout_id=rollout_id, source=state)))
            self._marks.add(rollout_id)

    async def load(self, rollout_id: int) -> None:
        """Go back to where `save(rollout_id)` was called: batches handed over since are grown anew, as the trainer's
        weights are those of that time again. The journal of before is kept beside. Raises `StoreError` where nothing
        was saved under this number."""
        async with self._generating, self._engines:
            _, controller = self._opened
            if rollout_id not in self._marks:
                raise StoreError(
                    f"nothing was saved as {rollout_id} in {self.path}; saved are {sorted(self._marks)[-8:]}"
                )
            if controller.producer is not None:
                await controller.producer.close()
            self._close_folder()
            try:
                await asyncio.to_thread(rewind, self.path, _is_mark(rollout_id))
            finally:
                await self._open()

    # -- batches ------------------------------------------------------------------------------------------------------

    async def generate(self, rollout_id: int) -> Batch:
        """The batch of this number: see `RolloutController.generate`. Asked for again, it is the same one."""
        async with self._generating:
            _, controller = self._opened
            if controller.producer is not None and rollout_id not in controller.producer.buffer.batches:
                self._refuse_asleep()
            return await controller.generate(rollout_id)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many trees are in each state, and what was dropped for which reason."""
        _, controller = self._opened
        return {} if controller.producer is None else controller.producer.buffer.counts()

    # -- engines ------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Of the weights that sample now."""
        return self.gate.version

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """While this is held nobody else changes the engines: no update, no offload, no evaluation. Not re-entrant."""
        async with self._engines:
            yield

    async def update_weights(self, version: int, source: str) -> None:
        """Load weights from where `source` says into all engines. Turns on their way fare as `on_update` says.

        Raises `ConfigError` for an older version than there is; what the engines raise where none of them has the
        weights then, and the old ones stay.
        """
        async with self.updating(version, source):
            await self.run.engine.update_weights(source, version)

    @asynccontextmanager
    async def updating(self, version: int, source: str = "") -> AsyncIterator[None]:
        """While this is held a trainer may push weights to the engines itself; they are acknowledged when it ends well.
        Without a `source` nobody but the trainer has them: a service that is resumed waits for them."""
        store, controller = self._opened
        if version < self.version:
            raise ConfigError(f"weights of version {version} are older than those of version {self.version} in use")
        async with self._engines:
            await self.gate.hold(self.service.on_update, by=UPDATE)
            try:
                yield
                await store.synced(store.append(Updated(version=version, source=source)))
                self.gate.version = self._loaded = version
                if controller.producer is not None:
                    controller.producer.lapse()
            finally:
                self.gate.release(by=UPDATE)

    async def offload(self, tags: Sequence[str] = ()) -> None:
        """Free the engines' memory for the trainer; turns on their way fare as `on_update` says."""
        async with self._engines:
            await self.gate.hold(self.service.on_update, by=OFFLOADED)
            await self.run.engine.offload(tuple(tags))

    async def onload(self, tags: Sequence[str] = ()) -> None:
        """Take the memory back: all, or what these tags say; growing goes on when keys and values have theirs."""
        async with self._engines:
            await self.run.engine.onload(tuple(tags))
            if not tags or CACHE_TAGS & set(tags):
                self.gate.release(by=OFFLOADED)

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> tuple[FolderStore, RolloutController]:
        if self._store is None or self._controller is None:
            raise ConfigError("the service is not started, or was closed")
        return self._store, self._controller

    def _refuse_asleep(self) -> None:
        if OFFLOADED in self.gate.holders:
            raise ConfigError("the engines are offloaded; onload them before the next batch")
        if self._loaded != self.version:
            raise ConfigError(
                f"the service goes on with weights of version {self.version}, which nobody but the trainer has: update "
                "them before the next batch"
            )

    def _assembled(self, engine: Engine | None, task: Task | None) -> tuple[Run, Gate]:
        gates: list[Gate] = []

        def gated(engine: Engine) -> Gate:
            gates.append(Gate(engine))
            return gates[0]

        service, functions = self.service, self._functions
        task = task or api.build_task(self.config)
        if functions.reward is not None:
            judge = RewardFunction(
                functions.reward,
                self._args,
                deadline_s=service.function_deadline_s,
                reward_key=service.reward_key,
                label_key=service.label_key,
            )
            task = WithReward(task, judge)
        problems = _problems(self.config, task)
        run = api.assemble(self.config, problems, engine=engine, task=task, in_front=gated)
        return run, gates[0]

    async def _open(self) -> None:
        """Open the folder and go on with what is in it."""
        finish_rewind(self.path)
        recalled = Recalled(self.run.codec, self.run.rules)
        writing = Writing(durability=self.config.durability)
        header = api.header_of(self.run)
        if _is_begun(self.path):
            self._store, saved = FolderStore.resume(self.path, writing=writing, read=recalled.read)
            api.refuse_other_weights(saved.header, header)
        else:
            self._store = FolderStore.create(self.path, header, to_toml(self.config), writing=writing)
        self._log = RunLog(self._store.log_path)
        self._marks = set(recalled.marks)
        await self._restore_weights(recalled)
        self._controller = RolloutController(
            self.service,
            functions=self._functions,
            data_source=self._samples(recalled),
            producer=await self._producer(recalled, self._store, self._log),
            args=self._args,
        )

    def _samples(self, recalled: Recalled) -> SampleSource:
        samples = SampleSource(
            self._source, group_size=self._args.n_samples_per_prompt, label_key=self.service.label_key
        )
        if recalled.source:
            samples.load(recalled.source)
        return samples

    async def _producer(self, recalled: Recalled, store: FolderStore, log: RunLog) -> Producer | None:
        """What grows trees; None where batches come from elsewhere."""
        service = self.service
        if self._functions.rollout is not None or service.load_debug is not None:
            return None
        producer = Producer(
            self.run,
            source=self._source,
            buffer=recalled.buffer,
            store=store,
            gate=self.gate,
            filters=self._functions.filters,
            args=self._args,
            again=self._trees_again,
            observers=[Recorder(store).observe, log.observe, *self._observers],
        )
        await producer.start(recalled.trees)
        return producer

    async def _restore_weights(self, recalled: Recalled) -> None:
        """Bring engines that began anew to the weights that were acknowledged last."""
        self.gate.version = recalled.version
        if recalled.weights and recalled.version != self._loaded and self.service.debug != "train_only":
            await self.run.engine.update_weights(recalled.weights, recalled.version)
            self._loaded = recalled.version

    def _trees_again(self, wanted: Sequence[int]) -> Sequence[Tree]:
        assert self._store is not None
        self._store.sync()
        return trees_again(stream(self.path), wanted, self.run.codec, self.run.rules)

    def _close_folder(self) -> None:
        store, self._store = self._store, None
        log, self._log = self._log, None
        if log is not None:
            log.close()
        if store is not None:
            store.close()


def _settled(config: RunConfig | None, path: Path) -> RunConfig:
    """The configuration of a service in `path`. Raises `ConfigError` where there is none, another one is there already,
    or it limits what a service has no end of."""
    recorded = from_toml(header_and_config(path)[1]) if _is_begun(path) else None
    if config is None:
        config = recorded
    if config is None:
        raise ConfigError(f"{path} holds no service; give a configuration to begin one")
    config = replace(config, service=config.service or ServiceConfig())
    if recorded is not None and recorded != config:
        raise ConfigError(f"{path} was begun with another configuration; leave it out to go on, or choose a new folder")
    if config.run_limits != Limits() or config.limits.seconds is not None:
        raise ConfigError(
            "a service has no end that run_limits could be shared out to, and its trees wait while weights are loaded, "
            "so that seconds say nothing: leave run_limits and limits.seconds out; limits of a tree are kept"
        )
    return config


def _is_begun(path: Path) -> bool:
    finish_rewind(path)
    return (path / JOURNAL).is_dir() and any((path / JOURNAL).glob("*.jsonl"))


def _problems(config: RunConfig, task: Task) -> Sequence[Problem]:
    """All problems of a data file, or as many of the task's own as are asked for."""
    if config.data != DataConfig():
        return read_problems(config.data)[0]
    return task.problems(config.task.split, config.prompts, config.seed)


def _is_mark(rollout_id: int) -> Any:
    def is_mark(record: RunRecord) -> bool:
        return isinstance(record, Marked) and record.rollout_id == rollout_id

    return is_mark
