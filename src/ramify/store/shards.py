"""ShardedFolder: a divided run, held by the one process that lets others grow its shards.

Holding it stops two processes from growing the same run. The shards' own locks only stop two processes from growing the
same shard. It writes no record: each shard's journal belongs to the process that grows that shard.
"""

from pathlib import Path

import msgspec

from ramify.core.errors import ConfigError
from ramify.core.shard import Shard, shards_of
from ramify.store.commit import sync_folder
from ramify.store.journal import FolderLock, store_errors
from ramify.store.layout import SHARDS, Layout, layout_of, write_layout
from ramify.store.records import Header
from ramify.store.store import CONFIGS, config_hash, header_and_config, refuse_occupied, write_text


class ShardedFolder:
    """A divided run folder that is held. The caller must close it."""

    def __init__(self, path: Path, layout: Layout, config: str, *, lock: FolderLock) -> None:
        self.path = path
        self.header = layout.header
        self.config = config
        """Text of the resolved configuration."""
        self.shards: tuple[Shard, ...] = shards_of(layout.num_shards)
        self._lock = lock

    @classmethod
    def create(cls, path: Path, header: Header, config: str, *, num_shards: int) -> "ShardedFolder":
        """Begin a divided run in a new or empty folder. A shard begins when it is grown.

        Raises `StoreError` if the folder holds a run or anything else, or cannot be written.
        """
        if num_shards < 1:
            raise ConfigError(f"{num_shards!r} shards: a run has at least 1")
        layout = Layout(num_shards=num_shards, header=msgspec.structs.replace(header, config_hash=config_hash(config)))
        refuse_occupied(path)
        with store_errors("make the run folder", path):
            (path / SHARDS).mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
        lock = FolderLock(path / SHARDS)
        try:
            refuse_occupied(path)
            with store_errors("write the configuration to", path):
                for left_over in CONFIGS:
                    (path / left_over).unlink(missing_ok=True)
                write_text(path / CONFIGS[0], config)
            write_layout(path, layout)
        except BaseException:
            lock.release()
            raise
        return cls(path, layout, config, lock=lock)

    @classmethod
    def open(cls, path: Path) -> "ShardedFolder":
        """Hold a run that has begun. Raises `StoreError` if another process holds it, or its configuration was
        changed."""
        layout, (_, config) = layout_of(path), header_and_config(path)
        return cls(path, layout, config, lock=FolderLock(path / SHARDS))

    def close(self) -> None:
        self._lock.release()
