"""Memory and time of reading a saved run: `check`, `show` and `export`, each in a process of its own.

    python bench/saved_runs.py [--trees 1000,20000] [--nodes 6000,25000]

- trees: runs of several lengths. The run is one grown tree of the scripted engine, its records written again under as
  many numbers as trees are wanted. Peak memory (VmHWM; ru_maxrss would count this process too) must not grow with the
  number of trees. `open first`: the first tree is never closed, as after a kill. `late first`: it is closed last.
- nodes: ten such trees, and a last one of so many nodes: all children of the root (`siblings`), or one path (`chain`).
  Time must grow as the number of nodes.

Prints MB of the command's own process, and seconds; changes nothing. A large run is read by a process a core, whose
memory is not counted.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import msgspec
from smoke import few

from ramify.cli.main import main as ramify
from ramify.runner.saved import Saved
from ramify.store.commit import Writing
from ramify.store.recording import shut
from ramify.store.records import AskedRecord, ForkValue, GrownRecord, GrowValue, OpenedRecord, OutcomeRecord, TreeRecord
from ramify.store.replay import replay
from ramify.store.store import FolderStore, SavedRun, load

NUM_SMALL = 10
"""Trees before the one of many nodes."""


def seed_run(path: Path) -> SavedRun:
    """A run of one tree: two chains of two and four turns."""
    seed = path / "seed"
    if not seed.exists():
        options = ["--engine", "scripted", "--preset", "chains", "--set", "strategy.options.n=2", "--prompts", "1"]
        if code := ramify(["rollout", *options, "-q", "--out", str(seed)]):
            raise SystemExit(code)
    return load(seed)


def written(path: Path, saved: SavedRun, records: Iterable[TreeRecord], *, num_trees: int) -> Path:
    """A run of these records."""
    config = saved.config.replace("prompts = 1\n", f"prompts = {num_trees}\n", 1)
    store = FolderStore.create(path, saved.header, config, writing=Writing(durability="os"))
    for number, record in enumerate(records):
        store.append(record)
        if number % 1000 == 0:
            store.sync()
    store.close()
    return store.path


def numbered(saved: SavedRun, trees: Iterable[int]) -> Iterator[TreeRecord]:
    """The records of the seed run's tree under each of these numbers."""
    for tree in trees:
        for record in saved.records:
            assert isinstance(record, TreeRecord)
            changed = {"uid": f"{record.uid}-{tree}"} if isinstance(record, OpenedRecord) else {}
            yield msgspec.structs.replace(record, tree=tree, **changed)


def of_trees(path: Path, saved: SavedRun, num_trees: int) -> dict[str, Path]:
    """Runs of so many equal trees, by name."""
    first, rest = list(numbered(saved, [0])), range(1, num_trees)
    made = {
        "": [*first],
        "open first": [*first[:-1]],
        "late first": [*first[:1]],
    }
    return {
        name: written(
            path / f"{num_trees}-{name}".replace(" ", "-"),
            saved,
            chain(begun, numbered(saved, rest), first[1:] if name == "late first" else ()),
            num_trees=num_trees,
        )
        for name, begun in made.items()
    }


def of_nodes(path: Path, saved: SavedRun, num_nodes: int) -> dict[str, Path]:
    """Runs whose last tree has so many nodes, by its shape."""
    small, last = numbered(saved, range(NUM_SMALL)), list(numbered(saved, [NUM_SMALL]))
    reader = Saved.open(path / "seed")
    made: dict[str, Path] = {}
    for name, records in {"siblings": siblings(last, num_nodes), "chain": deep(last, num_nodes)}.items():
        tree = replay(records, reader.codec, reader.rules)[NUM_SMALL].tree
        spent = {role: spend.as_dict() for role, spend in tree.spent().items()}
        records.append(shut(NUM_SMALL, "done", tree.num_leaves, spent=spent))
        run = path / f"{name}-{num_nodes}"
        made[name] = written(run, saved, chain(small, records), num_trees=NUM_SMALL + 1)
        small = numbered(saved, range(NUM_SMALL))
    return made


def siblings(records: list[TreeRecord], number: int) -> list[TreeRecord]:
    """A tree whose root has so many children, each an answer."""
    opened, asked, ending, outcome = _parts(records)
    fork = GrowValue(node=0, fork=ForkValue(num_siblings=number, rule="chains"))
    commands = (fork, *[GrowValue(node=0, fork=0)] * (number - 1))
    made: list[TreeRecord] = [opened, msgspec.structs.replace(asked, commands=commands)]
    for command in range(number):
        made.append(msgspec.structs.replace(ending, command_id=command, number=0))
        made.append(msgspec.structs.replace(outcome, command_id=command, num_steps=1))
    return made


def deep(records: list[TreeRecord], number: int) -> list[TreeRecord]:
    """A tree that is one path of so many turns."""
    opened, asked, ending, outcome = _parts(records)
    turn = next(record for record in records if isinstance(record, GrownRecord) and record.step.stop is None)
    made: list[TreeRecord] = [opened, msgspec.structs.replace(asked, commands=(GrowValue(node=0),))]
    made += (msgspec.structs.replace(turn, command_id=0, number=i) for i in range(number - 1))
    made.append(msgspec.structs.replace(ending, command_id=0, number=number - 1))
    return [*made, msgspec.structs.replace(outcome, command_id=0, num_steps=number)]


def _parts(records: list[TreeRecord]) -> tuple[OpenedRecord, AskedRecord, GrownRecord, OutcomeRecord]:
    """How a tree begins, what was asked, a step that ends a path, and the outcome behind it."""
    opened, asked = records[:2]
    ending = next(record for record in records if isinstance(record, GrownRecord) and record.step.stop is not None)
    outcome = next(record for record in records if isinstance(record, OutcomeRecord))
    assert isinstance(opened, OpenedRecord) and isinstance(asked, AskedRecord)
    return opened, asked, ending, outcome


def measured(command: list[str]) -> None:
    """Run a command in this process and print its peak memory and time, for `one`."""
    began = time.monotonic()
    code = ramify(command)
    status = Path("/proc/self/status").read_text("utf-8")
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    print(json.dumps({"code": code, "mb": peak, "s": time.monotonic() - began}), file=sys.stderr)


def one(command: list[str]) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--one", *command], capture_output=True, text=True, check=True)
    return json.loads(done.stderr.splitlines()[-1])


def report(title: str, run: Path, commands: dict[str, list[str]]) -> None:
    for name, (command, *options) in commands.items():
        found = one([command, str(run), *options])
        print(
            f"{title:<24} {name:<9} {found['mb']:6.1f} MB {found['s']:7.2f} s  exit {found['code']}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", default=few("1000,20000", "3"))
    parser.add_argument("--nodes", default=few("6000,25000", "20"))
    parser.add_argument("--one", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.one is not None:
        measured(options.one)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        saved = seed_run(path)
        for number in map(int, filter(None, options.trees.split(","))):
            for name, run in of_trees(path, saved, number).items():
                export = {"export": ["export", "--to", "jsonl", "--out", f"{run}.jsonl"]}
                looks = {"show": ["show"], "show last": ["show", str(number - 1)]}
                more = {"check": ["check"], "show all": ["show", "--limit", str(number)]}
                report(f"{number} trees {name}", run, {**looks, **export} if name else {**more, **looks, **export})
        for number in map(int, filter(None, options.nodes.split(","))):
            for name, run in of_nodes(path, saved, number).items():
                export = {"export": ["export", "--to", "jsonl", "--out", f"{run}.jsonl"]}
                looks = {"check": ["check"], "show": ["show"], "show last": ["show", str(NUM_SMALL)]}
                report(f"{name} of {number}", run, {**looks, **export})


if __name__ == "__main__":
    main()
