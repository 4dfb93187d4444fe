"""No token drifts: every id that runs fed and sampled against their engines' own logs, over 100,000 turns.

The engine writes at random in the ids of the built-in tokenizer, a real BPE (`scribe.py`). Whoever decoded such a turn
and encoded it again would have other ids; the column `drift` says of how many turns. A leg is a run on disk, or one
that is killed again and again; at its end `ramify check RUN --against LOG` replays it and compares every id. The
built-in model plays the last leg.

Exits 1 on any difference or other breach, if a turn is missing from the run that its engine had handed on (but for
those that a kill lost, which must be there once again), and if there were fewer turns than asked for.

With RAMIFY_ENGINES_PYTHON (see `make test-engines`) further legs are played on two real vLLM servers of the built-in
model, 10,000 turns of them: over forks, splits, kills, deadlines and changes of the replica. That log holds what the
servers sampled up to where a turn ends.

Run: python bench/no_drift.py [--turns N] [--real-turns N]
"""

import argparse
import math
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from real_replicas import PYTHON, served
from scribe import CODEC, REMAINDERS, SPOILT
from smoke import few

from ramify.cli.check import checked_run
from ramify.cli.main import main as ramify
from ramify.config.configure import resolve, to_toml
from ramify.config.run_config import RunConfig
from ramify.engines.builtin import FOLDER
from ramify.engines.logged import Entry, read_log
from ramify.runner.build import prepared_run
from ramify.runner.folder import begin, header_of, resume
from ramify.runner.recorder import Recorder
from ramify.runner.run import Run
from ramify.runner.saved import Saved
from ramify.store.commit import Writing
from ramify.store.records import ClosedRecord
from ramify.store.store import FolderStore, stream
from ramify.testing.clock import run_virtual

TURNS = few(100_000, 100)
REAL_TURNS = few(10_000, 50)
ROOM = 1.03
"""Turns planned over those asked for: a leg that ends by the clock has fewer of them on a busy machine."""
NUM_KILLS = few(12, 1)
RECORDS_A_TURN = 1.2
"""Measured; how far apart the kills are follows from it."""
PARTS = Path(__file__).with_name("scribe.py")

# -- legs -------------------------------------------------------------------------------------------------------------


def at_once(config: RunConfig, path: Path, num_turns: float) -> None:
    begin(config, path)


def in_virtual_time(config: RunConfig, path: Path, num_turns: float) -> None:
    """Grow a run whose delays, hangs and deadlines take no time."""
    run = Run(prepared_run(config))
    store = FolderStore.create(
        path, header_of(run.prepared), to_toml(config), writing=Writing(durability=config.durability)
    )

    async def grow() -> None:
        await run.grow([Recorder(store).observe])
        await run.close()

    with closing(store):
        run_virtual(grow())


def killed_again_and_again(config: RunConfig, path: Path, num_turns: float) -> None:
    """Grow a run in processes that are killed at records drawn at random, and end it in this one."""
    rng = random.Random(config.seed)
    most = math.ceil(2 * RECORDS_A_TURN * num_turns / NUM_KILLS)
    is_killed = killed(lambda: begin(config, path), after=rng.randint(1, most))
    for _ in range(NUM_KILLS - 1):
        is_killed = is_killed and killed(lambda: resume(path), after=rng.randint(1, most))
    if is_killed:
        resume(path)


def killed(work: Callable[[], object], *, after: int) -> bool:
    """Do `work` in a child that kills itself after so many records; whether it was killed."""
    child = os.fork()
    if not child:
        os.environ["RAMIFY_KILL_AFTER"] = str(after)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Leg:
    """One run, or one that is killed and resumed."""

    name: str
    preset: str
    turns_a_tree: float
    """Measured; how many problems the leg takes follows from it."""
    share: float = 1.0
    """Of all turns, as a weight."""
    flags: Mapping[str, Any] = field(default_factory=dict[str, Any])
    grow: Callable[[RunConfig, Path, float], None] = at_once
    spoilt: Mapping[int, int] = field(default_factory=dict[int, int])
    """Generations of a request that nobody can use, by the remainder of its seed."""

    @property
    def is_lossy(self) -> bool:
        """Whether the engine must have made generations that the run does not hold."""
        return self.grow is not at_once

    def config(self, path: Path, num_turns: float) -> RunConfig:
        flags = {
            "prompts": math.ceil(num_turns / self.turns_a_tree),
            "task.split": "train",
            "engine.name": f"{PARTS}:Scribe",
            "engine.log": str(log_of(path)),
            "growth.max_response_tokens": 240,
            "growth.max_tool_calls": 12,
            "growth.max_turns": 16,
            "durability": "os",
        }
        return resolve(preset=self.preset, flags={**flags, **self.flags}).config


CRITIQUE = {"edge": "quotes", "role": "critique", "template": "<|user|>{question} {previous}<|end|><|assistant|>"}
ANYWHERE = {"strategy.name": f"{PARTS}:Anywhere", "actions.critique": CRITIQUE}
SHAKY = {
    "engine.options": {"is_shaky": True},
    "strategy.options": {"cancels": True},
    "delivery": "eager",
    "limits.seconds": 600.1,
    "max_failed_share": 1.0,
}
SEARCH = {"task.name": "hops", "engine.options": {"speech": "search"}, "growth.max_observation_tokens": 20}
CHAT = {
    "format": "chat",
    "format_options": {"template": str(FOLDER)},
    "engine.options": {"speech": "chat"},
    "growth.max_response_tokens": 600,
}
LEGS = (
    Leg("forks: arpo", "arpo", 105),
    Leg("forks: offline", "offline", 28),
    Leg("forks: tree_grpo", "tree_grpo", 39),
    Leg("splits: treerl", "treerl", 135),
    Leg("splits: anywhere", "chains", 97, flags=ANYWHERE),
    Leg("segments: treepo", "treepo", 175, flags={"strategy.options.segment_tokens": 12}),
    Leg("segments: spo", "spo", 280, flags={"strategy.options": {"branching": [4, 4, 4], "segment_tokens": 12}}),
    Leg("resume: offline", "offline", 28, grow=killed_again_and_again),
    Leg("resume: anywhere", "chains", 97, flags=ANYWHERE, grow=killed_again_and_again),
    Leg("abort: anywhere", "chains", 55, flags={**ANYWHERE, **SHAKY}, grow=in_virtual_time, spoilt=SPOILT),
    Leg("tags: arpo", "arpo", 128, flags={"growth.no_action": "observe", "growth.max_observation_tokens": 5}),
    Leg("tags: search_r1", "search_r1", 31, flags=SEARCH),
    Leg("chat", "offline", 13, share=0.5, flags=CHAT),
    Leg("builtin model", "arpo", 54, share=0.3, flags={"engine.name": "builtin"}),
)

REAL_LEGS = (
    Leg("vllm: arpo", "arpo", 54),
    Leg("vllm: segments", "treepo", 60, flags={"strategy.options.segment_tokens": 6}),
    Leg("vllm: anywhere", "chains", 60, flags=ANYWHERE),
    Leg("vllm: resume", "offline", 16, grow=killed_again_and_again),
    Leg("vllm: replicas", "arpo", 54, flags={"engine.placement": "round_robin"}),
    Leg("vllm: deadlines", "arpo", 20, share=0.5, flags={"run_limits.seconds": 3.0, "max_trees": 64}),
)
"""Turns a tree as the built-in model takes them."""

# -- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one leg, or of all."""

    turns: int = 0
    ids_fed: int = 0
    ids_sampled: int = 0
    differences: int = 0
    only_in_log: int = 0
    drifting: int = 0
    """Turns in the log whose ids are others when their text is encoded again."""
    seconds: float = 0.0
    """CPU of this process and of those that were killed."""
    faults: tuple[str, ...] = ()
    """Whatever must not be, differences among it."""

    def __add__(self, other: "Result") -> "Result":
        return Result(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Result)))

    def line(self, name: str) -> str:
        numbers = (self.turns, self.ids_fed, self.ids_sampled, self.differences, self.only_in_log, self.drifting)
        return f"{name:18}" + "".join(f"{number:13,}" for number in numbers) + f"{self.seconds:13.1f}"


HEADINGS = ("turns", "ids fed", "ids sampled", "differences", "only in log", "drift", "CPU s")


def played(leg: Leg, run: Path, num_turns: float) -> Result:
    """Grow a leg's run and hold it against its log."""
    began = cpu_s()
    log = log_of(run)
    leg.grow(leg.config(run, num_turns), run, num_turns)
    checked = checked_run(run, log, opened=lambda: Saved.trusted(run))
    found = checked.against
    assert found is not None
    entries = list(read_log(log))
    unheld = num_unheld(entries, leg.spoilt)
    faults = [*checked.breaches]
    faults += [
        f"a tree ended with {r.reason!r}" for r in stream(run) if isinstance(r, ClosedRecord) and r.reason != "done"
    ]
    faults += [f"{checked.unfinished} trees are unfinished"] if checked.unfinished else []
    if found.only_in_log != unheld or bool(unheld) != leg.is_lossy:
        faults.append(f"{found.only_in_log} turns are in the log alone, {unheld} should be")
    return Result(
        turns=found.turns,
        ids_fed=found.ids_fed,
        ids_sampled=found.ids_sampled,
        differences=len(found.differences),
        only_in_log=found.only_in_log,
        drifting=sum(is_drifting(entry.sampled) for entry in entries),
        seconds=cpu_s() - began,
        faults=tuple(f"{leg.name}: {fault}" for fault in faults),
    )


def log_of(run: Path) -> Path:
    return run.with_suffix(".log")


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def num_unheld(entries: Iterable[Entry], spoilt: Mapping[int, int]) -> int:
    """Lines that no run may hold: each request has one turn, from the first generation that is not spoilt; what was
    made before it or, after a kill, again is the log's alone. One without tokens, cut off at once, is no turn."""
    lines: dict[str, list[Entry]] = {}
    for entry in entries:
        lines.setdefault(entry.request_id, []).append(entry)
    number = 0
    for name, made in lines.items():
        good = made[spoilt.get(int(name.partition("/")[2], 16) % REMAINDERS, 0) :]
        number += sum(bool(entry.sampled) for entry in made) - any(entry.sampled for entry in good)
    return number


def is_drifting(ids: list[int]) -> bool:
    return CODEC.encode(CODEC.decode(ids), allow_special=True) != ids


def play(legs: Sequence[Leg], num_turns: int) -> tuple[Result, int]:
    """Play all legs and print a line each; the sum, and how `ramify check` ended on the last."""
    total, weights = Result(), sum(leg.share for leg in legs)
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / str(number) for number in range(len(legs))]
        for leg, run in zip(legs, runs, strict=True):
            result = played(leg, run, ROOM * num_turns * leg.share / weights)
            print(result.line(leg.name), flush=True)
            total += result
        print(total.line("all"), "\n\nramify check RUN --against LOG, the last leg:")
        return total, ramify(["check", str(runs[-1]), "--against", str(log_of(runs[-1]))])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Every id that runs fed and sampled against their engines' own logs.")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"at least so many in all; default {TURNS:,}")
    parser.add_argument("--real-turns", type=int, default=REAL_TURNS, help=f"on real servers; default {REAL_TURNS:,}")
    options = parser.parse_args(arguments)
    print(" " * 18 + "".join(f"{heading:>13}" for heading in HEADINGS))
    sums = [(*play(LEGS, options.turns), options.turns)] if options.turns else []
    if PYTHON in os.environ:
        with served() as site:
            legs = [replace(leg, flags={**site.flags(), **leg.flags}) for leg in REAL_LEGS]
            sums.append((*play(legs, options.real_turns), options.real_turns))
    for total, _, _ in sums:
        print(*total.faults, sep="\n")
    return int(any(code or total.faults or total.turns < wanted for total, code, wanted in sums))


if __name__ == "__main__":
    sys.exit(main())
