"""`ramify plan`: grow a pilot, and advise for every depth whether to fork, to go on, or to prune.

The advice is computed from the pilot's figures and their intervals. `--out` writes the shape as a configuration for
`ramify rollout -c FILE`.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import OUTPUT, flag_group
from ramify.cli.options import add_budget_flag, add_config_flags, add_json_flag, budgets, resolved
from ramify.cli.terminal import Terminal
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.config.run_config import RunConfig
    from ramify.core.prices import Prices
    from ramify.experiments.pilot import PilotRun, Watch
    from ramify.planner.interval import Interval
    from ramify.planner.plan import Aim, Plan, Pruning
    from ramify.runner.events import Observer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser)
    add_budget_flag(parser)
    group = flag_group(parser, "plan")
    group.add_argument(
        "--aim",
        choices=("gradient", "coverage"),
        default="gradient",
        help="gradient: less variance of the return per token (training); coverage: more solved problems",
    )
    group.add_argument(
        "--pilot",
        type=int,
        metavar="N",
        help="problems of the pilot (default: 5 %% of the tokens of --prompts trees, else 60)",
    )
    group.add_argument(
        "--prices",
        choices=("decode", "engine", "measured"),
        help="cost in sampled tokens, the engine's prices or measured seconds "
        "(default: engine if it has prices, else decode)",
    )
    flag_group(parser, OUTPUT).add_argument(
        "--out", type=Path, metavar="FILE", help="write the shape as a configuration (TOML)"
    )
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    config = resolved(options, budgets(options)).config
    if config.limits.decode is None:
        raise ConfigError(
            "a plan needs a budget: --budget decode_tokens=N, the most tokens that the tree of a problem may sample"
        )
    if options.pilot is not None and options.pilot < 2:
        raise ConfigError(f"--pilot {options.pilot}: intervals are over problems, so at least 2 are needed")
    tokens = None if options.prompts is None else config.prompts * config.limits.decode
    made, flown = planned(
        config,
        num_problems=options.pilot,
        run_tokens=tokens,
        prices=_prices(options.prices, config),
        aim=options.aim,
        watch=partial(pilot_bar, terminal),
    )
    if options.out is not None:
        options.out.write_text(configuration(made, config), "utf-8")
    if options.json:
        values = {**asdict(made), "pilot": {"children": flown.children, "decode_tokens": flown.decode}}
        terminal.result("ramify.plan/1", {**values, "caveats": flown.caveats, "advice": list(advice(made))})
    else:
        if made.depths:
            terminal.whole(table(made))
        terminal.lines([*flown.caveats, *advice(made)])
    return ExitCode.DONE


def planned(
    config: "RunConfig",
    *,
    num_problems: int | None = None,
    run_tokens: int | None = None,
    prices: "Prices | None" = None,
    aim: "Aim",
    watch: "Watch",
) -> "tuple[Plan, PilotRun]":
    """Grow the pilot of a run, and plan from it. Arguments as of `experiments.pilot.grow_pilot`."""
    import numpy as np

    from ramify.experiments.pilot import DECODE, grow_pilot
    from ramify.planner.plan import plan

    assert config.limits.decode is not None, "a plan is for a budget"
    flown = grow_pilot(config, num_problems=num_problems, run_tokens=run_tokens, prices=prices or DECODE, watch=watch)
    budget, rng = config.limits.decode * flown.cost_a_token, np.random.default_rng(config.seed)
    return plan(flown.pilot, budget=budget, rng=rng, aim=aim), flown


@contextmanager
def pilot_bar(terminal: Terminal, title: str, number: int) -> "Iterator[Observer]":
    """Show the trees of a pilot as they grow."""
    from ramify.cli.progress import RunProgress

    with RunProgress(terminal, title=title, num_trees=number) as progress:
        yield progress.observe


def table(made: "Plan") -> Table:
    """A line a depth."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    gain = "chains cost" if made.aim == "gradient" else "more solved"
    for name in ("after", "tokens so far", "variance so far", "best children [95 %]", f"{gain} [95 %]", "with", ""):
        shown.add_column(name, justify="left" if name in ("after", "") else "right", no_wrap=True)
    for depth in made.depths:
        shown.add_row(
            f"step {depth.steps}",
            f"{depth.cost_share:.0%}",
            f"{depth.variance_share:.0%}",
            "-" if depth.call == "nothing to see" else _children(depth.ratio),
            "-" if depth.call == "nothing to see" else interval(depth.gain, "+.1%"),
            f"{depth.number:g}",
            depth.call,
        )
    return shown


def advice(made: "Plan") -> Iterator[str]:
    """The advice in sentences; the last one is the shape."""
    if not made.varies:
        yield f"all paths of a problem had the same return ({made.mean_return:.3g} on average): nothing to plan"
    for depth in made.depths:
        if depth.call == "too close to call":
            more = depth.more_problems
            what = "no pilot of a reasonable size" if more is None else f"a pilot of {more} more problems"
            yield f"step {depth.steps}: too close to call; {what} would decide"
    if made.pruning is not None:
        yield _on_pruning(made.pruning, made.aim)
    yield _stability(made)
    yield from _forks_left_out(made)
    yield f"{_shape_in_words(made)}: {_gain_in_words(made.gain, made.aim)}"


def _forks_left_out(made: "Plan") -> Iterator[str]:
    """Why it advises no fork although some depth says so."""
    depths = [str(depth.steps) for depth in made.depths if depth.call == "fork"]
    if depths and not made.shape.is_forked:
        what = f"step {', '.join(depths)}: a fork is better than none"
        yield f"{what}, but by how much is not certain enough to advise it; a larger pilot narrows the interval"


def _stability(made: "Plan") -> str:
    """How many redrawn pilots give the same advice, and how many problems would settle it."""
    from ramify.planner.plan import NUM_AGAIN

    said = (
        f"{made.num_agreeing} of {NUM_AGAIN} pilots drawn again from these problems advise the same forks and pruning"
    )
    known = [depth.more_problems for depth in made.depths if depth.more_problems is not None]
    if made.num_agreeing == NUM_AGAIN or not known:
        return said
    return f"{said}; a pilot of {made.num_problems + max(known)} would settle it"


def interval(estimate: "Interval", form: str) -> str:
    """A figure with its interval."""
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def _children(ratio: "Interval") -> str:
    """Best numbers, those at the ends of the scale as what they stand for."""
    from ramify.planner.plan import FARTHEST

    low, value, high = (
        "0" if number <= 1 / FARTHEST else "many" if number >= FARTHEST else f"{number:.2f}"
        for number in (ratio.low, ratio.value, ratio.high)
    )
    return f"{value} [{low}, {high}]"


def configuration(made: "Plan", config: "RunConfig") -> str:
    """The task, its shape and the pruning as a configuration file."""
    from ramify.config.toml import toml_text

    task = {"name": config.task.name, **({"options": config.task.options} if config.task.options else {})}
    strategy = {"name": "planned", "options": {"children": list(made.shape.children)}}
    values = {"task": task, "strategy": strategy}
    if made.shape.keep is not None:
        values |= _pruning(config, made.shape.keep)
    about = [f"planned for {config.task.name}, {made.aim}, from {made.num_problems} problems", *advice(made)]
    return "".join(f"# {line}\n" for line in about) + toml_text(values)


def _pruning(config: "RunConfig", keep: float) -> dict[str, Any]:
    """The run's prune rule, or else the task's, with the judge whose value it reads."""
    growth, judge = config.growth, config.growth.prune_judge
    rule: dict[str, Any] = {"prune": growth.prune or "task", "prune_judge": judge, "keep": keep}
    if growth.prune_options:
        rule["prune_options"] = growth.prune_options
    if judge is None or judge not in config.judges:
        return {"growth": rule}
    return {"growth": rule, "judges": {judge: asdict(config.judges[judge])}}


def _on_pruning(pruning: "Pruning", aim: str) -> str:
    seen = (
        f"Pruning would stop {pruning.fires:.0%} of the paths, save {pruning.saves:.0%} of the tokens and lose "
        f"{interval(pruning.loses, '.1%')} of the reward"
    )
    if pruning.keep == 1:
        return f"{seen}: too much to lose"
    how = f"with {pruning.keep:.0%} of these paths kept at random"
    if pruning.keep == 0:
        how = "pruned" if aim == "coverage" else "pruned, and exact for the truncated task"
    return f"{seen}; {how}: {_gain_in_words(pruning.gain, aim)}"


def _shape_in_words(made: "Plan") -> str:
    behind = [f"{k:g} ways after step {d + 1}" for d, k in enumerate(made.shape.children[1:]) if k > 1]
    stems = f"{made.shape.children[0]:g}"
    parts = [
        f"{stems} root branches a problem, fork {', '.join(behind)}" if behind else f"do not fork, grow {stems} chains"
    ]
    if made.shape.keep is not None:
        parts.append("prune" if made.shape.keep == 0 else f"prune, and keep {made.shape.keep:.0%} at random")
    return f"advice: {', '.join(parts)} (a tree costs {interval(made.cost, '.0f')})"


def _gain_in_words(gain: "Interval", aim: str) -> str:
    if aim == "gradient":
        return f"chains cost {interval(gain, '+.1%')} more for the same noise"
    return f"{interval(gain, '+.1%')} solved problems vs chains"


def _prices(name: str | None, config: "RunConfig") -> "Prices":
    from ramify.experiments.pilot import DECODE

    if name == "measured":
        from ramify.experiments.measured_prices import measured_prices

        return measured_prices(config)
    known = config.engine.prices
    if name == "engine" and not known.is_known:
        raise ConfigError(
            "--prices engine: this engine has no prices; set engine.prices.prompt and engine.prices.output"
        )
    return known if known.is_known and name != "decode" else DECODE
