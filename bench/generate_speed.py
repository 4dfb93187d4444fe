"""Cost of a search with an instant function, beside TreeQuest: milliseconds of CPU a state.

`--treequest PYTHON` names an interpreter in which `treequest` is installed (`pip install treequest`, in an environment
of its own). Its searches run there from the same random numbers: by `step` as its documents have it, which copies the
tree each time, and by `step(inplace=True)`. Searches of both take turns, `--rounds` times; the median of each is shown.
Where a search is deterministic, the two trees are compared.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SIZES = (250, 500, 1_000, 2_000)
PRESETS = {"mcts": "StandardMCTS", "ab_mcts": "ABMCTSA"}
"""Preset -> the algorithm of TreeQuest that does the same work."""
SAME = frozenset({"mcts"})
"""Presets that draw nothing, so that both grow the same tree."""
TARGET_MS = 1.0

Found = dict[str, Any]


def rising() -> Callable[[float | None], tuple[float, float]]:
    """A function whose states rise by a random number; the same numbers each time."""
    draws = random.Random(0)

    def generate(parent: float | None) -> tuple[float, float]:
        value = (parent or 0.0) + draws.random()
        return value, min(value / 5, 1.0)

    return generate


def ours(preset: str, size: int) -> Found:
    import ramify

    generate, began = rising(), time.process_time()
    found = ramify.search(generate, preset=preset, budget={"calls": size})
    took_s = time.process_time() - began
    places = {node: number for number, node in enumerate(found.nodes)}
    tree = [(places.get(found.tree.parent(node) or 0, -1), found.state(node)) for node in found.nodes]
    return {"ms": took_s / size * 1e3, "tree": tree}


def theirs(preset: str, size: int, *, is_in_place: bool) -> Found:
    import treequest  # pyright: ignore[reportMissingImports]

    algorithm: Any = getattr(treequest, PRESETS[preset])()
    generate, state = rising(), algorithm.init_tree()
    began = time.process_time()
    for _ in range(size):
        state = algorithm.step(state, {"generate": generate}, inplace=is_in_place)
    took_s = time.process_time() - began
    nodes = [node for node in state.tree.get_nodes() if node.parent is not None]
    places = {node.expand_idx: number for number, node in enumerate(sorted(nodes, key=lambda node: node.expand_idx))}
    tree = [(places.get(node.parent.expand_idx, -1), node.state) for node in sorted(nodes, key=lambda n: n.expand_idx)]
    return {"ms": took_s / size * 1e3, "tree": tree}


def elsewhere(python: str, preset: str, size: int, *, is_in_place: bool) -> Found:
    """A search of TreeQuest in its own interpreter."""
    mode = "in_place" if is_in_place else "copying"
    command = [python, __file__, "--peer", preset, str(size), mode]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measured(preset: str, size: int, python: str | None, rounds: int) -> str:
    """One line of the table."""
    here = [ours(preset, size)]
    copying: list[Found] = []
    in_place: list[Found] = []
    for number in range(rounds):
        here += [ours(preset, size)] if number else []
        if python is not None:
            copying.append(elsewhere(python, preset, size, is_in_place=False))
            in_place.append(elsewhere(python, preset, size, is_in_place=True))
    own_ms = statistics.median(each["ms"] for each in here)
    cells = [f"{preset:8} {size:6,}", f"{own_ms:9.3f}"]
    for peers in (copying, in_place):
        if peers:
            peer_ms = statistics.median(each["ms"] for each in peers)
            cells += [f"{peer_ms:9.3f}", f"{peer_ms / own_ms:7.1f}x"]
    if in_place and preset in SAME:
        is_same = [tuple(pair) for pair in in_place[0]["tree"]] == here[0]["tree"]
        cells.append("same tree" if is_same else "ANOTHER TREE")
    return "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description="milliseconds of CPU a state, beside TreeQuest")
    parser.add_argument("--treequest", metavar="PYTHON", help="an interpreter in which treequest is installed")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="states of a search")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="small searches, once: whether it runs")
    parser.add_argument("--peer", nargs=3, metavar=("PRESET", "SIZE", "MODE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer is not None:
        preset, size, mode = options.peer
        json.dump(theirs(preset, int(size), is_in_place=mode == "in_place"), sys.stdout)
        return
    sizes, rounds = ((20, 40), 1) if options.smoke else (options.sizes, options.rounds)
    ours("ab_mcts", 5)  # Imports.
    print("                  ramify   treequest: step       ratio   step in place   ratio")
    for preset in PRESETS:
        for size in sizes:
            print(measured(preset, size, options.treequest, rounds), flush=True)
    print(f"target: at most {TARGET_MS:g} ms a state of 2,000")


if __name__ == "__main__":
    main()
