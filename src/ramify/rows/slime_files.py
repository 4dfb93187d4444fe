"""slime files: samples as JSON lines, or in the form of slime's debug files if the name ends in `.pt`.

Source: THUDM/slime slime/observability/rollout_data_utils.py. `--load-debug-rollout-data` reads such a file. It is
written by torch.
"""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ramify.core.errors import ConfigError
from ramify.rows.files import whole, write_lines
from ramify.rows.sample import Sample

TORCH: Final = ".pt"
SAMPLES: Final = "samples"
INSTALL: Final = "pip install 'ramify[hf]'"


def write_samples(samples: Iterable[Sample], path: Path, *, rollout_id: int = 0, force: bool = False) -> int:
    """Write samples and return their number. Raises as `files.whole`, and `ConfigError` if torch is needed and not
    there."""
    written = [sample.to_dict() for sample in samples]
    if path.suffix != TORCH:
        return write_lines(written, path, force=force)
    torch = torch_for(path)
    with whole(path, force=force) as part:
        torch.save({"rollout_id": rollout_id, SAMPLES: written}, part)
    return len(written)


def torch_for(path: Path) -> Any:
    """The module torch. Raises `ConfigError` if it is not installed."""
    try:
        return import_module("torch")
    except ImportError as error:
        raise ConfigError(f"{path} is a file of torch.save, which needs torch: {INSTALL}") from error
