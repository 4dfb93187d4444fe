"""A strategy: grow first steps, then fork behind each of them. All forks are decided beforehand.

ramify rollout --strategy examples/first_steps.py:FirstSteps --engine scripted --prompts 2
python examples/first_steps.py          (checks it against the contract of a strategy)
"""

from dataclasses import dataclass

from ramify import ROOT, Fork, Grow, Grown, Phase


@dataclass(frozen=True, slots=True)
class Config:
    stems: int = 2
    children: int = 2


class FirstSteps:
    """`stems` first steps, and `children` continuations of each to its end."""

    Config = Config
    measures = frozenset()
    is_order_free = True
    post_hoc_reason = ""

    def __init__(self, config, rng):
        self.config, self.has_begun, self.num_open, self.firsts = config, False, 0, []

    def ask(self, tree):
        grows = [] if self.has_begun else [Grow(ROOT, until="step") for _ in range(self.config.stems)]
        for node in self.firsts:
            fork = Fork(self.config.children, "first step")
            grows += [Grow(node, fork=fork) for _ in range(self.config.children)]
        self.has_begun, self.firsts, self.num_open = True, [], self.num_open + len(grows)
        return grows

    def tell(self, tree, outcome):
        self.num_open -= 1
        if isinstance(outcome, Grown) and not tree.is_ended(outcome.tip):
            self.firsts.append(outcome.tip)

    def is_done(self, tree):
        return self.has_begun and not self.num_open and not self.firsts

    def phase(self, tree):
        return Phase("collection" if self.is_done(tree) else "expansion")


if __name__ == "__main__":
    from ramify.testing import check_strategy

    check_strategy(FirstSteps)
    check_strategy(FirstSteps, {"stems": 3, "children": 4})
