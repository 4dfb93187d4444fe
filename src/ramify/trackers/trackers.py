"""Trackers: store the metrics of a service or a run in a file of JSON lines, W&B, TensorBoard or trackio.

Opens trackers, and keeps a failing tracker from stopping the training. Steps may go back, for example after a resume:
every log is appended and replaces nothing. Nothing here uses the network unless `mode = "online"` is set.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ramify.config.tracker_config import Kind, TrackerConfig
from ramify.core.errors import ConfigError
from ramify.trackers.tracker import Tracker


def tracker_of(config: TrackerConfig) -> Tracker:
    """Open a tracker. Raises `ConfigError` if its extra is missing or it cannot be opened."""
    try:
        return _opened(config)
    except ConfigError:
        raise
    except Exception as error:  # the boundary: nothing has started yet, and a library may raise anything
        raise ConfigError(f"tracker {config.kind} cannot be opened: {_said(error)}") from error


def check_installed(kind: Kind) -> None:
    """Import what a kind of tracker needs, and open nothing. Raises `ConfigError` if its extra is missing."""
    match kind:
        case "jsonl":
            return
        case "wandb":
            from ramify.trackers.wandb import library
        case "tensorboard":
            from ramify.trackers.tensorboard import library
        case "trackio":
            from ramify.trackers.trackio import library
    library()


def trackers_of(configs: Mapping[str, TrackerConfig], *, warn: Callable[[str], None]) -> "Trackers":
    """Open all of them, by their names. If one raises `ConfigError`, those already open are closed."""
    trackers = Trackers({}, warn=warn)
    try:
        for name, config in configs.items():
            trackers.add(name, tracker_of(config))
    except ConfigError:
        trackers.close()
        raise
    return trackers


def _opened(config: TrackerConfig) -> Tracker:
    match config.kind:
        case "jsonl":
            from ramify.trackers.jsonl import JsonlTracker

            return JsonlTracker(config)
        case "wandb":
            from ramify.trackers.wandb import WandbTracker

            return WandbTracker(config)
        case "tensorboard":
            from ramify.trackers.tensorboard import TensorboardTracker

            return TensorboardTracker(config)
        case "trackio":
            from ramify.trackers.trackio import TrackioTracker

            return TrackioTracker(config)


@dataclass(slots=True)
class _Kept:
    """A tracker and its failures."""

    tracker: Tracker
    num_failed: int = 0
    """Logs that it failed to store."""
    num_failed_now: int = 0
    """Failed logs since it last worked."""


class Trackers:
    """Several trackers as one. Mutable.

    A failing tracker stops neither the others nor the caller. `warn` is called once when it begins to fail and once
    when it works again; every failed log is counted. The next log tries it again.
    """

    def __init__(self, trackers: Mapping[str, Tracker], *, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._kept: dict[str, _Kept] = {}
        for name, tracker in trackers.items():
            self.add(name, tracker)

    def add(self, name: str, tracker: Tracker) -> None:
        """Add a tracker. `name` is its name in warnings."""
        self._kept[name] = _Kept(tracker)

    @property
    def num_failed(self) -> dict[str, int]:
        """Tracker -> logs that it failed to store."""
        return {name: kept.num_failed for name, kept in self._kept.items()}

    def log(self, metrics: Mapping[str, float], *, step_key: str, step: int) -> None:
        """Pass `metrics` to every tracker. Catches every exception of a tracker."""
        for name, kept in self._kept.items():
            try:
                kept.tracker.log(metrics, step_key=step_key, step=step)
            except Exception as error:  # noqa: BLE001 - the boundary: no tracker may stop training
                self._failed(name, kept, f"{step_key} {step}", error)
            else:
                self._worked(name, kept)

    def close(self) -> None:
        """Close every tracker and forget it. Catches every exception of a tracker."""
        for name, kept in self._kept.items():
            try:
                kept.tracker.close()
            except Exception as error:  # noqa: BLE001 - the boundary: figures that are lost at the end lose no batch
                self._warn(f"tracker {name} could not be closed, its last figures may be missing: {_said(error)}")
            if kept.num_failed:
                self._warn(f"tracker {name} did not take {kept.num_failed} logs")
        self._kept = {}

    def _failed(self, name: str, kept: _Kept, at: str, error: Exception) -> None:
        kept.num_failed += 1
        kept.num_failed_now += 1
        if kept.num_failed_now == 1:
            self._warn(f"tracker {name} did not take {at} and is tried again at the next log: {_said(error)}")

    def _worked(self, name: str, kept: _Kept) -> None:
        if kept.num_failed_now:
            self._warn(f"tracker {name} works again; it did not take {kept.num_failed_now} logs")
            kept.num_failed_now = 0


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
