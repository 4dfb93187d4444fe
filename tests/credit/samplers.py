"""Samplers: the generic shapes of the exact problems, grown as core trees with every decision on record.

Each is a rule: asked when a path arrives at a prefix, it says how many children continue it, before any of their
tokens is drawn. `gradients_*.json` describes them.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from tests.credit.enumeration import MDP, Draw

from ramify.core.codec import ByteCodec
from ramify.core.command import Fork, Grow, Score
from ramify.core.growth import Done, Growth
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.core.tree import ROOT, Step, Tree

CODEC = ByteCodec(is_exact=True)
PROBLEM = Problem("p", "which digits?")
PROMPT = Segment("prompt", token_array(CODEC.encode("?")))
Rule = Callable[[str, Fraction | None], int]
"""(prefix, probability of its last token; None = none was drawn) -> number of children."""


class Gardener:
    """Grows one tree of an MDP by a rule, path by path."""

    def __init__(self, mdp: MDP, draw: Draw) -> None:
        self.mdp = mdp
        self.draw = draw
        self.growth = Growth(Tree(PROBLEM, CODEC, [PROMPT], seed=1))

    @property
    def tree(self) -> Tree:
        return self.growth.tree

    def fork(self, node: int, number: int, prefix: str, rules: list[Rule]) -> None:
        """Record one decision and grow its children, each by its own rule."""
        first = self.growth.ask(Grow(node, until="step", fork=Fork(number, "rule")))
        decision = len(self.tree.forks) - 1
        others = [self.growth.ask(Grow(node, until="step", fork=decision)) for _ in range(number - 1)]
        for command, rule in zip([first, *others], rules, strict=True):
            self._path(command, prefix, rule)

    def _path(self, command: int, prefix: str, rule: Rule) -> None:
        """Draw tokens until the path ends or the rule forks it."""
        text, number = "", 1
        while number == 1 and prefix + text not in self.mdp.rewards:
            law = self.mdp.probs[prefix + text]
            action = self.draw(law)
            text += str(action)
            if prefix + text not in self.mdp.rewards:
                number = rule(prefix + text, law[action])
        reward = self.mdp.rewards.get(prefix + text)
        scores = () if reward is None else (Score("mdp", float(reward)),)
        segment = Segment("sampled", token_array(CODEC.encode(text)))
        self.growth.grow(command, Step((segment,), stop=None if reward is None else "answer", scores=scores))
        node = self.growth.end(command, Done()).nodes[0]
        if reward is None:
            self.fork(node, number, prefix + text, [rule] * number)


def sampler(spec: Mapping[str, Any], mdp: MDP) -> Callable[[Draw], Tree]:
    """The sampler that a scheme of a golden file names."""

    def grow(draw: Draw) -> Tree:
        gardener = Gardener(mdp, draw)
        if spec["kind"] == "budget":
            _budget(gardener, spec)
            return gardener.tree
        if spec["kind"] == "committed_depth":
            depth = draw([Fraction(1, spec["max_depth"])] * spec["max_depth"])
            rules: list[Rule] = [lambda prefix, p: 2 if len(prefix) == depth else 1]
        else:
            rules = [_rule(spec, draw) for _ in range(spec["num_trees"])]
        if len(rules) == 1:
            rules *= rules[0]("", None)
        gardener.fork(ROOT, len(rules), "", rules)
        return gardener.tree

    return grow


def _rule(spec: Mapping[str, Any], draw: Draw) -> Rule:
    match spec["kind"]:
        case "chains":
            return lambda prefix, p: 1
        case "table":
            return lambda prefix, p: spec["forks"].get(prefix, 1)
        case "coin":
            heads = Fraction(spec["fork_prob"])
            return lambda prefix, p: (
                spec["forks"][prefix] if prefix in spec["forks"] and draw([1 - heads, heads]) else 1
            )
        case "surprise_after":
            return _after_surprise(Fraction(spec["threshold"]), spec["num_children"])
        case kind:
            raise ValueError(f"no sampler {kind!r}")


def _after_surprise(threshold: Fraction, number: int) -> Rule:
    """Fork after the first token whose probability is below the threshold, once a stem."""
    surprised: list[str] = []

    def rule(prefix: str, p: Fraction | None) -> int:
        if p is None or p >= threshold or surprised:
            return 1
        surprised.append(prefix)
        return number

    return rule


def _budget(gardener: Gardener, spec: Mapping[str, Any]) -> None:
    """Stem 0 a chain, stem 1 forks by the table iff stem 0's reward was low."""

    def second(prefix: str, p: Fraction | None) -> int:
        leaf = gardener.tree.stems()[0]
        is_low = (gardener.tree.reward(leaf) or 0) < Fraction(spec["below"])
        return spec["forks"].get(prefix, 1) if is_low else 1

    gardener.fork(ROOT, 2, "", [lambda prefix, p: 1, second])
