"""RunFolder: a folder on disk that a run removes at its end, or the next run if this one is killed.

A run has `BASE/ID` and the lock file `BASE/ID.lock`, which its process holds until it ends, however it ends. A folder
whose lock nobody holds is nobody's.
"""

import fcntl
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from ramify.sandbox.folders import remove

RUN_ID: Final = "[0-9a-f]{12}"


def new_run(base: Path, *, mode: int) -> tuple[Path, int]:
    """A new folder in `base`, and its lock, which this process holds until it ends."""
    while True:
        name = secrets.token_hex(6)
        lock = _locked(base / f"{name}.lock")
        if lock is not None:
            (base / name).mkdir()
            (base / name).chmod(mode)
            return base / name, lock


def discard_run(run: Path, lock: int) -> None:
    """Remove a run's folder. What cannot be removed yet keeps its lock file, and is tried again by `remove_left`."""
    try:
        with suppress(OSError):
            remove(str(run))
        if not run.exists():
            Path(f"{run}.lock").unlink(missing_ok=True)
    finally:
        os.close(lock)


def remove_left(base: Path) -> int:
    """Remove the folders of runs that were killed. Returns how many runs left some."""
    num_left = 0
    for name in sorted({path.name.removesuffix(".lock") for path in base.iterdir()}):
        if re.fullmatch(RUN_ID, name) and (lock := _locked(base / f"{name}.lock")) is not None:
            discard_run(base / name, lock)
            num_left += 1
    return num_left


def _locked(path: Path) -> int | None:
    """The file, locked; None = another process holds it. The lock comes before the folder, so a folder without one is
    nobody's."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(lock).st_ino:  # noqa: PTH116 - the same call twice
            return lock
    except OSError:  # It is held, or was removed meanwhile.
        pass
    os.close(lock)
    return None
