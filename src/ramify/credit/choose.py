"""Choose: a credit by name, and whether it is exact for the forest it is given.

Owns the one table of credits. `auto` takes the exact `subtree_loo` where every fork is predictable and the published
`leaf_grpo` where not. An exact credit asked for by name on forks that are not predictable is a `ContractError`: its
numbers would look exact and not be.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from ramify.core.errors import ConfigError, ContractError, nearest
from ramify.credit.forest import Array_N, Forest
from ramify.credit.group import Advantages, group_advantages, leaf_grpo, leaf_loo, leaf_mean
from ramify.credit.split import split, split_tree_loo, subtree_loo


@dataclass(frozen=True, slots=True)
class Credit:
    """One way to give every sampled token its coefficient."""

    coefficients: Callable[[Forest], Array_N]
    """Forest -> (N,) coefficient of every sampled token of each node. Pure, O(nodes)."""
    exact_for: Literal["predictable forks", "chains", "nothing"]
    leaf_advantages: Callable[[Advantages], Advantages] | None = None
    """(num_leaves,) rewards -> (num_leaves,) advantages the coefficients are made of; None = it has none of leaves."""
    min_stems: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Credited:
    """A forest with its coefficients."""

    name: str
    forest: Forest
    coefficients: Array_N
    """(N,) coefficient of every sampled token of each node; the gradient is their sum times grad log pi."""
    leaf_advantages: Advantages | None
    """(num_leaves,) for credits of leaves: the group's plain advantages, coefficient = their sum below / num_leaves."""
    reasons: tuple[str, ...]
    """Why the gradient is not exact; empty = it is."""

    @property
    def weights(self) -> Array_N:
        """(N,) product of shares: what terms without an advantage are weighted by."""
        return self.forest.weight

    @property
    def is_unbiased(self) -> bool:
        return not self.reasons


def _z_scores(rewards: Any) -> Advantages:
    return group_advantages(rewards.astype(float), "grpo")


def _against_others(rewards: Any) -> Advantages:
    return group_advantages(rewards, "rloo")


def _against_mean(rewards: Any) -> Advantages:
    return group_advantages(rewards, "dr_grpo")


CREDITS: Final[Mapping[str, Credit]] = MappingProxyType(
    {
        "leaf_grpo": Credit(leaf_grpo, "nothing", _z_scores),
        "leaf_loo": Credit(leaf_loo, "chains", _against_others, min_stems=2),
        "leaf_mean": Credit(leaf_mean, "nothing", _against_mean),
        "split": Credit(split, "predictable forks"),
        "split_tree_loo": Credit(split_tree_loo, "predictable forks", min_stems=2),
        "subtree_loo": Credit(subtree_loo, "predictable forks"),
    }
)
AUTO: Final = "auto"
NAMES: Final = (AUTO, *CREDITS)
EXACT: Final = "subtree_loo"
"""What `auto` takes where forks are predictable."""
PUBLISHED: Final = "leaf_grpo"
"""What `auto` takes elsewhere: what trainers do to rows that know of no tree."""


def credit(name: str, forest: Forest) -> Credited:
    """Credit `forest` by the credit called `name`, or `auto`.

    Raises `ConfigError` for an unknown name and `ContractError` where an exact credit cannot be exact.
    """
    if name == AUTO:
        name = PUBLISHED if forest.unpredictable else EXACT
    if name not in CREDITS:
        raise ConfigError(f"unknown credit {name!r}; {nearest(name, NAMES)}")
    chosen = CREDITS[name]
    _refuse(name, chosen, forest)
    advantages = None if chosen.leaf_advantages is None else chosen.leaf_advantages(forest.rewards)
    return Credited(name, forest, chosen.coefficients(forest), advantages, _reasons(name, chosen, forest))


def _refuse(name: str, chosen: Credit, forest: Forest) -> None:
    if chosen.exact_for == "predictable forks" and forest.unpredictable:
        raise ContractError(
            f"credit {name!r} is exact for predictable forks only: {'; '.join(forest.unpredictable)}. Use 'auto', a "
            "published credit such as 'leaf_grpo', or a strategy that decides before it samples"
        )


def _reasons(name: str, chosen: Credit, forest: Forest) -> tuple[str, ...]:
    reasons = [*forest.unpredictable, *forest.caveats]
    if chosen.exact_for == "nothing":
        reasons.append(f"{name} is biased or scaled: its baseline holds the leaf itself")
    elif chosen.exact_for == "chains" and forest.is_forked:
        reasons.append(f"{name} is exact for chains only")
    elif len(forest.stems) < chosen.min_stems:
        reasons.append(f"{name} needs {chosen.min_stems} stems and has {len(forest.stems)}")
    return tuple(reasons)
