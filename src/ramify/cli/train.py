"""`ramify train`: train a Hugging Face policy on the trees of a run, and evaluate it on held-out problems meanwhile.

`--compare` trains it once for each preset and seed, at equal decode tokens, and compares what was learnt.

Stopped or killed, the same command goes on from the last checkpoint.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from ramify.cli.compare import interval_text
from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import OUTPUT, flag_group
from ramify.cli.options import add_config_flags, add_json_flag, add_track_flag, resolved_preset
from ramify.cli.terminal import Terminal, figure_table, visible
from ramify.core.errors import ConfigError
from ramify.train.log import LOG, TrainingLog

if TYPE_CHECKING:
    from rich.table import Table

    from ramify.cli.track import TrackedRun
    from ramify.config.run_config import RunConfig
    from ramify.planner.interval import Interval
    from ramify.train.compare import Learning
    from ramify.train.loop import Figures, TrainConfig

SCHEMA: Final = "ramify.train/1"
COMPARED: Final = "ramify.train_compare/1"
INSTALL: Final = "pip install 'ramify[train]'"
TRAINING: Final = "training"
NUM_PROBLEMS: Final = 1000
"""Of a task that makes them."""
MAX_STEPS: Final = 1_000_000
"""Updates of an arm, which its tokens end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser, num_prompts=NUM_PROBLEMS)
    group = flag_group(parser, TRAINING)
    policy = "folder of the policy (default: --model, or the built-in model of the task)"
    group.add_argument("--policy", type=Path, metavar="DIR", help=policy)
    group.add_argument("--steps", type=int, default=20, metavar="N", help="updates in all")
    group.add_argument("--trees", type=int, default=24, metavar="N", help="trees for an update")
    rate = "learning rate (default: 3e-4 for small policies, else 1e-6)"
    group.add_argument("--learning-rate", type=float, metavar="X", help=rate)
    every = "updates between evaluations on held-out problems; 0: none"
    group.add_argument("--eval-every", type=int, default=5, metavar="N", help=every)
    group.add_argument("--save-every", type=int, default=5, metavar="N", help="updates between checkpoints")
    shape = "shape the trees by a pilot of N problems, and again when the policy has moved (N: from 5 %% of the tokens)"
    group.add_argument("--plan", type=int, nargs="?", const=0, metavar="N", help=shape)
    trl = "a further argument of TRL's GRPOConfig, e.g. adam_beta2=0.95; may be repeated"
    group.add_argument("--trl", action="append", default=[], metavar="NAME=VALUE", help=trl)
    add_comparison_flags(parser)
    out = "folder of the training: a new one, or one to go on with"
    flag_group(parser, OUTPUT).add_argument("--out", type=Path, required=True, metavar="DIR", help=out)
    add_track_flag(parser)
    add_json_flag(parser)


def add_comparison_flags(parser: argparse.ArgumentParser) -> None:
    group = flag_group(parser, "comparison")
    several = "train once for each of these presets and seeds, and compare with the first"
    group.add_argument("--compare", metavar="A,B", help=several)
    group.add_argument("--seeds", type=int, default=3, metavar="N", help="with --compare: seeds of each")
    tokens = "tokens to sample, after which training ends; with --compare: of each training"
    group.add_argument("--tokens", type=int, metavar="N", help=tokens)
    plot = "with --compare: draw held-out reward over tokens (.svg, .png)"
    group.add_argument("--plot", type=Path, metavar="FILE", help=plot)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    if options.compare is not None:
        return _compared(options, terminal)
    if options.plot is not None:
        raise ConfigError("--plot draws a comparison: name its presets by --compare")
    run = _run(options, options.preset)
    config = _training(options, run)
    from ramify.cli.track import tracked, tracked_kinds
    from ramify.cli.train_progress import TrainProgress, evaluated
    from ramify.train.loop import train

    try:
        with tracked(tracked_kinds(options), partial(_as_tracked, options.out), terminal) as tracker:
            title, steps, tokens = run.task.name, config.steps, config.tokens
            with TrainProgress(terminal, tracker, options.out, title=title, steps=steps, tokens=tokens) as told:
                model = train(run, config, told, advise=told.plan, watch=told.watch)
    except KeyboardInterrupt:
        terminal.fault(f"interrupted\ncheckpoints are in {options.out}; the same command goes on from the last one")
        return ExitCode.INTERRUPTED
    log = TrainingLog(options.out / LOG)
    if options.json:
        values = {"out": str(options.out), "model": str(model), "log": str(options.out / LOG)}
        terminal.result(SCHEMA, {**values, "evaluations": log.evaluations, "plans": log.plans})
    else:
        terminal.lines([*evaluated(log), f"model: {visible(str(model))}"])
        terminal.say(f"try it: ramify demo --model {visible(str(model))} --task {visible(run.task.name)}")
    return ExitCode.DONE


def _as_tracked(folder: Path) -> "TrackedRun":
    """A training that goes on has the time of its first start."""
    from ramify.cli.track import PROJECT, TrackedRun
    from ramify.train.loop import FIRST_SERVICE

    return replace(TrackedRun.of_folder(folder / FIRST_SERVICE), folder=folder, name=folder.name or PROJECT)


def _training(options: argparse.Namespace, run: "RunConfig") -> "TrainConfig":
    """Raises `ConfigError`, also without TRL."""
    try:
        from ramify.train.loop import TrainConfig
    except ImportError as error:
        raise ConfigError(f"training needs TRL: {INSTALL} ({error})") from error
    return TrainConfig(
        model=str(_policy(options, run)),
        out=options.out,
        steps=options.steps,
        tokens=options.tokens,
        trees=options.trees,
        learning_rate=options.learning_rate,
        eval_every=options.eval_every,
        save_every=options.save_every,
        pilot=options.plan,
        trl=_trl(options.trl),
    )


def _compared(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.contenders import contender_names

    if options.track:
        raise ConfigError(f"--track {options.track[0]}: a comparison has no figures of its own; track one training")
    if options.preset is not None:
        raise ConfigError(f"--preset {options.preset}: --compare names the presets, so leave --preset out")
    if options.tokens is None:
        raise ConfigError("--compare trains every arm for the same number of tokens: set it by --tokens N")
    if options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds}: at least 1 is needed")
    arms = {name: _run(options, name) for name in contender_names(options.compare)}
    config = replace(_training(options, next(iter(arms.values()))), steps=MAX_STEPS)
    # The plot is imported first, so that a missing library fails before hours of work.
    draw = None if options.plot is None else import_module("ramify.cli.plot").draw_learning
    from ramify.cli.train_progress import HELD_OUT
    from ramify.train.compare import compare

    def tell(arm: str, step: int, figures: "Figures") -> None:
        if HELD_OUT + "heldout" in figures:
            terminal.say(f"{arm}, {step} updates: held out {figures[HELD_OUT + 'heldout']:.3f}")

    found = compare(arms, config, seeds=range(options.seed or 0, (options.seed or 0) + options.seeds), tell=tell)
    if draw is not None:
        draw(found, options.plot, title=f"{next(iter(arms.values())).task.name}: {options.seeds} seeds")
    if options.json:
        terminal.result(COMPARED, _values(found))
    else:
        terminal.whole(table(found))
        terminal.lines(findings(found))
    return ExitCode.DONE


def table(found: "Learning") -> "Table":
    """One line an arm; tokens, updates and seconds are means over its seeds."""
    names = (
        "held-out\nreward", "gain,\n95% interval", "less the first,\n95% interval", "gain in 10k\ntokens", "tokens",
        "updates", "s an update:\nrollouts", "training", "weights",
    )  # fmt: skip
    shown = figure_table("trained on", names)
    for arm in found.arms:
        seconds = {part: fmean(each.seconds[part] for each in arm.policies) for part in arm.policies[0].seconds}
        gain, tokens = found.gain(arm), fmean(each.tokens for each in arm.policies)
        shown.add_row(
            arm.name,
            f"{arm.scores.mean():.3f}",
            interval_text(gain),
            "" if arm is found.arms[0] else interval_text(found.less_first(arm)),
            f"{gain.value / tokens * 1e4:+.4f}",
            f"{tokens:,.0f}",
            f"{fmean(each.updates for each in arm.policies):.1f}",
            *(f"{seconds[part]:.2f}" for part in ("rollout", "training", "weights")),
        )
    return shown


def findings(found: "Learning") -> Iterator[str]:
    """What was shown, and what was not."""
    first, *others = found.arms
    policies = f"{len(first.policies)} seeds, {len(found.start)} held-out problems"
    yield f"all began at {found.start.mean():.3f}; {policies}; intervals are over problems and seeds"
    said = {"more": "learnt more than", "fewer": "learnt less than"}
    for arm in others:
        word = found.less_first(arm).word
        yield (
            f"{arm.name} {said[word]} {first.name}"
            if word in said
            else f"{arm.name}: no difference to {first.name} was shown"
        )
    if len(first.policies) < 2:
        yield "with one seed the intervals say nothing about seeds: take more (--seeds)"


def _values(found: "Learning") -> Mapping[str, Any]:
    def of(interval: "Interval") -> Mapping[str, float]:
        return {"value": interval.value, "low": interval.low, "high": interval.high}

    return {
        "start": float(found.start.mean()),
        "arms": [
            {
                "name": arm.name,
                "reward": float(arm.scores.mean()),
                "gain": of(found.gain(arm)),
                "less_first": of(found.less_first(arm)),
                "policies": [
                    {"seed": each.seed, "reward": float(each.scores.mean()), "tokens": each.tokens,
                     "updates": each.updates, "curve": each.curve, "seconds": each.seconds}
                    for each in arm.policies
                ],
            }
            for arm in found.arms
        ],
    }  # fmt: skip


def _run(options: argparse.Namespace, preset: str | None) -> "RunConfig":
    """The run of the command line with `preset`. If it does not say, its problems are those for training, and many."""
    found = resolved_preset(options, preset)
    config, sources = found.config, found.sources
    if "task.split" not in sources:
        config = replace(config, task=replace(config.task, split="train"))
    if "prompts" not in sources and not any(source.startswith("data.") for source in sources):
        config = replace(config, prompts=NUM_PROBLEMS)
    return config


def _policy(options: argparse.Namespace, run: "RunConfig") -> Path:
    """The folder of the policy. Raises `ConfigError` if nothing names one."""
    from ramify.engines.shipped import folder_of

    if options.policy is not None:
        return options.policy
    if run.engine.model is None and run.engine.name != "builtin":
        raise ConfigError(f"engine {run.engine.name!r} names no model; --policy DIR is the folder of what is trained")
    return folder_of(run.engine.model or "builtin")


def _trl(texts: list[str]) -> dict[str, Any]:
    """`NAME=VALUE` with values as of `--set`."""
    from ramify.config.layers import toml_value

    found: dict[str, Any] = {}
    for text in texts:
        name, is_set, value = text.partition("=")
        if not is_set:
            raise ConfigError(f"--trl {text!r}: NAME=VALUE is needed")
        found[name] = toml_value(value)
    return found
