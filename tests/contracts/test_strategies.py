"""What every strategy keeps to, whatever it does: run over every registered one, in several configurations."""

import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from ramify import plugins
from ramify.core.command import Grow
from ramify.core.errors import ContractError
from ramify.core.strategy import Strategy
from ramify.strategies.beam import BeamPublished
from ramify.strategies.lats import LATSPublished
from ramify.strategies.mcts.config import FirstPlay, Widening
from ramify.strategies.mcts.node import Counting
from ramify.strategies.mcts.priors import Prior
from ramify.strategies.mctsr.config import MCTSrPublished
from ramify.strategies.offline import OfflinePublished
from ramify.strategies.online import OnlinePublished
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.frontier import FrontierWeights
from ramify.strategies.rap import RAPPublished
from ramify.strategies.rstar_mcts import RStarMCTSPublished
from ramify.strategies.tot.bfs import LevelRules
from ramify.strategies.tot.dfs import DepthRules
from ramify.strategies.treerl import TreeRLPublished
from ramify.testing.contracts.rules import keep
from ramify.testing.contracts.strategies import STRATEGY_RULES, StrategyCase

TWO_WAYS: dict[str, object] = {"first_actions": ("policy", "policy"), "actions": ("refine", "rewrite")}
CONFIGURATIONS: dict[str, list[dict[str, object]]] = {
    "ab_mcts": [
        {},
        {"max_in_flight": 1, "family": "beta", "num_answers": 12},
        {**TWO_WAYS, "model_selection": "stack", "in_flight": "none", "refill": "all", "max_in_flight": 3},
        {**TWO_WAYS, "family": "beta", "reward_average_priors": (0.3, 0.6), "max_in_flight": 9, "num_answers": 30},
        {**TWO_WAYS, "model_selection": "multiarm_bandit_ucb", "vote": "majority"},
        {"first_actions": ("policy", "other"), "actions": (), "judge": "reward"},
    ],
    "ab_mcts_m": [
        {},
        {**TWO_WAYS, "model_selection": "stack", "in_flight": "none", "refill": "all", "max_in_flight": 3},
        {**TWO_WAYS, "max_in_flight": 1, "prune_share": None, "reward_average_priors": (0.6,)},
        {**TWO_WAYS, "model_selection": "multiarm_bandit_ucb", "max_in_flight": 9},
    ],
    "at2po": [
        {},
        {"initial_rollouts": 2, "expansion_nodes": 8, "too_few": "repeat", "penalty": 0.5},
        {"initial_rollouts": 4, "expansion_iterations": 3, "candidates": "all", "penalty_excludes_initial": True},
    ],
    "beam": [
        {"max_depth": 5},
        {
            "width": 2,
            "samples": 2,
            "max_depth": 6,
            "agg": "min",
            "published": BeamPublished(room="full", ties="argsort", repeats="kept"),
        },
        {"width": 2, "samples": 3, "max_depth": 3, "lookahead": 1, "finished": "any_end"},
        {"width": 2, "samples": 2, "max_depth": 4, "lookahead": 2, "lookahead_use": "discarded", "agg": "prod"},
        {"width": 2, "samples": 2, "max_depth": 6, "first_level": "samples", "ended": "stay", "last_level": "step"},
        {"width": 3, "samples": 2, "max_depth": 5, "ended": "place_if_best", "fill": "path", "order": "score"},
        {
            "width": 3,
            "samples": 3,
            "max_depth": 4,
            "last_level": "step",
            "ended": "place_always",
            "fill": "path",
            "failure_value": 0.0,
            "published": BeamPublished(join="position", repeats_by="text"),
        },
    ],
    "best_first": [{}, {**TWO_WAYS, "pops": 3, "num_answers": 30}, {"num_samples": 3, "num_answers": 8}],
    "best_of_n": [
        {},
        {"n": 3, "judge": "process"},
        {"n": 5, "in_flight": 2, "judge": "process"},
        {"n": 5, "vote": "majority", "judge": "process"},
    ],
    "chains": [{}, {"n": 3, "repeat": "closed"}, {"n": 3, "repeat": "budget", "max_chains": 12}],
    "deepsearch": [
        {"n": 4, "width": 3, "segment_tokens": 4, "max_depth": 5},
        {"n": 2, "width": 4, "segment_tokens": 2, "max_depth": 3, "divisor": "all"},
        {"n": 3, "width": 2, "segment_tokens": 3, "frontier": FrontierWeights(surprisal=0.4, depth_bonus="log")},
    ],
    "dvts": [
        {"width": 2, "samples": 2, "max_depth": 6},
        {"width": 3, "samples": 2, "max_depth": 4, "returned": "last", "finished": "any_end", "agg": "mean"},
        {"width": 3, "samples": 2, "max_depth": 4, "returned": "last", "finished": "any_end", "ends_at": "a"},
        {"width": 2, "samples": 2, "max_depth": 4, "lookahead": 1},
    ],
    "lats": [
        {"width": 3, "iterations": 3, "depth_limit": 4, "rollout_depth": 2},
        {
            "width": 2,
            "iterations": 5,
            "depth_limit": 5,
            "rollout_depth": 1,
            "success": 0.95,
            "published": LATSPublished(unvisited="value"),
        },
        {
            "width": 3,
            "iterations": 3,
            "depth_limit": 4,
            "ends": "reward",
            "published": LATSPublished(
                mean_of="visits_again",
                join="position",
                rollout_from="root",
                rollout_choice="ended",
                rollout_states="loose",
                rollout_value="mean_with_zero",
                cut_value=-1.0,
                last_step="step",
            ),
        },
    ],
    "mcts": [
        {"n": 24},
        {"n": 20, "in_flight": 1, "answer": "best", "choice": Counting(rule="muzero", backup="max")},
        {
            "n": 24,
            "width": 3,
            "valued": "when_selected",
            "choice": Counting(pending="virtual_loss", backup="softmax"),
            "first_play": FirstPlay("first"),
        },
        {"n": 20, "value": "rollout", "rollout_action": "probe", "judge": "", "max_depth": 3},
        {
            "n": 24,
            "width": 2,
            "in_flight": 5,
            "choice": Counting(rule="uct", pending="ignored"),
            "prior": Prior(evidence="none"),
            "widening": Widening(kind="once"),
            "surplus": "discard",
            "endings": "revisit",
        },
        {
            "n": 24,
            "actions": ("policy", "other"),
            "refill": "when_empty",
            "in_flight": 4,
            "value_range": None,
            "prior": Prior(noise=0.25),
            "widening": Widening(scale=2.0),
            "duplicates": "keep",
            "segment_tokens": 3,
        },
        {"n": 24, "widening": Widening(kind="once"), "width": 4, "surplus": "adopt", "prior": Prior(evidence="score")},
    ],
    "mctsr": [
        {"max_rollouts": 8},
        {"max_rollouts": 9, "selection": "greedy", "in_flight": 4, "max_children": 3, "scale": 1.0},
        {"max_rollouts": 8, "selection": "pairwise", "in_flight": 3, "initialise": "both"},
        {
            "max_rollouts": 6,
            "initialise": "dummy",
            "penalty": "clip95",
            "stop_judge": "right",
            "published": MCTSrPublished(log_form="paper"),
        },
        {
            "max_rollouts": 8,
            "scale": 1.0,
            "published": MCTSrPublished(
                leaf_visits="ancestor",
                root_score="constant",
                q_memory="assigned",
                all_expanded="root",
                importance_weights="kept",
                pairwise_single="ends",
                judge_root="when_selected",
                judge_failure="ends_search",
                answer_by="q",
            ),
        },
        {
            "max_rollouts": 8,
            "in_flight": 2,
            "selection": "greedy",
            "initialise": "both",
            "max_children": 1,
            "exploration": 1.4,
            "eps": 1e-5,
            "penalty": "fifty",
            "scale": 1.0,
            "published": MCTSrPublished(
                leaf_visits="judgements", root_score="no_bonus", q_memory="leaves", expanded="both"
            ),
        },
    ],
    "offline": [
        {},
        {"choose": "uniform_with_replacement", "expansion_nodes": 3, "beam_size": 3},
        {"choose": "entropy", "expansion_nodes": 2},
        {"choose": "entropy_delta", "expansion_iterations": 3},
        {"commit": "before", "expansion_nodes": 3},
        {"initial_rollouts": "dynamic", "n": 6},
        {"initial_rollouts": "dynamic", "n": 6, "published": OfflinePublished(probes="discard")},
        {"published": OfflinePublished(candidates="chains", chosen="grow")},
    ],
    "online": [
        {},
        {"rounds": "free"},
        {"n": 8, "initial_rollouts": 2, "beam_size": 3, "restart": "all", "order": "shuffle"},
        {"n": 8, "initial_rollouts": 2, "restart": "none", "published": OnlinePublished(baseline="own")},
        {"rule": "aepo", "initial_rollouts": "dynamic", "n": 8},
        {
            "rule": "aepo",
            "initial_rollouts": "dynamic",
            "n": 8,
            "rounds": "free",
            "counter": "path",
            "published": OnlinePublished(probes="discard"),
        },
    ],
    "self_consistency": [
        {"judge": "process", "n": 9},
        {"judge": "process", "n": 12, "in_flight": 3, "confidence": 0.75},
        {"judge": "process", "n": 12, "stop": "window", "window": 3},
    ],
    "tot": [
        {"width": 2, "num_levels": 3, "attempts": 1, "bfs": LevelRules(num_kept=2)},
        {"width": 2, "num_levels": 3, "bfs": LevelRules(num_kept=2, evaluate="vote")},
        {
            "width": 2,
            "num_levels": 3,
            "attempts": 2,
            "duplicate_value": "own",
            "bfs": LevelRules(num_kept=2, select="sample", repeats="kept", zero_values="stop"),
        },
        {"width": 3, "num_levels": 2, "duplicate_value": "share", "bfs": LevelRules(num_kept=3, select="sample")},
        {"search": "dfs", "width": 2, "num_levels": 3, "attempts": 1, "dfs": DepthRules(max_tried=2, max_steps=6)},
        {
            "search": "dfs",
            "width": 3,
            "num_levels": 3,
            "attempts": 1,
            "dfs": DepthRules(max_tried=2, max_steps=8, threshold=0.1, max_answers=2, ahead=2),
        },
    ],
    "tree_grpo": [
        {},
        {"num_trees": 4, "num_nodes": 1, "num_rounds": 3},
        {"num_trees": 1, "num_nodes": 5, "num_rounds": 2},
        {"num_trees": 3, "num_rounds": 0},
    ],
    "particle_filter": [
        {"n": 5, "max_depth": 6},
        {"n": 4, "max_depth": 6, "weights": "potential", "resample": "always", "scheme": "multinomial"},
        {"n": 6, "max_depth": 3, "last_level": "end", "scheme": "multinomial", "resample": "always"},
    ],
    "rebase": [
        {"width": 6, "max_depth": 6},
        {"width": 6, "max_depth": 5, "rounding": "ceil_float32", "ties": "later", "finished": "any_end"},
        {"width": 5, "max_depth": 4, "rounding": "guarded_ceil", "truncate": 0.5, "agg": "min", "last_level": "end"},
    ],
    "rap": [
        {"width": 2, "iterations": 4, "depth_limit": 4},
        {"width": 3, "iterations": 3, "depth_limit": 3, "simulate": "sample", "calc_q": "max", "output": "max_iter"},
        {"width": 2, "iterations": 5, "depth_limit": 3, "simulate": "random", "cum_reward": "mean"},
        {
            "width": 2,
            "iterations": 6,
            "depth_limit": 4,
            "unvisited": "first",
            "output": "follow_max",
            "published": RAPPublished(
                ends="revisited",
                limit_reward="fast",
                last_step="step",
                root_reward="counted",
                repeats="kept",
                no_answer="none",
            ),
        },
    ],
    "refine_chain": [
        {},
        {"stop": "feedback", "approve": 0.5, "approved": "rewritten", "max_attempts": 6},
        {"stop": "never", "max_attempts": 5},
        {"stop": "feedback", "approve": 0.9},
    ],
    "reject": [
        {},
        {"judge": "process", "threshold": 0.5, "in_flight": 3, "max_chains": 12},
        {"judge": "process", "threshold": 0.9, "outcome": "process", "accept": None, "max_chains": 9},
    ],
    "rstar_mcts": [
        {"iterations": 6, "width": 3, "max_depth": 4},
        {
            "iterations": 5,
            "width": 3,
            "max_depth": 2,
            "in_flight": 3,
            "leaf_visit": "through",
            "published": RStarMCTSPublished(unvisited="parent"),
        },
        {
            "iterations": 6,
            "width": 3,
            "max_depth": 3,
            "outcome": "reward",
            "steps": "unjudged",
            "failure_value": -1.0,
            "ballots": "all",
            "best_by": "weighted",
            "published": RStarMCTSPublished(
                unvisited="zero",
                backup_failures="leaf",
                propagate_dead="by_rollout",
                keep_answers="first",
                duplicates_by="text",
            ),
        },
    ],
    "planned": [
        {"children": (3, 2, 2)},
        {"children": (2.5, 1, 1.5, 2.3)},
        {"children": (5, 0.5, 1.5, 0.7)},
        {"children": (3.4, 0.6, 2), "segment_tokens": 3},
        {"children": (5,)},
    ],
    "segments": [
        {"branching": (3, 2, 2), "segment_tokens": 3},
        {"branching": (2, 1, 3, 2), "segment_tokens": 1},
        {"branching": (5,)},
    ],
    "treepo": [
        {"segment_tokens": 3},
        {"segment_tokens": 1, "width": 7, "max_depth": 3, "divergence": 3, "fallback": "none"},
        {"segment_tokens": 2, "width": 5, "first_divergence": [9, 9], "fallback_window": 1},
        {"segment_tokens": 2, "allotment": "sum", "first_divergence": [2, 2], "remainder": "last"},
        {"segment_tokens": 2, "allotment": "segment", "favours": "likely", "temperature": 0.5},
    ],
    "treerl": [
        {},
        {
            "stems": 2,
            "forks": 3,
            "rounds": 2,
            "continuations": 1,
            "published": TreeRLPublished(ties="later", shortage="repeat"),
        },
        {"stems": 2, "rounds": 0},
        {"stems": 3, "fork": "after", "threshold": 0.99},
        {"stems": 2, "words": ["a"], "published": TreeRLPublished(reading="token", max_position=4)},
    ],
}
Build = Callable[[], Strategy]


def built(name: str, options: dict[str, object], rng: Draws | None = None) -> Strategy:
    strategy_class = plugins.find("strategy", name)
    return strategy_class(strategy_class.Config(**options), rng or np.random.default_rng(5))


def configurations_of(name: str) -> list[dict[str, object]]:
    """Those of a registered strategy; one that is not listed above runs with its defaults."""
    return CONFIGURATIONS.get(name, [{}])


def _parameters() -> list[object]:
    return [
        pytest.param((lambda name=name, options=options: built(name, options)), id=f"{name}-{number}")
        for name in plugins.known("strategy")
        for number, options in enumerate(configurations_of(name))
    ]


every_strategy = pytest.mark.parametrize("build", _parameters())


def test_every_strategy_that_is_configured_here_is_registered() -> None:
    assert set(CONFIGURATIONS) <= set(plugins.known("strategy"))


IMPORT_EACH = """
import importlib, json, sys
from ramify.plugins import TABLE
loaded = {}
for name, place in TABLE["strategy"].items():
    for module in [module for module in sys.modules if module.startswith("ramify.strategies")]:
        del sys.modules[module]
    importlib.import_module(place.split(":")[0])
    loaded[name] = [module for module in sys.modules if module.startswith("ramify.strategies.")]
print(json.dumps(loaded))
"""


def test_importing_a_strategy_imports_no_other_method() -> None:
    """A method is a file of `ramify.strategies`, or a folder for a family; all of them share `parts`."""
    printed = subprocess.run([sys.executable, "-c", IMPORT_EACH], capture_output=True, check=True).stdout
    for name, modules in json.loads(printed).items():
        method = plugins.TABLE["strategy"][name].split(":")[0].split(".")[2]
        assert {module.split(".")[2] for module in modules} <= {method, "parts"}, name


DRAWS = "nothing is drawn but at ask"


@every_strategy
@pytest.mark.parametrize("rule", [rule for rule in STRATEGY_RULES if rule != DRAWS])
def test_every_strategy_keeps_the_contract(build: Build, rule: str) -> None:
    keep(STRATEGY_RULES, rule, StrategyCase(lambda rng: build()), "the strategy")


@pytest.mark.parametrize("name", plugins.known("strategy"))
def test_nothing_is_drawn_but_at_ask(name: str) -> None:
    for options in configurations_of(name):
        case = StrategyCase(lambda rng, options=options: built(name, options, rng))
        keep(STRATEGY_RULES, DRAWS, case, f"{name} with {options}")


def test_a_strategy_that_grows_a_closed_path_is_refused() -> None:
    trip = StrategyCase(lambda rng: built("chains", {})).grown()
    leaf = trip.tree.leaves()[0]
    with pytest.raises(ContractError, match="it ended with"):
        trip.driver.growth.ask(Grow(leaf))
