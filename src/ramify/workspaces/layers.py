"""Layers: the folders on disk that hold states of files, each counted by those who use it.

A run has `BASE/RUN` (`run_folder.py`), and each layer `BASE/RUN/ID` with the folders `f` (files), `m` (where an overlay
is mounted) and `k` (the overlay's own). A layer that nobody uses any more is removed.
"""

import os
import secrets
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ramify.core.errors import ToolError
from ramify.edge.daemon_threads import DaemonThreads
from ramify.sandbox.folders import remove
from ramify.workspaces.run_folder import discard_run, new_run, remove_left

PASSABLE: Final = 0o711
"""Mode of folders that the commands' own user passes and nobody else lists."""


class FileLayer:
    """One folder of files. Compared by identity."""

    __slots__ = ("name", "run")

    def __init__(self, run: Path, name: str) -> None:
        self.run = run
        self.name = name

    @property
    def files(self) -> bytes:
        return os.fsencode(self.run / self.name / "f")

    def __repr__(self) -> str:
        return f"FileLayer({self.name})"


class LayerStore:
    """The layers of one tool in one run. `owner` is the uid that the files belong to; None = ours. Threads may share
    it. `base` must be passable for that user."""

    def __init__(self, base: Path | None, *, owner: int | None) -> None:
        self.owner = owner
        self._base = base
        self._run: Path | None = None
        self._lock_file: int | None = None
        self._users: Counter[FileLayer] = Counter()
        self._lock = threading.Lock()
        self._remover = DaemonThreads(1)

    @property
    def run(self) -> Path:
        """Folder of the run. Made when first asked for. Raises `ToolError` where it cannot be."""
        with self._lock:
            if self._run is None:
                base = base_folder(self._base)
                remove_left(base)
                self._run, self._lock_file = new_run(base, mode=PASSABLE)
            return self._run

    @property
    def num_layers(self) -> int:
        """Layers in use."""
        return len(self._users)

    def new(self) -> FileLayer:
        """An empty layer with one user."""
        layer = FileLayer(self.run, secrets.token_hex(3))
        home = self.run / layer.name
        try:
            home.mkdir(mode=0o700)
        except FileExistsError:
            return self.new()
        for name in ("f", "m", "k"):
            (home / name).mkdir(mode=0o755)
        if self.owner is not None:
            for path in (home, *home.iterdir()):
                os.chown(path, self.owner, self.owner)
        self.hold([layer])
        return layer

    def hold(self, layers: Iterable[FileLayer]) -> None:
        """Count one more user of each."""
        with self._lock:
            self._users.update(layers)

    def release(self, layers: Iterable[FileLayer]) -> None:
        """Count one user less of each. Those without any are removed by a thread of their own: a folder that is
        nested deeply takes seconds."""
        unused: list[FileLayer] = []
        with self._lock:
            for layer in layers:
                self._users[layer] -= 1
                if self._users[layer] <= 0:
                    del self._users[layer]
                    unused.append(layer)
        for layer in unused:
            self._remover.submit(_removed, layer)

    def close(self) -> None:
        """Remove everything and wait for it. Layers made later have a new place."""
        self._remover.submit(lambda: None).result()
        with self._lock:
            run, lock_file = self._run, self._lock_file
            self._run = self._lock_file = None
            self._users.clear()
        if run is not None and lock_file is not None:
            discard_run(run, lock_file)


def _removed(layer: FileLayer) -> None:
    with suppress(OSError):
        remove(str(layer.run / layer.name))


def base_folder(wanted: Path | None = None) -> Path:
    """Folder for all runs of this user, made if needed. Raises `ToolError` if it is somebody else's or others may not
    pass it."""
    folder = (wanted or Path(tempfile.gettempdir())).resolve() / f"ramify-workspaces-{os.getuid()}"
    try:
        folder.mkdir(mode=PASSABLE, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise ToolError("tool_gave_up", f"{folder} is a link or another user's; set TMPDIR to a folder of your own")
        folder.chmod(PASSABLE)
    except OSError as error:
        raise ToolError("tool_gave_up", f"workspaces need a folder, and {folder} is none: {error}") from error
    if os.geteuid() == 0:
        closed = next((each for each in folder.parents if not each.stat().st_mode & 0o001), None)
        if closed is not None:
            raise ToolError(
                "tool_gave_up",
                f"commands run as a user of their own, who may not pass {str(closed)!r} (mode "
                f"{closed.stat().st_mode & 0o777:o}): set TMPDIR to a folder that all may pass",
            )
    return folder
