"""Run folders to follow: of the scripted agent, or with records that a test writes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.sharded.divided import config

from ramify.runner import loop
from ramify.runner.folder import checked_start
from ramify.store.commit import Writing
from ramify.store.records import RunRecord
from ramify.store.store import FolderStore
from ramify.view.followed_run import FollowedRun

NO_LIMITS = {"limits.decode": None, "run_limits.decode": None}


def begun(path: Path, **flags: Any) -> FolderStore:
    """A run without a tree. The caller must close it."""
    header, text, _ = loop.run(checked_start(config(**flags)))
    return FolderStore.create(path, header, text, writing=Writing(durability="os"))


def put(store: FolderStore, records: Iterable[RunRecord]) -> None:
    """Write records, so that whoever looks sees them."""
    for record in records:
        store.append(record)
    store.sync()


def looked(path: Path) -> FollowedRun:
    """The run at `path` as it is now."""
    run = FollowedRun.open(path)
    run.look()
    return run


def filled(path: Path) -> FollowedRun:
    """The run at `path` as it is now, with all rows."""
    run = looked(path)
    while run.fill(60.0):
        pass
    return run
