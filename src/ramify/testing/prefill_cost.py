"""Cost: what a tree would have cost on an ideal engine, from its shape alone; shown next to the measured cost.

The model: one engine call per node (the two halves of a split node are one call), whose context is all tokens before
it, and a cache that loses nothing. A call leaves the keys and values of its context and of all its sampled tokens but
the last.
"""

from ramify.core.ledger import Spend
from ramify.core.tree import ROOT, Tree


def modelled_spend(tree: Tree, *, block: int = 1) -> Spend:
    """Leaves, calls, decode and prefill tokens and tool calls of `tree` under the model. O(nodes).

    `prefill_cached` is the longest prefix of a call's context that an earlier call left, never the whole context,
    rounded down to a multiple of `block`. Siblings run in order of request; a fresh context shares nothing.
    """
    spend = Spend(leaves=len(tree.leaves()))
    for node in range(len(tree)):
        spend.decode += tree.num_sampled(node)
        spend.tool_calls += sum(s.tool_call is not None and s.tool_call.is_executed for s in tree.segments(node))
        cached = _num_computed(tree, node)
        for child in tree.children(node):
            if tree.node_seed(child) != tree.node_seed(node):
                _bill_call(spend, tree.length(node), cached // block * block)
            cached = tree.length(node) - 1
        for child in tree.derived(node):
            _bill_call(spend, sum(len(s) for s in tree.segments(child) if s.origin == "prompt"), 0)
    return spend


def decode_if_chains(tree: Tree) -> int:
    """Tokens that the same leaves would have needed without sharing. Divided by `decode`: the saving of the tree."""
    above = {ROOT: tree.num_sampled(ROOT)}
    for node in tree.subtree()[1:]:
        parent = tree.parent(node)
        assert parent is not None
        above[node] = above[parent] + tree.num_sampled(node)
    return sum(above[leaf] for leaf in tree.leaves())


def _num_computed(tree: Tree, node: int) -> int:
    """Tokens on the branch of `node` whose keys and values the call that made the node has left."""
    if node == ROOT:
        return 0
    num_observed = 0
    for segment in reversed(tree.segments(node)):
        if segment.is_sampled:
            break
        num_observed += len(segment)
    return max(0, tree.length(node) - num_observed - 1)


def _bill_call(spend: Spend, num_context: int, num_cached: int) -> None:
    spend.engine_calls += 1
    spend.prefill_cached += num_cached
    spend.prefill_uncached += num_context - num_cached
