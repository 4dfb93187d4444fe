"""Service journal: where a service records what it does and reads it again: a run folder, or memory.

The memory version keeps everything until the process ends. Use it for tests and simulations.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ramify.config.configure import recorded, to_toml
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError, StoreError
from ramify.runner.events import Observer
from ramify.runner.folder import refuse_other_weights
from ramify.runner.log import RunLog
from ramify.runner.permission import check_permitted, signed
from ramify.runner.recorder import Recorder
from ramify.service.recovery import Recovered
from ramify.store.commit import Writing
from ramify.store.records import Header, Marked, RunRecord
from ramify.store.rewind import finish_rewind, rewind
from ramify.store.store import JOURNAL, FolderStore, MemoryStore, Store, header_and_config, stream


class ServiceJournal:
    """Mutable. `path` None = memory."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._store: FolderStore | MemoryStore | None = None
        self._log: RunLog | None = None
        self._memory: MemoryStore | None = None
        self.marks: set[int] = set()
        """Rollout ids after which the trainer saved."""

    @property
    def is_begun(self) -> bool:
        """Whether anything was ever written."""
        if self.path is None:
            return self._memory is not None
        finish_rewind(self.path)
        return (self.path / JOURNAL).is_dir() and any((self.path / JOURNAL).glob("*.jsonl"))

    @property
    def store(self) -> Store:
        """Raises `ConfigError` unless it is open."""
        if self._store is None:
            raise ConfigError("the service is not started or is closed")
        return self._store

    @property
    def observers(self) -> list[Observer]:
        """The observers that record trees."""
        log = [] if self._log is None else [self._log.observe]
        return [Recorder(self.store).observe, *log]

    def config(self) -> RunConfig | None:
        """The recorded configuration; None = there is none. Nothing that it names is loaded."""
        if self.path is None or not self.is_begun:
            return None
        return recorded(header_and_config(self.path)[1], source=str(self.path))

    def check_permitted(self) -> None:
        """Raise `StoreError` if the recorded configuration is not this user's."""
        if self.path is not None and self.is_begun:
            check_permitted(self.path, is_trusted=False, remedy="give the service the configuration that began it")

    def open(self, header: Header, config: RunConfig, recovered: Recovered) -> None:
        """Create the journal, or open it and let `recovered` read every record. Raises `StoreError` if another process
        writes to it, if it was begun with other weights, or if it is damaged."""
        if self.path is None:
            self._store = self._memory = self._memory or MemoryStore(header)
            for record in self._memory.records:
                recovered.read(record)
        else:
            self._store = self._folder(self.path, header, config, recovered)
            self._log = RunLog(self._store.log_path)
        self.marks = set(recovered.marks)

    async def mark(self, rollout_id: int, source: dict[str, object]) -> None:
        """Make everything written so far durable, and mark this point for `rewind`."""
        await self.store.synced(self.store.append(Marked(rollout_id=rollout_id, source=source)))
        self.marks.add(rollout_id)

    def records(self) -> Iterable[RunRecord]:
        """All records, from the beginning."""
        self.store.sync()
        if self.path is None:
            return list(self._memory.records) if self._memory else []
        return stream(self.path)

    def check_mark(self, rollout_id: int) -> None:
        """Raise `StoreError` if there is no mark of this number."""
        if rollout_id not in self.marks:
            raise StoreError(
                f"{self.path} has no save of rollout {rollout_id}; the last saves are {sorted(self.marks)[-8:]}"
            )

    def rewind(self, rollout_id: int) -> None:
        """Go back to the mark of this number. Close the journal before, and open it again after."""

        def is_mark(record: RunRecord) -> bool:
            return isinstance(record, Marked) and record.rollout_id == rollout_id

        if self.path is not None:
            rewind(self.path, is_mark)
        elif self._memory is not None:
            records = self._memory.records
            del records[max(number for number, record in enumerate(records) if is_mark(record)) + 1 :]

    def close(self) -> None:
        """Can be called again. Raises `StoreError` if something was not saved."""
        log, self._log = self._log, None
        store, self._store = self._store, None
        try:
            if store is not None:
                store.close()
        finally:
            if log is not None:
                log.close()

    def _folder(self, path: Path, header: Header, config: RunConfig, recovered: Recovered) -> FolderStore:
        writing = Writing(durability=config.durability)
        if not self.is_begun:
            text = to_toml(config)
            return FolderStore.create(path, signed(header, text), text, writing=writing)
        store, saved = FolderStore.resume(path, writing=writing, read=recovered.read)
        try:
            refuse_other_weights(saved.header, header)
        except BaseException:
            with suppress(StoreError):
                store.close()
            raise
        return store
