"""InitialRollouts: how many chains a tree starts with, fixed or computed from probes (AEPO's dynamic rollouts).

Published (`discard`): two probes are sampled and thrown away. One has at most 50 tokens; its entropy is that of the
first step. The other is a whole rollout with its tools, whose step entropies are averaged. `keep`: one rollout supplies
both numbers and is the first chain. In both cases the number depends on sampled tokens, so no exact credit accepts such
a tree.
"""

from collections.abc import Sequence
from typing import Final, Literal

from ramify.core.command import Failed, Fork, Grow, Grown, Outcome, Tokens
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.branching import Rounding, dynamic_initial_rollouts
from ramify.strategies.parts.entropy import step_entropy

Probes = Literal["keep", "discard"]
Number = int | Literal["dynamic"]
FIRST_PROBE: Final = Tokens(50)
PROBE_ACTION: Final = "probe"
"""Name of the run's action for probes that are thrown away; its role is `probe`."""


class InitialRollouts:
    """The number of initial chains. Only `tell` mutates it."""

    def __init__(self, number: Number, *, n: int, probes: Probes, rounding: Rounding) -> None:
        self.number = None if number == "dynamic" else max(1, min(number, n))
        """Chains to start with, including those grown as probes; None = not known yet."""
        self.num_grown = 0
        """Chains among these that were grown as probes."""
        self._n = n
        self._probes: Probes = probes
        self._rounding: Rounding = rounding
        self._grown: list[tuple[int, ...]] = []

    def probes(self) -> Sequence[Grow]:
        """The probes to start with."""
        if self._probes == "keep":
            return [Grow(ROOT, fork=Fork(1, "initial"))]
        fork = Fork(2, "probe")
        return [Grow(ROOT, until=until, action=PROBE_ACTION, fork=fork) for until in (FIRST_PROBE, "end")]

    def tell(self, tree: Tree, outcome: Outcome, index: int) -> None:
        """The `index`-th probe has ended. The last probe makes the number known.

        A failed probe counts as one without information. If the budget refused a probe, no chain starts.
        """
        if isinstance(outcome, Failed) and outcome.reason == "budget":
            self.number = 0
        if self.number is not None:
            return
        self._grown.insert(index, outcome.nodes if isinstance(outcome, Grown) else ())
        if self._probes == "keep":
            self.num_grown = int(isinstance(outcome, Grown))
            self._conclude(tree, self._grown[0][:1], self._grown[0])
        elif len(self._grown) == 2:
            self._conclude(tree, *self._grown)

    def _conclude(self, tree: Tree, first: Sequence[int], rollout: Sequence[int]) -> None:
        h_steps = [step_entropy(tree, node) for node in rollout] if first else []
        h_root = step_entropy(tree, first[0]) if first else 0.0
        self.number = dynamic_initial_rollouts(h_root, h_steps, self._n, rounding=self._rounding)
