# pyright: reportMissingImports=false
# trackio is not in the development environment.
"""trackio tracker: writes metrics to trackio's local database, which `trackio show` draws. Needs trackio, an extra.

It calls trackio's storage directly, one row per log. It does not call trackio's `init`: that asks over the network who
is logged in, ends the run that the process has, and writes in a thread in which errors are lost. `trackio sync`
publishes a project.
"""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from ramify.config.tracker_config import TrackerConfig
from ramify.core.errors import ConfigError
from ramify.trackers.tracker import in_json

INSTALL: Final = "pip install 'ramify[trackio]'"


class TrackioTracker:
    """Joins a run by its name, as trackio itself does."""

    def __init__(self, config: TrackerConfig) -> None:
        """Join or begin a run. Raises `ConfigError` if the extra is missing, and what trackio raises."""
        assert config.project is not None and config.name is not None
        self._storage = library()
        self._project, self._name = config.project, config.name
        self._storage.validate_project_name(self._project)
        self._storage.init_db(self._project)
        known = self._storage.get_latest_run_record_by_name(self._project, self._name)
        self._run_id: str = known["id"] if known else uuid.uuid4().hex
        self._about = None if known else {"_Group": config.group}

    def log(self, metrics: Mapping[str, float], *, step_key: str, step: int) -> None:
        """Write a row."""
        self._storage.bulk_log(
            self._project,
            self._name,
            [in_json({**metrics, step_key: step})],
            steps=[step],
            run_id=self._run_id,
            config=self._about,
        )
        self._about = None

    def close(self) -> None:
        """Does nothing: only trackio holds resources."""


def library() -> Any:
    """trackio's storage. Raises `ConfigError` if the extra is missing."""
    try:
        from trackio.sqlite_storage import SQLiteStorage
    except ImportError as error:
        raise ConfigError(f"tracker trackio needs trackio: {INSTALL}") from error
    return SQLiteStorage
