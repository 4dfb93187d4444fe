"""TensorBoard tracker: writes metrics to an event file in a folder. Needs tensorboardX, an extra.

Each tracker adds its own file, and TensorBoard shows all files of a folder as one run. So to join a run, use its
folder. Each log is written at once. tensorboardX's own writer uses a thread in which errors are lost.
"""

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ramify.config.tracker_config import TrackerConfig
from ramify.core.errors import ConfigError

INSTALL: Final = "pip install 'ramify[tensorboard]'"


class TensorboardTracker:
    """Every metric is drawn over the step it was logged with."""

    def __init__(self, config: TrackerConfig) -> None:
        """Begin a file. Raises `ConfigError` if the extra is missing, and `OSError`."""
        assert config.folder is not None
        writer, self._proto = library()
        folder, own = Path(config.folder), f".{os.getpid()}.{uuid.uuid4().hex[:8]}"
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = writer(str(folder / "events"), filename_suffix=own)
        self._writer.flush()

    def log(self, metrics: Mapping[str, float], *, step_key: str, step: int) -> None:
        """Write an event. Raises `OSError`; what could not be written is then written before the next event."""
        values = [{"tag": name, "simple_value": value} for name, value in metrics.items()]
        self._writer.write_event(self._proto.Event(wall_time=time.time(), step=step, summary={"value": values}))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def library() -> tuple[Any, Any]:
    """tensorboardX's writer of event files, and its module of events. Raises `ConfigError` if the extra is missing."""
    try:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2
    except ImportError as error:
        raise ConfigError(f"tracker tensorboard needs tensorboardX: {INSTALL}") from error
    return EventsWriter, event_pb2
