"""Memory of reading a saved run: `check`, `show` and `export` of runs of several lengths, each in a process of its own.

    python bench/saved_runs.py [--trees 1000,20000]

The run is one grown tree of the scripted engine, its records written again under as many numbers as trees are wanted.
Peak memory (ru_maxrss) must not grow with the number of trees. Prints MB and seconds; changes nothing.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from ramify.cli.main import main as ramify
from ramify.store.commit import Writing
from ramify.store.records import OpenedRecord
from ramify.store.store import FolderStore, load


def grown(path: Path, num_trees: int) -> Path:
    """A run of `num_trees` equal trees."""
    seed = path / "seed"
    if not seed.exists():
        options = [
            "--engine",
            "scripted",
            "--preset",
            "chains",
            "--set",
            "strategy.options.n=2",
            "--prompts",
            "1",
            "-q",
        ]
        if code := ramify(["rollout", *options, "--out", str(seed)]):
            raise SystemExit(code)
    saved = load(seed)
    config = saved.config.replace("prompts = 1\n", f"prompts = {num_trees}\n", 1)
    store = FolderStore.create(path / str(num_trees), saved.header, config, writing=Writing(durability="os"))
    for tree in range(num_trees):
        for record in saved.records:
            changed = {"uid": f"{record.uid}-{tree}"} if isinstance(record, OpenedRecord) else {}
            store.append(msgspec.structs.replace(record, tree=tree, **changed))
        if tree % 100 == 0:
            store.sync()
    store.close()
    return store.path


def measured(command: list[str]) -> None:
    """Run a command in this process and print its peak memory and time, for `one`."""
    began = time.monotonic()
    code = ramify(command)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"code": code, "mb": peak, "s": time.monotonic() - began}), file=sys.stderr)


def one(command: list[str]) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--one", *command], capture_output=True, text=True, check=True)
    return json.loads(done.stderr.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", default="1000,20000")
    parser.add_argument("--one", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.one is not None:
        measured(options.one)
        return
    with tempfile.TemporaryDirectory() as folder:
        for num_trees in map(int, options.trees.split(",")):
            run = str(grown(Path(folder), num_trees))
            out = f"{folder}/rows-{num_trees}.jsonl"
            for name, command in {
                "check": ["check", run],
                "show": ["show", run],
                "show all": ["show", run, "--limit", str(num_trees)],
                "show last": ["show", run, str(num_trees - 1)],
                "export": ["export", run, "--to", "jsonl", "--out", out],
            }.items():
                found = one(command)
                print(
                    f"{num_trees:>6} trees  {name:<9} {found['mb']:6.1f} MB {found['s']:7.2f} s  exit {found['code']}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
