"""Leftovers: the files of states that are no more.

Most states left none, and their folders go at once. Others stay until half of the room is used; then code that runs in
the sandbox removes them: the host never walks through files that foreign code made.
"""

import os
from contextlib import suppress
from typing import Final

from ramify.sandbox.folders import PARKED, TMP, WORK

_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REMOVE: Final = """
import shutil
for name in {names!r}:
    shutil.rmtree({box!r} + "/" + name, ignore_errors=True)
"""


class Leftovers:
    """Of one sandbox. `box` is a descriptor of the folder of all files, opened before any foreign code ran."""

    def __init__(self, box: int, path: str) -> None:
        self._box = box
        self._path = f"{path}/{PARKED}"
        self._parked = os.open(PARKED, _FLAGS, dir_fd=box)
        self._names: list[str] = []

    def add(self, name: str) -> None:
        """The files parked as `name` are needed no more. Removes what is empty and follows no link."""
        try:
            folder = os.open(name, _FLAGS, dir_fd=self._parked)
        except OSError:
            return
        for part in (WORK, TMP):
            with suppress(OSError):
                os.rmdir(part, dir_fd=folder)
        os.close(folder)
        try:
            os.rmdir(name, dir_fd=self._parked)
        except OSError:
            self._names.append(name)

    def removal(self) -> str | None:
        """Code that makes room, once there is little; None = there is enough, or nothing to remove."""
        room = os.fstatvfs(self._box)
        if not self._names or (2 * room.f_bfree > room.f_blocks and 2 * room.f_ffree > room.f_files):
            return None
        names, self._names = self._names, []
        return _REMOVE.format(names=names, box=self._path)

    def close(self) -> None:
        os.close(self._parked)
        os.close(self._box)
