"""MCTSr's view of a tree: answers with their visits, q and reward samples, and the lists of its source.

Everything is computed from the stored tree. A judgement is a score of the search's judge, after the penalty. A rollout
is a critique, whatever came of it. q is the mean of an answer's own q and the q of its best child, computed upward from
the leaves, as in the corrected search. The published rules give a q that depends on the order in which answers were
judged; it is not computed here. The own q and the samples are the same in both.

Answers are children of the answer they were made from; critiques and grades are not nodes. Source: arXiv 2406.07394;
BrendanGraham14/mcts-llm src/mcts_llm/mctsr.py.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ramify.core.errors import ConfigError
from ramify.core.stop import STOP_WORDS
from ramify.core.tree import ROOT, Tree
from ramify.formats.tags import response_of
from ramify.strategies.mctsr.config import MCTSrConfig
from ramify.strategies.mctsr.scores import halfway, penalised, q_of

CORRECTED: Final = MCTSrConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class MCTSrNode:
    """One answer. Parents and children are the nodes of the tree at which answers end."""

    node: int
    answer: str
    """The whole response, as prompts quote it: what tools wrote is in it, so it is no final answer."""
    parent: int | None
    """None = a first answer."""
    children: tuple[int, ...]
    """In order of request."""
    visits: int
    """Counted by the search's `leaf_visits`: its first judgement, if that counts, plus the rollouts from it or below
    it; or the number of its judgements."""
    Q: float
    own_q: float
    """q of its own samples; 0 without any."""
    reward_samples: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"children": list(self.children), "reward_samples": list(self.reward_samples)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MCTSrTrace:
    """What a search did, in order."""

    critiques: tuple[str, ...]
    """One for each rollout whose critique succeeded."""
    refinements: tuple[str, ...]
    """Whole rewritten answers."""
    rewards: tuple[float, ...]
    """Judgements after penalties, in the order of a search with one rollout in flight: first those of the first
    answers, then for each rollout those of the chosen answer and of its rewrite."""
    selected_nodes: tuple[int, ...]
    """The answer that each rollout chose."""

    def as_dict(self) -> dict[str, Any]:
        return {name: list(values) for name, values in asdict(self).items()}


def mctsr(tree: Tree, node: int, config: MCTSrConfig = CORRECTED) -> MCTSrNode:
    """The answer that ends at `node`, by the rules of `config`. Raises `ConfigError` if no answer ends there."""
    answers = _Answers(tree, config)
    if node not in answers.parents:
        raise ConfigError(f"no answer ends at node {node}; answers end at {sorted(answers.parents)[:20]}")
    return answers.seen(node)


def mctsr_nodes(tree: Tree, config: MCTSrConfig = CORRECTED) -> list[MCTSrNode]:
    """All answers, breadth first."""
    answers = _Answers(tree, config)
    return [answers.seen(node) for node in answers.parents]


def mctsr_trace(tree: Tree, config: MCTSrConfig = CORRECTED) -> MCTSrTrace:
    """The lists of a whole tree."""
    answers = _Answers(tree, config)
    rollouts = answers.rollouts()
    rewrites = [rewrite for _, _, made in rollouts for rewrite in made]
    return MCTSrTrace(
        critiques=tuple(_said(tree, critique) for _, critique, _ in rollouts if not _has_failed(tree, critique)),
        refinements=tuple(_said(tree, rewrite) for rewrite in rewrites),
        rewards=tuple(answers.rewards_in_order(rollouts)),
        selected_nodes=tuple(selected for selected, _, _ in rollouts),
    )


class _Answers:
    """The answers of a tree, found once. Statistics are computed from the leaves upward."""

    def __init__(self, tree: Tree, config: MCTSrConfig) -> None:
        self.tree = tree
        self.config = config
        self.parents: dict[int, int | None] = {}
        """Answer -> the answer it was made from, breadth first."""
        self.children: dict[int, list[int]] = {}
        self._num_rollouts: dict[int, int] = {}
        """Rollouts from an answer; after counting, also those from below it."""
        for node in tree.subtree():
            if _is_answer(tree, node):
                self.parents[node] = _answer_above(tree, node)
                self.children[node] = []
                self._num_rollouts[node] = sum(tree.role(child) == "critique" for child in tree.derived(node))
        for node, parent in self.parents.items():
            if parent is not None:
                self.children[parent].append(node)
        self.samples = {node: _samples(tree, node, config) for node in self.parents}
        self.q: dict[int, float] = {}
        self.visits: dict[int, int] = {}
        for node in reversed(self.parents):
            self._count(node)

    def seen(self, node: int) -> MCTSrNode:
        return MCTSrNode(
            node=node,
            answer=_said(self.tree, node),
            parent=self.parents[node],
            children=tuple(self.children[node]),
            visits=self.visits[node],
            Q=self.q[node],
            own_q=_own_q(self.samples[node]),
            reward_samples=tuple(self.samples[node]),
        )

    def rollouts(self) -> list[tuple[int, int, list[int]]]:
        """(answer chosen, critique, rewrites made from it) in the order of the critiques."""
        tree = self.tree
        found = [
            (answer, _tip(tree, critique), critique)
            for answer in self.parents
            for critique in tree.derived(answer)
            if tree.role(critique) == "critique"
        ]
        made = {tip: [n for n in self.children[answer] if _quoted(tree, n) == tip] for answer, tip, _ in found}
        return [(answer, tip, made[tip]) for answer, tip, _ in sorted(found, key=lambda rollout: rollout[2])]

    def rewards_in_order(self, rollouts: Sequence[tuple[int, int, list[int]]]) -> list[float]:
        """All samples, each once."""
        left = {node: list(samples) for node, samples in self.samples.items()}
        chosen = [answer for answer, _, _ in rollouts]
        rewards: list[float] = []
        for root in (node for node, parent in self.parents.items() if parent is None):
            rewards += [left[root].pop(0) for _ in range(max(0, len(left[root]) - chosen.count(root)))]
        for answer, _, made in rollouts:
            rewards += [left[node].pop(0) for node in (answer, *made) if left[node]]
        return rewards + [sample for samples in left.values() for sample in samples]

    def _count(self, node: int) -> None:
        """Compute visits and q of an answer whose children already have theirs."""
        below, samples = self.children[node], self.samples[node]
        own_q = _own_q(samples)
        judged = [self.q[child] for child in below if self.samples[child]]
        self.q[node] = halfway(own_q, max(judged)) if judged else own_q
        if self.config.published.leaf_visits == "judgements":
            self.visits[node] = len(samples)
            return
        births = int(self.config.published.leaf_visits == "judged" and bool(samples))
        self._num_rollouts[node] += sum(self._num_rollouts[child] for child in below)
        self.visits[node] = births + self._num_rollouts[node]


def _is_answer(tree: Tree, node: int) -> bool:
    """Whether a whole answer ends at `node`: no step of the policy continues it."""
    if node == ROOT or tree.role(node) != "policy" or _has_failed(tree, node):
        return False
    return not tree.policy_children(node)


def _has_failed(tree: Tree, node: int) -> bool:
    """Whether the way `node` ended means that it is not a sample of a model."""
    stop = tree.stop(node)
    return stop is not None and STOP_WORDS[stop].is_failure


def _answer_above(tree: Tree, node: int) -> int | None:
    """The answer that this one was made from; critiques between them are skipped."""
    above = _quoted(tree, node)
    while above is not None and tree.role(above) != "policy":
        above = _quoted(tree, above)
    return None if above in (None, ROOT) else above


def _quoted(tree: Tree, node: int) -> int | None:
    """The node that the context of `node` starts from."""
    return tree.parent(tree.context(node)[0])


def _tip(tree: Tree, node: int) -> int:
    """The last node of a context."""
    while below := tree.children(node):
        node = below[0]
    return node


def _samples(tree: Tree, node: int, config: MCTSrConfig) -> list[float]:
    values = [score.value for score in tree.scores(node) if score.judge == config.judge and score.value is not None]
    return [penalised(v, config.penalty, limit=config.reward_limit, excess=config.excess_penalty) for v in values]


def _own_q(samples: Sequence[float]) -> float:
    return q_of(min(samples), sum(samples), len(samples)) if samples else 0.0


def _said(tree: Tree, node: int) -> str:
    return response_of(tree.branch(node)).strip()
