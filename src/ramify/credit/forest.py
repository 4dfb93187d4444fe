"""Forest: the input of every credit: the sampled paths of one problem as flat arrays, parents first.

It owns shares and weights. A forest has a virtual root, the bare prompt. Its stems (root branches) are what papers call
the trees of a prompt. Every node has a leaf below it, and every leaf has a reward. A token is sampled once and belongs
to one node. Credits are functions of a forest alone. Arrays may hold `fractions.Fraction` objects; then everything that
needs no square root is exact. See `docs/concepts/credit.md`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.core.errors import ContractError

Array_N = npt.NDArray[Any]
"""(num_nodes,) float64, or Fraction objects."""
Ints_N = npt.NDArray[np.int32]
STEM = -1


@dataclass(frozen=True, eq=False)
class Forest:
    """The sampled paths of one problem, N nodes. Never mutated."""

    parent: Ints_N
    """(N,) index of each node's parent, smaller than its own; -1 for a stem."""
    share: Array_N
    """(N,) share of each node in its parent's weight; of a stem, in the whole."""
    reward: Array_N
    """(N,) return of each leaf; NaN on inner nodes."""
    num_tokens: Ints_N
    """(N,) sampled tokens of each node."""
    nodes: Ints_N
    """(N,) id of each node on its tree."""
    post_hoc_reasons: tuple[str, ...] = ()
    """Why some fork was decided because of tokens already drawn; empty = all forks are predictable."""
    caveats: tuple[str, ...] = ()
    """Other reasons why no credit of this forest is exact."""
    measures: Mapping[str, Array_N] = field(default_factory=dict[str, Array_N])
    """Name -> (N,) values of the nodes' own steps, NaN where not computed. Published credits read them."""
    decision: Ints_N | None = None
    """(N,) id of the decision that made each node, in the order decided; -1 = an implicit decision."""
    selected: npt.NDArray[np.bool_] | None = None
    """(N,) whether a leaf's path becomes a row that will be trained; None = all do. Published credits read it."""
    tree: Ints_N | None = None
    """(N,) number of the published method's tree that each node belongs to (`core/stems.py`); None = each stem is a
    tree."""
    has_coins: bool = False
    """Whether random termination (a coin) was used. Paths that it ended have return 0; paths that it let go on count
    for more."""
    earned: Array_N | None = None
    """(N,) what the step at a node's end adds to the return of every path through it, NaN where there is no such step;
    None = returns are not made of steps."""
    balanced: Array_N | None = None
    """(N,) shares that make one round of post-hoc forks exact (`credit/balance.py`); None = not computed."""

    def __post_init__(self) -> None:
        shapes = {array.shape for array in (self.parent, self.share, self.reward, self.num_tokens, self.nodes)}
        if len(shapes) > 1:
            raise ContractError(f"the arrays of a forest must all have the shape (num_nodes,), got {sorted(shapes)}")
        if (self.parent >= np.arange(len(self.parent))).any() or (self.parent < STEM).any():
            raise ContractError(f"a forest must list parents before their children, got parent={self.parent.tolist()}")
        extra = {name: a.shape for name, a in self.measures.items()}
        optional = {"decision": self.decision, "selected": self.selected, "tree": self.tree, "earned": self.earned}
        optional |= {"balanced": self.balanced}
        extra |= {name: a.shape for name, a in optional.items() if a is not None}
        if wrong := {name: shape for name, shape in extra.items() if shape != self.parent.shape}:
            raise ContractError(f"the arrays of a forest have one shape {self.parent.shape}, got {wrong}")
        missing = [int(self.nodes[i]) for i in self.leaves if self.reward[i] != self.reward[i]]
        if missing:
            raise ContractError(f"leaves without a reward: nodes {missing[:8]}; judge them, or leave them out")

    @classmethod
    def of_arrays(cls, parent: Sequence[int], share: Sequence[Any], reward: Sequence[Any]) -> "Forest":
        """A forest of nodes 0 .. N-1 with one token each. `reward` is None on inner nodes. Numbers keep their type."""
        dtype = np.float64 if all(isinstance(x, int | float) for x in share) else object
        rewards = [float("nan") if r is None else r for r in reward]
        size = len(parent)
        return cls(
            parent=np.array(parent, np.int32),
            share=np.array(share, dtype),
            reward=np.array(rewards, dtype),
            num_tokens=np.ones(size, np.int32),
            nodes=np.arange(size, dtype=np.int32),
        )

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def is_leaf(self) -> npt.NDArray[np.bool_]:
        """(N,) whether the node ends a path."""
        is_leaf = np.ones(len(self), bool)
        is_leaf[self.parent[self.parent != STEM]] = False
        return is_leaf

    @cached_property
    def leaves(self) -> Ints_N:
        """(num_leaves,) indices of the leaves."""
        return np.flatnonzero(self.is_leaf).astype(np.int32)

    @cached_property
    def stems(self) -> Ints_N:
        """(num_stems,) indices of the stems."""
        return np.flatnonzero(self.parent == STEM).astype(np.int32)

    def measure(self, name: str) -> Array_N:
        """(N,) a measure that a credit requires. Raises `ContractError` if a node does not have it."""
        values = self.measures.get(name)
        if values is None or np.isnan(values).any():
            raise ContractError(f"this credit reads {name!r}, which not every node has; use an engine that gives it")
        return values

    @property
    def num_leaves(self) -> int:
        return len(self.leaves)

    @cached_property
    def rewards(self) -> Array_N:
        """(num_leaves,) returns of the leaves."""
        return self.reward[self.leaves]

    @cached_property
    def is_forked(self) -> bool:
        """Whether any two paths share a node and then diverge."""
        inner = self.parent[self.parent != STEM]
        return len(np.unique(inner)) < len(inner)

    @cached_property
    def weight(self) -> Array_N:
        """(N,) product of the shares on the way to each node: w_c."""
        weights = self.share.tolist()
        for node, parent in enumerate(self.parent.tolist()):
            if parent != STEM:
                weights[node] = weights[parent] * weights[node]
        return np.array(weights, self.share.dtype)

    @cached_property
    def outside(self) -> Array_N:
        """(N,) planned weight of everything that is not below each node; without random termination it is 1 - w_c."""
        shares, parents = self.share.tolist(), self.parent.tolist()
        sums: dict[int, Any] = {}
        for parent, share in zip(parents, shares, strict=True):
            sums[parent] = sums.get(parent, 0) + share
        weight, outside = self.weight.tolist(), list(shares)
        for node, parent in enumerate(parents):
            beside = sums[parent] - shares[node]
            outside[node] = beside if parent == STEM else outside[parent] + weight[parent] * beside
        return np.array(outside, self.share.dtype)

    @cached_property
    def value(self) -> Array_N:
        """(N,) split-weighted mean return below each node: Q_c."""
        values, shares = np.where(self.is_leaf, self.reward, 0).tolist(), self.share.tolist()
        for node, parent in self._upwards:
            if parent != STEM:
                values[parent] = values[parent] + shares[node] * values[node]
        return np.array(values, self.share.dtype)

    @cached_property
    def mean(self) -> Any:
        """Split-weighted mean return of the whole forest: V."""
        return (self.share[self.stems] * self.value[self.stems]).sum()

    @cached_property
    def stem(self) -> Ints_N:
        """(N,) index of the stem that each node grows from."""
        stems = list(range(len(self)))
        for node, parent in enumerate(self.parent.tolist()):
            if parent != STEM:
                stems[node] = stems[parent]
        return np.array(stems, np.int32)

    def over_leaves(self, values: Array_N) -> Array_N:
        """(N,) sum of (num_leaves,) `values` over the leaves below each node; for a leaf, its own value."""
        sums = np.zeros(len(self), values.dtype)
        sums[self.leaves] = values
        totals = sums.tolist()
        for node, parent in self._upwards:
            if parent != STEM:
                totals[parent] = totals[parent] + totals[node]
        return np.array(totals, values.dtype)

    @cached_property
    def _upwards(self) -> list[tuple[int, int]]:
        """(node, parent) pairs, children before their parents."""
        parents: list[int] = self.parent.tolist()
        return list(enumerate(parents))[::-1]
