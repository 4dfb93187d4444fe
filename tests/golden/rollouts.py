"""Adapters of the rollout goldens: a case's input -> what the functions and strategies of the library make of it.

Whole-controller cases run the registered strategy through the driver, in a world that grows what the case scripts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.strategies.world import CODEC, ListDraws, journey, sampled_step, varied

from ramify.core.command import Grow
from ramify.core.format import ToolAction
from ramify.core.growth import Asked, Done, Growth
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Start
from ramify.runner.stopping import STOP_POLICIES, Generated, classify_stop
from ramify.strategies.offline import AS_PUBLISHED as OFFLINE_AS_PUBLISHED
from ramify.strategies.offline import Offline, OfflineConfig
from ramify.strategies.online import ARPO_AS_PUBLISHED, Online, OnlineConfig
from ramify.strategies.parts.branching import (
    Clipping,
    aepo_decision,
    aepo_probability,
    arpo_decision,
    arpo_probability,
    dynamic_initial_rollouts,
)
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.entropy import mean_surprisal, renormalised_topk_entropy, step_entropy_topk
from ramify.testing.prefill_cost import decode_if_chains, modelled_spend

Input = Mapping[str, Any]
CLIPPING: dict[str | None, Clipping] = {"as_published": "score", "corrected": "probability", None: "score"}


def entropy_of_step(given: Input, mode: str | None) -> float | None:
    return step_entropy_topk(
        given["token_logprobs"], given["vocab_size"], max_tokens=given["max_tokens"], reduce=given["reduce"]
    )


def surprisal_of_step(given: Input, mode: str | None) -> float | None:
    return mean_surprisal(given["sampled_logprobs"])


def renormalised_entropy(given: Input, mode: str | None) -> float | None:
    return renormalised_topk_entropy(given["token_logprobs"])


def arpo_fork_probability(given: Input, mode: str | None) -> float:
    return arpo_probability(**given, clipping=CLIPPING[mode])


def arpo_fork_decision(given: Input, mode: str | None) -> bool:
    return arpo_decision(**given, clipping=CLIPPING[mode])


def aepo_fork_probability(given: Input, mode: str | None) -> float:
    return aepo_probability(**given, clipping=CLIPPING[mode])


def aepo_fork_decision(given: Input, mode: str | None) -> bool:
    return aepo_decision(**given, clipping=CLIPPING[mode])


def initial_rollouts(given: Input, mode: str | None) -> int:
    return dynamic_initial_rollouts(**given, rounding="ceil" if mode == "corrected" else "int_plus_one")


def stop_reason(given: Input, mode: str | None) -> dict[str, object]:
    """The case's tag and content are what a format reads as a tool action."""
    tag = given["stop_string"]
    ruling = classify_stop(
        STOP_POLICIES[given["rule"]],
        Generated(
            finish="end_of_sequence" if given["finish_reason"] == "stop" and tag is None else given["finish_reason"],
            action=None if tag is None else ToolAction(tag.strip("</>"), given["content"]),
            calls_made=given["calls_made"],
            call_limit=given["call_limit"],
            response_tokens=given["response_tokens"],
            max_response_tokens=given["max_response_tokens"],
        ),
    )
    return {"action": ruling.action, "stop": ruling.stop, "forced_eos_trained": ruling.forced_eos_trained}


def ledger(given: Input, mode: str | None) -> dict[str, int]:
    tree = _tree_of_shape(given["nodes"], given["prompt_tokens"])
    spend = modelled_spend(tree, block=given["block"])
    return {
        "leaves": spend.leaves,
        "engine_calls": spend.engine_calls,
        "decode_tokens": spend.decode,
        "prefill_cached": spend.prefill_cached,
        "prefill_uncached": spend.prefill_uncached,
        "tool_calls": spend.tool_calls,
        "decode_tokens_if_chains": decode_if_chains(tree),
    }


def _tree_of_shape(nodes: Sequence[Input], prompt_tokens: int) -> Tree:
    """A tree whose nodes have the ids, parents and token counts of the case, grown one command a node."""
    tree = Tree(Problem("p", "q"), CODEC, [Segment("prompt", token_array([1] * prompt_tokens))], seed=1)
    growth = Growth(tree)
    parents = {node["parent"] for node in nodes}
    for node in nodes[1:]:
        command = growth.ask(Grow(node["parent"], until="step"))
        action = Segment("sampled", token_array([2] * node["num_sampled"]))
        observation = Segment("given", token_array([3] * node["num_observed"]), tool_call=ToolCall("t", ""))
        segments = (action, observation) if node["num_observed"] else (action,)
        growth.grow(command, Step(segments, stop=None if node["id"] in parents else "answer"))
        growth.end(command, Done())
    return tree


# -- online --------------------------------------------------------------------------------------------------------


class PathsWorld:
    """Scripted paths, numbered as they are made: a first child goes on with its parent's path, any other branches."""

    def __init__(self, tool_steps: Sequence[int], entropy: Sequence[Sequence[float]]) -> None:
        self._tool_steps = tool_steps
        self._entropy = entropy
        self._made: dict[tuple[int, int], tuple[int, int]] = {}
        """(parent, index there) -> the path the node belongs to, and how many steps the path has made with it."""
        self.sources: list[tuple[int, int] | None] = []
        """For each path: the path it left and after how many of that path's own steps; None = a fresh chain."""
        self.grown: dict[int, tuple[int, str]] = {}
        """Command -> its path, and what the path was then: going on, or why it was made."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        parent, index = start.place.parent, start.place.index
        above = tree.parent(parent)
        path, num_steps = (0, 0) if above is None else self._made[above, tree.index(parent)]
        if above is None or index > 0:
            self.sources.append(None if above is None else (path, num_steps))
            path, num_steps = len(self.sources) - 1, 0
            self.grown[start.command_id] = path, tree.forks[start.place.decision_id].rule
        else:
            self.grown[start.command_id] = path, "goes on"
        self._made[parent, index] = path, num_steps + 1
        stop = "answer" if num_steps == self._tool_steps[path] else None
        return [sampled_step(2, entropy=self._entropy[path][num_steps], stop=stop)]


def online_config(given: Input, mode: str | None) -> OnlineConfig:
    """The case's settings. Only published code has stale baselines; the cases count as published in both modes."""
    stale = tuple((int(path), value) for path, value in given["stale_baselines"].items())
    names = ("rule", "n", "initial_rollouts", "beam_size", "branch_probability", "entropy_weight")
    return varied(
        ARPO_AS_PUBLISHED if mode == "as_published" else OnlineConfig(counter="created"),
        stale_baselines=stale if mode == "as_published" else (),
        **{name: given[name] for name in names},
    )


def online_rollout(given: Input, mode: str | None) -> dict[str, object]:
    """One prompt: every ask of the strategy is one lock-step iteration."""
    draws = ListDraws(given["uniforms"])
    strategy = Online(online_config(given, mode), draws)
    world = PathsWorld(given["tool_steps"], given["entropy"])
    trip = journey(strategy, world)
    asks = [event for event in trip.events if isinstance(event, Asked)]
    rounds = [[world.grown[ask.first_id + i] for i in range(len(ask.commands))] for ask in asks]
    kinds = {path: kind for made in rounds for path, kind in made if kind != "goes on"}
    return {
        "num_paths": len(world.sources),
        "parents": [source and source[0] for source in world.sources],
        "kinds": ["branch" if kinds[path] == given["rule"] else kinds[path] for path in range(len(world.sources))],
        "fork_after_own_step": [source and source[1] for source in world.sources],
        "uniforms_used": draws.num_uniforms,
        "iterations": [
            {
                "generated": len(made),
                "survivors": [path for path, kind in after if kind == "goes on"],
                "branched_from": [s[0] for path, kind in after if kind != "goes on" and (s := world.sources[path])],
                "restarts": sum(kind == "restart" for _, kind in after),
            }
            for made, after in zip(rounds, [*rounds[1:], []], strict=True)
        ],
        "consecutive_counter_end": strategy.consecutive,
    }


# -- offline -------------------------------------------------------------------------------------------------------


class ChainsWorld:
    """Chains of scripted lengths, in order of creation."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = iter(lengths)

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        length = next(self._lengths)
        return [sampled_step(1, entropy=0.0, stop="answer" if i == length - 1 else None) for i in range(length)]


class PicksRule:
    """A rule to choose by that returns the nodes the case names, and notes the candidates it was shown."""

    def __init__(self, picks: Sequence[Sequence[str]]) -> None:
        self._picks = picks
        self.shown: list[list[str]] = []

    def __call__(self, tree: Tree, candidates: Sequence[int], k: int, rng: Draws) -> list[int]:
        labels = labels_of(tree)
        self.shown.append([labels[node] for node in candidates])
        return [labels.index(label) for label in self._picks[len(self.shown) - 1]]


def labels_of(tree: Tree) -> list[str]:
    """`chain.step` of each node; a chain begins at a decision, and its further steps are decisions of nobody."""
    labels, num_chains = ["root"], 0
    for node in range(1, len(tree)):
        if tree.fork(node) is None:
            chain, step = labels[tree.path(node)[-2]].split(".")
            labels.append(f"{chain}.{int(step) + 1}")
        else:
            labels.append(f"{num_chains}.0")
            num_chains += 1
    return labels


def offline_tree(given: Input, mode: str | None) -> dict[str, object]:
    rule = PicksRule(given["picks"])
    config = OfflineConfig(
        initial_rollouts=len(given["chain_steps"]),
        beam_size=given["beam_size"],
        expansion_iterations=len(given["picks"]),
        choose="case.py:picks",
    )
    world = ChainsWorld([*given["chain_steps"], *(length for grown in given["grown"] for length in grown)])
    tree = journey(Offline(config, ListDraws(), choose=rule), world).tree
    labels = labels_of(tree)
    leaves = [node for node in range(len(tree)) if tree.is_leaf(node)]
    return {
        "candidates": rule.shown,
        "parents": {labels[node]: labels[tree.path(node)[-2]] for node in range(1, len(tree))},
        "leaves": [labels[node] for node in leaves],
        "num_nodes": len(tree),
        "num_leaves": tree.num_leaves,
        "max_depth": max(tree.depth(node) for node in leaves),
        "leaves_below": {labels[node]: len(tree.leaves(node)) for node in range(1, len(tree))},
        "steps_generated": sum(spend.turns for spend in tree.spent().values()),
        "steps_if_chains": sum(tree.depth(leaf) for leaf in leaves),
    }


def offline_plan_as_written(given: Input, mode: str | None) -> dict[str, int]:
    names = ("initial_rollouts", "beam_size", "expansion_iterations")
    config = replace(OFFLINE_AS_PUBLISHED, **{name: given[name] for name in names})
    tree = journey(Offline(config, np.random.default_rng(1))).tree
    return {
        "leaves": tree.num_leaves,
        "leaves_from_bare_prompt": len(tree.stems()),
        "rounds_that_did_something": sum(fork.rule != "initial" for fork in tree.forks),
        "inner_forks": sum(fork.node != ROOT for fork in tree.forks),
    }
