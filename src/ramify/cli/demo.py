"""`ramify demo`: draw a tree of the built-in model, ask a pilot whether to fork, and compare strategies.

Every strategy gets the same held-out problems and the same number of tokens to sample on each. The sentences below the
table are computed from its figures.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.compare import MIXED, VS_CHAINS
from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag
from ramify.cli.terminal import Terminal, figure_table

if TYPE_CHECKING:
    from rich.table import Table

    from ramify.config.run_config import RunConfig
    from ramify.core.tree import Tree
    from ramify.planner.interval import Interval
    from ramify.runner.report import RunReport

NUM_PROBLEMS = 100
NUM_PROBLEMS_FAST = 8
NUM_TOKENS = 224
"""Decode tokens a problem: about eleven chains of the built-in model."""
MAX_TREES = 16
"""Trees in flight: few enough that forks find their prefixes still in the engine's slots."""
NUM_PROBLEMS_PILOT = 40
NUM_PROBLEMS_DRAWN = 4
"""Problems whose trees are grown to draw one of them."""
SETTINGS = ("growth.max_response_tokens=256", "limits.decode={tokens}", f"max_trees={MAX_TREES}", "prompts={problems}")


@dataclass(frozen=True, slots=True)
class DemoContender:
    """One strategy of the comparison: a preset, and settings that make it spend all its tokens."""

    name: str
    title: str
    preset: str
    settings: tuple[str, ...]


CHAINS = ("strategy.options.n=4", "strategy.options.repeat=budget")
CONTENDERS = (
    DemoContender("chains", "independent chains", "chains", CHAINS),
    DemoContender("offline", "offline tree", "offline", ("strategy.options.expansion_iterations=1000",)),
    DemoContender(
        "online", "online tree (ARPO)", "arpo", ("strategy.options.n=64", "strategy.options.initial_rollouts=4")
    ),
    DemoContender("restart", "chains, dead ends restart", "chains", (*CHAINS, "growth.prune=task")),
)


@dataclass(slots=True)
class Result:
    """The result of one strategy."""

    contender: DemoContender
    report: "RunReport"
    solved: Mapping[str, float]
    """Problem uid -> 1.0 if any leaf was right."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="DIR", help="new folder for the runs (default runs/demo)")
    parser.add_argument("--fast", action="store_true", help=f"{NUM_PROBLEMS_FAST} problems instead of {NUM_PROBLEMS}")
    parser.add_argument(
        "--tokens",
        type=int,
        default=NUM_TOKENS,
        metavar="N",
        help=f"tokens to sample for each problem (default {NUM_TOKENS})",
    )
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="a setting of all runs")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.draw import tree_view

    num_problems = NUM_PROBLEMS_FAST if options.fast else NUM_PROBLEMS
    out = options.out or _new_folder()
    if not options.json:
        terminal.out.print(tree_view(_tree_to_draw(options)))
        terminal.out.print()
    advice = _advice(min(num_problems, NUM_PROBLEMS_PILOT), options, terminal)
    if not options.json:
        terminal.lines([*advice, ""])
    terminal.say(f"{num_problems} held-out countdown problems, {options.tokens} sampled tokens each, built-in model")
    results = [_run(each, _config(each, num_problems, options), out / each.name, terminal) for each in CONTENDERS]
    _export(out)
    if options.json:
        terminal.result(
            "ramify.demo/1", {"out": str(out), "advice": advice, "arms": [_values(r, results[0]) for r in results]}
        )
    else:
        terminal.whole(comparison(results))
        terminal.lines([*findings(results), "", *_next(out)])
    return ExitCode.PARTIAL if any(result.report.failed_trees for result in results) else ExitCode.DONE


def comparison(results: list[Result]) -> "Table":
    """The table at equal decode tokens."""
    names = ("leaves", "solved", VS_CHAINS, "reward", MIXED, "tokens", "context new", "cached", "tools", "s")
    table = figure_table("strategy", names, title="at equal decode tokens")
    for result in results:
        report, difference = result.report, less(result, results[0])
        is_baseline = result is results[0]
        table.add_row(
            result.contender.title,
            str(report.leaves),
            f"{report.coverage or 0:.0%}",
            "" if is_baseline else f"{difference.value:+.2f} [{difference.low:+.2f},{difference.high:+.2f}]",
            f"{report.mean_reward or 0:.2f}",
            f"{report.mixed_groups or 0:.0%}",
            str(report.decode_tokens),
            str(report.prefill_uncached),
            str(report.prefill_cached),
            str(report.tool_calls),
            f"{report.seconds:.1f}",
        )
    return table


def findings(results: list[Result]) -> list[str]:
    """A sentence for each strategy but the first."""
    lines = [""]
    for result in results[1:]:
        ratio = result.report.leaves / max(results[0].report.leaves, 1)
        solved = {"more": "solves more problems", "fewer": "solves fewer problems", "equal": "no difference was shown"}
        lines.append(f"{result.contender.title}: {ratio:.1f}x the leaves, {solved[less(result, results[0]).word]}")
    return [*lines, "More leaves are not more solved problems. Run `ramify plan` before you choose a tree."]


def less(result: Result, baseline: Result) -> "Interval":
    """Solved problems of `result` minus those of `baseline`, paired by problem."""
    from ramify.experiments.paired import paired_difference

    uids = sorted(baseline.solved)
    own, chains = ([each.solved.get(uid, 0.0) for uid in uids] for each in (result, baseline))
    return paired_difference(own, chains, num_comparisons=len(CONTENDERS) - 1)


def _advice(num_problems: int, options: argparse.Namespace, terminal: Terminal) -> list[str]:
    """The advice of a pilot on the same problems."""
    from ramify.cli.plan import advice, planned

    made, flown = planned(
        _config(CONTENDERS[0], num_problems, options), num_problems=num_problems, aim="coverage", terminal=terminal
    )
    head = f"advice of a pilot of {num_problems} problems ({flown.decode} tokens), before the comparison:"
    return [head, *flown.caveats, *advice(made)]


def _config(contender: DemoContender, num_problems: int, options: argparse.Namespace) -> "RunConfig":
    from ramify.config.configure import resolve

    settings = [text.format(tokens=options.tokens, problems=num_problems) for text in SETTINGS]
    return resolve(preset=contender.preset, overrides=[*contender.settings, *settings, *options.set]).config


def _run(contender: DemoContender, config: "RunConfig", out: Path, terminal: Terminal) -> Result:
    from ramify.cli.progress import RunProgress
    from ramify.runner import folder
    from ramify.runner.events import Event, TreeClosed

    solved: dict[str, float] = {}

    def note(event: Event) -> None:
        if isinstance(event, TreeClosed):
            solved[event.tree.problem.uid] = float(1.0 in _rewards(event.tree))

    with RunProgress(terminal, title=contender.title, num_trees=config.prompts) as progress:
        report = folder.begin(config, out, observers=[note, progress.observe])
    return Result(contender, report, solved)


def _tree_to_draw(options: argparse.Namespace) -> "Tree":
    """A tree of the offline preset: the smallest with right and wrong leaves, if there is one."""
    from ramify.config.configure import resolve
    from ramify.runner import library

    config = resolve(preset="offline", overrides=[f"prompts={NUM_PROBLEMS_DRAWN}", *options.set]).config
    trees = library.rollout_sync(config=config).trees
    return max(trees, key=lambda tree: (len(_rewards(tree)), -len(tree)))


def _rewards(tree: "Tree") -> set[float]:
    """The different rewards of a tree's leaves."""
    return {reward for leaf in tree.leaves() if (reward := tree.reward(leaf)) is not None}


def _values(result: Result, baseline: Result) -> dict[str, object]:
    from ramify.experiments.paired import difference_dict

    return {
        "name": result.contender.name,
        **result.report.as_dict(),
        "less_chains": None if result is baseline else difference_dict(less(result, baseline)),
    }


def _next(out: Path) -> list[str]:
    return [
        f"run folders: {out}/{{{','.join(each.name for each in CONTENDERS)}}}",
        f"rows for a trainer: {_rows_path(out)}",
        "try next:",
        f"  ramify show {out / 'restart'} 0",
        f"  ramify export {out / 'online'} --to jsonl --out rows.jsonl",
        "  ramify rollout --preset arpo --prompts 16 --seed 1 --out runs/arpo",
    ]


def _rows_path(out: Path) -> Path:
    """Where the rows of the offline trees are."""
    return out / "offline.jsonl"


def _export(out: Path) -> None:
    from ramify.rows.jsonl import write
    from ramify.runner.saved import Saved

    write(Saved.open(out / "offline").rows(), _rows_path(out))


def _new_folder() -> Path:
    """runs/demo, or the first of runs/demo-2, runs/demo-3, … that does not exist. It is made."""
    from ramify.cli.rollout import new_folder

    return new_folder(chain([Path("runs/demo")], (Path(f"runs/demo-{number}") for number in count(2))))
