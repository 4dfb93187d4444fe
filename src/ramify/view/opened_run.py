"""Opened run: what a run that is followed began with, and the journals that it is followed by."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ramify.config.configure import recorded
from ramify.config.run_config import RunConfig
from ramify.core.errors import RamifyError, StoreError
from ramify.core.shard import Shard, shards_of
from ramify.runner.looking import RunReading, looked
from ramify.store.layout import JOURNAL, SHARDS, is_sharded, layout_of, shard_of, shard_path
from ramify.store.plain_file import refuse_link
from ramify.store.records import Header
from ramify.store.store import header_and_config
from ramify.store.survey import is_written
from ramify.store.tail import JournalTail
from ramify.view.followed_tree import LinePlace

MAX_SHARDS: Final = 4096


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """What a run began with."""

    header: Header
    text: str
    """The configuration as it was recorded."""
    config: RunConfig
    reading: RunReading | None
    """None = its trees cannot be replayed; `refusal` says why."""
    refusal: str = ""

    @classmethod
    def open(cls, path: Path) -> "OpenedRun":
        """Read the header and the configuration. No plug-in, tool or engine is loaded. Raises `StoreError` or
        `ConfigError` if `path` is no run that can be read."""
        header, text = header_and_config(path)
        config = recorded(text, source=str(path))
        try:
            return cls(header, text, config, looked(config, header))
        except RamifyError as error:
            return cls(header, text, config, None, str(error))


@dataclass(slots=True)
class FollowedPart:
    """One journal of a run that is followed. Only `FollowedRun` mutates it."""

    shard: Shard
    tail: JournalTail
    is_divided: bool
    """Whether the run has other journals. Then this one may begin later."""
    accepted: list[LinePlace] = field(default_factory=list[LinePlace])
    """The records of inputs that were accepted."""
    open_trees: set[int] = field(default_factory=set[int])
    is_written: bool | None = None
    """Whether a process writes it; None = not asked yet."""

    @property
    def faults(self) -> list[str]:
        return self.tail.faults if self.tail.has_begun or not self.is_divided else []

    def note_writer(self, *, has_news: bool) -> None:
        """Find out whether a process writes the journal. Asking takes the lock for a moment if nobody holds it. So
        where nobody did, it is asked again only if lines came."""
        if self.tail.is_sealed or not self.tail.has_begun:
            self.is_written = False
        elif has_news or self.is_written is not False:
            self.is_written = is_written(self.tail.folder)


def followed_parts(path: Path, header: Header) -> list[FollowedPart]:
    """The journals of a run: its own, or those of its shards. Raises `StoreError` if its layout cannot be read."""
    if not is_sharded(path):
        return [FollowedPart(shard_of(header), JournalTail(path / JOURNAL), is_divided=False)]
    number = layout_of(path).num_shards
    if number > MAX_SHARDS:
        raise StoreError(f"{path} says {number} shards; at most {MAX_SHARDS} are followed")
    for folder in (path / SHARDS, *(shard_path(path, index) for index in range(number))):
        refuse_link(folder)
    folders = [(shard, shard_path(path, shard.index) / JOURNAL) for shard in shards_of(number)]
    return [FollowedPart(shard, JournalTail(folder), is_divided=True) for shard, folder in folders]


def run_title(config: RunConfig) -> str:
    """What a run is, on one line."""
    engine = config.engine.name if config.engine.model is None else f"{config.engine.name} {config.engine.model}"
    preset = "" if config.preset is None else f"preset {config.preset}, "
    return f"{preset}strategy {config.strategy.name}, task {config.task.name}, engine {engine}, seed {config.seed}"
