"""Samplers: the generic shapes of the exact problems, grown as core trees with every decision on record.

Each is a rule: asked when a path arrives at a prefix, it says how many children continue it, before any of their
tokens is drawn. Post-hoc ones are asked where to fork chains that have ended. `gradients_*.json` describes them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
from tests.credit.enumeration import MDP, Draw

from ramify.core.codec import ByteCodec
from ramify.core.command import Fork, Grow, Score
from ramify.core.growth import Done, Growth
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.core.stems import joining
from ramify.core.stop import KEPT, ROULETTE
from ramify.core.tree import ROOT, Step, Tree
from ramify.strategies.tree_grpo import UniformNode
from ramify.strategies.treerl import LeastLikely, TreeRLConfig

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
        self.coins: Mapping[str, Fraction] = {}
        """Prefix -> probability with which a path goes on there, where a prune rule fires."""
        self.is_divided = True
        """Whether what goes on counts for what ended."""
        self.growth = Growth(Tree(PROBLEM, CODEC, [PROMPT], seed=1))

    @property
    def tree(self) -> Tree:
        return self.growth.tree

    def fork(self, node: int, number: int, prefix: str, rules: list[Rule]) -> None:
        """Record one decision and grow its children, each by its own rule, all by the same law."""
        commands = self.decide(node, number)
        self.draw.forked([partial(self.path, c, prefix, rule) for c, rule in zip(commands, rules, strict=True)])

    def decide(
        self, node: int, number: int, *, at: int | None = None, rule: str = "rule", shares: tuple[float, ...] = ()
    ) -> list[int]:
        """Record one decision; returns the commands of its children."""
        first = self.growth.ask(Grow(node, at=at, until="step", fork=Fork(number, rule, shares)))
        decision = len(self.tree.forks) - 1
        place = self.tree.forks[decision].node
        return [first, *(self.growth.ask(Grow(place, until="step", fork=decision)) for _ in range(number - 1))]

    def chain(self, command: int, prefix: str) -> int:
        """Grow a path to its end, a step a token; returns its leaf."""
        while prefix not in self.mdp.rewards:
            law = self.mdp.probs[prefix]
            action = self.draw(law)
            prefix += str(action)
            step = self.thrown(grown_step(self.mdp, prefix, str(action), [math.log(law[action])]), prefix)
            self.growth.grow(command, step)
            if step.stop is not None:
                break
        return self.growth.end(command, Done()).nodes[-1]

    def thrown(self, step: Step, prefix: str) -> Step:
        """The step that ends at a prefix, its coin thrown where there is one."""
        keep = self.coins.get(prefix)
        if keep is None:
            return step
        goes_on = bool(self.draw([1 - keep, keep]))
        return thrown(step, float(keep) if self.is_divided else 1.0, goes_on=goes_on)

    def path(self, command: int, prefix: str, rule: Rule) -> None:
        """Draw tokens until the path ends, a coin is thrown over it, or the rule forks it."""
        text, number = "", 1
        while number == 1 and prefix + text not in self.mdp.rewards:
            law = self.mdp.probs[prefix + text]
            action = self.draw(law)
            text += str(action)
            if prefix + text in self.coins:
                break
            if prefix + text not in self.mdp.rewards:
                number = rule(prefix + text, law[action])
        step = self.thrown(grown_step(self.mdp, prefix + text, text), prefix + text)
        self.growth.grow(command, step)
        node = self.growth.end(command, Done()).nodes[0]
        if step.stop is None:
            self.fork(node, number, prefix + text, [rule] * number)


def grown_step(mdp: MDP, path: str, text: str, logprobs: Sequence[float] | None = None) -> Step:
    """The step by which `text` was added to a path that now ends at `path`."""
    reward = mdp.rewards.get(path)
    return _step(text, None if reward is None else float(reward), None if logprobs is None else tuple(logprobs))


@cache
def _step(text: str, reward: float | None, logprobs: tuple[float, ...] | None) -> Step:
    scores = () if reward is None else (Score("mdp", reward),)
    values = None if logprobs is None else np.array(logprobs, np.float32)
    segment = Segment("sampled", token_array(CODEC.encode(text)), logprobs=values)
    return Step((segment,), stop=None if reward is None else "answer", scores=scores)


def thrown(step: Step, keep: float, *, goes_on: bool) -> Step:
    """The step behind which a coin was thrown, as the grower writes it."""
    if goes_on:
        return replace(step, notes={KEPT: keep})
    return replace(step, stop=ROULETTE)


def sampler(spec: Mapping[str, Any], mdp: MDP) -> Callable[[Draw], Tree]:
    """The sampler that a scheme of a golden file names."""

    def grow(draw: Draw) -> Tree:
        gardener = Gardener(mdp, draw)
        coins = {spec["at"]: spec["keep"]} if spec["kind"] == "roulette" else spec.get("coins", {})
        gardener.coins = {prefix: Fraction(keep) for prefix, keep in coins.items()}
        gardener.is_divided = spec.get("weights") != "plain"
        if spec["kind"] in WHOLE:
            WHOLE[spec["kind"]](gardener, spec)
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
        case "chains" | "roulette":
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

    for command, rule in zip(gardener.decide(ROOT, 2), (lambda prefix, p: 1, second), strict=True):
        gardener.path(command, "", rule)


POST_HOC = {
    "surprise": LeastLikely(TreeRLConfig(forks=1)),
    "surprise_top2": LeastLikely(TreeRLConfig(forks=2)),
    "uniform_node": UniformNode(1),
}
"""Kind of a post-hoc sampler -> where it forks finished chains."""


def post_hoc_sampler(spec: Mapping[str, Any], mdp: MDP) -> Callable[[Draw], Tree]:
    """The post-hoc sampler that a scheme of a golden file names, whatever its weights."""
    rule = POST_HOC[spec["kind"]]

    def grow(draw: Draw) -> Tree:
        gardener = Gardener(mdp, draw)
        trunks = [gardener.chain(command, "") for command in gardener.decide(ROOT, spec["num_trees"])]
        for number, trunk in enumerate(trunks):
            response, start = gardener.tree.branch(trunk).transcript, gardener.tree.length(ROOT)
            places = list(rule.forks(gardener.tree, trunk))
            if spec["kind"] == "uniform_node":
                places = [places[draw([Fraction(1, len(places))] * len(places))]]
            for at in places:
                name = joining("post_hoc", number)
                for command in gardener.decide(trunk, spec.get("num_branches", 1), at=at, rule=name):
                    gardener.chain(command, response[: at - start])
        return gardener.tree

    return grow


def _vine(gardener: Gardener, spec: Mapping[str, Any]) -> None:
    """One path a token a step, with rollouts of share 0 from every prefix of it."""
    node, prefix, number, stop = ROOT, "", spec["num_branches"], None
    while stop is None:
        trunk, *rollouts = gardener.decide(node, 1 + number, shares=(1.0, *[0.0] * number))
        action = gardener.draw(gardener.mdp.probs[prefix])
        step = gardener.thrown(grown_step(gardener.mdp, prefix + str(action), str(action)), prefix + str(action))
        gardener.growth.grow(trunk, step)
        for rollout in rollouts:
            gardener.chain(rollout, prefix)
        node, prefix, stop = gardener.growth.end(trunk, Done()).nodes[0], prefix + str(action), step.stop


WHOLE: Mapping[str, Callable[[Gardener, Mapping[str, Any]], None]] = {"budget": _budget, "vine": _vine}
"""Samplers that are no rule of one path."""
