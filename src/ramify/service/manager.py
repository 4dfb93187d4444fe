"""Manager: the rollout service of a trainer, from start to end (requirement S3.1).

It owns the run folder, the engines and the lock around changes to them, and the controller that makes batches. The same
class serves in one process and as a Ray actor (`remote.py`). The journal in the folder holds everything that must
survive the manager. A manager that is opened on the same folder continues where the last one ended, closed or killed. A
folder has one manager at a time. Invariants: engines change under one lock, while no training request is in flight; new
weights are acknowledged once their version is in the journal; an update never brings an older version.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from ramify.config.run_config import RunConfig
from ramify.config.service_config import EvalConfig, ServiceConfig
from ramify.core.engine import Engine
from ramify.core.errors import ConfigError
from ramify.core.task import Task
from ramify.core.tree import Tree
from ramify.rows.sample import Sample
from ramify.runner import folder
from ramify.runner.deadline import finished
from ramify.runner.events import Observer
from ramify.runner.loop import collecting_rarely
from ramify.service.arguments import arguments, group_size
from ramify.service.build import assembled, settled
from ramify.service.controller import Batch, RolloutController
from ramify.service.eval_samples import eval_samples
from ramify.service.functions import Functions
from ramify.service.metric_log import MetricLog
from ramify.service.producer import Producer
from ramify.service.recovery import Recovered, trees_again
from ramify.service.reward import rewarded
from ramify.service.service_journal import ServiceJournal
from ramify.service.source import ProblemSource, SampleSource
from ramify.store.records import Updated
from ramify.telemetry.service_meter import ServiceMeter
from ramify.telemetry.telemetry import Telemetry

UPDATE: Final = "update"
OFFLOADED: Final = "offloaded"
"""Names of who holds the gate."""
CACHE_TAGS: Final = frozenset({"kv_cache"})
"""Engines cannot sample without this memory; they can again once it is back."""


class RolloutManager:
    """A rollout service in the folder `path`. Mutable. Start it before any other call, and close it.

    `path` None = in memory. `config` None = read it from the folder. `engine` and `task` replace those that the
    configuration names; an engine that is passed in stays open after `close`. Raises `ConfigError` for every fault that
    can be found before the start.
    """

    def __init__(
        self,
        config: RunConfig | None,
        path: Path | None,
        *,
        engine: Engine | None = None,
        task: Task | None = None,
        observers: Iterable[Observer] = (),
        console: Console | None = None,
        has_tables: bool = True,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`console` shows warnings and, if it `has_tables`, evaluations. `telemetry` stays open after `close`."""
        self._journal = ServiceJournal(path)
        self.config = config = settled(config, self._journal)
        assert config.service is not None
        self.service: ServiceConfig = config.service
        self._functions = Functions.of(self.service)
        self._observers = tuple(observers)
        self._is_engine_ours = engine is None
        self._args = arguments(config)
        self._console = console or Console(stderr=True)
        self._telemetry = telemetry
        self._meter = None if telemetry is None else ServiceMeter(telemetry)
        self.run, self.gate = assembled(
            config, engine=engine, task=task, rewarded=self._rewarded, telemetry=telemetry, console=self._console
        )
        self._args.engine, self._args.run = self.gate, self.run.prepared
        self._metrics = MetricLog(
            self.service, group_size=group_size(config), console=self._console, has_tables=has_tables
        )
        self._source = ProblemSource(self.run.prepared.problems, seed=config.seed, shuffle=self.service.shuffle)
        self._engines = asyncio.Lock()
        self._generating = asyncio.Lock()
        self._controller: RolloutController | None = None
        self._loaded = 0
        """Version of the weights that the engines certainly have."""

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> "RolloutManager":
        """Open the folder, continue from what is in it, and begin to grow trees. Raises `StoreError` if another manager
        uses the folder, `ConfigError` or `EngineError` if the engines do not answer."""
        try:
            if self.service.debug != "train_only":
                await self.run.connect()
                self.gate.check(self.service.on_update)
            await self._open()
        except BaseException:
            await finished(self.close())
            raise
        return self

    async def __aenter__(self) -> "RolloutManager":
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop growing, and close the journal and our own engines. Can be called again."""
        if self._controller is not None and self._controller.producer is not None:
            await self._controller.producer.close()
        self._controller = None
        self._metrics.close()
        try:
            await (self.run.close() if self._is_engine_ours else self.run.close_others())
        finally:
            self._journal.close()

    async def save(self, rollout_id: int) -> None:
        """Make all work so far durable, and mark this point for `load(rollout_id)`. Raises `StoreError` if it cannot be
        written; earlier marks stay."""
        async with self._generating:
            controller = self._opened
            await self._journal.mark(rollout_id, controller.data_source.state() if controller.producer is None else {})

    async def load(self, rollout_id: int) -> None:
        """Go back to the point where `save(rollout_id)` was called. Later batches are grown again, because the trainer
        has its old weights again. In a folder, the old journal is kept. Raises `StoreError` if nothing was saved under
        this number."""
        async with self._generating, self._engines:
            controller = self._opened
            self._journal.check_mark(rollout_id)
            if controller.producer is not None:
                await controller.producer.close()
            self._journal.close()
            try:
                await asyncio.to_thread(self._journal.rewind, rollout_id)
            finally:
                await self._open()

    @property
    def saved(self) -> frozenset[int]:
        """The numbers that `load` can go back to."""
        return frozenset(self._journal.marks)

    # -- batches ------------------------------------------------------------------------------------------------------

    async def generate(self, rollout_id: int) -> Batch:
        """The batch of this number, see `RolloutController.generate`. Asking again returns the same batch."""
        async with self._generating:
            controller = self._opened
            if controller.producer is not None and rollout_id not in controller.producer.buffer.batches:
                self._refuse_asleep()
            batch = await controller.generate(rollout_id)
        others = {f"rollout/{name}": float(value) for name, value in batch.metrics.items()}
        metrics = self._metrics.batch(rollout_id, batch.samples, version=self.version, others=others)
        if self._meter is not None:
            self._meter.batch(batch.samples, version=self.version, counts=self.counts)
        return replace(batch, metrics=metrics)

    async def eval(self, rollout_id: int) -> Mapping[str, float]:
        """Answer every data set of `service.eval` with the current weights, and log the results.

        It waits for an update in progress, and updates wait for it. The result is empty under `debug = "train_only"`.
        Raises `ConfigError` while the engines are offloaded, `ContractError` if a user's function fails.
        """
        controller = self._opened
        if self.service.debug == "train_only":
            return {}
        async with self._engines:
            self._refuse_asleep()
            results, others = await controller.evaluate(rollout_id)
        return self._metrics.evaluation(rollout_id, results, others)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many trees are in each state, and how many were dropped for each reason."""
        producer = self._opened.producer
        return {} if producer is None else producer.buffer.counts()

    @property
    def live(self) -> frozenset[int]:
        """Numbers of the trees that may still be in a batch."""
        producer = self._opened.producer
        return frozenset() if producer is None else producer.buffer.numbers

    # -- engines ------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        return self.gate.version

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Nobody else can change the engines inside this context: no update, no offload, no evaluation. Not
        re-entrant."""
        async with self._engines:
            yield

    async def update_weights(self, version: int, source: str) -> None:
        """Load the weights at `source` into all engines. `on_update` says what happens to turns in flight.

        Raises `ConfigError` for a version older than the current one. If no engine has loaded the weights, it raises
        the engines' error and the old weights stay.
        """
        async with self.updating(version, source):
            await self.run.prepared.engine.update_weights(source, version)

    @asynccontextmanager
    async def updating(self, version: int, source: str = "") -> AsyncIterator[None]:
        """Inside this context a trainer may push weights to the engines itself. They are acknowledged if it ends
        without an error. Without a `source` only the trainer has the weights, so a resumed service waits for it to push
        them again."""
        controller, store = self._opened, self._journal.store
        async with self._engines:
            if version < self.version:
                raise ConfigError(f"weights of version {version} are older than those of version {self.version} in use")
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
        """Free the engines' memory for the trainer. `on_update` says what happens to turns in flight."""
        async with self._engines:
            await self.gate.hold(self.service.on_update, by=OFFLOADED)
            await self.run.prepared.engine.offload(tuple(tags))

    async def onload(self, tags: Sequence[str] = ()) -> None:
        """Take the memory back: all of it, or what these tags name. Growing continues once the KV cache has its
        memory."""
        async with self._engines:
            await self.run.prepared.engine.onload(tuple(tags))
            if not tags or CACHE_TAGS & set(tags):
                self.gate.release(by=OFFLOADED)

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> RolloutController:
        if self._controller is None:
            raise ConfigError("the service is not started or is closed")
        return self._controller

    def _refuse_asleep(self) -> None:
        if OFFLOADED in self.gate.holders:
            raise ConfigError("the engines are offloaded: call `onload` before the next batch")
        if self._loaded != self.version:
            raise ConfigError(
                f"the engines do not have the weights of version {self.version}, which only the trainer has: call "
                "`update_weights` before the next batch"
            )

    def _rewarded(self, task: Task) -> Task:
        """The task, judged by the user's reward function if there is one."""
        return rewarded(task, self._functions.reward, self._args, self.service)

    async def _answered(self, dataset: EvalConfig) -> list[Sample]:
        return await eval_samples(self.config, dataset, self.run.prepared.engine, rewarded=self._rewarded)

    @property
    def _measuring(self) -> list[Observer]:
        return [] if self._telemetry is None else [self._telemetry.observer()]

    async def _open(self) -> None:
        """Open the journal and continue from it."""
        recovered = Recovered(self.run.prepared.codec, self.run.prepared.rules)
        with collecting_rarely():
            self._journal.open(folder.header_of(self.run.prepared), self.config, recovered)
        await self._restore_weights(recovered)
        self._controller = RolloutController(
            self.service,
            functions=self._functions,
            data_source=self._samples(recovered),
            producer=await self._producer(recovered),
            answer=self._answered,
            args=self._args,
        )

    def _samples(self, recovered: Recovered) -> SampleSource:
        samples = SampleSource(
            self._source, group_size=self._args.n_samples_per_prompt, label_key=self.service.label_key
        )
        if recovered.source:
            samples.load(recovered.source)
        return samples

    async def _producer(self, recovered: Recovered) -> Producer | None:
        """The producer that grows trees; None = batches come from a function or from files."""
        if self._functions.rollout is not None or self.service.load_debug is not None:
            return None
        producer = Producer(
            self.run,
            source=self._source,
            buffer=recovered.buffer,
            store=self._journal.store,
            gate=self.gate,
            filters=self._functions.filters,
            args=self._args,
            again=self._trees_again,
            observers=[*self._journal.observers, *self._observers, *self._measuring],
        )
        await producer.start(recovered.trees)
        return producer

    async def _restore_weights(self, recovered: Recovered) -> None:
        """Load the last acknowledged weights into engines that do not have them, if their source is known."""
        self.gate.version = recovered.version
        if recovered.weights and recovered.version != self._loaded and self.service.debug != "train_only":
            await self.run.prepared.engine.update_weights(recovered.weights, recovered.version)
            self._loaded = recovered.version

    def _trees_again(self, wanted: Sequence[int]) -> Sequence[Tree]:
        return trees_again(self._journal.records(), wanted, self.run.prepared.codec, self.run.prepared.rules)
