"""Services over the scripted engine, and a trainer that asks them for batches."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.service.controller import Batch
from ramify.service.manager import RolloutManager

T = TypeVar("T")


def config(preset: str = "chains", **settings: Any) -> RunConfig:
    """Short trees of the scripted random agent, four to a batch; `a__b=c` sets `a.b`."""
    flags = {
        "prompts": 6,
        "seed": 3,
        "engine.name": "scripted",
        "growth.max_response_tokens": 120,
        "service.batch_size": 4,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    return resolve(preset=preset, flags=flags).config


def served(
    path: Path, use: Callable[[RolloutManager], Awaitable[T]], *, configured: RunConfig | None = None, **options: Any
) -> T:
    """What `use` makes of a service that was started in `path`, which is closed behind it."""

    async def main() -> T:
        manager = await RolloutManager(configured, path, **options).start()
        try:
            return await use(manager)
        finally:
            await manager.close()

    return asyncio.run(main())


def plain(batch: Batch) -> list[dict[str, Any]]:
    return [sample.to_dict() for sample in batch.samples]


def digest(batch: Batch) -> str:
    return hashlib.sha256(json.dumps([plain(batch), batch.train_data], sort_keys=True).encode()).hexdigest()


def entries(diary: Path) -> list[str]:
    return diary.read_text().splitlines() if diary.exists() else []


def note(diary: Path, line: str) -> None:
    with diary.open("a") as file:
        file.write(f"{line}\n")


async def load(manager: RolloutManager, version: int) -> None:
    await manager.update_weights(version, "weights")


async def train(
    manager: RolloutManager,
    diary: Path,
    *,
    num_batches: int,
    save_every: int = 2,
    update: Callable[[RolloutManager, int], Awaitable[None]] = load,
) -> None:
    """A trainer that writes down what it was handed, and goes on behind that; now and then it saves."""
    for rollout_id in range(len(entries(diary)), num_batches):
        if manager.version < rollout_id:
            await update(manager, rollout_id)
        batch = await manager.generate(rollout_id)
        note(diary, f"{rollout_id} {digest(batch)}")
        if rollout_id % save_every == 1:
            await manager.save(rollout_id)
