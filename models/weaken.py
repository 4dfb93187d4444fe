"""Writes a model between the two shipped ones: a model that is not fully trained yet, for `herds` or `hops`.

`python -m models.weaken --out DIR [--task herds]` writes builtin + share * (herds - builtin). Its answers are right in
3 of 10 cases, so it has room to learn, which the shipped models have less of (6 of 10 of `herds`, 5 of 10 of `hops`).
`make train-demo` begins with it.
"""

import argparse
import shutil
from pathlib import Path
from typing import Final

from safetensors.torch import load_file, save_file

from ramify.engines.shipped import folder_of

STARTS: Final = {"herds": ("herds", 0.7), "hops": ("builtin", 0.5)}
"""Task -> the shipped model that can do it, and the share; 0 = the built-in model, 1 = that of `herds`."""


def weaken(out: Path, task: str = "herds") -> None:
    """Write the model for `task` to the new folder `out`. Raises `FileExistsError`."""
    able, share = STARTS[task]
    shutil.copytree(folder_of(able), out, ignore=shutil.ignore_patterns("report.*", "*.safetensors"))
    first, last = (load_file(folder_of(name) / "model.safetensors") for name in ("builtin", "herds"))
    save_file({name: first[name].float().lerp(last[name].float(), share) for name in last}, out / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write, which must be new")
    parser.add_argument("--task", choices=STARTS, default="herds")
    options = parser.parse_args()
    weaken(options.out, options.task)


if __name__ == "__main__":
    main()
