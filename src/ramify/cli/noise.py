"""`ramify noise`: measure the noise of presets' policy gradients at equal tokens, on a Hugging Face policy.

It grows trees of every preset on the same problems, makes rows with one credit, computes each tree's gradient and
prints |g|^2 times decode tokens with intervals. Raw norms are shown and never compared. Two presets differ if the
interval of their ratio leaves 1 out.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ramify.cli.contenders import add_contender_flags, contender_config, contender_names, settle_numbers
from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import WHAT, flag_group
from ramify.cli.options import add_json_flag
from ramify.cli.terminal import Terminal, figure_table
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from ramify.config.run_config import RunConfig
    from ramify.core.problem import Problem
    from ramify.core.tree import Tree
    from ramify.experiments.noise import Figure, GradientSample, NoiseLine
    from ramify.planner.interval import Interval
    from ramify.rows.row import Row
    from ramify.train.policy_gradient import PolicyGradient

INSTALL: Final = "pip install 'ramify[hf]'"
NUM_PROBLEMS = 60
NUM_SEEDS = 2
"""The fewest that give a variance."""
PROJECTION = 4096
"""A squared norm is then right within 2 %."""
QUANTILE = 0.9
"""Of 60 draws each from one log-normal law of sigma 2, a third of them 0, it says of 5 % of pairs that they differ, and
of 10 % where nothing is capped; intervals are a quarter shorter than at 0.95."""


@dataclass(slots=True)
class NoiseContender:
    """One preset, and the rows and tokens of its trees."""

    name: str
    config: "RunConfig"
    rows: "dict[str, list[list[Row]]]" = field(default_factory=dict[str, "list[list[Row]]"])
    """By problem, those of each of its trees."""
    tokens: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Decode tokens, likewise."""

    @property
    def reasons(self) -> Sequence[str]:
        """Why the gradients' mean is not the policy gradient; empty = it is."""
        trees = [rows for of_problem in self.rows.values() for rows in of_problem]
        num_empty = sum(not rows for rows in trees)
        empty = (f"{num_empty} of {len(trees)} trees have no rows, and count as no gradient",) if num_empty else ()
        return (*empty, *dict.fromkeys(reason for rows in trees for row in rows for reason in row.reasons))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_contender_flags(parser, num_problems=NUM_PROBLEMS, num_seeds=NUM_SEEDS, about="; ratios are to the first")
    flag_group(parser, WHAT).add_argument(
        "--task", default="countdown", metavar="NAME", help="a built-in task or path/to/file.py:Class"
    )
    group = flag_group(parser, "gradients")
    group.add_argument("--model", type=Path, metavar="FOLDER", help="a Hugging Face folder (default: the built-in one)")
    which = group.add_mutually_exclusive_group()
    projected = "project whole gradients to K numbers"
    which.add_argument("--projection", type=int, default=PROJECTION, metavar="K", help=projected)
    which.add_argument("--layers", choices=("last",), help="gradients of the last layer alone, not projected")
    group.add_argument("--winsorise", type=float, default=QUANTILE, metavar="Q", help="cap values at this quantile")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.experiments.noise import lines
    from ramify.runner import build

    names = contender_names(options.presets)
    _check(options)
    contenders = [NoiseContender(name, _config(name, names, options)) for name in names]
    problems = build.problems_of(contenders[0].config)
    if len(problems) < 2:
        raise ConfigError(f"task {options.task!r} has {len(problems)} problems; intervals are over problems: 2 or more")
    policy = _policy(contenders[0].config, options)
    terminal.say(f"{len(problems)} problems of {options.task}, {options.seeds} trees of each a preset")
    samples: dict[str, list[GradientSample]] = {}
    for contender in contenders:
        _grow(contender, problems, options, terminal)
        samples[contender.name] = _samples(contender, policy)
    found = lines(samples, quantile=options.winsorise)
    if options.json:
        terminal.result("ramify.noise/1", _values(options, contenders, found, policy.num_parameters))
    else:
        terminal.whole(table(contenders, found))
        terminal.lines([*findings(contenders, found), *conditions(contenders, found)])
    return ExitCode.DONE


def table(contenders: Sequence[NoiseContender], lines: "Sequence[NoiseLine]") -> "Table":
    """One line a preset."""
    names = (
        "tokens", "no gradient", "raw", "|g|^2 x tokens [95 %]", "of the first's", "variance x tokens [95 %]",
        "of the first's", "exact",
    )  # fmt: skip
    shown = figure_table("preset", names)
    for contender, each in zip(contenders, lines, strict=True):
        shown.add_row(
            each.name,
            f"{each.tokens:.0f}",
            f"{each.zero:.0%}",
            f"{each.second_moment.raw:.3g}",
            *_figure_texts(each.second_moment),
            *(("", "") if each.variance is None else _figure_texts(each.variance)),
            "no" if contender.reasons else "yes",
        )
    return shown


def findings(contenders: Sequence[NoiseContender], lines: "Sequence[NoiseLine]") -> Iterator[str]:
    """How each preset compares with the first, in both measures."""
    first, *others = lines
    is_exact = {each.name: not each.reasons for each in contenders}
    said = {"more": "more than", "less": "less than", "equal": "no difference shown to"}
    for each in others:
        if not (is_exact[each.name] and is_exact[first.name]):
            yield f"{each.name} and {first.name} cannot be compared: not both estimate the policy gradient"
            continue
        yield f"{each.name}, |g|^2 x tokens: {said[each.second_moment.word]} {first.name}"
        if each.variance is not None:
            yield f"{each.name}, variance x tokens: {said[each.variance.word]} {first.name}"


def conditions(contenders: Sequence[NoiseContender], lines: "Sequence[NoiseLine]") -> Iterator[str]:
    """The caps of the figures, and why a preset is not exact."""
    caps = [f"|g|^2 {lines[0].second_moment.cap:.3g}"]
    caps += [] if (variance := lines[0].variance) is None else [f"variance {variance.cap:.3g}"]
    yield f"most that a problem counts for, but in raw: {', '.join(caps)}"
    for each in contenders:
        yield from (f"{each.name} is not exact: {reason}" for reason in each.reasons)


def _check(options: argparse.Namespace) -> None:
    settle_numbers(options, num_problems=NUM_PROBLEMS)
    if options.problems < 2:
        raise ConfigError("--problems 1: intervals are over problems, at least 2 are needed")
    if options.projection < 1:
        raise ConfigError(f"--projection {options.projection}: at least 1 is needed")
    if not 0 < options.winsorise <= 1:
        raise ConfigError(f"--winsorise {options.winsorise!r}: a quantile above 0 is needed, 1 caps nothing")


def _config(name: str, names: Sequence[str], options: argparse.Namespace) -> "RunConfig":
    """The preset's run, sampled by the policy's weights; all rows are kept and each token counts once."""
    flags = {"task.name": options.task, "prompts": options.problems, "seed": options.seed, "credit": "auto"}
    if options.model is not None:
        flags |= {"engine.name": "local", "engine.model": str(options.model), "engine.options": {"dtype": "float32"}}
    config = contender_config(name, names, flags=flags, given=options.set)
    return replace(config, rows=replace(config.rows, policy="once", leaves=None))


def _policy(config: "RunConfig", options: argparse.Namespace) -> "PolicyGradient":
    """The network that samples, made before trees are grown: a missing library or folder is a `ConfigError`."""
    try:
        from ramify.train.policy_gradient import PolicyGradient
        from ramify.train.sketch import Sketch
    except ImportError as error:
        raise ConfigError(f"`ramify noise` needs torch and transformers: {INSTALL} ({error})") from error
    from ramify.engines.shipped import folder_of

    folder = options.model or folder_of(config.engine.model or "builtin")
    if options.layers is not None:
        return PolicyGradient(folder, layers=options.layers)
    return PolicyGradient(folder, sketch=Sketch(options.projection))


def _grow(
    contender: NoiseContender, problems: "Sequence[Problem]", options: argparse.Namespace, terminal: Terminal
) -> None:
    """Grow the trees of all seeds and keep their rows. Mutates `contender`."""
    from ramify.cli.progress import RunProgress
    from ramify.runner import library
    from ramify.runner.rows import tree_rows

    with RunProgress(terminal, title=contender.name, num_trees=options.seeds * len(problems)) as progress:
        for seed in range(options.seed, options.seed + options.seeds):
            config = replace(contender.config, seed=seed)
            grown = library.rollout_sync(problems, config=config, observers=[progress.observe])
            for tree in grown.trees:
                uid, rows = tree.problem.uid, tree_rows(tree, config, grown.traits)
                contender.rows.setdefault(uid, []).append(rows)
                contender.tokens.setdefault(uid, []).append(_num_decoded(tree))


def _num_decoded(tree: "Tree") -> int:
    return sum(spend.decode for spend in tree.spent().values())


def _samples(contender: NoiseContender, policy: "PolicyGradient") -> "list[GradientSample]":
    """Of each problem, in order of their names."""
    from ramify.experiments.noise import sample

    rows, tokens = contender.rows, contender.tokens
    return [sample([policy.of(each) for each in rows[uid]], tokens[uid]) for uid in sorted(rows)]


def _figure_texts(figure: "Figure") -> tuple[str, str]:
    return _interval_text(figure.capped), "" if figure.ratio is None else _interval_text(figure.ratio)


def _interval_text(interval: "Interval") -> str:
    return f"{interval.value:.3g} [{interval.low:.3g},{interval.high:.3g}]"


def _values(
    options: argparse.Namespace, contenders: Sequence[NoiseContender], lines: "Sequence[NoiseLine]", num_parameters: int
) -> Mapping[str, object]:
    presets = [{**asdict(line), "reasons": each.reasons} for each, line in zip(contenders, lines, strict=True)]
    return {
        "task": options.task,
        "problems": len(next(iter(contenders)).rows),
        "seeds": options.seeds,
        "parameters": num_parameters,
        "projection": None if options.layers else options.projection,
        "winsorise": options.winsorise,
        "findings": [*findings(contenders, lines), *conditions(contenders, lines)],
        "presets": presets,
    }
