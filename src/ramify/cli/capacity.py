"""`ramify capacity`: how long a run takes on so many GPUs, and what holds it up.

The trees of the run are grown on modelled engines in virtual time, with a stand-in for the model and the tool. What a
step costs is estimated from the model and the GPU, or measured on an engine that runs (`--measure`).
"""

import argparse
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import flag_group
from ramify.cli.options import add_config_flags, add_json_flag, resolved
from ramify.cli.terminal import Terminal, figure_table
from ramify.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from ramify.experiments.capacity import Workload
    from ramify.experiments.capacity.fleet_size import EngineSize, FleetForecast, ModelShape
    from ramify.testing.simulated_server import SimulatedCosts

NEARLY: Final = 1.1
"""A fleet within this multiple of the shortest time is large enough."""
_RANGE = re.compile(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?")
HELP: Final = {
    "work": "the engines are nearly full, so time falls with every engine",
    "longest tree": "the steps of one tree wait for each other, so more GPUs help little; shorter paths do",
    "tools": "calls wait for a seat: tools.max_parallel is {seats}; raise it as far as the tool's server allows",
    "driver": "the growing process is full: grow with {drivers} processes (ramify rollout --ray --workers N)",
}
"""What helps, by what binds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser)
    fleet = flag_group(parser, "fleet")
    fleet.add_argument("--gpus", type=int, required=True, metavar="N", help="number of GPUs")
    fleet.add_argument("--gpu", default="h100", metavar="NAME", help="kind of GPU")
    fleet.add_argument("--gpus-per-engine", type=int, metavar="N", help="GPUs that share a model (default: the fewest)")
    fleet.add_argument("--max-batch", type=int, default=256, metavar="N", help="most sequences of an engine at once")
    block = "tokens per block of an engine's prefix cache: 128 for vLLM on CPUs, 1 for the built-in engine"
    fleet.add_argument("--block-size", type=int, default=16, metavar="N", help=block)
    fleet.add_argument("--drivers", type=int, default=1, metavar="N", help="processes that grow trees")
    fleet.add_argument("--price", type=float, metavar="DOLLARS", help="price of a GPU for an hour")
    measure = "measure what a step costs on the engine of --engine and --base-url, in place of an estimate"
    fleet.add_argument("--measure", action="store_true", help=measure)
    workload = flag_group(
        parser, "workload", description="LOW-HIGH is drawn evenly in its logarithm; one number is exact"
    )
    like = "lengths of prompts, turns and results as in this run, in place of the flags for them"
    workload.add_argument("--like", type=Path, metavar="RUN", help=like)
    workload.add_argument("--prompt-tokens", type=int, default=500, metavar="N", help="tokens of a prompt")
    shared = "first tokens of a prompt that all problems share, such as a system prompt"
    workload.add_argument("--shared-tokens", type=int, default=0, metavar="N", help=shared)
    workload.add_argument("--turns", default="1-6", metavar="LOW-HIGH", help="turns of a path, a call between two")
    workload.add_argument("--turn-tokens", default="30-300", metavar="LOW-HIGH", help="tokens that a turn samples")
    workload.add_argument("--tool-tokens", default="100-400", metavar="LOW-HIGH", help="tokens of a result")
    workload.add_argument("--tool-seconds", default="0.05-2", metavar="LOW-HIGH", help="time of a call")
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.experiments.capacity import Capacity

    _check(options)
    workload = _workload(options)
    size, title = _engine(options, workload, terminal)
    size = replace(size, block_size=options.block_size)
    # The engine was for the costs. From here on engines are modelled.
    options.engine, options.base_url, options.model = "simulated", None, None
    config = resolved(options).config
    capacity = Capacity(config, workload, size, max_batch=options.max_batch, num_drivers=options.drivers)
    sizes = _fleets(options.gpus, size.num_gpus)
    forecasts = [capacity.on(number) for number in sizes]
    asked = forecasts[sizes.index(options.gpus)]
    if options.json:
        rows = [_row(forecast, options.price) for forecast in forecasts]
        terminal.result(
            "ramify.capacity/1",
            {"engine": {**asdict(size), "kv_tokens": _finite(size.kv_tokens)}, "gpus": options.gpus, "fleets": rows},
        )
        return ExitCode.DONE
    terminal.lines([title, _work(config.preset or config.strategy.name, config.prompts, asked), ""])
    terminal.whole(_table(forecasts, options.price))
    numbers = {"seats": config.tools.max_parallel, "in_flight": config.max_trees, "num_drivers": options.drivers}
    advice = _advice(forecasts, asked, **numbers)
    left_out = [f"not counted: what judge {name!r} takes" for name in capacity.left_out]
    terminal.lines(["", *advice, *left_out])
    return ExitCode.DONE


def _check(options: argparse.Namespace) -> None:
    for flag in ("gpus", "max_batch", "block_size", "drivers", "prompt_tokens"):
        if getattr(options, flag) < 1:
            raise ConfigError(f"--{flag.replace('_', '-')} {getattr(options, flag)}: at least 1 is needed")
    if options.gpus_per_engine is not None and options.gpus_per_engine < 1:
        raise ConfigError(f"--gpus-per-engine {options.gpus_per_engine}: at least 1 is needed")
    if options.price is not None and not 0 <= options.price < math.inf:
        raise ConfigError(f"--price {options.price}: dollars, 0 or more")
    if options.base_url and not options.measure:
        raise ConfigError("--base-url is asked only if costs are measured: add --measure, or leave it out")


def _engine(options: argparse.Namespace, workload: "Workload", terminal: Terminal) -> "tuple[EngineSize, str]":
    """An engine of the fleet, and a line about it."""
    from ramify.experiments.capacity.fleet_size import EngineSize, gpu_of, smallest_engine

    if options.measure:
        from ramify.experiments.capacity import measured_costs

        config = resolved(options).config
        terminal.say(f"measuring engine {config.engine.name!r} ...")
        is_in_process = not (config.engine.base_urls or config.engine.replicas)
        costs = measured_costs(config, workload)
        size = EngineSize(options.gpus_per_engine or 1, costs, math.inf, is_in_process=is_in_process)
        what = f"engine {config.engine.name!r}, measured"
    else:
        model = _model(options.model)
        size = smallest_engine(gpu_of(options.gpu), model, num_gpus=options.gpus_per_engine)
        room = f"room for {size.kv_tokens:,.0f} tokens of keys and values"
        what = f"{model.name} on {options.gpu.lower()}, estimated: {_count(size.num_gpus, 'GPU')} an engine, {room}"
    return size, f"{what}; {costs_text(size.costs)}"


def costs_text(costs: "SimulatedCosts") -> str:
    """The costs of an engine, in a line."""
    parts = [
        f"a step {costs.step_s * 1e3:.3g} ms",
        f"a sequence of it {costs.sequence_s * 1e6:.3g} us",
        f"a token read {costs.kv_token_s * 1e9:.3g} ns",
        f"a token computed {costs.prefill_token_s * 1e6:.3g} us",
        *([f"a request {costs.join_s * 1e3:.3g} ms"] if costs.join_s else []),
    ]
    return ", ".join(parts)


def _model(name: str | None) -> "ModelShape":
    """The shape of `--model`: a size such as `7b`, or the `config.json` of a folder."""
    import msgspec

    from ramify.experiments.capacity.fleet_size import SIZES, ModelShape

    if name is None:
        raise ConfigError(f"--model is needed: a size ({', '.join(SIZES)}) or a model's folder; or --measure an engine")
    if name.lower() in SIZES:
        return SIZES[name.lower()]
    file = Path(name) / "config.json"
    try:
        values = msgspec.json.decode(file.read_bytes(), type=dict)
    except FileNotFoundError:
        raise ConfigError(
            f"--model {name!r} is no size ({', '.join(SIZES)}; {nearest(name, SIZES)}), and there is no {file}"
        ) from None
    except (OSError, msgspec.MsgspecError) as fault:
        raise ConfigError(f"--model {name!r}: {file} cannot be read: {fault}") from None
    return ModelShape.of_config(Path(name).name, values)


def _workload(options: argparse.Namespace) -> "Workload":
    from ramify.experiments.capacity import Workload, between
    from ramify.runner.saved import Saved

    if options.like is not None:
        like = Workload.of_run(Saved.open(options.like))
        seconds = between(*_range(options, "tool_seconds"))
        return replace(like, tool_seconds=seconds)
    low, high = _range(options, "turns")
    if low != int(low) or high != int(high) or low < 1:
        raise ConfigError(f"--turns {options.turns}: whole numbers of 1 or more")
    turn_tokens, tool_tokens = (
        [round(each) for each in between(*_range(options, name))] for name in ("turn_tokens", "tool_tokens")
    )
    seconds = between(*_range(options, "tool_seconds"))
    turns = range(int(low), int(high) + 1)
    return Workload(options.prompt_tokens, turns, turn_tokens, tool_tokens, seconds, options.shared_tokens)


def _range(options: argparse.Namespace, name: str) -> tuple[float, float]:
    text, flag = getattr(options, name), f"--{name.replace('_', '-')}"
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ConfigError(f"{flag} {text!r}: give a number or LOW-HIGH, such as 30-300")
    low = float(found[1])
    high = float(found[2]) if found[2] else low
    if high < low:
        raise ConfigError(f"{flag} {text!r}: give the smaller number first, such as 30-300")
    return low, high


def _fleets(num_gpus: int, engine_gpus: int) -> list[int]:
    """The number of GPUs that was asked for, and others beside it."""
    others = {max(engine_gpus, num_gpus // 4), max(engine_gpus, num_gpus // 2), num_gpus, 2 * num_gpus}
    return sorted(others)


def _table(forecasts: "Sequence[FleetForecast]", price: float | None) -> Table:
    names = ("engines", "time", "GPU-hours", *(["dollars"] if price is not None else []), "mean batch")
    shown = figure_table("GPUs", (*names, "bound by", "at least", "of bound"))
    for one in forecasts:
        cost = [] if price is None else [f"{one.gpu_hours * price:,.2f}"]
        shown.add_row(
            f"{one.num_gpus}",
            f"{one.num_engines}",
            _time(one.seconds),
            f"{one.gpu_hours:.3g}",
            *cost,
            f"{one.mean_batch:.0f} of {one.max_batch}",
            one.binding,
            _time(one.bounds[one.binding]),
            f"{one.of_bound:.2f}",
        )
    return shown


def _work(name: str, num_trees: int, one: "FleetForecast") -> str:
    return (
        f"{name}, {_count(num_trees, 'tree')} at once: about {one.num_turns:,.0f} turns and "
        f"{one.decode_tokens:,.0f} sampled tokens"
    )


def _advice(
    forecasts: "Sequence[FleetForecast]", asked: "FleetForecast", *, seats: int, in_flight: int, num_drivers: int
) -> Iterator[str]:
    others = max(1e-9, *(value for name, value in asked.bounds.items() if name != "driver"))
    drivers = math.ceil(num_drivers * asked.bounds["driver"] / others)
    yield f"{_count(asked.num_gpus, 'GPU')}: {HELP[asked.binding].format(seats=seats, drivers=drivers)}"
    fastest = min(one.seconds for one in forecasts)
    enough = next(one for one in forecasts if one.seconds <= NEARLY * fastest)
    if enough.num_gpus < forecasts[-1].num_gpus:
        yield f"more than {_count(enough.num_gpus, 'GPU')} save less than a tenth of the time"
    yield f"all trees grow at once: set max_trees to their number (it is {in_flight} in this configuration)"


def _row(one: "FleetForecast", price: float | None) -> dict[str, object]:
    values = {**asdict(one), "binding": one.binding, "gpu_hours": one.gpu_hours}
    return values if price is None else {**values, "dollars": one.gpu_hours * price}


def _time(seconds: float) -> str:
    from ramify.cli.progress import duration

    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
