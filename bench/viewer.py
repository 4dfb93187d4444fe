"""How fast `ramify view` is in a real browser, and what it costs the run that it shows; medians of five.

The browser is headless Chromium without a graphics card, 1280x800. `make test-web` installs it and Playwright; without
them nothing is measured. Less is better everywhere. Other work on the machine makes frames late: see the printed load.
The parts, which `--only` names:

- `drawing`: the file of one random tree. `painted`: from navigation until the frame after the first that put pixels on
  the canvas. `frames`: from a frame that the mouse changed, by its wheel or a drag, to the next one, at least 120 of
  them; 16.7 = none is late. `click`: from the mouse button until the path to another node is shown,
- `table`: a store of many trees and a new server for each figure: from navigation, which begins when the server has
  printed its address, until the table has all trees; and once, until all figures are computed,
- `size`: of the page without documents, and of a tree of 1,000 nodes with 200 tokens each, logprobs and entropies,
- `live`: from the return of `store.sync()` until the page shows another text,
- `watched`: seconds of a rollout with a viewer and its page open, and with that viewer stopped by SIGSTOP, over those
  of the rollout alone, in turns, nine of each. 1.00 = the viewer costs nothing. All share the same cores; `CPU` is of
  the process of the rollout only,
- `treequest`: the page that TreeQuest makes (`tq.render(..., format="html")`), beside ours of as many nodes. It needs
  `--treequest PYTHON`, an interpreter with `treequest==0.3.3` and `jinja2`.

Run: python bench/viewer.py [--only PART ...] [--treequest PYTHON]
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from random_runs import begun, random_tree, repeated, written
from smoke import few

from ramify.store.records import RunRecord
from ramify.view.page import live_page

try:
    from playwright.sync_api import Browser
    from timed_pages import RUNS, chromium, drag, middle_of, opened, opens, percentiles, wheel, when
except ImportError as error:
    print(f"skipped: {error}; `make test-web` installs Playwright and Chromium")
    sys.exit()

NUM_CHANGES: Final = few(20, 2)
FRAME_GOALS_MS: Final = {50: 17.0, 95: 34.0}
DRAWN: Final = few(((10_000, 16), (100_000, 4)), ((100, 16),), book=((10_000, 16),))
"""Nodes, and tokens a node, of the trees that are drawn."""
PROMPTS: Final = few(60, 4)
"""Of the rollout that is watched."""
ROUNDS: Final = few(9, 1)
"""Of the three rollouts that are compared."""
RAMIFY: Final = (sys.executable, "-m", "ramify.cli.main")
TREE: Final = "#v=tree&t=0"
MEASURES: Final = ("entropy", "top_gap")

NOTE_CHANGE: Final = """() => {
  const text = () => document.querySelector("main").textContent;
  const before = text();
  window.changed = 0;
  const look = () => (text() === before ? requestAnimationFrame(look) : (window.changed = Date.now() / 1000));
  look();
}"""
TREEQUEST: Final = """
import random, sys
import treequest as tq
draw, search = random.Random(0), tq.StandardMCTS()
state = search.init_tree()
for number in range(int(sys.argv[1])):
    state = search.step(state, {"step": lambda _: (f"step {number}", draw.random())}, inplace=True)
tq.render(state, sys.argv[2], format="html")
"""


def line(what: str, values: Sequence[float], unit: str, *, goal: float | None = None) -> None:
    """Print the median and the range of some values, and whether the median is at most the goal."""
    middle = statistics.median(values)
    said = "" if goal is None else f"{goal:9,.2f} {'met' if middle <= goal else 'MISSED'}"
    print(f"{what:54}{middle:9,.2f}{min(values):9,.2f}{max(values):9,.2f} {unit:3}{said}", flush=True)


# -- commands ---------------------------------------------------------------------------------------------------------


def ramify(*arguments: object) -> tuple[float, float]:
    """Run a command; returns its seconds on the clock and on the CPU."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*RAMIFY, *map(str, arguments), "--quiet"], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rollout(folder: Path, *, prompts: int) -> tuple[float, float]:
    """Grow trees with the built-in engine; returns what `ramify` does."""
    return ramify("rollout", "--preset", "offline", "--prompts", prompts, "--seed", 1, "--out", folder)


@contextmanager
def served(run: Path) -> Iterator[tuple[str, int]]:
    """`ramify view` in a process of its own: its address and process id."""
    with subprocess.Popen(
        [*RAMIFY, "view", str(run), "--json", "--quiet"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["url"], server.pid
        finally:
            server.send_signal(signal.SIGCONT)
            server.terminate()


def frame_lines(browser: Browser, url: str, what: str, selector: str, *, has_goal: bool, is_dragged: bool) -> None:
    for act in (wheel, drag) if is_dragged else (wheel,):
        for percent, values in percentiles(browser, url, selector, act).items():
            goal = FRAME_GOALS_MS[percent] if has_goal else None
            line(f"{what}, {act.__name__}: frames p{percent}", values, "ms", goal=goal)


# -- parts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bench:
    """What all parts share."""

    browser: Browser
    like: Path
    """A small real run."""
    treequest: str | None

    def page(self, name: Path, num_nodes: int, num_tokens: int, measures: Sequence[str]) -> tuple[Path, float]:
        """The file of a random tree, and the seconds that `ramify view --html` took to write it."""
        run, path = (
            written(name, self.like, random_tree(self.like, num_nodes, num_tokens, measures)),
            Path(f"{name}.html"),
        )
        return path, ramify("view", run, "--html", path)[0]


def drawing(bench: Bench, folder: Path) -> None:
    for num_nodes, num_tokens in DRAWN:
        has_goal, what = num_nodes == 10_000, f"{num_nodes:,} nodes"
        path, seconds = bench.page(folder / f"{num_nodes}", num_nodes, num_tokens, MEASURES)
        line(f"{what}: ramify view --html", [seconds], "s")
        line(f"{what}: file", [path.stat().st_size / 1e6], "MB")
        for kind in ("icicle", "graph"):
            url = f"{path.as_uri()}{TREE}&d={kind}"
            line(f"{what}, {kind}: painted", opens(bench.browser, url), "s", goal=1.0 if has_goal else None)
            selector = f"canvas.{kind}"
            frame_lines(bench.browser, url, f"{what}, {kind}", selector, has_goal=has_goal, is_dragged=True)
        line(f"{what}, icicle: click, path is shown", clicks(bench.browser, f"{path.as_uri()}{TREE}"), "s")


def clicks(browser: Browser, url: str) -> list[float]:
    """Seconds from a click on another node until the path to it is shown, of clicks along one row."""
    shown = "document.querySelector('.step.selected')?.dataset.node"
    found = list[float]()
    with opened(browser, url) as page:
        page.wait_for_selector(".step.selected")
        page.evaluate("addEventListener('pointerup', () => { window.clicked = performance.now(); }, true)")
        _, y = middle_of(page, "canvas.icicle")
        for x in range(20, 700, 20):
            before, node = page.evaluate(f"[location.hash, {shown}]")
            page.mouse.click(x, y)
            if page.evaluate("location.hash") != before:
                ended = when(page, f"{shown} && {shown} !== '{node}'")
                found.append(ended - page.evaluate("window.clicked") / 1000)
    return found


def table(bench: Bench, folder: Path) -> None:
    shown = "parseInt(document.querySelector('.filter-line [role=status]')?.textContent.replaceAll(',', ''))"
    filled = "!document.querySelector('.figures').textContent.includes('computed so far')"
    for num_trees, goal in ((1_000, 1.0), (10_000, 3.0)):
        run = written(folder / f"{num_trees}", bench.like, repeated(bench.like, num_trees))
        tabled = list[float]()
        for number in range(RUNS):
            with served(run) as (url, _), opened(bench.browser, url) as page:
                tabled.append(when(page, f"{shown} === {num_trees}"))
                if number + 1 == RUNS:
                    computed = when(page, filled)
        line(f"{num_trees:,} trees: table of all trees", tabled, "s", goal=goal)
        line(f"{num_trees:,} trees: all figures computed, once", [computed], "s")


def size(bench: Bench, folder: Path) -> None:
    line("page without documents", [len(live_page()[0].encode()) / 1e3], "kB", goal=250)
    path, _ = bench.page(folder / "tokens", 1_000, 200, ("entropy",))
    line("1,000 nodes x 200 tokens: file", [path.stat().st_size / 1e6], "MB", goal=3)
    coloured = "document.querySelector('.step.selected[data-node=\"{}\"] .token')?.style.backgroundColor"
    first, second = list[float](), list[float]()
    for _ in range(RUNS):
        with opened(bench.browser, f"{path.as_uri()}{TREE}&n=999") as page:
            first.append(when(page, coloured.format(999)))
            began = page.evaluate("location.hash = location.hash.replace('n=999', 'n=500'), performance.now()")
            second.append(when(page, coloured.format(500)) - began / 1000)
    line("1,000 nodes x 200 tokens: path coloured after opening", first, "s")
    line("1,000 nodes x 200 tokens: another path coloured", second, "s")


def live(bench: Bench, folder: Path) -> None:
    cases = {
        "table": ("", repeated(bench.like, 200)),
        "tree": (TREE, random_tree(bench.like, 1_000, 50, MEASURES)),
    }
    for what, (fragment, records) in cases.items():
        delays = changes(bench, folder / what, list(records), fragment)
        line(f"live {what}: shown after a sync", delays, "s", goal=1.0)
        line(f"live {what}: the slowest of {len(delays)}", [max(delays)], "s", goal=1.0)


def changes(bench: Bench, folder: Path, records: list[RunRecord], fragment: str) -> list[float]:
    """Seconds from each sync of some more records until the page shows something new."""
    size, delays, store = len(records) // (NUM_CHANGES + 1), list[float](), begun(folder, bench.like)
    for record in records[:size]:
        store.append(record)
    store.sync()
    with served(folder) as (url, _), opened(bench.browser, f"{url}{fragment}") as page:
        for number in range(1, NUM_CHANGES + 1):
            page.wait_for_timeout(1500 + 37 * number)  # All before is shown, and the syncs keep no time with the looks.
            page.evaluate(NOTE_CHANGE)
            for record in records[number * size : (number + 1) * size]:
                store.append(record)
            store.sync()
            synced = time.time()
            while not (changed := page.evaluate("window.changed")):
                page.wait_for_timeout(50)
            delays.append(changed - synced)
    store.close()
    return delays


def watched(bench: Bench, folder: Path) -> None:
    kinds = ("alone", "viewer open", "viewer stopped")
    taken = {kind: list[tuple[float, float]]() for kind in kinds}
    for number in range(ROUNDS):
        for kind in (*kinds[number % 3 :], *kinds[: number % 3]):
            taken[kind].append(watched_rollout(bench.browser, folder / f"{kind} {number}", kind))
    for place, clock in enumerate(("wall", "CPU")):
        alone = [seconds[place] for seconds in taken["alone"]]
        line(f"rollout alone, {clock}", alone, "s")
        for kind in kinds[1:]:
            ratios = [seconds[place] / own for seconds, own in zip(taken[kind], alone, strict=True)]
            line(f"rollout, {kind}, {clock} over alone", ratios, "x")


def watched_rollout(browser: Browser, folder: Path, kind: str) -> tuple[float, float]:
    if kind == "alone":
        return rollout(folder, prompts=PROMPTS)
    (folder / "journal").mkdir(parents=True)  # A run that has not begun: the viewer waits for it.
    with served(folder) as (url, process), opened(browser, url) as page:
        page.wait_for_selector("main *")
        page.wait_for_timeout(2000)  # The page is done with opening.
        if kind == "viewer stopped":
            os.kill(process, signal.SIGSTOP)
        return rollout(folder, prompts=PROMPTS)


def treequest(bench: Bench, folder: Path) -> None:
    if bench.treequest is None:
        print("treequest: left out; name an interpreter that has it: --treequest PYTHON")
        return
    for num_nodes in (500, 2_000):
        theirs = folder / f"treequest-{num_nodes}.html"
        command = [bench.treequest, "-c", TREEQUEST, str(num_nodes), str(theirs.with_suffix(""))]
        subprocess.run(command, check=True, capture_output=True)
        ours, _ = bench.page(folder / f"ours-{num_nodes}", num_nodes, 16, MEASURES)
        pages = {
            "treequest": (theirs.as_uri(), "svg", "document.querySelector('svg .node')"),
            "our icicle": (f"{ours.as_uri()}{TREE}", "canvas.icicle", "window.painted"),
            "our graph": (f"{ours.as_uri()}{TREE}&d=graph", "canvas.graph", "window.painted"),
        }
        for name, (url, selector, condition) in pages.items():
            what = f"{num_nodes:,} nodes, {name}"
            line(f"{what}: drawn", opens(bench.browser, url, condition), "s")
            frame_lines(bench.browser, url, what, selector, has_goal=False, is_dragged=False)


PARTS: Final[dict[str, Callable[[Bench, Path], None]]] = {
    part.__name__: part for part in (drawing, table, size, live, watched, treequest)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=few(list(PARTS), ["size"]), help="parts to measure; default: all"
    )
    parser.add_argument("--treequest", metavar="PYTHON", help="interpreter that has treequest 0.3.3 and jinja2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        bench = Bench(browser, Path(name) / "like", options.treequest)
        rollout(bench.like, prompts=12)
        print(f"Chromium {browser.version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        print(f"{'':54}{'median':>9}{'least':>9}{'most':>9} {'':3}{'goal':>9}")
        for part in options.only:
            (Path(name) / part).mkdir()
            PARTS[part](bench, Path(name) / part)


if __name__ == "__main__":
    main()
