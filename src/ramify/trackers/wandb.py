"""W&B tracker: logs metrics to a run of wandb, the trainer's or one of our own. Needs wandb, an extra.

If this process or a parent process has the run open, the tracker uses it and leaves it open. A run of another process
is joined by its id. Online, the tracker is one more writer of that run (shared mode). Offline, it writes a folder of
its own, which `wandb sync` uploads as part of that run. API keys come from wandb's own settings and environment, never
from our configuration.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ramify.config.tracker_config import TrackerConfig
from ramify.core.errors import ConfigError

INSTALL: Final = "pip install 'ramify[wandb]'"


class WandbTracker:
    """Every metric is drawn over the step it was logged with, because wandb's own counter does not count rollouts."""

    def __init__(self, config: TrackerConfig) -> None:
        """Join or begin a run. Raises `ConfigError` if the extra is missing, and what wandb raises."""
        wandb = library()
        if config.folder is not None:
            Path(config.folder).mkdir(parents=True, exist_ok=True)
        active: Any = None if config.run_id is None else _active(wandb, config.run_id)
        self._is_ours = active is None
        self._run: Any = wandb.init(**options(config)) if self._is_ours else active
        self._defined: set[str] = set()

    @property
    def run_id(self) -> str:
        """The id by which others join the run."""
        return self._run.id

    def log(self, metrics: Mapping[str, float], *, step_key: str, step: int) -> None:
        """Pass a row to wandb, which writes and uploads it by itself."""
        for family in sorted({step_key, *(_family(name) for name in metrics)} - self._defined):
            self._run.define_metric(family, **({} if family == step_key else {"step_metric": step_key}))
            self._defined.add(family)
        self._run.log({**metrics, step_key: step})

    def close(self) -> None:
        """Finish the run if this tracker opened it. Online, it waits until everything is uploaded."""
        if self._is_ours:
            self._run.finish()


def library() -> Any:
    """The module wandb. Raises `ConfigError` if the extra is missing."""
    try:
        import wandb
    except ImportError as error:
        raise ConfigError(f"tracker wandb needs wandb: {INSTALL}") from error
    return wandb


def options(config: TrackerConfig) -> dict[str, Any]:
    """Arguments of `wandb.init` (the shared mode: THUDM/slime slime/observability/wandb_utils.py). Offline, wandb's own
    lines are kept off the terminal."""
    if config.mode == "offline":
        settings: dict[str, Any] = {"mode": "offline", "silent": True}
    elif config.run_id is None:
        settings = {"mode": "shared", "x_primary": True}
    else:
        settings = {"mode": "shared", "x_primary": False, "x_update_finish_state": False}
    named = {
        "project": config.project,
        "entity": config.entity,
        "group": config.group,
        "name": config.name,
        "id": config.run_id,
        "resume": None if config.run_id is None else "allow",
        "dir": config.folder,
    }
    return {
        **{name: value for name, value in named.items() if value is not None},
        "reinit": "create_new",
        "settings": {**settings, "console": "off"},
    }


def _active(wandb: Any, run_id: str) -> Any:
    """The run of this id, if this process or the wandb service that child processes inherit has it open; None =
    neither."""
    if wandb.run is not None and wandb.run.id == run_id:
        return wandb.run
    try:
        return wandb.attach(run_id) if "WANDB_SERVICE" in os.environ else None
    except wandb.UsageError:
        return None


def _family(name: str) -> str:
    """`eval/*` for `eval/name`: the metrics that share one axis."""
    first, slash, _ = name.partition("/")
    return f"{first}/*" if slash else name
