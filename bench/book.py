"""The bench book: runs a chapter of each kind of figure, and writes `docs/performance.md` from what they print.

Each chapter is a script of this folder, at a size at which the whole book takes 22 minutes on two cores; slow
ones took 47. What it prints is kept in `build/bench`, so a book that was stopped goes on; chapters of another commit
run again. The machine's noise is measured beside each: how much longer than its shortest time a fixed loop of
arithmetic took.

Run: make bench, or python bench/book.py [--only CHAPTER …] [--again] [--out FILE]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

from smoke import BOOK, IS_SMOKE, few

BENCH: Final = Path(__file__).resolve().parent
CHECKOUT: Final = BENCH.parent
KEPT: Final = Path("build/bench")
TIMEOUT_S: Final = 480.0
LOOP_EVERY_S: Final = 1.0


@dataclass(frozen=True)
class Chapter:
    """One table of the book."""

    slug: str
    title: str
    about: str
    """What is measured, what stands beside it, and which way is better."""
    command: tuple[str, ...]
    """A script of this folder and its arguments."""
    environment: str = ".venv"
    """Folder of the virtual environment that it runs in."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further environment variables; a value that begins with `.venv` is a path in the checkout."""


CHAPTERS: Final = (
    Chapter(
        "scheduling",
        "Scheduling",
        "The same trees grown by ramify and by the batch loop of published trainers, which waits for the slowest path "
        "at every step. `faster` is the loop's time over ours. `of bound` is the time over the larger of two times "
        "that no scheduler beats: the longest tree alone, and all steps of the server full. 1.00 is best. `waits` is "
        "how long the tree that ended last had no call running: where it is 0, no scheduler held it up.",
        ("against_lockstep.py",),
    ),
    Chapter(
        "delivery",
        "Outcomes in order",
        "Searches that are told outcomes in the order of their commands, and the same ones told at once. A `time` of "
        "1.00 means that order costs nothing, as it does for all strategies that do not depend on it.",
        ("delivery.py",),
    ),
    Chapter(
        "strategies",
        "Cost of a search",
        "Microseconds of a search's own calls a node, at 1,000 and 4,000 nodes, beside TreeQuest and a port of "
        "rStar's loop doing the same work. Whole loops, with driver and tree, stand beside its_hub with an instant "
        "model. `ratio` is the peer's time over ours: more is better. `grows` is the power of the number of nodes with "
        "which the time a node grows: 0 is flat.",
        ("search_speed.py", "--peer", ".venv-peers/bin/python"),
    ),
    Chapter(
        "generate",
        "A search with an instant model",
        "Milliseconds of CPU a state of `ramify.search` with a function in place of a model, beside TreeQuest. Less is "
        "better.",
        ("generate_speed.py", "--treequest", ".venv-peers/bin/python", "--sizes", "100", "250", "--rounds", "5"),
    ),
    Chapter(
        "tokens",
        "Tokens a leaf, and what is cached",
        "Sampled tokens a leaf beside the ideal, in which every token of the tree is paid once, and beside chains. "
        "`prefix cached` is the share of a fork's context that was not computed again.",
        ("tree_tokens.py",),
    ),
    Chapter(
        "placement",
        "Placement on replicas",
        "What of shared prefixes is cached where the request goes, beside round robin and the rule of sglang's router, "
        "on eight modelled servers. Less `twice` and more `faster` are better.",
        ("placement.py",),
    ),
    Chapter(
        "local",
        "The engine for Hugging Face models",
        "Useful tokens a CPU second of engine `local` beside `model.generate` in static batches. More is better.",
        ("local_batching.py", "--runs", "5"),
        ".venv-model",
    ),
    Chapter(
        "builtin",
        "The built-in engine",
        "Tokens a CPU second of the built-in model, batch-invariant and not. More is better.",
        ("builtin_speed.py",),
    ),
    Chapter(
        "vllm",
        "Real vLLM servers",
        "Two servers of the built-in model on this machine's CPU: what is cached with each placement, and tokens a "
        "second and CPU a request beside a bare loop of requests.",
        ("replicas.py",),
        variables={"RAMIFY_ENGINES_PYTHON": ".venv-engines/bin/python"},
    ),
    Chapter(
        "capacity",
        "Forecasts of `ramify capacity`",
        "The forecast of a part of a fleet beside the whole fleet, and of runs on the built-in engine and on a vLLM "
        "server beside what they took, the median of runs `from - to`. 1.00 is best.",
        ("capacity.py",),
        variables={"RAMIFY_ENGINES_PYTHON": ".venv-engines/bin/python"},
    ),
    Chapter(
        "runner",
        "Overhead a turn",
        "What ramify adds to a turn with 512 trees in flight, beside the same requests by a bare loop. Less is better.",
        ("many_trees.py",),
    ),
    Chapter(
        "saturation",
        "Turns that one process feeds",
        "Runs against servers that answer at once, with HTTP and journal: what a turn costs the growing process, how "
        "many GPUs one core of it feeds at 200 and at 1,000 tokens a turn, and a bare post beside it.",
        ("saturation.py", "--part", "saturation"),
    ),
    Chapter(
        "http",
        "A server's engine beside bare aiohttp",
        "Milliseconds a request with 1 to 512 in flight, against a server that answers at once. 1.00 is best.",
        ("http_overhead.py", "--requests", "1000"),
    ),
    Chapter(
        "verifiers",
        "Beside verifiers' own loop",
        "Turns a second of the same environment through ramify and in verifiers' own loop. More is better.",
        ("environments.py", "--env", "verifiers"),
        ".venv-verifiers",
    ),
    Chapter(
        "inspect",
        "Beside Inspect's own loop",
        "Turns a second of the same task through ramify and in Inspect's own loop. More is better.",
        ("environments.py", "--env", "Inspect"),
        ".venv-inspect",
    ),
    Chapter(
        "journal",
        "The journal",
        "Records a second by durability, beside plain writes to a file.",
        ("journal_speed.py",),
    ),
    Chapter(
        "saved",
        "Reading saved runs",
        "Memory and time of `check`, `show` and `export`; memory must not grow with the number of trees.",
        ("saved_runs.py", "--trees", "500,2000", "--nodes", "6000"),
    ),
    Chapter(
        "rows",
        "Rows and export",
        "Milliseconds of rows with credit, and export formats over the time of the library that encodes them. Less is "
        "better.",
        ("row_export.py", "--rounds", "5"),
    ),
    Chapter(
        "gateway",
        "The gateway",
        "What `ramify gateway` adds to a request, beside the same endpoint asked directly. Less is better.",
        ("gateway.py", "--requests", "200"),
    ),
    Chapter(
        "viewer",
        "The viewer",
        "A tree in a real browser: milliseconds until it is painted, and of the frames while the mouse moves. Less is "
        "better; 16.7 is a display's own.",
        ("viewer.py", "--only", "drawing"),
    ),
    Chapter(
        "quality",
        "Answers at equal tokens",
        "Right answers of searches beside the best of n by the same judge, at equal decode tokens.",
        ("answer_tables.py", "--problems", "6", "--seeds", "1"),
    ),
    Chapter(
        "training",
        "Learning at equal tokens",
        "Held-out reward of one policy trained on chains and on trees, at equal decode tokens. The book has room for "
        "one seed and little training; `docs/guides/train.md` has more.",
        ("learning.py", "--tokens", "3000", "--seeds", "1", "--rates", "3e-4", "--presets", "chains,tree_grpo"),
        ".venv-trainers",
    ),
    Chapter(
        "before",
        "Before and after",
        "The same figures by the same scripts, of the commit before the work on speed and of now, in turns. Less is "
        "better.",
        ("before_after.py",),
    ),
)


# -- running ----------------------------------------------------------------------------------------------------------


class Noise:
    """How long a fixed loop takes, again and again in a thread. Mutated until `stop`."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def stop(self) -> tuple[float, float]:
        """The median and the 90 % quantile, over the shortest."""
        self._is_over.set()
        self._thread.join()
        least, many = min(self.seconds), sorted(self.seconds)
        return statistics.median(many) / least, many[int(0.9 * (len(many) - 1))] / least

    def _measure(self) -> None:
        while True:
            began = time.perf_counter()
            total = 0
            for number in range(200_000):
                total += number
            self.seconds.append(time.perf_counter() - began)
            if self._is_over.wait(LOOP_EVERY_S):
                return


def commit() -> str:
    """The commit of the checkout, with `+` where files have changed since."""
    head, changed = _git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain", "src", "bench")
    return f"{head or 'unknown'}{'+' if changed else ''}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=False, cwd=CHECKOUT, capture_output=True, text=True)
    return done.stdout.strip()


@contextmanager
def timed() -> Iterator[dict[str, Any]]:
    """What a chapter took, and the machine's noise meanwhile; filled in behind the block."""
    found: dict[str, Any] = {}
    noise, began = Noise(), time.perf_counter()
    try:
        yield found
    finally:
        found["seconds"] = time.perf_counter() - began
        found["noise"] = noise.stop()


def run(chapter: Chapter, now: str) -> dict[str, Any]:
    """Run a chapter; what it printed, or why it could not."""
    python = CHECKOUT / chapter.environment / "bin" / "python"
    python = python if python.exists() and not IS_SMOKE else Path(sys.executable)
    paths = {name: str(CHECKOUT / value) for name, value in chapter.variables.items() if (CHECKOUT / value).exists()}
    arguments = [str(CHECKOUT / part) if part.startswith(".venv") else part for part in chapter.command[1:]]
    missing = [part for part in arguments if part.startswith(str(CHECKOUT / ".venv")) and not Path(part).exists()]
    kept: dict[str, Any] = {"commit": now, "date": date.today().isoformat(), "fault": ""}
    if missing:
        return {**kept, "fault": f"{Path(missing[0]).relative_to(CHECKOUT)} is not set up", "said": ""}
    environment = {**os.environ, **paths, "PYTHONPATH": f"{CHECKOUT}", "OMP_NUM_THREADS": "1", BOOK: "1"}
    with timed() as took:
        try:
            done = subprocess.run(
                [str(python), str(BENCH / chapter.command[0]), *arguments, *(["--smoke"] if IS_SMOKE else [])],
                cwd=CHECKOUT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            said, fault = done.stdout, "" if done.returncode == 0 else _last(done.stderr)
        except subprocess.TimeoutExpired:
            said, fault = "", f"it was not done after {TIMEOUT_S:.0f} s"
    return {**kept, **took, "said": said.rstrip(), "fault": fault}


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


# -- the page ---------------------------------------------------------------------------------------------------------

HEAD: Final = """\
# Performance

`make bench` wrote this page on {date}, on {cores} cores ({machine}, Python {python}). Its chapters took
{minutes:.0f} minutes; each names the commit that it measured. Beside each figure stands a peer, a bare loop or
a bound, measured in the same minutes, because machines are noisy. Read ratios rather than times. `noise` is how
much longer than its shortest time a fixed loop took beside the chapter: its median and its 90 % quantile; 1.00
is a quiet machine.

"""


FLAME: Final = """\
## Where the time of a turn goes

The wider a call, the more time in it; what it calls stands below it. `bench/flame.py` draws it. Before the work on
speed (commit b5018d6) the run took 1,675 samples of 5 ms:

![The calls of a run before, the wider the more time they take](flame-turn-before.svg)

The same run a minute later, at 1df4b6b: 1,215 samples.

![The calls of a run, the wider the more time they take](flame-turn.svg)

"""


def page(chapters: Sequence[Chapter], kept: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole book."""
    done = [kept[chapter.slug] for chapter in chapters if chapter.slug in kept]
    text = HEAD.format(
        date=max((one["date"] for one in done), default=date.today().isoformat()),
        cores=os.cpu_count(),
        machine=platform.machine(),
        python=platform.python_version(),
        minutes=sum(one.get("seconds", 0.0) for one in done) / 60,
    )
    missing: list[str] = []
    for chapter in chapters:
        one = kept.get(chapter.slug)
        if one is None or one["fault"]:
            missing.append(f"{chapter.title} (`bench/{chapter.command[0]}`): {one['fault'] if one else 'not run'}")
            continue
        middle, high = one["noise"]
        text += f"## {chapter.title}\n\n{chapter.about}\n\n```text\n{one['said']}\n```\n\n"
        text += (
            f"`bench/{' '.join(chapter.command)}` at {one['commit']}, {one['seconds']:.0f} s, "
            f"noise {middle:.2f} and {high:.2f}\n\n"
        )
    text += FLAME
    if missing:
        text += "## Not measured here\n\n" + "".join(f"- {line}\n" for line in missing)
    return text.rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[chapter.slug for chapter in CHAPTERS])
    parser.add_argument("--again", action="store_true", help="run chapters that are kept, too")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "docs" / "performance.md")
    arguments = parser.parse_args()
    folder, now = (Path("book") if IS_SMOKE else CHECKOUT / KEPT), commit()
    folder.mkdir(parents=True, exist_ok=True)
    kept: dict[str, dict[str, Any]] = {}
    for chapter in few(CHAPTERS, [one for one in CHAPTERS if one.slug == "journal"]):
        file = folder / f"{chapter.slug}.json"
        if file.exists():
            kept[chapter.slug] = json.loads(file.read_text())
        is_wanted = arguments.only is None or chapter.slug in arguments.only
        is_old = chapter.slug not in kept or kept[chapter.slug]["commit"] != now or bool(kept[chapter.slug]["fault"])
        if is_wanted and (is_old or arguments.again):
            print(f"{chapter.title} …", end=" ", flush=True)
            kept[chapter.slug] = run(chapter, now)
            file.write_text(json.dumps(kept[chapter.slug], indent=1))
            took = kept[chapter.slug].get("seconds", 0.0)
            print(
                f"{took:.0f} s{'; not measured: ' if kept[chapter.slug]['fault'] else ''}{kept[chapter.slug]['fault']}"
            )
    out = folder / "performance.md" if IS_SMOKE else arguments.out
    out.write_text(page(CHAPTERS, kept), "utf-8")
    print(f"{out.relative_to(CHECKOUT) if out.is_relative_to(CHECKOUT) else out}")


if __name__ == "__main__":
    main()
