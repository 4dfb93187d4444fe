"""Manager: the rollout service of a trainer, from its start to its end (requirement S3.1).

Owns the run folder, the engines and who may change them, and the controller that makes batches. The same class serves
in one process and as a Ray actor (`remote.py`). Everything that must outlive it is in the journal of its folder: a
manager that is opened there again goes on where the last one stood, whether that was closed or killed, and a folder has
one manager at a time. Invariants: engines change under one lock, with nothing on its way that samples for training; a
version of weights is acknowledged when it is written down, and never an older one than before.
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
"""Who holds the gate."""
CACHE_TAGS: Final = frozenset({"kv_cache"})
"""Memory without which engines sample nothing: they are back when it is."""


class RolloutManager:
    """A rollout service in the folder `path`. Mutable; to be started before anything else, and closed.

    `path` None = in memory; `config` None = that of the folder; `engine` and `task` win over what it names, and an
    engine handed in stays open. Raises `ConfigError` for what can be known to be wrong before the start.
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
        telemetry: Telemetry | None = None,
    ) -> None:
        """`console`: where evaluations and warnings are shown; `telemetry` stays open."""
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
        self._metrics = MetricLog(self.service, group_size=group_size(config), console=self._console)
        self._source = ProblemSource(self.run.prepared.problems, seed=config.seed, shuffle=self.service.shuffle)
        self._engines = asyncio.Lock()
        self._generating = asyncio.Lock()
        self._controller: RolloutController | None = None
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

    async def __aenter__(self) -> "RolloutManager":
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop growing, close the engines that are ours and the journal. Harmless when repeated."""
        if self._controller is not None and self._controller.producer is not None:
            await self._controller.producer.close()
        self._controller = None
        self._metrics.close()
        try:
            await (self.run.close() if self._is_engine_ours else self.run.close_others())
        finally:
            self._journal.close()

    async def save(self, rollout_id: int) -> None:
        """Make all that was done durable, and a place to come back to: `load(rollout_id)`. Raises `StoreError` where it
        cannot be written; the places of before stay."""
        async with self._generating:
            controller = self._opened
            await self._journal.mark(rollout_id, controller.data_source.state() if controller.producer is None else {})

    async def load(self, rollout_id: int) -> None:
        """Go back to where `save(rollout_id)` was called: batches handed over since are grown anew, as the trainer's
        weights are those of that time again. The journal of before is kept beside. Raises `StoreError` where nothing
        was saved under this number."""
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

    # -- batches ------------------------------------------------------------------------------------------------------

    async def generate(self, rollout_id: int) -> Batch:
        """The batch of this number: see `RolloutController.generate`. Asked for again, it is the same one."""
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
        """Answer every data set of `service.eval` with the weights of the time, and log what came of it.

        Waits for an update that is under way, and updates wait for it. Empty under `debug = "train_only"`. Raises
        `ConfigError` while the engines are offloaded, `ContractError` where a user's function fails.
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
        """How many trees are in each state, and what was dropped for which reason."""
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
            await self.run.prepared.engine.update_weights(source, version)

    @asynccontextmanager
    async def updating(self, version: int, source: str = "") -> AsyncIterator[None]:
        """While this is held a trainer may push weights to the engines itself; they are acknowledged when it ends well.
        Without a `source` nobody but the trainer has them: a service that is resumed waits for them."""
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
        """Free the engines' memory for the trainer; turns on their way fare as `on_update` says."""
        async with self._engines:
            await self.gate.hold(self.service.on_update, by=OFFLOADED)
            await self.run.prepared.engine.offload(tuple(tags))

    async def onload(self, tags: Sequence[str] = ()) -> None:
        """Take the memory back: all, or what these tags say; growing goes on when keys and values have theirs."""
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
        """The task, judged by the user's reward function where there is one."""
        return rewarded(task, self._functions.reward, self._args, self.service)

    async def _answered(self, dataset: EvalConfig) -> list[Sample]:
        return await eval_samples(self.config, dataset, self.run.prepared.engine, rewarded=self._rewarded)

    @property
    def _measuring(self) -> list[Observer]:
        return [] if self._telemetry is None else [self._telemetry.observer()]

    async def _open(self) -> None:
        """Open the journal and go on from it."""
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
        """What grows trees; None where batches come from elsewhere."""
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
        """Bring engines that began anew to the weights that were acknowledged last."""
        self.gate.version = recovered.version
        if recovered.weights and recovered.version != self._loaded and self.service.debug != "train_only":
            await self.run.prepared.engine.update_weights(recovered.weights, recovered.version)
            self._loaded = recovered.version

    def _trees_again(self, wanted: Sequence[int]) -> Sequence[Tree]:
        return trees_again(self._journal.records(), wanted, self.run.prepared.codec, self.run.prepared.rules)
