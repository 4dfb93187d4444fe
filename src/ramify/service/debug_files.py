"""Debug files: batches saved as files, to inspect and to train on again (requirement S3.5).

A file is JSON lines, one sample each, as `rows.sample.Sample.to_dict` writes it. Reading one runs no code.
"""

from collections.abc import Sequence
from pathlib import Path

from ramify.core.errors import ConfigError, StoreError
from ramify.rows import slime
from ramify.rows.files import write_lines
from ramify.rows.sample import Sample

EVAL = "eval_"
"""Precedes the number in the file name of an evaluation."""


def path_of(template: str, rollout_id: int, *, is_evaluation: bool = False) -> Path:
    """The file of one batch, or of one evaluation."""
    return Path(template.format(rollout_id=f"{EVAL}{rollout_id}" if is_evaluation else rollout_id))


def save(samples: Sequence[Sample], path: Path) -> None:
    """Write a batch; creates the folder. A batch that was saved there before is replaced, and nothing else is. Raises
    `StoreError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_lines((sample.to_dict() for sample in samples), path, force=True)
    except OSError as error:
        raise StoreError(f"the batch cannot be saved to {path}: {error.strerror or error}") from error


def load(path: Path) -> list[Sample]:
    """The samples that `save` wrote. Raises `ConfigError` if there is no such file, `ExportError` if it has another
    format."""
    if not path.is_file():
        raise ConfigError(f"there is no batch to load at {path}")
    return slime.read(path)
