"""`ramify demo`: one tree of the built-in model grows on the screen, and what its branches earned is said in words.

The tree is the same on every machine. Its run folder is an ordinary one, with a picture of the tree, and a page to open
in a browser. `--compare` asks whether trees pay (`demo_compare.py`).
"""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import flag_group
from ramify.cli.options import add_json_flag, add_out_flag
from ramify.cli.terminal import Terminal, shortened
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.config.run_config import RunConfig
    from ramify.core.engine import Engine
    from ramify.core.tree import Tree
    from ramify.runner.events import Event
    from ramify.runner.report import RunReport

SCHEMA = "ramify.demo/2"
PRESET = "offline"
SEED = 51
SETTINGS = ("prompts=1", f"seed={SEED}", "limits.decode=1024")
"""The seed was chosen for a tree in which a fork made a difference, which few have. With a limit on tokens, outcomes
are told in order, so that nodes have the same numbers everywhere."""
INTRODUCTION = (
    "A small model, which ships with ramify, plays countdown: it makes a number from others with a calculator.",
    "The calculator answers `result : numbers left`.",
)
CHOSEN = f"Seed {SEED} was chosen, because a fork made a difference. The last command shows what forks do on average."
PICTURE, WEB_PAGE = "tree.svg", "tree.html"
STEP_S = 0.2
"""Time between two steps on the screen."""
SHOWN_S = 4.0
"""Most time that is added so that people see the tree grow."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="DIR", help="a model of yours, such as one of `ramify train`")
    parser.add_argument("--task", metavar="NAME", help="the built-in task that it plays (default: countdown)")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="a setting of all runs")
    group = flag_group(parser, "comparison")
    group.add_argument(
        "--compare", action="store_true", help="compare strategies at equal tokens, in up to a minute of two cores"
    )
    group.add_argument("--fast", action="store_true", help="with --compare: 8 problems instead of 64")
    group.add_argument(
        "--tokens", type=int, metavar="N", help="with --compare: tokens to sample for each problem (default: 224)"
    )
    add_out_flag(parser)
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    named = {"engine.model": options.model, "task.name": options.task}
    options.set = [*(f"{path}={value}" for path, value in named.items() if value is not None), *options.set]
    if options.compare:
        from ramify.cli import demo_compare

        with _folder(options.out, "demo-compare") as out:
            return demo_compare.execute(
                demo_compare.NUM_PROBLEMS_FAST if options.fast else demo_compare.NUM_PROBLEMS,
                demo_compare.NUM_TOKENS if options.tokens is None else options.tokens,
                options.set,
                out,
                terminal,
                is_json=options.json,
            )
    if options.fast or options.tokens is not None:
        raise ConfigError("--fast and --tokens are for `ramify demo --compare`; `ramify demo` grows a single tree")
    with _folder(options.out, "demo") as out:
        return _one_tree(options, out, terminal)


def _one_tree(options: argparse.Namespace, out: Path, terminal: Terminal) -> ExitCode:
    from ramify.cli.exit_codes import code_of_report
    from ramify.cli.plain_tree import plain_tree
    from ramify.cli.show import write_page, write_picture
    from ramify.config.configure import resolve

    config = resolve(preset=PRESET, overrides=[*SETTINGS, *options.set]).config
    is_own = not options.set
    if is_own and not options.json:
        terminal.lines([*INTRODUCTION, ""])
    report, tree = _grown(config, out, terminal, is_live=_is_watched(terminal) and not options.json)
    picture = out / PICTURE
    write_picture(tree, picture)
    page = out / WEB_PAGE
    write_page(out, page)
    if options.json:
        terminal.result(
            SCHEMA, {"run": str(out), "picture": str(picture), "page": str(page), **_values(config, tree, report)}
        )
    else:
        terminal.out.print(plain_tree(tree))
        terminal.lines(["", *findings(tree, report), *([CHOSEN] if is_own else []), "", *_next(out, picture, page)])
    return code_of_report(report)


def _is_watched(terminal: Terminal) -> bool:
    """Whether people see stdout, and no lines of -v between."""
    return terminal.out.is_terminal and terminal.verbosity == 0


def _grown(config: "RunConfig", out: Path, terminal: Terminal, *, is_live: bool) -> "tuple[RunReport, Tree]":
    """Grow the run; on the screen if it is live, else under a progress bar. Returns its first tree too."""
    from ramify.cli.live_tree import LiveTree
    from ramify.cli.progress import RunProgress
    from ramify.runner import folder
    from ramify.runner.events import TreeOpened

    trees: list[Tree] = []

    def keep(event: "Event") -> None:
        if isinstance(event, TreeOpened):
            trees.append(event.tree)

    progress = RunProgress(terminal, title=PRESET, num_trees=config.prompts)
    if not is_live:
        with progress:
            return folder.begin(config, out, observers=[keep, progress.observe]), trees[0]
    with LiveTree(terminal) as live:
        observers = [keep, progress.observe, live.observe]  # the bar is not shown, but messages are
        return folder.begin(config, out, observers=observers, measured=_paced), trees[0]


def _paced(engine: "Engine", model: str) -> "Engine":
    from ramify.cli.live_tree import Paced

    return Paced(engine, step_s=STEP_S, most_s=SHOWN_S)


@dataclass(frozen=True, slots=True)
class ForkEnds:
    """A node with several children, and the rewards of the leaves behind each."""

    node: int
    said: str
    rewards: tuple[tuple[float, ...], ...]

    @property
    def made_a_difference(self) -> bool:
        """Whether the best leaf behind one child is better than the best behind another."""
        return len({max(each) for each in self.rewards if each}) > 1


def forks(tree: "Tree") -> list[ForkEnds]:
    """The forks below the root."""
    from ramify.view.node_text import node_text

    found: list[ForkEnds] = []
    for node in tree.subtree()[1:]:
        children = tree.children(node)
        if len(children) > 1:
            rewards = tuple(tuple(_rewards(tree, child)) for child in children)
            found.append(ForkEnds(node, node_text(tree, node).said, rewards))
    return found


def findings(tree: "Tree", report: "RunReport") -> Iterator[str]:
    """What one sees, in sentences computed from the tree."""
    stems, rewards = tree.stems(), list(_rewards(tree))
    right = sum(reward == 1 for reward in rewards)
    counts = f"{len(stems)} root branches, {len(tree.leaves())} leaves, {report.decode_tokens} sampled tokens."
    yield f"{counts} {right} of {len(rewards)} answers are right: a right one earns reward 1, a wrong one 0."
    earned = " | ".join(" ".join(f"{reward:.3g}" for reward in _rewards(tree, stem)) or "-" for stem in stems)
    yield f"Rewards of the leaves, root branch by root branch: {earned}."
    yield "Where a node has two children, the tree forked there: both children share all tokens before them."
    telling = [fork for fork in forks(tree) if fork.made_a_difference]
    for fork in telling:
        ends = " and ".join(f"{max(rewards):.3g}" for rewards in fork.rewards if rewards)
        yield f"The fork behind `{shortened(fork.said, 40)}` made a difference: its children earn {ends} at best."
    if not telling:
        yield "No fork of this tree made a difference."


def _rewards(tree: "Tree", node: int = 0) -> Iterator[float]:
    """Rewards of the judged leaves at and below a node."""
    return (reward for leaf in tree.leaves(node) if (reward := tree.reward(leaf)) is not None)


def _values(config: "RunConfig", tree: "Tree", report: "RunReport") -> Mapping[str, object]:
    from ramify.view.node_text import node_text

    def leaf_values(leaf: int) -> Mapping[str, object]:
        path = [node_text(tree, node).said for node in tree.path(leaf)[1:]]
        return {"node": leaf, "path": path, "reward": tree.reward(leaf), "stop": tree.stop(leaf)}

    return {
        "preset": config.preset,
        "task": config.task.name,
        "seed": config.seed,
        "question": tree.problem.question,
        "decode_tokens": report.decode_tokens,
        "leaves": [leaf_values(leaf) for leaf in tree.leaves()],
        "root_branches": [list(_rewards(tree, stem)) for stem in tree.stems()],
        "forks": [{"node": f.node, "said": f.said, "rewards": f.rewards} for f in forks(tree)],
    }


def _next(out: Path, picture: Path, page: Path) -> list[str]:
    commands = {
        f"ramify show {out} 0": "the same tree as sampled, with entropies and stop words",
        f"ramify export {out} --to jsonl --out rows.jsonl": "its rows for a trainer",
        "ramify demo --compare": "do trees pay? strategies at equal tokens",
    }
    width = max(map(len, commands))
    return [
        f"picture: {picture}",
        f"page: {page} (open it in a browser)",
        "next:",
        *(f"  {line:{width}}  # {about}" for line, about in commands.items()),
    ]


@contextmanager
def _folder(given: Path | None, name: str) -> Iterator[Path]:
    """The given folder, or the first of runs/NAME, runs/NAME-2, … that does not exist. It is made, and removed again if
    it stays empty."""
    from ramify.cli.rollout import RUNS, new_folder

    if given is not None:
        yield given
        return
    out = new_folder(chain([RUNS / name], (RUNS / f"{name}-{number}" for number in count(2))))
    try:
        yield out
    finally:
        with suppress(OSError):
            out.rmdir()
