"""The one table of golden functions: file -> (function, mode) -> the function that is held to it.

A check is called with a case's `input` and `mode` and returns what must equal its `expected`. A case whose function or
mode is not here fails. To cover a file: write its checks in a module beside this one, name them in a section here, add
the section to `TABLE`, and take the file out of `LATER`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.golden import credits, rollouts, rows

from ramify.credit import leaf_loo, leaf_mean, split, subtree_loo

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
    ("split", None): credits.exactly(split),
    ("split_tree_loo", None): credits.split_tree_loo_of_two,
    ("subtree_loo", None): credits.exactly(subtree_loo),
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

TABLE: Final[Mapping[str, Section]] = {
    "gradients_trees": GRADIENTS_TREES,
    "rollout_branch_probability": BRANCH_PROBABILITY,
    "rollout_entropy": ENTROPY,
    "rollout_group_advantages": GROUP_ADVANTAGES,
    "rollout_initial_rollouts": INITIAL_ROLLOUTS,
    "rollout_leaf_sampling": LEAF_SAMPLING,
    "rollout_ledger": LEDGER,
    "rollout_offline_tree": OFFLINE_TREE,
    "rollout_online_budget": ONLINE_BUDGET,
    "rollout_stop_reason": STOP_REASON,
    "rollout_training_weights": TRAINING_WEIGHTS,
}

LATER_FUNCTIONS: Final[Mapping[str, frozenset[str]]] = {
    "gradients_trees": frozenset(
        {
            "ancestor_loo", "leaf_tree_loo", "sibling_loo", "sibling_mean", "split_mean", "split_tree_loo_leafmean",
            "spo", "tree_grpo", "treepo", "treerl",
        }
    ),
}  # fmt: skip
"""Functions of files of the table that no code exists for yet, or that are counterexamples only."""

ENUMERATED: Final = frozenset({"gradients_binary3", "gradients_ragged", "gradients_ternary2"})
"""Files whose cases are expectations: `tests/credit/test_exact_gradients.py` holds the credits to them."""

LATER: Final = frozenset(
    {
        "rollout_at2po", "rollout_deepsearch", "rollout_segment_credit", "rollout_tree_grpo", "rollout_treepo",
        "rollout_treerl", "search_abmcts", "search_agents", "search_beam", "search_mctsr", "search_puct",
        "search_rebase", "search_rstar", "search_traces", "search_votes_stats",
    }
)  # fmt: skip
"""Files whose strategies do not exist yet."""
