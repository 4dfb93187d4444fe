"""Rollouts: the rollout service of a trainer that is not asynchronous: batches by number, and the weights before them.

Batch k is grown with the weights after k batches. Its number is also their version. The service is marked at every
checkpoint, so that training goes on from one with the same trees.
"""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any, Final, Literal

from ramify.config.run_config import RunConfig
from ramify.core.engine import Engine
from ramify.core.errors import ConfigError
from ramify.core.task import Task
from ramify.engines.in_front import innermost
from ramify.engines.local import Local
from ramify.integrations.background_loop import run_in_background
from ramify.runner.events import Event, TreeClosed
from ramify.service.controller import Batch
from ramify.service.manager import RolloutManager

Weights = Literal["folder", "memory"]
"""How the engine gets new weights. folder: from a folder that it can read, for any engine. memory: from the trainer's
tensors, for the engine `local`."""
SERVICE: Final = "service"
"""The service's own folder in that of the rollouts."""


class Rollouts:
    """Mutable. `path` is the folder of the service and of the weights. It is opened when it is needed."""

    def __init__(
        self,
        config: RunConfig,
        path: Path,
        *,
        engine: Engine | None,
        task: Task | None,
        weights: Weights,
        has_tables: bool,
    ) -> None:
        self.seconds: dict[str, float] = {}
        """Of the last batch: `rollout` and `weights`."""
        self.num_sampled = 0
        """Decode tokens of all trees that were closed in this process."""
        self._path = path
        self._weights = weights
        self._made = partial(
            RolloutManager, config, path / SERVICE, engine=engine, task=task, has_tables=has_tables,
            observers=[self._count],
        )  # fmt: skip
        self.manager = self._made()
        self._is_open = False
        self._pushed = -1
        """Number of batches after which the weights were those of the engine."""
        if weights == "memory" and not isinstance(innermost(self._engine), Local):
            raise ConfigError(
                f"weights = 'memory' is for the engine 'local' in this process; {self._engine.capabilities.name!r} "
                "reads a folder: weights = 'folder'"
            )

    def batch(self, number: int, model: Any) -> Batch:
        """The batch with this number, grown with the weights of `model`."""
        begun = time.monotonic()
        self._push(number, model)
        pushed = time.monotonic()
        batch = run_in_background(self.manager.generate(number))
        self.seconds = {"weights": pushed - begun, "rollout": time.monotonic() - pushed}
        return batch

    def evaluate(self, number: int, model: Any) -> Mapping[str, float]:
        """The figures of the data sets of `service.eval`, answered with the weights of `model`."""
        self._push(number, model)
        return run_in_background(self.manager.eval(number))

    def mark(self, number: int) -> None:
        """Make durable that `number` batches were trained: a later process can go on from here."""
        self._open(number)
        run_in_background(self.manager.save(number))

    def close(self) -> None:
        """Close the service. The next call opens it again."""
        if self._is_open:
            self._is_open, self._pushed = False, -1
            run_in_background(self.manager.close())
            self.manager = self._made()

    def _open(self, number: int) -> None:
        """Start the service where `number` batches were trained. Raises `ConfigError` if it was never marked there."""
        if self._is_open:
            return
        run_in_background(self.manager.start())
        self._is_open = True
        if number in self.manager.saved:
            run_in_background(self.manager.load(number))
        elif saved := sorted(self.manager.saved):
            self.close()
            raise ConfigError(
                f"the service in {str(self._path)!r} can go on from {saved} batches, the trainer has trained {number}: "
                "resume from a checkpoint of this run, or train into another folder"
            )
        else:
            run_in_background(self.manager.save(number))

    def _push(self, number: int, model: Any) -> None:
        """Give the engine the weights after `number` batches, unless it has them."""
        self._open(number)
        if self._pushed == number:
            return
        run_in_background(self._update(number, model))
        self._pushed = number

    async def _update(self, number: int, model: Any) -> None:
        engine: Any = self._engine
        async with self.manager.updating(number):
            if self._weights == "memory":
                await engine.update_weights(model.state_dict(), number)
                return
            folder = self._path / "weights" / str(number)
            model.save_pretrained(folder)
            await engine.update_weights(str(folder.resolve()), number)
        for older in folder.parent.iterdir():
            if older != folder:
                rmtree(older)

    def _count(self, event: Event) -> None:
        if isinstance(event, TreeClosed):
            self.num_sampled += int(sum(spend.decode for spend in event.spent.values()))

    @property
    def _engine(self) -> Engine:
        return self.manager.run.prepared.engine
