"""Trackers: where the figures of a service are kept: a file of JSON lines, W&B, TensorBoard or trackio.

Owns how trackers are opened, and that a tracker that fails does not stop training. Steps may go back, as after a
resume: whatever is logged is added in order and replaces nothing. Nothing here touches the network unless
`mode = "online"` says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ramify.config.tracker_config import TrackerConfig
from ramify.core.errors import ConfigError
from ramify.trackers.tracker import Tracker


def tracker_of(config: TrackerConfig) -> Tracker:
    """Open a tracker. Raises `ConfigError` where its extra is missing or it cannot be opened."""
    try:
        return _opened(config)
    except ConfigError:
        raise
    except Exception as error:  # the boundary: nothing has started yet, and each library raises what it likes
        raise ConfigError(f"tracker {config.kind} cannot be opened: {_said(error)}") from error


def trackers_of(configs: Mapping[str, TrackerConfig], *, warn: Callable[[str], None]) -> "Trackers":
    """Open all of them, by their names. Raises `ConfigError`; those opened before are closed then."""
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
    """A tracker, and how it has done."""

    tracker: Tracker
    num_failed: int = 0
    """Logs that it did not take."""
    num_failed_now: int = 0
    """Of these, the last ones, since it worked."""


class Trackers:
    """Several trackers as one. Mutable.

    One that fails stops neither the others nor the caller: `warn` is told once when it begins to fail and once when it
    works again, and every log it did not take is counted. It is tried again at the next log.
    """

    def __init__(self, trackers: Mapping[str, Tracker], *, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._kept: dict[str, _Kept] = {}
        for name, tracker in trackers.items():
            self.add(name, tracker)

    def add(self, name: str, tracker: Tracker) -> None:
        """One more. `name` is what warnings call it."""
        self._kept[name] = _Kept(tracker)

    @property
    def num_failed(self) -> dict[str, int]:
        """Tracker -> logs that it did not take."""
        return {name: kept.num_failed for name, kept in self._kept.items()}

    def log(self, metrics: Mapping[str, float], *, step_key: str, step: int) -> None:
        """Hand `metrics` to every tracker. Raises nothing that a tracker raises."""
        for name, kept in self._kept.items():
            try:
                kept.tracker.log(metrics, step_key=step_key, step=step)
            except Exception as error:  # noqa: BLE001 - the boundary: no tracker may stop training
                self._failed(name, kept, f"{step_key} {step}", error)
            else:
                self._worked(name, kept)

    def close(self) -> None:
        """Close every tracker, and forget them. Raises nothing that a tracker raises."""
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
