"""Checks of the golden traces of Monte Carlo tree searches, each played by the strategy through the driver."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.strategies.world import Journey, path_text, text_step, varied

from ramify.core.command import Grow, Judge, Score
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Asked, Start
from ramify.strategies.mcts.config import TREEQUEST, MCTSConfig, Widening
from ramify.strategies.mcts.node import Counting, MCTSNode
from ramify.strategies.mcts.priors import Prior
from ramify.strategies.mcts.search import MCTS
from ramify.strategies.parts.steering import REWARD
from ramify.strategies.rstar_mcts import AS_PUBLISHED as RSTAR_AS_PUBLISHED
from ramify.strategies.rstar_mcts import RStarMCTS, RStarState

Input = Mapping[str, Any]


class Last(random.Random):
    """The last of what is open completes first."""

    def randrange(self, start: int, *_: Any) -> int:
        return start - 1


class Scripted:
    """The i-th request for a path gets its i-th sample."""

    def __init__(self, script: Input) -> None:
        self.script = script

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        sample = self.script[path_text(tree, start.place.parent)][start.place.index]
        stop = "answer" if sample["terminal"] else None
        return [text_step(sample["text"], stop=stop, logprob=sample["logprob"])]

    def values(self, tree: Tree, command: Judge) -> list[float]:
        path = path_text(tree, command.nodes[0])
        return [next(s["value"] for s in self.script[path[:-1]] if s["text"] == path[-1])]


def puct_search(given: Input, mode: str | None) -> dict[str, object]:
    world = Scripted(given["script"])
    most = max(len(samples) for samples in given["script"].values())
    config = MCTSConfig(
        blocked="wait",
        n=given["max_samples"],
        in_flight=given["in_flight"],
        refill="when_empty",
        choice=Counting(exploration=given["c"]),
        widening=Widening(scale=given["widening_C"], exponent=given["widening_alpha"], most=most),
        prior=Prior(temperature=given["prior_temperature"]),
        finish="leave",
    )
    order = {"fifo": None, "lifo": Last()}.get(given["tell_order"]) or _order(given["tell_order"])
    strategy = MCTS(config, np.random.default_rng(0))
    trip = Journey(strategy, world, delivery="eager", order=order, judge=world.values).run()
    nodes = sorted([strategy.root, *strategy.root.below()], key=lambda node: node.tip)
    ids = {node.tip: number for number, node in enumerate(nodes)}
    asked = [[c.node for c in e.commands if isinstance(c, Grow)] for e in trip.events if isinstance(e, Asked)]
    return {
        "rounds": [[ids[node] for node in grown] for grown in asked if grown],
        "parents": [None if node.parent is None else ids[node.parent.tip] for node in nodes],
        "paths": [path_text(trip.tree, node.tip) for node in nodes],
        "n": [node.visits for node in nodes],
        "W": [node.value_sum for node in nodes],
    }


def _order(name: str) -> random.Random | None:
    if name != "fifo":
        raise NotImplementedError(f"tell order {name!r}")
    return None


class Listed:
    """Growths get the next score of a list, in the order asked."""

    def __init__(self, scores: Sequence[float]) -> None:
        self.scores = iter(scores)
        self.values_of: dict[str, float] = {}

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        text = f"<{len(self.values_of)}>"
        self.values_of[text] = next(self.scores)
        return [text_step(text)]

    def values(self, tree: Tree, command: Judge) -> list[float]:
        return [self.values_of[f"<{path_text(tree, command.nodes[0]).split('<')[-1]}"]]


def treequest_trace(given: Input, mode: str | None) -> dict[str, object]:
    world = Listed(given["scores"])
    config = replace(
        TREEQUEST,
        n=len(given["scores"]),
        width=given["samples_per_action"],
        actions=tuple(given["actions"]),
        choice=replace(TREEQUEST.choice, exploration=given["exploration_weight"]),
    )
    strategy = MCTS(config, np.random.default_rng(0))
    trip = Journey(strategy, world, judge=world.values).run()
    nodes = sorted([strategy.root, *strategy.root.below()], key=lambda node: node.tip)
    ids = {node.tip: number - 1 for number, node in enumerate(nodes)}
    grows = [c for e in trip.events if isinstance(e, Asked) for c in e.commands if isinstance(c, Grow)]
    return {
        "expansions": [[ids[grow.node], grow.action] for grow in grows],
        "visits": [node.visits for node in nodes],
        "value_sums": [node.value_sum for node in nodes],
        "priors": [_prior(node) for node in nodes],
    }


def _prior(node: MCTSNode) -> float:
    return 1.0 if node.parent is None or node.tip == ROOT else node.weight / node.parent.sum_weights


class Steps:
    """rStar's stand-ins: what follows a step, by its text, and what a step's text ended as.

    Answers end without the tag of answers; `knows` says whether they are compared with the ground truth.
    """

    def __init__(self, given: Input) -> None:
        self.script, self.truth = given["script"], given["ground_truth"]
        self.knows = given["config"]["is_sampling"]
        self.max_errors = given["config"]["errors_threshold"]
        self.num_judged = 0

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        texts = [_text(tree, node) for node in tree.path(start.place.parent)][1:]
        text = self.script[texts[-1] if texts else ""]["next"][start.place.index]
        stop = self._stop([*texts, text])
        is_right = self.script[text].get("answer") == self.truth
        scores = (Score("truth", 1.0 if is_right else -1.0, is_oracle=True),) if self.knows else ()
        return [text_step(text, stop=stop, scores=scores if stop == "end_of_sequence" else ())]

    def values(self, tree: Tree, command: Judge) -> list[float]:
        self.num_judged += len(command.nodes)
        return [self.script[_text(tree, node)]["value"] for node in command.nodes]

    def _stop(self, texts: Sequence[str]) -> str | None:
        entry = self.script[texts[-1]]
        if entry.get("unparsable"):
            return "no_valid_step"
        if entry.get("answer") is not None:
            return "end_of_sequence"
        errors = ["error" in self.script[text].get("observation", "ok").lower() for text in texts]
        run = errors[::-1].index(False) if False in errors else len(errors)
        return "tool_errors" if run and run >= self.max_errors else None


WORDS = {"no_valid_step": "no_valid_child", "tool_errors": "too_many_code_errors", "depth_limit": "too_many_steps"}
"""Stop word -> the published name of that end."""


def rstar_trace(given: Input, mode: str | None) -> dict[str, object]:
    world, published, switches = Steps(given), given["config"], given.get("switches", ())
    is_judged = published["need_value_func"] and not published.get("terminal_sample", False)
    config = varied(
        RSTAR_AS_PUBLISHED,
        iterations=given["iterations"],
        width=published["n_generate_sample"],
        max_depth=published["max_depth"],
        exploration=published["c_puct"],
        outcome=REWARD if published["is_sampling"] else "process",
        steps="judged" if is_judged else "unjudged",
        oracle="declared" if published["is_sampling"] else "refused",
        unvisited="first" if "unvisited_first" in switches else "zero",
        backup_failures="root" if "backup_failures" in switches else "leaf",
        propagate_dead="at_once" if "propagate_dead" in switches else "by_rollout",
        ballots="all",
    )
    strategy = RStarMCTS(config, np.random.default_rng(0))
    trip = Journey(strategy, world, judge=world.values).run()
    tags = tags_of(strategy.root)
    finals = [] if world.knows else [tags[c.node] for c in strategy.candidates(trip.tree)]
    return {
        "rollouts": [[[tags[node]] for node in rollout.moves] for rollout in strategy.rollouts],
        "nodes": {
            tags[node.tip]: world_row(world, trip.tree, node) for node in [strategy.root, *strategy.root.below()]
        },
        "num_generated": len(trip.tree) - 1,
        "num_judged": world.num_judged,
        "finals": finals,
    }


def world_row(world: Steps, tree: Tree, node: RStarState) -> dict[str, object]:
    text = _text(tree, node.tip)
    answer = WORDS.get(node.stop or "") or (world.script[text].get("answer") if node.stop else None)
    return {"text": text, "terminal": node.is_closed, "answer": answer, "visits": node.visits, "q": node.q}


def _text(tree: Tree, node: int) -> str:
    return "" if node == ROOT else tree.codec.decode(tree.segments(node)[0].ids)


def tags_of(root: RStarState) -> dict[int, str]:
    """Published labels: the root is 0, children count from 1."""
    found = {root.tip: "0"}
    for node in [root, *root.below()]:
        found.update({c.tip: f"{found[node.tip]}.{i}" for i, c in enumerate(node.children, 1)})
    return found
