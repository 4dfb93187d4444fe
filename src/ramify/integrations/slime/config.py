"""Slime config: combines a TOML file and a trainer's arguments into one run.

The TOML wins. The arguments set what it leaves open: the engines behind the trainer's router, the temperature, the
length of a response. A TOML temperature that differs from the trainer's raises an error, because the trainer computes
logprobs at its own.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ramify.config.configure import resolve
from ramify.config.run_config import RowsConfig, RunConfig, StrategyConfig
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.segment import Sampling
from ramify.integrations.slime.args import SlimeArgs, said_of

TEMPERATURE: Final = "actions.policy.sampling.temperature"
MAX_RESPONSE: Final = "growth.max_response_tokens"


def training_config(args: SlimeArgs) -> RunConfig:
    """The configuration of the run that makes training batches. Raises `ConfigError`."""
    said = _read(args)
    _refuse_other_temperature(said, args)
    flags = {path: value for path, value in _filled(said, args) if _at(said, path) is None}
    is_small = _at(said, "engine.name") == "builtin"
    config = resolve(files=[args.config], flags=flags, is_small=is_small).config
    _refuse_truncated_sampling(config.actions["policy"].sampling, args)
    if config.run_limits != Limits():
        raise ConfigError(
            f"{args.config}: run_limits are of a whole run, and a trainer's has no end; set limits, which are a tree's"
        )
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSampling:
    """How an evaluation set is sampled. None = the same as for training."""

    num_samples: int
    """Samples per question."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_response_tokens: int | None = None

    @classmethod
    def of(cls, dataset: Any, num_samples: int) -> "EvalSampling":
        """Read the trainer's description of an evaluation set."""
        top_k = said_of(dataset, "top_k")
        return cls(
            num_samples=num_samples,
            temperature=said_of(dataset, "temperature"),
            top_p=said_of(dataset, "top_p"),
            top_k=None if top_k is None else max(0, top_k),
            max_response_tokens=said_of(dataset, "max_response_len"),
        )


def evaluation_config(config: RunConfig, asked: EvalSampling) -> RunConfig:
    """The configuration for an evaluation set: independent chains, because leaves of a tree share their beginnings."""
    policy = config.actions["policy"]
    given = {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": asked.top_k}
    sampling = replace(policy.sampling, **{name: value for name, value in given.items() if value is not None})
    room = asked.max_response_tokens or config.growth.max_response_tokens
    return replace(
        config,
        preset=None,
        strategy=StrategyConfig(name="chains", options={"n": asked.num_samples}),
        credit="auto",
        rows=RowsConfig(),
        actions={**config.actions, "policy": replace(policy, sampling=sampling)},
        growth=replace(config.growth.without_coin, max_response_tokens=room),
    )


def _read(args: SlimeArgs) -> Mapping[str, Any]:
    """The parsed file. Raises `ConfigError` if it cannot be read."""
    try:
        return tomllib.loads(args.config.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{args.config} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{args.config} is not valid TOML: {error}") from error


def _filled(said: Mapping[str, Any], args: SlimeArgs) -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of what the arguments set."""
    yield "task.name", "data"
    yield from _engine(said, args)
    if args.temperature is not None:
        yield TEMPERATURE, args.temperature
    if args.max_response_tokens is not None:
        yield MAX_RESPONSE, args.max_response_tokens
    if args.num_drawn is not None or args.num_groups is not None:
        yield "max_trees", args.num_drawn or args.num_groups
    is_chains = "preset" not in said and _at(said, "strategy.name") in (None, "chains")
    if is_chains and args.num_samples is not None and _at(said, "strategy.options.n_agent") is None:
        yield "strategy.options.n", args.num_samples


def _engine(said: Mapping[str, Any], args: SlimeArgs) -> Iterator[tuple[str, Any]]:
    """The trainer's engines, unless the TOML names others."""
    if _at(said, "engine.name") not in (None, "sglang") or _at(said, "engine.replicas"):
        return
    yield "engine.name", "sglang"
    if args.model is not None:
        yield "engine.model", args.model
    if args.router is not None:
        yield "engine.base_url", args.router
    elif _at(said, "engine.base_url") is None:
        raise ConfigError(
            f"{args.config} names no engine, and the arguments no router (sglang_router_ip, sglang_router_port)"
        )


def _refuse_other_temperature(said: Mapping[str, Any], args: SlimeArgs) -> None:
    own = _at(said, TEMPERATURE)
    if own is not None and args.temperature is not None and own != args.temperature:
        raise ConfigError(
            f"{args.config}: {TEMPERATURE} = {own!r}, and the trainer computes logprobs at rollout_temperature = "
            f"{args.temperature!r}; leave the former out"
        )


def _at(said: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of the file; None = not set."""
    value: Any = said
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _refuse_truncated_sampling(sampling: Sampling, args: SlimeArgs) -> None:
    if sampling.top_p < 1 or sampling.top_k:
        raise ConfigError(
            f"{args.config}: the policy samples with top_p = {sampling.top_p!r}, top_k = {sampling.top_k!r}, and the "
            "trainer computes logprobs of the whole distribution; leave them out"
        )
