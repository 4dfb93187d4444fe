"""TrackerConfig: where the figures of a service or a run are recorded. Values and their checks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from ramify.core.errors import ConfigError, nearest

Kind = Literal["jsonl", "wandb", "tensorboard", "trackio"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Mode = Literal["offline", "online"]
NEEDS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "jsonl": ("folder",),
    "wandb": ("project",),
    "tensorboard": ("folder",),
    "trackio": ("project", "name"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerConfig:
    """One tracker. `project`, `group` and `name` are labels; not every kind uses them."""

    kind: Kind
    """Where figures are recorded: a JSON lines file, wandb, TensorBoard or trackio."""
    project: str | None = None
    """Project that the run belongs to; wandb and trackio need it."""
    group: str | None = None
    """Group that the run belongs to, for wandb and trackio."""
    name: str | None = None
    """Name of the run. If trackio already has a run of this name, new figures are added to it."""
    run_id: str | None = None
    """wandb: id of the run to join, such as the trainer's; None = a run of our own. JSONL: written on every line."""
    entity: str | None = None
    """wandb: the team."""
    folder: str | None = None
    """Folder for the files; figures are appended to existing ones. wandb: None = as its own settings say."""
    mode: Mode = "offline"
    """online: wandb sends figures to its server at once."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"there is no tracker {self.kind!r}; {nearest(self.kind, KINDS)}")
        if self.mode not in get_args(Mode):
            raise ConfigError(f"tracker {self.kind}: mode = {self.mode!r}; {nearest(self.mode, get_args(Mode))}")
        if self.mode == "online" and self.kind != "wandb":
            raise ConfigError(
                f"tracker {self.kind}: mode = 'online', but it writes files only; only wandb has this mode"
            )
        given = {"folder": self.folder, "project": self.project, "name": self.name}
        if missing := [field for field in NEEDS[self.kind] if not given[field]]:
            raise ConfigError(f"tracker {self.kind} needs {' and '.join(missing)}")
        if self.kind == "trackio" and self.folder is not None:
            raise ConfigError(
                f"tracker trackio: folder = {self.folder!r}, but trackio keeps all projects in one folder; set the "
                "environment variable TRACKIO_DIR"
            )
