"""W&B tracker: figures of a run of wandb, the trainer's or one of our own. Needs wandb, an extra.

A run that this process has, or a process that started it, is used as it is and left open. One of another process is
joined by its id: online as a further writer of it (shared mode), offline as a folder of its own, which `wandb sync`
sends as part of that run. Keys come from wandb's own settings and environment, never from ours.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ramify.config.tracker_config import TrackerConfig
from ramify.core.errors import ConfigError

INSTALL: Final = "pip install 'ramify[wandb]'"


class WandbTracker:
    """Every figure is drawn over the step it was logged with, as wandb's own counter knows nothing of rollouts."""

    def __init__(self, config: TrackerConfig) -> None:
        """Join or begin a run. Raises `ConfigError` where the extra is missing, and what wandb raises."""
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(f"tracker wandb needs wandb: {INSTALL}") from error
        if config.folder is not None:
            Path(config.folder).mkdir(parents=True, exist_ok=True)
        active: Any = None if config.run_id is None else _active(wandb, config.run_id)
        self._is_ours = active is None
        self._run: Any = wandb.init(**options(config)) if self._is_ours else active
        self._defined: set[str] = set()

    @property
    def run_id(self) -> str:
        """What others join the run by."""
        return self._run.id

    def log(self, metrics: Mapping[str, float], *, step_key: str, step: int) -> None:
        """Hand a row to wandb, which writes and sends it by itself."""
        for family in sorted({step_key, *(_family(name) for name in metrics)} - self._defined):
            self._run.define_metric(family, **({} if family == step_key else {"step_metric": step_key}))
            self._defined.add(family)
        self._run.log({**metrics, step_key: step})

    def close(self) -> None:
        """End the run if it is ours alone. Online, what is still to be sent is waited for."""
        if self._is_ours:
            self._run.finish()


def options(config: TrackerConfig) -> dict[str, Any]:
    """Arguments of `wandb.init` (the shared mode: THUDM/slime slime/observability/wandb_utils.py)."""
    if config.mode == "offline":
        settings: dict[str, Any] = {"mode": "offline"}
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
    """The run of this id that wandb's own process, which child processes inherit, has open; None = it has none."""
    if wandb.run is not None and wandb.run.id == run_id:
        return wandb.run
    try:
        return wandb.attach(run_id) if "WANDB_SERVICE" in os.environ else None
    except wandb.UsageError:
        return None


def _family(name: str) -> str:
    """`eval/*` of `eval/name`: what has one axis."""
    first, slash, _ = name.partition("/")
    return f"{first}/*" if slash else name
