"""Slime config: what slime's arguments set of a run: the engines behind its router, the temperature, the length of a
response, the size of a group. See `integrations/trainer_config.py`."""

from collections.abc import Iterator, Mapping
from typing import Any

from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError
from ramify.integrations.slime.args import SlimeArgs
from ramify.integrations.trainer_config import MAX_RESPONSE, TEMPERATURE, filled, is_chains, said_at, said_in


def training_config(args: SlimeArgs) -> RunConfig:
    """The configuration of the run that makes training batches. Raises `ConfigError`."""
    said = said_in(args.config)
    return filled(args.config, said, _set(said, args), temperature=args.temperature, named="rollout_temperature")


def _set(said: Mapping[str, Any], args: SlimeArgs) -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of what the arguments set."""
    yield "task.name", "data"
    yield from _engine(said, args)
    if args.temperature is not None:
        yield TEMPERATURE, args.temperature
    if args.max_response_tokens is not None:
        yield MAX_RESPONSE, args.max_response_tokens
    if args.num_drawn is not None or args.num_groups is not None:
        yield "max_trees", args.num_drawn or args.num_groups
    if args.num_samples is not None and is_chains(said):
        yield "strategy.options.n", args.num_samples


def _engine(said: Mapping[str, Any], args: SlimeArgs) -> Iterator[tuple[str, Any]]:
    """The trainer's engines, unless the TOML names others."""
    if said_at(said, "engine.name") not in (None, "sglang") or said_at(said, "engine.replicas"):
        return
    yield "engine.name", "sglang"
    if args.model is not None:
        yield "engine.model", args.model
    if args.router is not None:
        yield "engine.base_url", args.router
    elif said_at(said, "engine.base_url") is None:
        raise ConfigError(
            f"{args.config} names no engine, and the arguments no router (sglang_router_ip, sglang_router_port)"
        )
