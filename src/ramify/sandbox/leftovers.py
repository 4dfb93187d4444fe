"""Leftovers: the files that steps leave, as the host keeps them.

The host moves the files of a waiting state where no process can change them, and discards the files of dropped states.
Most states have no files, and their folders are removed at once. Others stay until half of the room is used; then the
host removes them while nothing runs in the sandbox. Otherwise it only renames, and never follows a link.
"""

# ruff: noqa: PTH208 - pathlib knows no descriptors

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from ramify.sandbox import folders
from ramify.sandbox.folders import COPY, LIVE, PARKED, PARTS, PLACE_MODE, SHARED_MODE, TMP, TRASH, WORK

_HELD: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Leftovers:
    """The files of one sandbox. `box`, `parked` and `shared` are descriptors of the folder of all files, of those of
    waiting states, and of folders outside, opened before any foreign code ran."""

    def __init__(self, box: int, *, parked: int | None = None, shared: Sequence[int] = ()) -> None:
        self._box = box
        self._shared = shared
        self._parked = os.open(PARKED, _HELD, dir_fd=box) if parked is None else parked
        self._trash = os.open(TRASH, _HELD, dir_fd=box)
        self._names: list[str] = []

    def park(self, place: str, name: str) -> bool:
        """Move the contents of `place`, where nothing runs any more, to the files of state `name`. False = no room."""
        try:
            os.mkdir(name, dir_fd=self._parked)
            os.chmod(name, 0o755, dir_fd=self._parked)
            live = os.open(place, _LISTED, dir_fd=self._box)
        except OSError:
            return False
        try:
            for part in PARTS:
                with suppress(FileNotFoundError):
                    os.rename(part, f"{name}/{part}", src_dir_fd=live, dst_dir_fd=self._parked)
            self._discard(live, os.listdir(live))
        except OSError:
            return False
        finally:
            os.close(live)
        return True

    @property
    def are_none(self) -> bool:
        """Whether the step that is over left no file at all."""
        try:
            live = _names(self._box, LIVE) == {WORK, TMP}
            return live and not any(_names(self._box, f"{LIVE}/{part}") for part in (WORK, TMP)) and self.are_cleared
        except OSError:
            return False

    @property
    def are_cleared(self) -> bool:
        """Whether the shared folders are empty, and open to the next step."""
        try:
            modes = {os.fstat(shared).st_mode & 0o7777 for shared in self._shared}
            return modes <= {SHARED_MODE} and not any(_names(shared, ".") for shared in self._shared)
        except OSError:
            return False

    def clear(self, place: str) -> None:
        """Discard the contents of `place`."""
        self._empty(self._box, place)

    def reopen(self) -> None:
        """Give the folders that steps use one after another their modes and times again: not as root, a step may change
        them."""
        with suppress(OSError):
            for place in (LIVE, COPY):
                os.chmod(place, PLACE_MODE, dir_fd=self._box)
                os.utime(place, (0, 0), dir_fd=self._box)
            for shared in self._shared:
                os.chmod(".", SHARED_MODE, dir_fd=shared)
                os.utime(".", (0, 0), dir_fd=shared)

    def drop(self, name: str) -> None:
        """Discard the files of state `name`."""
        self._empty(self._parked, name)
        with suppress(OSError):
            os.rmdir(name, dir_fd=self._parked)

    @property
    def are_many(self) -> bool:
        """Whether room is low and there are discarded files to remove."""
        room = os.fstatvfs(self._box)
        return bool(self._names) and (2 * room.f_bfree <= room.f_blocks or 2 * room.f_ffree <= room.f_files)

    def removal(self) -> Callable[[], None]:
        """What removes the discarded files, in a thread. Nothing may run in the sandbox until it is done."""
        names, self._names = self._names, []
        return partial(_remove, os.dup(self._trash), names)

    def close(self) -> None:
        for descriptor in (self._parked, self._trash, self._box, *self._shared):
            os.close(descriptor)

    def _empty(self, parent: int, name: str) -> None:
        """Discard the contents of a folder. If a link is in its place, the link is not followed."""
        try:
            folder = os.open(name, _LISTED, dir_fd=parent)
        except OSError:
            return
        try:
            with suppress(OSError):
                self._discard(folder, os.listdir(folder))
        finally:
            os.close(folder)

    def _discard(self, folder: int, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                try:
                    os.rmdir(name, dir_fd=folder)
                except NotADirectoryError:
                    os.unlink(name, dir_fd=folder)
                except OSError:
                    token = secrets.token_hex(8)
                    os.rename(name, token, src_dir_fd=folder, dst_dir_fd=self._trash)
                    self._names.append(token)


def _names(parent: int, path: str) -> set[str]:
    """What a folder holds. Raises OSError if it is no folder, or closed."""
    folder = os.open(path, _LISTED, dir_fd=parent)
    try:
        return {*os.listdir(folder)}
    finally:
        os.close(folder)


def _remove(trash: int, names: Sequence[str]) -> None:
    try:
        for name in names:
            with suppress(OSError):
                folders.remove(f"/proc/self/fd/{trash}/{name}")
    finally:
        os.close(trash)
