"""`ramify eval`: answer the same problems with several presets within the same budgets, and grade the answers.

Every preset keeps its own shape and stops at the budget; the table shows what it did not spend. Differences are to the
first preset, paired by problem. No preset is called better if its interval holds 0.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.cli.compare import NUM_PROBLEMS, NUM_SEEDS, interval_text
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
from ramify.cli.options import BUDGETS, add_json_flag, add_track_flag, amounts_of, settings_of_flags
from ramify.cli.terminal import Terminal, figure_table

if TYPE_CHECKING:
    from rich.table import Table

    from ramify.cli.track import RunTracker
    from ramify.config.run_config import RunConfig
    from ramify.config.tracker_config import Kind
    from ramify.core.problem import Problem
    from ramify.experiments.evaluation import EvalLine, Graded
    from ramify.runner.events import Observer

SCHEMA = "ramify.eval/1"
Track = Callable[[str], "AbstractContextManager[RunTracker]"]
"""Name of a line -> what tracks its trees."""
MUCH_UNSPENT = 0.1
"""Share of a budget; what is left beyond it is said below the table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_contender_flags(parser, num_problems=NUM_PROBLEMS, num_seeds=NUM_SEEDS, about="; differences are to the first")
    group = flag_group(parser, WHAT)
    task = "a built-in task or path/to/file.py:Class (default: the first preset's)"
    group.add_argument("--task", metavar="NAME", help=task)
    group.add_argument("--data", metavar="FILE", help="file or folder with questions and answers")
    group.add_argument("--budget", metavar="WHAT=N,N,…", help=f"budgets a problem: {', '.join(BUDGETS)}")
    add_sampling_flags(parser)
    plot = "draw right answers over tokens (.svg, .png)"
    flag_group(parser, OUTPUT).add_argument("--plot", type=Path, metavar="FILE", help=plot)
    add_track_flag(parser)
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.track import tracked_kinds
    from ramify.runner import build
    from ramify.runner.run import Run

    names = contender_names(options.presets)
    trackers = tracked_kinds(options)
    settle_numbers(options, num_problems=NUM_PROBLEMS, folder=Path.cwd(), files=options.config)
    kind, budgets = budgets_of(options.budget)
    draw = None if options.plot is None else _drawer()
    configs = {name: _config(name, names, options) for name in names}
    first = configs[names[0]]
    run = Run(build.prepared_run(within(first, kind, budgets[0])))
    problems = run.prepared.problems
    check_contenders({name: within(config, kind, budgets[0]) for name, config in configs.items()}, problems)
    terminal.say(f"{len(problems)} problems of {first.task.name}, {options.seeds} seeds, {len(names)} presets")
    lines: list[EvalLine] = []
    with _tracking(trackers, terminal) as track:
        for budget in budgets:
            limited = {name: within(config, kind, budget) for name, config in configs.items()}
            lines += _lines(limited, (BUDGETS[kind], budget), problems, options, terminal, track=track)
    if draw is not None:
        draw(lines, options.plot, title=f"{first.task.name}: {len(problems)} problems, {options.seeds} seeds")
    if options.json:
        terminal.result(SCHEMA, {"task": first.task.name, "budget": kind, "lines": [each.as_dict() for each in lines]})
    else:
        terminal.whole(table(lines, kind))
        terminal.lines(findings(lines, judge=run.prepared.judging.leaf[-1:]))
    return ExitCode.DONE


def budgets_of(text: str | None) -> tuple[str, Sequence[float | None]]:
    """The limited quantity and its budgets, smallest first. Raises `ConfigError`."""
    if text is None:
        return "decode_tokens", [None]
    name, amounts = amounts_of(text)
    return name, sorted(amounts)


def within(config: "RunConfig", kind: str, budget: float | None) -> "RunConfig":
    """The configuration with a budget on top of its limits."""
    from ramify.core.limits import Limits

    if budget is None:
        return config
    limit: dict[str, Any] = {BUDGETS[kind]: budget}
    return replace(config, limits=config.limits.within(Limits(**limit)))


def table(lines: "Sequence[EvalLine]", kind: str) -> "Table":
    """One line a preset and budget."""
    names = (
        kind, "right", "vs first,\n95% interval", "coverage", "majority", "weighted", "best", "candidates",
        "tokens", "context new", "judgements", "requests", "tools", "dollars", "unspent", "CPU s",
    )  # fmt: skip
    shown = figure_table("preset", names)
    for each in lines:
        shown.add_row(
            each.name,
            "-" if each.budget is None else str(each.budget),
            f"{each.returned:.1%}",
            "" if each.less_first is None else interval_text(each.less_first),
            f"{each.covered:.1%}",
            *(f"{each.by_vote[vote]:.1%}" for vote in ("majority", "weighted", "best")),
            f"{each.candidates:.1f}",
            f"{each.decode:.0f}",
            f"{each.prefill_uncached:.0f}",
            f"{each.judge_calls:.1f}",
            f"{each.engine_calls:.1f}",
            f"{each.tool_calls:.1f}",
            "-" if each.dollars is None else f"{each.dollars:.4g}",
            "-" if each.unspent is None else f"{each.unspent:.0%}",
            f"{each.seconds:.0f}",
        )
    return shown


def findings(lines: "Sequence[EvalLine]", *, judge: Sequence[str]) -> Iterator[str]:
    """The differences beyond their intervals, and what limits the figures."""
    said = {
        "more": "right more often than {}",
        "fewer": "right less often than {}",
        "equal": "no difference to {} was shown",
    }
    for first in (each for each in lines if each.less_first is None):
        at = "" if first.budget is None else f" at {first.budget}"
        words = {each.name: each.less_first.word for each in lines if each.budget == first.budget and each.less_first}
        for word, text in said.items():
            if names := [name for name, found in words.items() if found == word]:
                yield f"{text.format(first.name)}{at}: {', '.join(names)}"
    for name in dict.fromkeys(each.name for each in lines if each.is_steered_by_oracle):
        yield f"ORACLE: a judge that knows the answers steered {name}"
    for name in dict.fromkeys(each.name for each in lines if each.is_picked_by_metric):
        yield f"{name} picks its answer with the judge that grades it"
    for each in lines:
        if each.unspent is not None and each.unspent > MUCH_UNSPENT:
            yield f"{each.name} left {each.unspent:.0%} of {each.budget} unspent: its own shape ended it first"
    for each in lines:
        if each.num_failed:
            at = "" if each.budget is None else f" at {each.budget}"
            of = f"{each.num_failed} of {each.num_problems * each.num_seeds} searches"
            yield f"{each.name}{at}: {of} failed and count as wrong; the first: {each.first_fault}"
    yield f"right: by the judge {judge[0]!r}, on the returned answer" if judge else "no judge can grade these answers"


def _lines(
    configs: "Mapping[str, RunConfig]",
    limit: tuple[str, float | None],
    problems: "Sequence[Problem]",
    options: argparse.Namespace,
    terminal: Terminal,
    *,
    track: Track,
) -> "list[EvalLine]":
    """The lines of all presets at one budget: what is limited, and to how much."""
    from ramify.experiments.evaluation import eval_line

    found: list[EvalLine] = []
    first: list[dict[str, Graded]] | None = None
    num_comparisons = max(1, len(configs) - 1)
    for name, config in configs.items():
        began, label = time.process_time(), name if limit[1] is None else f"{name}-{limit[0]}-{limit[1]}"
        with track(label) as tracker:
            graded: list[dict[str, Graded]] = []
            for number in range(options.seeds):
                tracker.first = number * len(problems)
                own = replace(config, seed=options.seed + number)
                graded.append(_searched(name, own, problems, terminal, tracker.observe))
        seconds = time.process_time() - began
        line = eval_line(
            name,
            graded,
            first=first,
            limit=limit[0],
            budget=limit[1],
            seconds=seconds,
            num_comparisons=num_comparisons,
        )
        found.append(line)
        first = first or graded
    return found


def _searched(
    name: str, config: "RunConfig", problems: "Sequence[Problem]", terminal: Terminal, track: "Observer"
) -> "dict[str, Graded]":
    from ramify.cli.progress import RunProgress
    from ramify.experiments.evaluation import evaluated
    from ramify.runner import loop

    with RunProgress(terminal, title=name, num_trees=len(problems)) as progress:
        return loop.run(evaluated(config, problems, observers=[progress.observe, track]))


@contextmanager
def _tracking(kinds: "Sequence[Kind]", terminal: Terminal) -> Iterator[Track]:
    """What tracks each line of the table as a run of its own, all of them in a new folder of runs/ if there is any
    kind."""
    from ramify.cli.rollout import made_folder
    from ramify.cli.track import TrackedRun, tracked

    begun = time.time()
    with made_folder("eval") if kinds else nullcontext(Path()) as folder:
        yield lambda name: tracked(kinds, lambda: TrackedRun.of_part(folder, name, begun), terminal)


def _config(name: str, names: Sequence[str], options: argparse.Namespace) -> "RunConfig":
    flags = {**settings_of_flags(options), "prompts": options.problems}
    return contender_config(name, names, flags=flags, given=options.set, folder=Path.cwd(), files=options.config)


def _drawer() -> "Callable[..., None]":
    """The function that plots. Imported first, so that a missing library fails before hours of work."""
    from ramify.cli.plot import draw_answers

    return draw_answers
