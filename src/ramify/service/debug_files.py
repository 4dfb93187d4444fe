"""Debug files: batches saved as files, to inspect and to train on again.

A template that ends in `.pt` names files in slime's form (THUDM/slime slime/observability/rollout_data_utils.py): what
`--save-debug-rollout-data` wrote is read, and what is written here `--load-debug-rollout-data` reads. They need torch,
and are read with `weights_only=True`, which runs nothing that a file names. Any other file is JSON lines, one sample
each. Both hold samples as `rows.sample.Sample.to_dict` writes them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

from ramify.core.errors import ConfigError, ExportError, StoreError
from ramify.rows import slime
from ramify.rows.sample import Sample
from ramify.rows.slime_files import SAMPLES, TORCH, torch_for, write_samples

EVAL = "eval_"
"""Precedes the number in the file name of an evaluation."""

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Saved(TypedDict):
    """The types of a saved sample's fields. slime writes other fields beside these."""

    status: str
    tokens: list[_Count]
    response_length: _Count
    index: NotRequired[int | None]
    group_index: NotRequired[int | None]
    rollout_id: NotRequired[int | None]
    prompt: NotRequired[str | list[dict[str, Any]]]
    response: NotRequired[str]
    reward: NotRequired[bool | float | dict[str, Any] | None]
    loss_mask: NotRequired[list[int] | None]
    weight_versions: NotRequired[list[str]]
    rollout_log_probs: NotRequired[list[float] | None]
    teacher_log_probs: NotRequired[list[float] | None]
    remove_sample: NotRequired[bool]
    metadata: NotRequired[dict[str, Any]]
    train_metadata: NotRequired[dict[str, Any] | None]


def path_of(template: str, rollout_id: int, *, is_evaluation: bool = False) -> Path:
    """The file of one batch, or of one evaluation."""
    return Path(template.format(rollout_id=f"{EVAL}{rollout_id}" if is_evaluation else rollout_id))


def save(samples: Sequence[Sample], path: Path, *, rollout_id: int) -> None:
    """Write a batch; creates the folder. A batch that was saved there before is replaced, and nothing else is. Raises
    `StoreError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_samples(samples, path, rollout_id=rollout_id, force=True)
    except OSError as error:
        raise StoreError(f"the batch cannot be saved to {path}: {error.strerror or error}") from error
    except ExportError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise StoreError(f"the batch cannot be saved: {error}; ask for it again when it can") from error.__cause__


def load(path: Path) -> list[Sample]:
    """The samples that `save` or slime wrote. Raises `ConfigError` if there is no such file, `ExportError` if it has
    another format or holds no sample."""
    if not path.is_file():
        raise ConfigError(f"there is no batch to load at {path}")
    found = _in_torch_file(path) if path.suffix == TORCH else slime.read(path)
    if not found:
        raise ExportError(f"{path} holds no sample: there is nothing to train")
    return found


def _in_torch_file(path: Path) -> list[Sample]:
    torch = torch_for(path)
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign reader of foreign bytes: torch raises any error for a torn file
        raise ExportError(f"{path} cannot be read: {str(error).strip() or type(error).__name__}") from error
    if not isinstance(saved, Mapping) or not isinstance(saved.get(SAMPLES), list):
        known = sorted(saved) if isinstance(saved, Mapping) else type(saved).__name__
        raise ExportError(
            f"{path} holds {known!r:.200} and no list {SAMPLES!r}; slime's --save-debug-rollout-data writes one"
        )
    return [_sample(each, f"{path}: sample {place}") for place, each in enumerate(saved[SAMPLES])]


def _sample(saved: Any, what: str) -> Sample:
    try:
        msgspec.convert(saved, _Saved)
        return Sample.from_dict(saved)
    except (msgspec.ValidationError, ExportError) as error:
        raise ExportError(f"{what}: {error}") from None
