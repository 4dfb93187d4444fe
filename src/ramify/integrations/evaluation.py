"""Evaluation: how a trainer's held-out questions are answered: by independent chains, whatever grows in training."""

from dataclasses import dataclass, replace

from ramify.config.run_config import RowsConfig, RunConfig, StrategyConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSampling:
    """How an evaluation set is sampled. None = the same as for training."""

    num_samples: int
    """Samples per question."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_response_tokens: int | None = None


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
