"""Runs of the scripted agent, whole and divided."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.problem import Problem
from ramify.rows.jsonl import write
from ramify.runner import loop
from ramify.runner.folder import checked_start
from ramify.runner.saved import Saved
from ramify.store.shards import ShardedFolder


def config(preset: str = "offline", **flags: Any) -> RunConfig:
    """About 30 records a tree, with tools, a budget a tree and one of the run that bind."""
    given = {
        "prompts": 7,
        "seed": 3,
        "engine.name": "scripted",
        "growth.max_response_tokens": 160,
        "limits.decode": 700,
        "run_limits.decode": 3001,
        **flags,
    }
    return resolve(preset=preset, flags=given).config


def divided(config: RunConfig, path: Path, *, num_shards: int) -> Sequence[Problem]:
    """Begin a divided run of which nothing is grown yet; its problems."""
    header, text, problems = loop.run(checked_start(config))
    ShardedFolder.create(path, header, text, num_shards=num_shards).close()
    return problems


def exported(path: Path) -> bytes:
    out = path.with_suffix(".jsonl")
    write(Saved.open(path).rows(), out)
    return out.read_bytes()


def is_locked(path: Path) -> bool:
    """Whether somebody holds a divided run."""
    from ramify.core.errors import FolderBusy

    try:
        with closing(ShardedFolder.open(path)):
            return False
    except FolderBusy:
        return True
