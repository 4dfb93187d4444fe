"""The one table of golden functions: file -> (function, mode) -> the function that is held to it.

A check is called with a case's `input` and `mode` and returns what must equal its `expected`. A case whose function or
mode is not here fails. To cover a file: write its checks in a module beside this one, name them in a section here, add
the section to `TABLE`, and take the file out of `LATER`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.golden import (
    abmcts,
    agents,
    beam,
    best_first,
    calls,
    credits,
    mcts,
    mctsr,
    rebase,
    rollouts,
    rows,
    rstar_beam,
    segments,
    tot,
    treepo,
    treerl,
    turns,
    ucb,
    votes,
)

from ramify.credit import (
    ancestor_loo,
    leaf_loo,
    leaf_mean,
    sibling_loo,
    sibling_mean,
    split,
    split_mean,
    spo,
    subtree_loo,
)
from ramify.credit import treepo as treepo_credit
from ramify.credit import treerl as treerl_credit

Check = Callable[[Any, str | None], Any]
Section = Mapping[tuple[str, str | None], Check]

TRAINING_WEIGHTS: Final[Section] = {
    ("training_rows", "as_published"): rows.training_rows,
    ("training_rows", "corrected"): rows.training_rows,
}

GROUP_ADVANTAGES: Final[Section] = {
    ("group_advantage", "as_published"): credits.group_advantage,
    ("group_advantage", "corrected"): credits.group_advantage,
}

GRADIENTS_TREES: Final[Section] = {
    ("weights", None): credits.weights,
    ("leaf_grpo", None): credits.leaf_grpo,
    ("leaf_loo", None): credits.exactly(leaf_loo),
    ("leaf_mean", None): credits.exactly(leaf_mean),
    ("ancestor_loo", None): credits.exactly(ancestor_loo),
    ("leaf_tree_loo", None): credits.leaf_tree_loo_of_two,
    ("sibling_loo", None): credits.exactly(sibling_loo),
    ("sibling_mean", None): credits.exactly(sibling_mean),
    ("split", None): credits.exactly(split),
    ("split_mean", None): credits.exactly(split_mean),
    ("split_tree_loo", None): credits.split_tree_loo_of_two,
    ("spo", None): credits.exactly(spo),
    ("subtree_loo", None): credits.exactly(subtree_loo),
    ("tree_grpo", None): turns.tree_grpo,
    ("treepo", None): credits.exactly(treepo_credit),
    ("treerl", None): credits.exactly(treerl_credit),
    ("ppo", None): credits.ppo,
}

BRANCH_PROBABILITY: Final[Section] = {
    ("arpo_probability", "as_published"): rollouts.arpo_fork_probability,
    ("arpo_probability", "corrected"): rollouts.arpo_fork_probability,
    ("arpo_decision", None): rollouts.arpo_fork_decision,
    ("aepo_probability", "as_published"): rollouts.aepo_fork_probability,
    ("aepo_decision", None): rollouts.aepo_fork_decision,
}

ENTROPY: Final[Section] = {
    ("step_entropy_topk", None): rollouts.entropy_of_step,
    ("mean_surprisal", None): rollouts.surprisal_of_step,
    ("renormalised_topk_entropy", None): rollouts.renormalised_entropy,
}

INITIAL_ROLLOUTS: Final[Section] = {
    ("dynamic_initial_rollouts", "as_published"): rollouts.initial_rollouts,
    ("dynamic_initial_rollouts", "corrected"): rollouts.initial_rollouts,
}

LEAF_SAMPLING: Final[Section] = {
    ("too_few_leaves", "as_published"): rows.too_few_leaves,
    ("too_few_leaves", "corrected"): rows.too_few_leaves,
}

LEDGER: Final[Section] = {("ledger", "corrected"): rollouts.ledger}

DEEPSEARCH: Final[Section] = {
    ("backup", "as_published"): segments.backup,
    ("uct", "as_published"): segments.uct_score,
    ("frontier_score", "as_published"): segments.frontier,
    ("terminal_choice", "as_published"): segments.choice,
}

SEGMENT_CREDIT: Final[Section] = {
    ("spo_edges", "as_published"): segments.spo_edges,
    ("spo_sizes", None): segments.spo_sizes,
    ("treerpo_siblings", "unverified"): segments.treerpo_siblings,
}

OFFLINE_TREE: Final[Section] = {
    ("offline_tree", "corrected"): rollouts.offline_tree,
    ("offline_plan_as_written", "as_published"): rollouts.offline_plan_as_written,
}

ONLINE_BUDGET: Final[Section] = {
    ("online_rollout", "as_published"): rollouts.online_rollout,
    ("online_rollout", "corrected"): rollouts.online_rollout,
}

STOP_REASON: Final[Section] = {
    ("classify_stop", "as_published"): rollouts.stop_reason,
    ("classify_stop", "corrected"): rollouts.stop_reason,
}

TREE_GRPO: Final[Section] = {
    ("tree_grpo_advantage", "as_published"): turns.tree_grpo_advantage,
    ("tree_grpo_advantage", "corrected"): turns.tree_grpo_advantage,
    ("tree_grpo_sizes", "as_published"): turns.tree_grpo_sizes,
    ("expansion_candidates", None): turns.candidates,
}

AT2PO: Final[Section] = {
    ("node_scores", "as_published"): turns.node_scores,
    ("select", "as_published"): turns.select,
    ("select", "corrected"): turns.select,
    ("turn_credit", "as_published"): turns.turn_credit,
    ("tree_sizes", None): turns.tree_sizes,
}

TREEPO: Final[Section] = {
    ("divergence", "as_published"): treepo.divergence,
    ("weighted_allotment", None): treepo.weighted_allotment,
    ("fallback_index", None): treepo.fallback_index,
    ("subgroup_advantage", "as_published"): treepo.subgroup_advantage,
}

TREERL: Final[Section] = {
    ("fork_positions", "as_published"): treerl.positions,
    ("process_reward_paper", "corrected"): treerl.process_reward_paper,
    ("process_reward_as_published", "as_published"): treerl.process_reward_as_published,
    ("tree_sizes", None): treerl.tree_sizes,
}

VOTES_STATS: Final[Section] = {
    ("votes", "as_published"): votes.vote,
    ("pass_at_k", "as_published"): votes.passed,
    ("mcnemar_exact", "closed_form"): votes.paired,
    ("wilson_95", "closed_form"): votes.interval,
    ("anytime_at_budget", "closed_form"): votes.at_budgets,
    ("call_count", "upper_bound"): calls.call_count,
}

BEAM: Final[Section] = {
    ("hf_beam", "as_published"): beam.hf_beam,
    ("dvts", "as_published"): beam.dvts,
    ("its_beam", "as_published"): beam.its_beam,
    ("particle_filter", "as_published"): beam.particle_filter,
}

REBASE: Final[Section] = {
    ("allocate", "as_published"): rebase.allocate,
    ("allocate", "corrected"): rebase.allocate,
    ("allocate", "guarded_ceil"): rebase.allocate,
    ("trace", "as_published"): rebase.trace,
    ("trace", "corrected"): rebase.trace,
    ("trace", "guarded_ceil"): rebase.trace,
}

PUCT: Final[Section] = {
    ("puct", "closed_form"): ucb.puct_scores,
    ("wu_uct", "closed_form"): ucb.wu_uct_scores,
    ("virtual_loss_puct", "closed_form"): ucb.virtual_loss_scores,
    ("asks_in_a_row", "closed_form"): ucb.asks_in_a_row,
    ("progressive_widening", "closed_form"): ucb.widening,
}

RSTAR: Final[Section] = {
    ("puct", "as_published"): ucb.rstar_puct,
    ("mcts_trace", "as_published"): mcts.rstar_trace,
    ("mcts_trace", "corrected"): mcts.rstar_trace,
    ("beam_trace", "as_published"): rstar_beam.beam_trace,
    ("beam_trace", "corrected"): rstar_beam.beam_trace,
}

AGENTS: Final[Section] = {
    ("lats_uct", "as_published"): agents.lats_uct,
    ("lats_uct", "corrected"): agents.lats_uct,
    ("lats_backpropagate", "as_published"): agents.lats_backpropagate,
    ("rap_trace", "as_published"): agents.rap_trace,
    ("tot_votes", "as_published"): tot.votes,
    ("tot_votes", "corrected"): tot.votes,
    ("tot_value", "as_published"): tot.value,
    ("tot_value", "corrected"): tot.value,
    ("tot_select", "as_published"): tot.select,
    ("tot_select", "corrected"): tot.select,
}

ABMCTS: Final[Section] = {
    ("gaussian_posterior", "as_published"): abmcts.gaussian_posterior,
    ("beta_posterior", "as_published"): abmcts.beta_posterior,
    ("gaussian_draw", "as_published"): abmcts.gaussian_draw,
    ("beta_draw", "as_published"): abmcts.beta_draw,
    ("abmcts_a_trace", "as_published"): abmcts.trace,
    ("ucb1", "as_published"): abmcts.bound,
    ("abmcts_m_prunable", "as_published"): abmcts.prunable,
    ("treequest_mcts_trace", "as_published"): mcts.treequest_trace,
}

TRACES: Final[Section] = {
    ("best_first", "as_published"): best_first.trace,
    ("puct_search", "closed_form"): mcts.puct_search,
    ("tot_bfs", "as_published"): tot.bfs,
}

MCTSR: Final[Section] = {
    ("q_from_rewards", "as_published"): mctsr.q_from_rewards,
    ("uct", "as_published"): mctsr.score,
    ("selection_distribution", "as_published"): mctsr.selection_distribution,
    ("selection_distribution", "corrected"): mctsr.selection_distribution,
    ("backpropagate", "as_published"): mctsr.backpropagate,
    ("trace", "as_published"): mctsr.trace,
    ("trace", "corrected"): mctsr.trace,
    ("call_count", "as_published"): mctsr.call_count,
    ("mathblackbox_ucb", "as_published"): mctsr.mathblackbox_ucb,
    ("mathblackbox_reward", "as_published"): mctsr.mathblackbox_reward,
}

TABLE: Final[Mapping[str, Section]] = {
    "gradients_trees": GRADIENTS_TREES,
    "rollout_at2po": AT2PO,
    "rollout_branch_probability": BRANCH_PROBABILITY,
    "rollout_deepsearch": DEEPSEARCH,
    "rollout_entropy": ENTROPY,
    "rollout_group_advantages": GROUP_ADVANTAGES,
    "rollout_initial_rollouts": INITIAL_ROLLOUTS,
    "rollout_leaf_sampling": LEAF_SAMPLING,
    "rollout_ledger": LEDGER,
    "rollout_offline_tree": OFFLINE_TREE,
    "rollout_online_budget": ONLINE_BUDGET,
    "rollout_segment_credit": SEGMENT_CREDIT,
    "rollout_stop_reason": STOP_REASON,
    "rollout_training_weights": TRAINING_WEIGHTS,
    "rollout_treepo": TREEPO,
    "rollout_treerl": TREERL,
    "rollout_tree_grpo": TREE_GRPO,
    "search_abmcts": ABMCTS,
    "search_agents": AGENTS,
    "search_traces": TRACES,
    "search_mctsr": MCTSR,
    "search_votes_stats": VOTES_STATS,
    "search_beam": BEAM,
    "search_rebase": REBASE,
    "search_puct": PUCT,
    "search_rstar": RSTAR,
}

LATER_FUNCTIONS: Final[Mapping[str, frozenset[str]]] = {
    "gradients_trees": frozenset(
        {
            "split_tree_loo_leafmean",
        }
    ),
}  # fmt: skip
"""Functions of files of the table that no code exists for yet, or that are counterexamples only."""

ENUMERATED: Final = frozenset({"gradients_binary3", "gradients_ragged", "gradients_ternary2"})
"""Files whose cases are expectations: `tests/credit/test_exact_gradients.py` holds the credits to them."""

LATER: Final[frozenset[str]] = frozenset()
"""Files whose strategies do not exist yet."""
