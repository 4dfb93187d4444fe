"""Every corrected preset on both built-in tasks, each against chains of as many decode tokens.

200 held-out problems, three trees of each a preset; the figures are those of `ramify compare`. Target: no more than 30
CPU-minutes for all of it. Nothing is asserted of who wins: the tables say it, whichever way it falls.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported: see `engines.builtin`

from smoke import few

from ramify.cli.main import main as ramify
from ramify.config.presets import preset, preset_names

TASKS = ("countdown", "hops")
MAX_CPU_MINUTES = 30.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=few(200, 2))
    parser.add_argument("--seeds", type=int, default=few(3, 1))
    parser.add_argument("--plots", type=Path, help="a folder for a plot of each task")
    options = parser.parse_args()
    names = [name for name in preset_names() if not name.endswith("_as_published") and name != "search_r1"]
    names.sort(key=lambda name: (name != "chains", preset(name).leaves))
    names = few(names, names[:3])
    for task in TASKS:
        began = time.process_time()
        arguments = ["compare", "--presets", ",".join(names), "--task", task]
        arguments += ["--problems", str(options.problems), "--seeds", str(options.seeds)]
        arguments += ["--set", "engine.options.batch_invariant=false"]  # a quarter less time; no bits are compared here
        arguments += ["--set", "max_trees=8"]  # few at once, so that forks find their contexts in the engine's 64 slots
        if options.plots is not None:
            arguments += ["--plot", str(options.plots / f"compare-{task}.svg")]
        if code := ramify(arguments):
            sys.exit(code)
        print(f"{task}: {(time.process_time() - began) / 60:.1f} CPU-minutes, at most {MAX_CPU_MINUTES:.0f} for both\n")


if __name__ == "__main__":
    main()
