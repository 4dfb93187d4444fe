"""Back ends: how the files of states lie on disk, and how a state becomes two.

A `WorkspaceState` never changes. A command acts on a `FileDraft` of it, which becomes the next state or is dropped. So
a fork costs nothing, and a command that failed leaves no trace. `OverlayFiles` mounts the draft, an empty layer, over
the layers of the state: the cost of a draft does not depend on the size of the tree. A layer is mounted as the upper
one once and only then, so no mounted upper layer is a lower one. `CopyFiles` makes a draft a whole copy. It works on
every file system.

The mount is made inside the namespaces of the command (`launcher.py`), so it needs no right on this machine and goes
away with the command.
"""

import os
import stat
import tarfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, Protocol

from ramify.core.errors import ToolError
from ramify.workspaces.layers import FileLayer, LayerStore
from ramify.workspaces.tree import (
    Changes,
    Entries,
    Stamp,
    TreeEntry,
    TreeFault,
    TreeLimits,
    changes,
    copied,
    entry_of,
    mark_gone,
    merged,
    read_file,
    walk,
)
from ramify.workspaces.tree_digest import TOP, tree_digest

BackEndName = Literal["overlay", "copy"]
MAX_LAYERS: Final = 64
"""Layers under a draft. From this number on, the state is put together into one, by hard links."""
MOST_LAYERS: Final = 400
"""Layers under a draft where they cannot be put together. The kernel stacks 500, and all names must fit in a page."""
TEMPORARY: Final = b"tmp"
"""Folder of a state's tree that is `/tmp`."""


@dataclass(frozen=True, eq=False)
class WorkspaceState:
    """Files that no longer change."""

    layers: tuple[FileLayer, ...]
    """The topmost first. Whoever uses the state holds them."""
    entries: Entries
    """The merged view."""

    @cached_property
    def digest(self) -> str:
        """See `tree_digest.py`. Computed when first asked for; blocks."""
        return tree_digest(self.entries)

    def read(self, path: bytes, max_bytes: int) -> bytes:
        """Content of a file, `path` relative to the tree's top. Raises `TreeFault` where there is no such file."""
        entry = self.entries.get(path)
        if entry is None or entry.kind != "file":
            raise TreeFault(f"{_shown(path)} is {'missing' if entry is None else f'a {entry.kind}'}")
        if entry.size > max_bytes:
            raise TreeFault(f"{_shown(path)} holds {entry.size} bytes; at most {max_bytes} are read")
        return read_file(os.path.join(entry.layer, path), max_bytes)  # noqa: PTH118 - paths are bytes


@dataclass(eq=False)
class FileDraft:
    """Files that one command may change."""

    state: WorkspaceState
    layer: FileLayer
    """The folder that takes the changes."""
    lower: tuple[FileLayer, ...]
    """Layers to mount it over; none = it holds all files itself."""
    stamps: dict[bytes, Stamp] = field(default_factory=dict[bytes, Stamp])
    """Files of a copy as they were made: while a stamp holds, the content is known."""
    written: dict[bytes, TreeEntry] = field(default_factory=dict[bytes, TreeEntry])
    """What the host wrote since."""


class BackEnd(Protocol):
    """Makes states and drafts. All methods block, mutate files of its own layers only, and raise `TreeFault` for files
    that cannot be kept and `OSError` for a disk that fails."""

    @property
    def name(self) -> BackEndName: ...

    def start(self, source: Path | None) -> WorkspaceState:
        """The state that holds a copy of a folder or of a tar file as `/w`; None = nothing. The caller is its user."""
        ...

    def draft(self, state: WorkspaceState) -> FileDraft:
        """A draft of a state. The caller must `keep` or `discard` it."""
        ...

    def keep(self, draft: FileDraft) -> WorkspaceState:
        """The state that a draft has become, and end the draft. The caller is the state's user. If this raises, the
        draft is discarded. Only while no process acts on the draft."""
        ...

    def entries(self, draft: FileDraft) -> Entries:
        """What a draft holds now; a process may act on it."""
        ...

    def copy(self, draft: FileDraft) -> WorkspaceState:
        """The state that a draft is now, while the draft goes on. The caller is the state's user."""
        ...

    def discard(self, draft: FileDraft) -> None: ...

    def write(self, draft: FileDraft, path: bytes, data: bytes, mode: int) -> None:
        """Write one file into a draft before anything runs on it. Parents are made. Raises `TreeFault` if a link or a
        file stands in place of a parent, or a folder in place of the file."""
        ...

    def hold(self, state: WorkspaceState) -> None:
        """Count one more user of a state."""
        ...

    def release(self, state: WorkspaceState) -> None:
        """Count one user less; files that nobody uses are removed."""
        ...


class _LayeredFiles:
    """What both back ends share: states of counted layers."""

    def __init__(self, store: LayerStore, limits: TreeLimits) -> None:
        self._store = store
        self._limits = limits

    def start(self, source: Path | None) -> WorkspaceState:
        layer = self._store.new()
        try:
            entries = self._tops(layer)
            if source is not None and source.is_file():
                given = self._store.new()
                try:
                    _extracted(source, given.files, self._limits)
                    entries |= self._copy_of(given.files, layer)
                finally:
                    self._store.release([given])
            elif source is not None:
                if not source.is_dir():
                    raise TreeFault(f"{str(source)!r} is neither a folder nor a tar file")
                entries |= self._copy_of(os.fsencode(source), layer)
        except BaseException:
            self._store.release([layer])
            raise
        return WorkspaceState((layer,), entries)

    def hold(self, state: WorkspaceState) -> None:
        self._store.hold(state.layers)

    def release(self, state: WorkspaceState) -> None:
        self._store.release(state.layers)

    def discard(self, draft: FileDraft) -> None:
        self._store.release([draft.layer, *draft.lower])

    def _copied(self, entries: Entries, *, may_link: bool = False) -> WorkspaceState:
        """The state that holds `entries` in one layer of its own. The caller is its user."""
        layer = self._store.new()
        try:
            own, _ = copied(entries, layer.files, owner=self._store.owner, may_link=may_link)
        except BaseException:
            self._store.release([layer])
            raise
        return WorkspaceState((layer,), own)

    def write(self, draft: FileDraft, path: bytes, data: bytes, mode: int) -> None:
        """As `BackEnd.write`."""
        parts = path.split(b"/")
        for number in range(1, len(parts)):
            self._have_folder(draft, b"/".join(parts[:number]))
        old = self._entry(draft, path)
        if old is not None and old.kind != "file":
            raise TreeFault(f"{_shown(path)} is a {old.kind}, and no file can take its place")
        there = os.path.join(draft.layer.files, path)  # noqa: PTH118 - paths are bytes
        try:
            if os.path.lexists(there):
                os.unlink(there)  # noqa: PTH108 - paths are bytes
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(there, flags, 0o600), "wb") as file:
                file.write(data)
                if self._store.owner is not None:
                    os.fchown(file.fileno(), self._store.owner, self._store.owner)
                os.fchmod(file.fileno(), mode)
        except OSError as error:
            raise TreeFault(f"{_shown(path)} cannot be written: {error.strerror}") from error
        draft.stamps.pop(path, None)
        draft.written[path] = TreeEntry("file", mode, b"", len(data), draft.layer.files)

    def _have_folder(self, draft: FileDraft, path: bytes) -> None:
        entry = self._entry(draft, path)
        if entry is not None and not entry.is_folder:
            raise TreeFault(f"{_shown(path)} is a {entry.kind}, so nothing can be written below it")
        there = os.path.join(draft.layer.files, path)  # noqa: PTH118 - paths are bytes
        mode = 0o755 if entry is None else entry.mode
        try:
            if not os.path.lexists(there):
                os.mkdir(there)  # noqa: PTH102 - paths are bytes
                os.chmod(there, mode)  # noqa: PTH101 - paths are bytes
                if self._store.owner is not None:
                    os.chown(there, self._store.owner, self._store.owner)
        except OSError as error:
            raise TreeFault(f"{_shown(path)} cannot be made: {error.strerror}") from error
        draft.written.setdefault(path, TreeEntry("folder", mode, b"", 0, draft.layer.files))

    @staticmethod
    def _entry(draft: FileDraft, path: bytes) -> TreeEntry | None:
        return draft.written.get(path) or draft.state.entries.get(path)

    def _tops(self, layer: FileLayer) -> dict[bytes, TreeEntry]:
        """Make the two folders that every state has."""
        modes = {TOP: 0o755, TEMPORARY: 0o1777}
        for name, mode in modes.items():
            path = os.path.join(layer.files, name)  # noqa: PTH118 - paths are bytes
            os.mkdir(path)  # noqa: PTH102 - paths are bytes
            os.chmod(path, mode)  # noqa: PTH101 - paths are bytes
            if self._store.owner is not None:
                os.chown(path, self._store.owner, self._store.owner)
        return {name: TreeEntry("folder", mode, b"", 0, layer.files) for name, mode in modes.items()}

    def _copy_of(self, top: bytes, layer: FileLayer) -> dict[bytes, TreeEntry]:
        entries, _ = copied(self._of_folder(top), layer.files, owner=self._store.owner, prefix=TOP + b"/")
        return entries

    def _of_folder(self, top: bytes) -> dict[bytes, TreeEntry]:
        """The entries of a folder, whose files are read once to know their content."""
        found: dict[bytes, TreeEntry] = {}
        num_bytes = 0
        for path, status in walk(top):
            num_bytes += status.st_size if stat.S_ISREG(status.st_mode) else 0
            self._limits.check(len(found) + 1, num_bytes)
            entry = entry_of(top, path, status)
            if entry is not None:
                found[path] = entry
        return found


class OverlayFiles(_LayeredFiles):
    """Layers, mounted over each other."""

    @property
    def name(self) -> BackEndName:
        return "overlay"

    def draft(self, state: WorkspaceState) -> FileDraft:
        state = self._shallow(state)
        try:
            return FileDraft(state, self._store.new(), state.layers)
        except BaseException:
            self.release(state)
            raise

    def keep(self, draft: FileDraft) -> WorkspaceState:
        try:
            upper = changes(draft.layer.files, self._limits)
            if _is_unchanged(draft.state.entries, upper):
                self._store.release([draft.layer])
                return draft.state
            entries = self._merged(draft, upper)
        except BaseException:
            self.discard(draft)
            raise
        return WorkspaceState((draft.layer, *draft.lower), entries)

    def entries(self, draft: FileDraft) -> Entries:
        return self._merged(draft, changes(draft.layer.files, self._limits))

    def copy(self, draft: FileDraft) -> WorkspaceState:
        """A copy of the upper layer, over the same lower ones."""
        upper = changes(draft.layer.files, self._limits)
        entries = self._merged(draft, upper)
        state = self._copied(upper.entries)
        try:
            mark_gone(state.layers[0].files, upper)
        except OSError:  # A folder that its owner locked, and we are not root.
            self.release(state)
            return self._copied(entries)
        self._store.hold(draft.lower)
        return WorkspaceState((*state.layers, *draft.lower), {**entries, **state.entries})

    def _merged(self, draft: FileDraft, upper: Changes) -> Entries:
        entries = merged(draft.state.entries, upper)
        self._limits.check(len(entries), sum(entry.size for entry in entries.values()))
        return entries

    def _shallow(self, state: WorkspaceState) -> WorkspaceState:
        """The same state with one user more, in few enough layers."""
        if len(state.layers) >= MAX_LAYERS:
            try:
                return self._copied(state.entries, may_link=True)
            except TreeFault:  # A folder that its owner locked, and we are not root.
                if len(state.layers) >= MOST_LAYERS:
                    raise
        self.hold(state)
        return state


class CopyFiles(_LayeredFiles):
    """A whole copy a draft."""

    @property
    def name(self) -> BackEndName:
        return "copy"

    def draft(self, state: WorkspaceState) -> FileDraft:
        layer = self._store.new()
        try:
            _, stamps = copied(state.entries, layer.files, owner=self._store.owner)
        except BaseException:
            self._store.release([layer])
            raise
        return FileDraft(state, layer, (), stamps)

    def keep(self, draft: FileDraft) -> WorkspaceState:
        try:
            return WorkspaceState((draft.layer,), self._seen(draft, is_unlocked=True))
        except BaseException:
            self.discard(draft)
            raise

    def entries(self, draft: FileDraft) -> Entries:
        return self._seen(draft)

    def copy(self, draft: FileDraft) -> WorkspaceState:
        return self._copied(self._seen(draft))

    def _seen(self, draft: FileDraft, *, is_unlocked: bool = False) -> dict[bytes, TreeEntry]:
        """What lies in a draft; only files that were written since are read."""
        top, old = draft.layer.files, draft.state.entries
        found: dict[bytes, TreeEntry] = {}
        num_bytes = 0
        for path, status in walk(top, is_unlocked=is_unlocked):
            num_bytes += status.st_size if stat.S_ISREG(status.st_mode) else 0
            self._limits.check(len(found) + 1, num_bytes)
            is_known = draft.stamps.get(path) == Stamp.of(status) and stat.S_ISREG(status.st_mode)
            entry = entry_of(top, path, status, known=old[path].said if is_known else None)
            if entry is not None:
                found[path] = entry
        return found


def _is_unchanged(before: Entries, upper: Changes) -> bool:
    """Whether an upper layer holds only folders that the mount copied up. A file that was only touched is a change."""
    if upper.gone or upper.emptied:
        return False
    return all(entry.is_folder and entry.is_as(before.get(path)) for path, entry in upper.entries.items())


def _extracted(source: Path, target: bytes, limits: TreeLimits) -> None:
    """Unpack a tar file that need not be trusted: no path and no link of it may lead out. Raises `TreeFault`."""
    if not hasattr(tarfile, "data_filter"):
        raise ToolError("tool_gave_up", "tar files need Python 3.11.4 or newer; unpack it and name the folder")
    try:
        with tarfile.open(source) as archive:
            num_bytes = num_files = 0
            for member in archive:
                num_files, num_bytes = num_files + 1, num_bytes + member.size
                limits.check(num_files, num_bytes)
            archive.extractall(os.fsdecode(target), filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise TreeFault(f"{str(source)!r} cannot be unpacked as a tar file: {error}") from error


def _shown(path: bytes) -> str:
    return repr(path.decode(errors="replace"))
