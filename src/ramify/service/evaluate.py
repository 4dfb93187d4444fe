"""Evaluate: computes the metrics of data sets and training batches, under the names that slime gives them.

It uses no files and no trackers. Missing rewards are counted separately and are in no mean. `pass@k` is computed
per problem, so the order of samples does not matter. A metric that is not known is left out. Source of the names and of
the step: THUDM/slime slime/observability/rollout_metrics.py.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from rich.table import Table
from rich.text import Text

from ramify.core.errors import ConfigError, ContractError
from ramify.experiments.evaluation import RIGHT
from ramify.experiments.proportions import pass_at_k
from ramify.rows.sample import Sample, SampleStatus
from ramify.rows.slime import was_ended_by_coin
from ramify.service.eval_results import EvalResult, grouped, groups_of, number, reward_of

EVAL_STEP: Final = "eval/step"
ROLLOUT_STEP: Final = "rollout/step"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRule:
    """The step that metrics are logged at: the number of the rollout, or the number of the train step that it begins
    (slime: wandb_always_use_train_step). The sizes say how many samples a rollout and a train step have."""

    always_train_step: bool = False
    rollout_batch_size: int | None = None
    """Groups in a training batch."""
    n_samples_per_prompt: int | None = None
    global_batch_size: int | None = None
    """Samples in a train step."""

    def __post_init__(self) -> None:
        sizes = {
            "rollout_batch_size": self.rollout_batch_size,
            "n_samples_per_prompt": self.n_samples_per_prompt,
            "global_batch_size": self.global_batch_size,
        }
        if faulty := [f"{name} = {n!r}" for name, n in sizes.items() if n is not None and n < 1]:
            raise ConfigError(f"{', '.join(faulty)}: must be at least 1")
        if self.always_train_step and (missing := [name for name, n in sizes.items() if n is None]):
            raise ConfigError(f"always_train_step = True counts train steps: set {', '.join(missing)} as well")

    def step(self, rollout_id: int) -> int:
        """Value of `eval/step` and `rollout/step`."""
        if not self.always_train_step:
            return rollout_id
        assert self.rollout_batch_size and self.n_samples_per_prompt and self.global_batch_size
        return rollout_id * self.rollout_batch_size * self.n_samples_per_prompt // self.global_batch_size


def eval_metrics(results: Sequence[EvalResult], *, right: float = RIGHT) -> dict[str, float]:
    """Name -> value, for all data sets. A metric that is not known is left out.

    `right`: the lowest reward of a right answer. Raises `ContractError` if two data sets have the same name.
    """
    if twice := [name for name, count in Counter(result.name for result in results).items() if count > 1]:
        raise ContractError(f"two data sets are called {twice[0]!r}: give each a name of its own")
    return {f"eval/{result.name}{key}": value for result in results for key, value in _figures(result, right).items()}


def rollout_metrics(
    samples: Sequence[Sample], *, version: int | None = None, reward_key: str | None = None
) -> dict[str, float]:
    """Name -> value for a training batch, under `rollout/`. `version`: that of the weights that the batch trains.

    If a sample's metadata have a `raw_reward`, it is counted instead of the trained reward. A path that ended by random
    termination (the coin) has no reward, and does not count as unjudged. Raises `ContractError` if only some samples
    say which group they belong to.
    """
    if not samples:
        return {}
    figures = {
        **_reward_figures([sample for sample in samples if not was_ended_by_coin(sample)], reward_key),
        "truncated_ratio": fmean(sample.status == SampleStatus.TRUNCATED for sample in samples),
        **_spread("response_len", [sample.response_length for sample in samples]),
        **({} if version is None else _staleness(samples, version)),
    }
    return {f"rollout/{name}": value for name, value in figures.items()}


def _reward_figures(samples: Sequence[Sample], reward_key: str | None) -> dict[str, float]:
    if not samples:
        return {}
    rewards = [reward_of(sample, reward_key) for sample in samples]
    raw = [
        value for sample, reward in zip(samples, rewards, strict=True) if (value := _raw(sample, reward)) is not None
    ]
    return {
        **({"raw_reward": fmean(raw)} if raw else {}),
        "unjudged_ratio": rewards.count(None) / len(rewards),
        **_without_signal(grouped(groups_of(samples), rewards)),
    }


def table(results: Sequence[EvalResult], *, step: int | None = None, right: float = RIGHT) -> Table:
    """The same metrics as a table for the console, one row per data set. A dash = not known."""
    title = "evaluation" if step is None else f"evaluation at step {step}"
    made = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    made.add_column("data set")
    for column in ("problems", "samples", "reward", "± error", "pass@k", "truncated", "unjudged", "length", "longest"):
        made.add_column(column, justify="right")
    for result in results:
        made.add_row(Text(result.name), *_cells(result, _figures(result, right)))
    return made


def standard_error(groups: Sequence[Sequence[float]]) -> float | None:
    """Standard error of the mean of all values, for independent groups with dependent values inside; None = fewer than
    two groups.

    The cluster-robust formula. If all groups have one size, it equals the standard error of the mean of the group
    means.
    """
    if len(groups) < 2:
        return None
    size, mean = sum(map(len, groups)), fmean(value for group in groups for value in group)
    squares = sum((sum(group) - mean * len(group)) ** 2 for group in groups)
    return math.sqrt(squares * len(groups) / (len(groups) - 1)) / size


def _figures(result: EvalResult, right: float) -> dict[str, float]:
    """Suffix after the data set's name -> value."""
    judged, groups = result.judged, list(result.by_problem.values())
    figures = {"": fmean(judged)} if judged else {}
    if result.is_truncated is not None:
        figures["-truncated_ratio"] = fmean(result.is_truncated)
    figures["-unjudged_ratio"] = result.rewards.count(None) / len(result.rewards)
    if (error := standard_error(groups)) is not None:
        figures["-stderr"] = error
    counts = [(len(group), sum(reward >= right for reward in group)) for group in groups]
    for k in _draws(min((size for size, _ in counts), default=0)):
        figures[f"-pass@{k}"] = fmean(pass_at_k(size, num_right, k) for size, num_right in counts)
    return figures | _spread("/response_len", result.response_lengths or ())


def _draws(most: int) -> list[int]:
    """1, 2, 4, … and `most` itself."""
    return sorted({most, *(2**i for i in range(most.bit_length()))}) if most else []


def _spread(name: str, values: Sequence[int] | Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    spread = {"mean": fmean(values), "median": median(values), "max": max(values), "min": min(values)}
    return {f"{name}/{word}": float(value) for word, value in spread.items()}


def _without_signal(groups: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Share of groups whose rewards are all equal, and the number of such groups per reward, rounded to a tenth."""
    if not groups:
        return {}
    same = [group[0] for group in groups.values() if len(set(group)) == 1]
    counts = Counter(f"zero_std/count_{round(reward, 1)}" for reward in same)
    return {"zero_std/ratio": len(same) / len(groups), **{name: float(count) for name, count in counts.items()}}


def _staleness(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """How many versions the oldest token of each sample is behind, for samples whose versions are all numbers."""
    oldest = [min(map(int, words)) for sample in samples if (words := _versions(sample))]
    behind = _spread("staleness", [version - old for old in oldest])
    return {**behind, "staleness/unknown_ratio": (len(samples) - len(oldest)) / len(samples)}


def _versions(sample: Sample) -> list[str]:
    """The versions of a sample; empty if one of them is not a number."""
    words = [str(version) for version in sample.weight_versions]
    return words if all(word.isascii() and word.isdigit() for word in words) else []


def _raw(sample: Sample, reward: float | None) -> float | None:
    raw = sample.metadata.get("raw_reward")
    return reward if raw is None else number(raw, f"sample {sample.index}: metadata['raw_reward']")


def _cells(result: EvalResult, figures: Mapping[str, float]) -> list[str]:
    def cell(key: str, form: str) -> str:
        return f"{figures[key]:{form}}" if key in figures else "-"

    passes = [key for key in figures if key.startswith("-pass@")]
    shown = dict.fromkeys(passes[:1] + passes[-1:])
    return [
        str(len(set(result.problems))) if result.problems else "-",
        str(len(result.rewards)),
        cell("", ".3f"),
        cell("-stderr", ".3f"),
        ", ".join(f"{key.removeprefix('-pass@')}: {figures[key]:.3f}" for key in shown) or "-",
        cell("-truncated_ratio", ".1%"),
        cell("-unjudged_ratio", ".1%"),
        cell("/response_len/mean", ".1f"),
        cell("/response_len/max", ".0f"),
    ]
