"""JSONL tracker: appends metrics as lines of JSON to `metrics.jsonl`.

A line is `time` (seconds since 1970), `run_id`, `step_key`, `step` and `metrics`. Several processes may write one file.
A line is written completely or not at all, unless its process dies in the middle of the write. Then the partial line
stays, and the next line begins after it.
"""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ramify.config.tracker_config import TrackerConfig
from ramify.trackers.tracker import in_json

FILE: Final = "metrics.jsonl"


class JsonlTracker:
    """Opens the file for each log, so a file that was moved or emptied in between causes no error."""

    def __init__(self, config: TrackerConfig) -> None:
        """Create the folder and the file. Raises `OSError`."""
        assert config.folder is not None
        self.path = Path(config.folder, FILE)
        self._run_id = config.run_id
        self.path.parent.mkdir(parents=True, exist_ok=True)
        os.close(self._opened())

    def log(self, metrics: Mapping[str, float], *, step_key: str, step: int) -> None:
        """Add a line. If it raises `OSError`, the file is unchanged."""
        run = {} if self._run_id is None else {"run_id": self._run_id}
        line = {"time": time.time(), **run, "step_key": step_key, "step": step, "metrics": in_json(metrics)}
        text = json.dumps(line, allow_nan=False) + "\n"
        file = self._opened()
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file).st_size
            is_cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            _write(file, ("\n" * is_cut + text).encode(), size)
        finally:
            os.close(file)

    def close(self) -> None:
        """Nothing is open."""

    def _opened(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _write(file: int, data: bytes, size: int) -> None:
    """Append all of `data` to a file of `size` bytes, or nothing."""
    written = 0
    try:
        while written < len(data):
            written += os.write(file, data[written:])
    except OSError:
        if written:
            os.ftruncate(file, size)
        raise
