"""Plots over decode tokens: presets as points beside the curve of chains, searches as lines through their budgets."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from ramify.core.errors import ConfigError

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter
except ImportError as error:
    raise ConfigError("--plot needs matplotlib: pip install 'ramify[plot]'") from error

if TYPE_CHECKING:
    from ramify.experiments.compare import ChainPool, CompareLine
    from ramify.experiments.evaluation import EvalLine
    from ramify.train.compare import Learning

POINTS = 60
"""Of the curve of chains."""
INK, GREY, MORE, FEWER = "#22272e", "#8b949e", "#1a7f37", "#cf222e"
COLOURS = {"more": MORE, "fewer": FEWER, "equal": INK}


def draw(lines: "Sequence[CompareLine]", pool: "ChainPool", path: Path, *, title: str) -> None:
    """Write the plot to `path`; its ending says the format. A point's whisker is the interval of its difference."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    tokens = [pool.tokens_a_chain * (1 + (pool.size - 1) * i / (POINTS - 1)) for i in range(POINTS)]
    tokens = [number for number in tokens if number <= 1.3 * max(line.tokens for line in lines)] or tokens[:2]
    solved = [fmean(found["solved"] for found in pool.expected(number).values()) for number in tokens]
    axes.plot(tokens, solved, color=GREY, linewidth=2, label="independent chains", zorder=1)
    for number, line in enumerate(sorted(lines, key=lambda line: line.tokens)):
        less = line.less_chains["solved"]
        whiskers = [[less.value - less.low], [less.high - less.value]]
        axes.errorbar(line.tokens, line.solved, whiskers, fmt="o", color=COLOURS[less.word], capsize=3, markersize=5)
        offset = (6, -11) if number % 2 else (-6, 12)  # neighbours on two sides, so that their names stay apart
        axes.annotate(line.name, (line.tokens, line.solved), xytext=offset, textcoords="offset points", fontsize=9)
    _dress(axes, title=title, y="problems solved")
    axes.legend(frameon=False, loc="lower right", fontsize=9)
    _save(figure, path)


def draw_answers(lines: "Sequence[EvalLine]", path: Path, *, title: str) -> None:
    """Write right answers over tokens to `path`: a line a preset through its budgets; faint, the coverage it had."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for name in dict.fromkeys(line.name for line in lines):
        points = [line for line in lines if line.name == name]
        tokens = [line.decode for line in points]
        (drawn,) = axes.plot(tokens, [line.returned for line in points], marker="o", markersize=5, label=name)
        axes.plot(
            tokens, [line.covered for line in points], marker="o", markersize=3, color=drawn.get_color(), alpha=0.3
        )
    _dress(axes, title=title, y="right answers (faint: coverage)")
    axes.legend(frameon=False, loc="lower right", fontsize=8, ncols=2)
    _save(figure, path)


def draw_learning(found: "Learning", path: Path, *, title: str) -> None:
    """Write the held-out reward of each arm over its decode tokens: a thin line a seed, and the mean at the end with
    the interval of its gain."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, arm in enumerate(found.arms):
        colour, gain = f"C{number}", found.gain(arm)
        for policy in arm.policies:
            axes.plot(*zip(*policy.curve, strict=True), color=colour, linewidth=1, alpha=0.5)
        whiskers = [[gain.value - gain.low], [gain.high - gain.value]]
        tokens = fmean(policy.tokens for policy in arm.policies) * (1 + 0.015 * number)  # side by side
        mean = float(arm.scores.mean())
        axes.errorbar(tokens, mean, whiskers, fmt="o", color=colour, capsize=3, markersize=5, label=arm.name)
    axes.axhline(float(found.start.mean()), color=GREY, linewidth=1, linestyle=":")
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:,.0f}")
    _label(axes, title=title, x="decode tokens of the training", y="held-out reward")
    axes.legend(frameon=False, loc="lower right", fontsize=9)
    _save(figure, path)


def _dress(axes: Axes, *, title: str, y: str) -> None:
    """Scales, labels and grid of a plot over the tokens of a problem."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    _label(axes, title=title, x="decode tokens a problem", y=y)


def _label(axes: Axes, *, title: str, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path}: {error}") from None
