"""Compare: runs several configurations on the same problems, each against chains that sampled equally many tokens.

Contenders have different shapes, so their costs differ. A pool of independent chains for each problem makes them
comparable: it gives the exact expectation for any number of chains (as pass@k does), also a fractional one. So each
contender is compared with chains of its own mean number of decode tokens. Differences are paired by problem, and their
intervals are over problems. This file only computes: running and printing are done elsewhere.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean

from ramify.core.engine import UNMETERED
from ramify.core.format import IsSame
from ramify.core.ledger import Spend
from ramify.core.stop import ROULETTE
from ramify.core.tree import Tree
from ramify.experiments.paired import can_show, difference_dict, paired_difference
from ramify.planner.interval import Interval
from ramify.runner.answers import ReadAnswer
from ramify.runner.events import TreeClosed
from ramify.runner.votes import classes_of


@dataclass(frozen=True, slots=True)
class TreeFigures:
    """Figures of one tree. Rewards of 1 or more count as solved."""

    solved: float
    """1.0 or 0.0."""
    reward: float
    """Mean over the judged leaves; 0 if none was judged."""
    mixed: float
    """1 if leaves differ in reward, which gives the tree a training signal; else 0."""
    answers: float
    """Number of different answers among the leaves."""
    spent: Spend
    is_oracle: bool = False
    fault: str = ""
    """The fault that ended the tree; "" = none did. What it had grown by then counts."""
    is_metered: bool = True
    """Whether the engine counted all tokens. If not, `spent` is the most that they can be."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain of the pool."""

    reward: float
    answer: str | None
    """None = no answer."""
    num_tokens: float
    """Decode tokens as the engine billed them, the count of a contender's spend."""


def figures(closed: TreeClosed, read: ReadAnswer, is_same: IsSame) -> TreeFigures:
    """The figures of a closed tree."""
    tree = closed.tree
    leaves = tree.leaves()
    rewards = [reward for leaf in leaves if (reward := tree.reward(leaf)) is not None]
    total = Spend()
    for spend in closed.spent.values():
        total.add(spend)
    answered = [leaf for leaf in leaves if tree.stop(leaf) != ROULETTE]
    classes = classes_of([read(tree.branch(leaf).said) for leaf in answered], is_same)
    return TreeFigures(
        solved=float(any(reward >= 1 for reward in rewards)),
        reward=fmean(rewards) if rewards else 0.0,
        mixed=float(len(set(rewards)) > 1),
        answers=float(len({kind for kind in classes if kind >= 0})),
        spent=total,
        is_oracle=any(score.is_oracle for leaf in leaves for score in tree.scores(leaf)),
        fault="" if closed.is_whole else closed.reason,
        is_metered=not any(UNMETERED in tree.notes(node) for node in range(len(tree))),
    )


def chains_of(tree: Tree, read: ReadAnswer) -> list[Chain]:
    """The leaves of a tree of independent chains, one per root branch. What the tree was billed beside its chains (lost
    tries, judges that sample) is shared equally."""
    leaves = tree.leaves()
    billed = [sum(tree.num_billed(node) for node in tree.path(leaf)) for leaf in leaves]
    others = sum(spend.decode for spend in tree.spent().values()) - sum(billed)
    return [
        Chain(tree.reward(leaf) or 0.0, read(tree.branch(leaf).said), own + others / len(leaves))
        for leaf, own in zip(leaves, billed, strict=True)
    ]


@dataclass(slots=True)
class ChainPool:
    """Independent chains of each problem, from any number of runs. Only `add` mutates it."""

    is_same: IsSame
    chains: dict[str, list[Chain]] = field(default_factory=dict[str, list[Chain]])
    classes: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Problem -> the class of each chain's answer, as votes count them."""

    def add(self, uid: str, chains: Sequence[Chain]) -> None:
        """Add chains of one problem. A problem without any is not in the pool, and is compared with nothing."""
        if not chains:
            return
        pooled = self.chains.setdefault(uid, [])
        pooled.extend(chains)
        self.classes[uid] = classes_of([chain.answer for chain in pooled], self.is_same)

    @property
    def tokens_a_chain(self) -> float:
        """The mean decode tokens of a problem's chains, averaged over problems."""
        return fmean(fmean(chain.num_tokens for chain in chains) for chains in self.chains.values())

    @property
    def size(self) -> int:
        """Number of chains of the problem that has the fewest."""
        return min((len(chains) for chains in self.chains.values()), default=0)

    def num_chains(self, num_tokens: float) -> float:
        """How many chains `num_tokens` pay for: at least 1, at most the pool's."""
        return min(max(num_tokens / self.tokens_a_chain, 1.0), float(self.size))

    def expected(self, num_tokens: float) -> Mapping[str, Mapping[str, float]]:
        """Problem -> the means of solved, mixed and answers over all draws of as many chains as `num_tokens` pay
        for."""
        k = self.num_chains(num_tokens)
        return {uid: _expected(chains, self.classes[uid], k) for uid, chains in self.chains.items()}


@dataclass(frozen=True, slots=True)
class CompareLine:
    """One contender's row of the report. Tree figures are means over problems and seeds."""

    name: str
    num_trees: int
    leaves: float
    tokens: float
    """Decode tokens per tree. The chains in the comparison have equally many."""
    solved: float
    reward: float
    mixed: float
    answers: float
    less_chains: Mapping[str, Interval]
    """`solved` and `mixed` minus those of chains of equally many tokens, paired by problem."""
    verdicts: frozenset[str]
    """What these problems can show of `solved`: that it is `more`, that it is `fewer`, both, or nothing."""
    is_covered: bool
    """Whether the pool has as many chains as these tokens pay for. If not, the comparison is with the whole pool."""
    prefill_uncached: float
    prefill_cached: float
    tool_calls: float
    seconds: float
    is_oracle: bool
    num_failed: int
    """Trees that a fault ended."""
    first_fault: str
    """The fault of the first of them; "" = there is none."""
    is_metered: bool

    def as_dict(self) -> Mapping[str, object]:
        less = {what: difference_dict(less) for what, less in self.less_chains.items()}
        return asdict(self) | {"less_chains": less, "verdicts": sorted(self.verdicts)}


def line(
    name: str, trees: Mapping[str, Sequence[TreeFigures]], pool: ChainPool, *, seconds: float, num_contenders: int = 1
) -> CompareLine:
    """One contender's line. `trees` maps a problem to its trees, one per seed. The intervals of all `num_contenders`
    lines hold together with 95 %."""
    every = [tree for group in trees.values() for tree in group]
    tokens = fmean(tree.spent.decode for tree in every)
    chains = pool.expected(tokens)
    uids = sorted(trees.keys() & chains.keys())
    means = {
        what: {uid: fmean(vars_of(tree)[what] for tree in trees[uid]) for uid in uids}
        for what in ("solved", "mixed", "answers", "reward")
    }
    baseline = {what: [chains[uid][what] for uid in uids] for what in ("solved", "mixed")}
    return CompareLine(
        name=name,
        num_trees=len(every),
        leaves=fmean(tree.spent.leaves for tree in every),
        tokens=tokens,
        solved=fmean(means["solved"].values()),
        reward=fmean(means["reward"].values()),
        mixed=fmean(means["mixed"].values()),
        answers=fmean(means["answers"].values()),
        less_chains={
            what: paired_difference([means[what][uid] for uid in uids], theirs, num_comparisons=num_contenders)
            for what, theirs in baseline.items()
        },
        verdicts=can_show(baseline["solved"], num_comparisons=num_contenders),
        is_covered=tokens / pool.tokens_a_chain <= pool.size,
        prefill_uncached=fmean(tree.spent.prefill_uncached for tree in every),
        prefill_cached=fmean(tree.spent.prefill_cached for tree in every),
        tool_calls=fmean(tree.spent.tool_calls for tree in every),
        seconds=seconds,
        is_oracle=any(tree.is_oracle for tree in every),
        num_failed=sum(bool(tree.fault) for tree in every),
        first_fault=next((tree.fault for tree in every if tree.fault), ""),
        is_metered=all(tree.is_metered for tree in every),
    )


def vars_of(tree: TreeFigures) -> Mapping[str, float]:
    """The figures whose means are reported, by name."""
    return {"solved": tree.solved, "mixed": tree.mixed, "answers": tree.answers, "reward": tree.reward}


def _expected(chains: Sequence[Chain], classes: Sequence[int], k: float) -> Mapping[str, float]:
    """Means over all ways to draw k of these chains, interpolated linearly between whole numbers."""
    low, share = int(k), k - int(k)
    at_low = _expected_of(chains, classes, low)
    if not share:
        return at_low
    at_high = _expected_of(chains, classes, low + 1)
    return {what: (1 - share) * at_low[what] + share * at_high[what] for what in at_low}


def _expected_of(chains: Sequence[Chain], classes: Sequence[int], k: int) -> dict[str, float]:
    size = len(chains)

    def none_of(number: int) -> float:
        """Probability that k drawn chains contain none of `number` given ones."""
        return math.comb(size - number, k) / math.comb(size, k)

    rewards = Counter(chain.reward for chain in chains)
    answers = Counter(kind for kind in classes if kind >= 0)
    return {
        "solved": 1 - none_of(sum(n for reward, n in rewards.items() if reward >= 1)),
        "mixed": 1 - sum(math.comb(n, k) for n in rewards.values()) / math.comb(size, k),
        "answers": sum(1 - none_of(n) for n in answers.values()),
    }
