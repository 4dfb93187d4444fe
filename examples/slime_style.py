"""slime's rollout system as a program on the built-in model. Needs no GPU, no server and no network.

    python examples/slime_style.py [FOLDER]

A trainer takes batches of trees from a rollout service, frees and takes back the engine's memory, loads new weights,
evaluates, saves; then it is killed in the middle of a batch, begun again from where it saved, and trains on. Training
itself is left out: the weights that are loaded are those of the built-in model each time.
"""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

from ramify import RunConfig, resolve
from ramify.engines.builtin import FOLDER as WEIGHTS
from ramify.runner.events import Event, StepGrown
from ramify.service.controller import Batch
from ramify.service.manager import RolloutManager

BATCHES, SAVED, KILLED_IN = 4, 1, 3
"""Batches in all; the one behind which the trainer saves; the one in which it is killed."""


def config() -> RunConfig:
    """Two problems a batch, each a tree of which four leaves are trained; evaluated on held-out ones."""
    return resolve(
        preset="offline",
        flags={
            "task.split": "train",
            "prompts": 32,
            "service.batch_size": 2,
            "service.rows_per_group": 4,
            "service.eval.countdown.prompts": 8,
            "service.eval.countdown.repeats": 2,
        },
    ).config


async def train(folder: Path, *, first: int, last: int) -> None:
    """Batches `first` to `last`, in a service that is begun in `folder` or goes on there."""
    growing = 0

    def die(event: Event) -> None:
        if growing == KILLED_IN and not first and isinstance(event, StepGrown):
            os.kill(os.getpid(), signal.SIGKILL)

    async with RolloutManager(config(), folder, observers=[die]) as manager:
        if first:
            await manager.load(first - 1)
            print(f"went back to where batch {first - 1} was saved: weights {manager.version}")
        for rollout_id in range(first, last + 1):
            growing = rollout_id
            show(await manager.generate(rollout_id))
            await manager.offload()
            # Here a trainer has the memory to itself, and takes its step.
            await manager.onload(["weights"])
            await manager.update_weights(rollout_id + 1, str(WEIGHTS))
            await manager.onload(["kv_cache"])
            if rollout_id == SAVED:
                metrics = await manager.eval(rollout_id)
                print(f"  evaluated: {metrics['eval/countdown']:.2f} right")
                await manager.save(rollout_id)


def show(batch: Batch) -> None:
    """What a trainer is handed."""
    data = batch.train_data
    assert data is not None
    rewards = [sum(sample.reward == 1 for sample in batch.samples if sample.group_index == g) for g in groups(batch)]
    print(
        f"batch {batch.rollout_id}: groups {groups(batch)}, right {rewards} of 4 each, "
        f"{sum(map(sum, data['loss_masks']))} tokens to train, sampled by weights {batch.samples[0].weight_versions[0]}"
    )


def groups(batch: Batch) -> list[int | None]:
    return list(dict.fromkeys(sample.group_index for sample in batch.samples))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "service"
    child = os.fork()
    if not child:
        asyncio.run(train(folder, first=0, last=BATCHES - 1))
        os._exit(1)  # It is killed before.
    _, status = os.waitpid(child, 0)
    print(f"killed by signal {os.WTERMSIG(status)} in batch {KILLED_IN}")
    asyncio.run(train(folder, first=SAVED + 1, last=BATCHES - 1))
    print(f"everything is in {folder}; look at it with: ramify show {folder}")


if __name__ == "__main__":
    main()
