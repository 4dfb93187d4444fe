"""`ramify compare`: run presets on the same problems, and compare each with chains of equal decode tokens.

It runs every preset with its own shape and a pool of chains, in memory, and prints one table; `--plot` draws solved
problems over decode tokens. The sentences below the table are computed from its figures.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ramify.cli.contenders import (
    add_contender_flags,
    add_sampling_flags,
    check_contenders,
    contender_config,
    contender_names,
    settle_numbers,
)
from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import OUTPUT, WHAT, flag_group
from ramify.cli.options import add_json_flag, settings_of_flags
from ramify.cli.terminal import Terminal, figure_table

if TYPE_CHECKING:
    from rich.table import Table

    from ramify.config.run_config import RunConfig
    from ramify.core.problem import Problem
    from ramify.core.task import Task
    from ramify.experiments.compare import ChainPool, CompareLine, TreeFigures
    from ramify.planner.interval import Interval

NUM_PROBLEMS = 200
NUM_SEEDS = 3
MIN_POOL = 16
POOL_ROOM = 1.25
"""Size of the pool, as a multiple of the chains that the tokens of the most expensive contender pay for."""
MAX_POOL = 256
VS_CHAINS = "vs chains,\n95% interval"
MIXED = "groups with\nboth right and\nwrong answers"
"""Headings."""


@dataclass(slots=True)
class Contender:
    """One preset of the comparison and the figures of its trees, by problem."""

    name: str
    config: "RunConfig"
    trees: "dict[str, list[TreeFigures]]" = field(default_factory=dict[str, "list[TreeFigures]"])
    seconds: float = 0.0
    same_as: str = ""
    """An earlier contender with the same trees, which are grown once; '' = none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_contender_flags(parser, num_problems=NUM_PROBLEMS, num_seeds=NUM_SEEDS)
    task = "a built-in task or path/to/file.py:Class (default: countdown)"
    flag_group(parser, WHAT).add_argument("--task", metavar="NAME", help=task)
    add_sampling_flags(parser)
    plot = "draw solved problems over tokens (.svg, .png)"
    flag_group(parser, OUTPUT).add_argument("--plot", type=Path, metavar="FILE", help=plot)
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.experiments.compare import line
    from ramify.runner import build

    names = contender_names(options.presets)
    settle_numbers(options, num_problems=NUM_PROBLEMS, folder=Path.cwd(), files=options.config)
    draw = None if options.plot is None else _drawer()
    flags = _flags(options)
    contenders = [Contender(name, _config(name, names, options, flags)) for name in names]
    chains = _config("chains", ["chains", *names], options, flags)
    task = build.build_task(chains)
    problems = task.problems(chains.task.split, options.problems, options.seed)
    check_contenders({"chains": chains, **{each.name: each.config for each in contenders}}, problems)
    terminal.say(f"{len(problems)} problems of {chains.task.name}, {options.seeds} trees of each a preset")
    for number, contender in enumerate(contenders):
        twin = next((other for other in contenders[:number] if _grows_alike(other.config, contender.config)), None)
        if twin is None:
            _grow(contender, problems, task, options, terminal)
        else:
            contender.same_as, contender.trees, contender.seconds = twin.name, twin.trees, twin.seconds
    pool = _pool(chains, contenders, problems, task, terminal)
    number = sum(not contender.same_as for contender in contenders)
    lines = [line(each.name, each.trees, pool, seconds=each.seconds, num_contenders=number) for each in contenders]
    if draw is not None:
        draw(lines, pool, options.plot, title=f"{chains.task.name}: {len(problems)} problems, {options.seeds} seeds")
    said = list(conditions(contenders, chains))
    if num_lost := len(problems) - len(pool.chains):
        said.append(f"{num_lost} of {len(problems)} problems are left out: all their chains failed")
    if options.json:
        terminal.result("ramify.compare/1", {**_values(options, chains, lines, pool), "conditions": said})
    else:
        terminal.whole(table(lines, pool))
        terminal.lines([*findings(lines), *said])
    return ExitCode.DONE


def table(lines: "Sequence[CompareLine]", pool: "ChainPool") -> "Table":
    """One line a contender; figures are means a tree."""
    names = (
        "leaves", "tokens", "cost in\nchains", "solved", VS_CHAINS, "reward", MIXED, VS_CHAINS,
        "answers", "context new", "cached", "tools", "CPU s",
    )  # fmt: skip
    shown = figure_table("preset", names)
    for each in lines:
        shown.add_row(
            each.name,
            f"{each.leaves:.1f}",
            f"{each.tokens:.0f}",
            f"{each.tokens / pool.tokens_a_chain:.1f}",
            f"{each.solved:.1%}",
            interval_text(each.less_chains["solved"]),
            f"{each.reward:.3f}",
            f"{each.mixed:.1%}",
            interval_text(each.less_chains["mixed"]),
            f"{each.answers:.2f}",
            f"{each.prefill_uncached:.0f}",
            f"{each.prefill_cached:.0f}",
            f"{each.tool_calls:.1f}",
            f"{each.seconds:.0f}",
        )
    return shown


def findings(lines: "Sequence[CompareLine]") -> Iterator[str]:
    """What was shown of each contender, and whether the judge knows the answers."""
    said = {"more": "solves more problems than", "fewer": "solves fewer problems than"}
    for each in lines:
        less = each.less_chains["solved"]
        if less.word in said:
            yield f"{each.name} {said[less.word]} chains at equal tokens"
        else:
            yield f"{each.name}: no difference to chains at equal tokens was shown{_no_verdict(each)}"
        if not each.is_covered:
            yield f"{each.name} samples more tokens than the whole pool of chains, and is compared with the whole pool"
        if each.num_failed:
            ended = f"faults ended {each.num_failed} of {each.num_trees} trees"
            yield f"{each.name}: {ended}; what they had grown counts; the first: {each.first_fault}"
    if not all(each.is_metered for each in lines):
        yield "the engine does not count all tokens (no usage), so that many answers count as max_tokens: trust no cost"
    if len(lines) > 1:
        yield f"the {len(lines)} intervals hold together with 95 %, so each is wider than it would be alone"
    if any(each.is_oracle for each in lines):
        yield "the judge of these rewards knows the gold answers"


def _no_verdict(line: "CompareLine") -> str:
    """Which verdict these problems could not have given, whatever the contender did."""
    match sorted({"more", "fewer"} - line.verdicts):
        case ["fewer", "more"]:
            return ", and so few problems cannot show one: take more (--problems)"
        case ["more"]:
            return "; chains solve so many of these problems that even solving all would not show more"
        case ["fewer"]:
            return "; chains solve so few of these problems that even solving none would not show fewer"
        case _:
            return ""


def conditions(contenders: Sequence[Contender], chains: "RunConfig") -> Iterator[str]:
    """How contenders differ from their chains in more than shape, and which of them grow the same trees."""
    for each in contenders:
        if each.same_as:
            yield f"{each.name} grows the same trees as {each.same_as} and differs only in credit; they were grown once"
        law, other = each.config.actions["policy"], chains.actions["policy"]
        own = {"actions.policy": law != other, "growth": each.config.growth != chains.growth}
        if any(own.values()):
            said = " and ".join(section for section, is_own in own.items() if is_own)
            yield f"{each.name} has its own settings in {said}; its chains do not use them"
        if each.config.strategy.options.get("oracle") == "declared":
            yield f"{each.name} searches by rewards, and its judge may know the gold answers"


def _drawer() -> "Callable[..., None]":
    """The function that plots. Imported first, so that a missing library fails before hours of work."""
    from ramify.cli.plot import draw

    return draw


def _flags(options: argparse.Namespace) -> Mapping[str, Any]:
    """The settings of all contenders, by dotted path. They have one task, whatever their presets name."""
    from ramify.config.configure import resolve

    flags = {**settings_of_flags(options), "prompts": options.problems}
    return {**flags, "task.name": resolve(folder=Path.cwd(), files=options.config, flags=flags).config.task.name}


def _config(name: str, names: Sequence[str], options: argparse.Namespace, flags: Mapping[str, Any]) -> "RunConfig":
    return contender_config(name, names, flags=flags, given=options.set, folder=Path.cwd(), files=options.config)


def _grows_alike(one: "RunConfig", other: "RunConfig") -> bool:
    """Whether two runs grow the same trees. Their credit may differ."""
    return replace(one, preset=other.preset, credit=other.credit) == other


def _grow(
    contender: Contender, problems: "Sequence[Problem]", task: "Task", options: argparse.Namespace, terminal: Terminal
) -> None:
    """Grow the trees of all seeds. Mutates `contender`."""
    from ramify.cli.progress import RunProgress
    from ramify.experiments.compare import figures
    from ramify.runner import library
    from ramify.runner.events import Event, TreeClosed

    def note(event: Event) -> None:
        if isinstance(event, TreeClosed):
            found = figures(event, task.format.answer, task.is_same_answer)
            contender.trees.setdefault(event.tree.problem.uid, []).append(found)

    began = time.process_time()
    with RunProgress(terminal, title=contender.name, num_trees=options.seeds * len(problems)) as progress:
        for seed in range(options.seed, options.seed + options.seeds):
            library.grow(replace(contender.config, seed=seed), problems, observers=[note, progress.observe])
    contender.seconds = time.process_time() - began


def _pool(
    config: "RunConfig",
    contenders: Sequence[Contender],
    problems: "Sequence[Problem]",
    task: "Task",
    terminal: Terminal,
) -> "ChainPool":
    """Enough chains for the tokens of the most expensive contender: a few to learn their length, then the rest."""
    from ramify.experiments.compare import ChainPool

    pool = ChainPool(task.is_same_answer)
    dearest = max(_mean_tokens(contender) for contender in contenders)
    _add_chains(pool, config, MIN_POOL, -1, problems, task, terminal)
    wanted = min(MAX_POOL, int(POOL_ROOM * dearest / pool.tokens_a_chain) + 1)
    if wanted > MIN_POOL:
        _add_chains(pool, config, wanted - MIN_POOL, -2, problems, task, terminal)
    return pool


def _add_chains(
    pool: "ChainPool",
    config: "RunConfig",
    number: int,
    part: int,
    problems: "Sequence[Problem]",
    task: "Task",
    terminal: Terminal,
) -> None:
    """Grow `number` chains for each problem, with seeds that no contender uses. Mutates `pool`."""
    from ramify.cli.progress import RunProgress
    from ramify.config.run_config import StrategyConfig
    from ramify.core.limits import Limits
    from ramify.experiments.compare import chains_of
    from ramify.runner import library
    from ramify.runner.events import Event, TreeClosed

    def note(event: Event) -> None:
        if isinstance(event, TreeClosed):
            pool.add(event.tree.problem.uid, chains_of(event.tree, task.format.answer))

    strategy = StrategyConfig(name="chains", options={"n": number})
    config = replace(config, preset=None, strategy=strategy, seed=config.seed + part, limits=Limits())
    with RunProgress(terminal, title="pool of chains", num_trees=len(problems)) as progress:
        library.grow(config, problems, observers=[note, progress.observe])


def _mean_tokens(contender: Contender) -> float:
    return fmean(tree.spent.decode for group in contender.trees.values() for tree in group)


def interval_text(difference: "Interval") -> str:
    """A difference with its interval."""
    return f"{difference.value:+.3f} [{difference.low:+.3f},{difference.high:+.3f}]"


def _values(
    options: argparse.Namespace, chains: "RunConfig", lines: "Sequence[CompareLine]", pool: "ChainPool"
) -> Mapping[str, object]:
    return {
        "task": chains.task.name,
        "problems": options.problems,
        "seeds": options.seeds,
        "tokens_a_chain": pool.tokens_a_chain,
        "chains_in_pool": pool.size,
        "presets": [each.as_dict() for each in lines],
    }
