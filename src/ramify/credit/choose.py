"""Choose: find a credit by name, and say whether it is exact for the given forest.

It owns the one table of credits; a user's own credit is a function beside it (`own`). `auto` uses the exact
`subtree_loo` if every fork is predictable, and the published `leaf_grpo` otherwise. If an exact credit is named for
forks that are not predictable, a `ContractError` is raised: its numbers would look exact but would not be.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Final, Literal, get_args

from ramify.core.errors import ConfigError, ContractError, nearest
from ramify.credit.at2po import Advantage, Value, at2po, at2po_as_published
from ramify.credit.balance import balanced_split, balanced_split_tree_loo, rebalanced
from ramify.credit.deepsearch import deepsearch, deepsearch_as_published
from ramify.credit.forest import Array_N, Forest
from ramify.credit.group import Advantages, group_advantages, leaf_grpo, leaf_loo, leaf_mean
from ramify.credit.grown import MEAN_SURPRISAL
from ramify.credit.own import OwnCredit
from ramify.credit.sibling import ancestor_loo, leaf_tree_loo, sibling_loo, sibling_mean, split_mean
from ramify.credit.split import split, split_tree_loo, subtree_loo
from ramify.credit.spo import spo, spo_as_published
from ramify.credit.to_go import with_rewards_to_go
from ramify.credit.tree_grpo import tree_grpo, tree_grpo_as_published, tree_grpo_leaves, tree_grpo_published_leaves
from ramify.credit.treepo import Weighing, published_advantages, subgroup_advantages, treepo, treepo_as_published
from ramify.credit.treerl import treerl, treerl_as_published
from ramify.credit.treerpo import treerpo
from ramify.credit.vine import vine


@dataclass(frozen=True, slots=True)
class Credit:
    """One way to give every sampled token its coefficient."""

    coefficients: Callable[[Forest], Array_N]
    """Forest -> (N,) coefficient of every sampled token of each node. Pure, O(nodes)."""
    exact_for: Literal["predictable forks", "balanced shares", "chains", "nothing"]
    leaf_advantages: Callable[[Forest], Advantages] | None = None
    """Forest -> (num_leaves,) advantages from which the coefficients are made; None = this credit has no leaf
    advantages."""
    min_stems: int = 1
    measures: tuple[str, ...] = ()
    """Measures of the nodes that this credit reads."""


@dataclass(frozen=True, slots=True, eq=False)
class Credited:
    """A forest with its coefficients."""

    name: str
    forest: Forest
    coefficients: Array_N
    """(N,) coefficient of every sampled token of each node. The gradient is the sum of coefficient times grad log
    pi."""
    leaf_advantages: Advantages | None
    """(num_leaves,) for credits of leaves: the group's plain advantages. A coefficient is their sum below the node /
    num_leaves."""
    reasons: tuple[str, ...]
    """Why the gradient is not exact; empty = it is exact."""

    @property
    def weights(self) -> Array_N:
        """(N,) product of shares: the weight of loss terms without an advantage."""
        return self.forest.weight

    @property
    def is_unbiased(self) -> bool:
        return not self.reasons


def _z_scores(forest: Forest) -> Advantages:
    return group_advantages(forest.rewards.astype(float), "grpo")


def _against_others(forest: Forest) -> Advantages:
    return group_advantages(forest.rewards, "rloo")


def _against_mean(forest: Forest) -> Advantages:
    return group_advantages(forest.rewards, "dr_grpo")


def _turn_credits() -> dict[str, Credit]:
    """AT2PO's credits, one for each value and advantage. The name leaves out `leaf_mean` and `node_value`."""
    found: dict[str, Credit] = {}
    for value, advantage in product(get_args(Value), get_args(Advantage)):
        parts = [part for part in (value, advantage) if part not in ("leaf_mean", "node_value")]
        reads = (MEAN_SURPRISAL,) if value == "child_softmax" else ()
        turn_credit = partial(at2po, value=value, advantage=advantage)
        found["_".join(["at2po", *parts])] = Credit(turn_credit, "nothing", measures=reads)
    return found


def _subgroup_credits() -> dict[str, Credit]:
    """TreePO's published credits: the script's default, and the variants of its two switches. The name leaves out
    default switches."""
    found: dict[str, Credit] = {}
    for weighing, drop_flat in product(get_args(Weighing), (False, True)):
        parts = [*([] if weighing == "average" else [weighing]), *(["drop_flat"] if drop_flat else [])]
        switches = {"weighing": weighing, "drop_flat": drop_flat}
        by_leaf = partial(published_advantages, **switches)
        published = Credit(partial(treepo_as_published, **switches), "nothing", by_leaf)
        found["_".join(["treepo", *parts, "as_published"])] = published
    return found


CREDITS: Final[Mapping[str, Credit]] = MappingProxyType(
    {
        "ancestor_loo": Credit(ancestor_loo, "predictable forks"),
        **_turn_credits(),
        "at2po_as_published": Credit(at2po_as_published, "nothing", measures=(MEAN_SURPRISAL,)),
        "balanced_split": Credit(balanced_split, "balanced shares"),
        "balanced_split_tree_loo": Credit(balanced_split_tree_loo, "balanced shares"),
        "deepsearch": Credit(deepsearch, "nothing", measures=(MEAN_SURPRISAL,)),
        "deepsearch_as_published": Credit(deepsearch_as_published, "nothing", measures=(MEAN_SURPRISAL,)),
        "leaf_grpo": Credit(leaf_grpo, "nothing", _z_scores),
        "leaf_loo": Credit(leaf_loo, "chains", _against_others, min_stems=2),
        "leaf_mean": Credit(leaf_mean, "nothing", _against_mean),
        "leaf_tree_loo": Credit(leaf_tree_loo, "chains", min_stems=2),
        "sibling_loo": Credit(sibling_loo, "predictable forks"),
        "sibling_mean": Credit(sibling_mean, "nothing"),
        "split": Credit(split, "predictable forks"),
        "split_mean": Credit(split_mean, "nothing"),
        "split_tree_loo": Credit(split_tree_loo, "predictable forks", min_stems=2),
        "spo": Credit(spo, "nothing"),
        "spo_as_published": Credit(spo_as_published, "nothing"),
        "spo_grpo_as_published": Credit(partial(spo_as_published, method="grpo"), "nothing"),
        "subtree_loo": Credit(subtree_loo, "predictable forks"),
        "tree_grpo": Credit(tree_grpo, "nothing", tree_grpo_leaves),
        "tree_grpo_as_published": Credit(tree_grpo_as_published, "nothing", tree_grpo_published_leaves),
        "treepo": Credit(treepo, "nothing", subgroup_advantages),
        **_subgroup_credits(),
        "treerl": Credit(treerl, "nothing"),
        "treerl_as_published": Credit(treerl_as_published, "nothing"),
        "treerpo": Credit(treerpo, "nothing"),
        "treerpo_no_std": Credit(partial(treerpo, denominator="none"), "nothing"),
        "vine": Credit(vine, "predictable forks"),
    }
)
"""Name of a credit -> what it computes and where it is exact."""
AUTO: Final = "auto"
"""Takes an exact credit where the forks allow it, else the published one."""
NAMES: Final = (AUTO, *CREDITS)
"""Everything that the setting `credit` allows."""
EXACT: Final = "subtree_loo"
"""What `auto` uses if all forks are predictable."""
PUBLISHED: Final = "leaf_grpo"
"""What `auto` uses otherwise: the same as trainers do with rows that know nothing of a tree."""


def measures_of(name: str | OwnCredit) -> tuple[str, ...]:
    """Measures that the credit called `name` reads; none for `auto` and for a user's own. Raises `ConfigError` for an
    unknown name."""
    if isinstance(name, OwnCredit):
        return ()
    if name not in NAMES:
        raise ConfigError(f"unknown credit {name!r}; {nearest(name, NAMES)}")
    return () if name == AUTO else CREDITS[name].measures


def needs_balance(name: str | OwnCredit) -> bool:
    """Whether the credit called `name` reads the balanced shares of post-hoc forks. A user's own does not."""
    return isinstance(name, str) and name in CREDITS and CREDITS[name].exact_for == "balanced shares"


def credit(name: str | OwnCredit, forest: Forest) -> Credited:
    """Credit `forest` with the credit called `name`, with `auto`, or with a user's own. Where returns are made of
    steps, an exact credit takes the rewards to go (`to_go`); all others, and those of leaf advantages, take whole
    returns.

    Raises `ConfigError` for an unknown name, and `ContractError` if an exact credit cannot be exact or a user's own
    fails.
    """
    if isinstance(name, OwnCredit):
        reasons = (*forest.post_hoc_reasons, *forest.caveats, f"credit {name.name} is not certified")
        return Credited(name.name, forest, name.coefficients(forest), None, reasons)
    if name == AUTO:
        name = PUBLISHED if forest.post_hoc_reasons else EXACT
    if name not in CREDITS:
        raise ConfigError(f"unknown credit {name!r}; {nearest(name, NAMES)}")
    chosen = CREDITS[name]
    _refuse(name, chosen, forest)
    if needs_balance(name):
        forest = rebalanced(forest)
    advantages = None if chosen.leaf_advantages is None else chosen.leaf_advantages(forest)
    is_of_steps = chosen.exact_for != "nothing" and advantages is None
    coefficients = with_rewards_to_go(chosen.coefficients, forest) if is_of_steps else chosen.coefficients(forest)
    return Credited(name, forest, coefficients, advantages, _reasons(name, chosen, forest))


def _refuse(name: str, chosen: Credit, forest: Forest) -> None:
    if chosen.exact_for == "predictable forks" and forest.post_hoc_reasons:
        raise ContractError(
            f"credit {name!r} is exact for predictable forks only: {'; '.join(forest.post_hoc_reasons)}. Use 'auto', a "
            "published credit such as 'leaf_grpo', or a strategy that decides before it samples"
        )


def _reasons(name: str, chosen: Credit, forest: Forest) -> tuple[str, ...]:
    reasons = [*(() if chosen.exact_for == "balanced shares" else forest.post_hoc_reasons), *forest.caveats]
    if chosen.exact_for == "nothing":
        reasons.append(f"{name} is biased or scaled: its baseline holds the leaf itself")
    elif chosen.exact_for == "chains" and forest.is_forked:
        reasons.append(f"{name} is exact for chains only")
    elif chosen.exact_for == "chains" and forest.has_coins:
        reasons.append(f"{name} counts leaves alike, and a coin made some count for others")
    elif len(forest.stems) < chosen.min_stems:
        reasons.append(f"{name} needs {chosen.min_stems} stems and has {len(forest.stems)}")
    return tuple(reasons)
