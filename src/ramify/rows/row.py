"""Row: one training example: the path to one leaf, and what each of its tokens is trained with.

Over all rows of a tree, the weights of a sampled token sum to what the policy says (1, unless rows as published are
wanted). Tokens that were not sampled have weight 0. Ids are those that were fed and sampled. The rows of a tree have no
duplicates and no padding; array exports pad, and mark the padding. See `docs/concepts/rows.md` and
`docs/concepts/credit.md`.

How to use a row: minimise - sum over rows and tokens of weight * advantage * log pi / normaliser. While the policy is
the one that sampled, the gradient is the credit's coefficient times grad log pi, each token once. `normaliser` is one
number for all trees of a run, as a rule the number of rows that is planned for a tree. With it, an advantage has the
size that trainers usually have: on chains under `leaf_grpo` it is exactly GRPO's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.core.codec import Codec
from ramify.core.errors import ExportError
from ramify.core.quick_init import quick_init
from ramify.core.segment import Floats_T, Ids_T, Origin, Origination, ToolCall
from ramify.core.stop import STOP_WORDS
from ramify.core.tree import Tree
from ramify.credit import Credited, Forest, OwnCredit, PostHocRule, balanced, forest_of, measures_of, needs_balance
from ramify.credit import credit as credited_by
from ramify.credit.forest import STEM
from ramify.credit.grown import Unjudged
from ramify.rows.weights import Policy, path_means, row_weights
from ramify.strategies.parts.entropy import STEP_ENTROPY

Shared = Literal["sum", "mean"]
"""What a token shared by several leaves gets of their advantages, if the credit is made of leaf advantages. sum: what
the credit says, so training the token once equals training it in every row. mean: as much as for one leaf, a third
objective (`docs/concepts/rows.md`) that weighs trunks less."""
Doubles_T = npt.NDArray[np.float64]


@quick_init
@dataclass(frozen=True, slots=True)
class RowSpan:
    """Tokens of one segment of a row."""

    num_tokens: int
    node: int
    """Number of the node that owns the tokens, in the canonical order of its tree."""
    origin: Origin
    version: int | None = None
    """Policy version that sampled the tokens; None = the engine has no versions, or nothing was sampled."""
    source: Origination | None = None
    """Which engine sampled the tokens, from which distribution, and what their logprobs mean."""
    call: ToolCall | None = None
    """If the tokens are an observation: the call that they answer."""
    step_entropy: float | None = None
    """The measure `step_entropy_topk` of the step that the tokens are of, if they were sampled; None = not computed. It
    is of the whole step: where a fork has split one, its tail has it."""
    positive: float | None = None
    """The part of the tokens' advantage that leaves with positive advantages give; the rest is negative. A clipped loss
    needs both (`docs/concepts/credit.md`). None = the advantage itself, by its sign."""
    share: float = 0.0
    """What terms of the loss without an advantage (KL, entropy) are multiplied by in place of it; 1 on chains."""


class _Terms(NamedTuple):
    """What the tokens of a node are trained with in one row."""

    advantage: float
    positive: float
    share: float


class _Step(NamedTuple):
    """What a node of K segments adds to every row through it, besides its tokens."""

    lengths: list[int]
    """(K,) tokens of each segment."""
    is_sampled: list[bool]
    """(K,)"""
    advantages: list[float]
    """(K,)"""
    spans: list[RowSpan]


_NOTHING: Final = _Terms(0.0, 0.0, 0.0)


@quick_init
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Row:
    """The path to one leaf: T tokens, starting at the prompt."""

    uid: str
    """The problem's uid: the group that this row belongs to."""
    tree_seed: int
    split: str
    leaf: int
    """Number of the leaf in the canonical order of its tree."""
    leaf_id: int
    """Id of the leaf on its tree. It is not canonical, so exports leave it out."""
    ids: Ids_T
    """(T,) int32."""
    weights: Doubles_T
    """(T,) share of the token that this row trains; 0 = context. The loss mask is `weights > 0`."""
    advantages: Doubles_T
    """(T,) what the token is trained with; 0 where nothing was sampled."""
    logprobs: Floats_T
    """(T,) float32, in nats, as sampled; NaN where nothing was sampled or the engine gave none."""
    entropies: Floats_T
    """(T,) float32, the measure `entropy` in nats; NaN where nothing was sampled or the engine was not asked for it."""
    spans: tuple[RowSpan, ...]
    """What the tokens are, in order. Their `num_tokens` sum to T."""
    reward: float
    parts: Mapping[str, float]
    """Named parts of the reward."""
    is_oracle: bool
    """Whether a judge that saw the problem's secret scored the leaf."""
    stop: str
    credit: str
    """Name of the credit that gave the advantages; never `auto`."""
    reasons: tuple[str, ...]
    """Why the gradient is not exact; empty = it is exact."""
    policy: Policy
    normaliser: float
    """The divisor of the sum over the tree's rows; the same for all trees of a run."""
    normaliser_of: Literal["run", "tree"] = "run"
    """Whose divisor it is: one for all trees of the run, or the number of leaves of this one."""
    codec: str
    codec_sha256: str
    public: Mapping[str, Any]
    """The problem's public columns."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_unbiased(self) -> bool:
        return not self.reasons

    @property
    def is_truncated(self) -> bool:
        return STOP_WORDS[self.stop].is_truncated

    @property
    def num_prompt(self) -> int:
        """Length of the opening context. The response is everything after it."""
        return sum(span.num_tokens for span in self.spans if span.origin == "prompt")

    @property
    def is_sampled(self) -> npt.NDArray[np.bool_]:
        """(T,) true where the model wrote the token."""
        return np.repeat(np.array([s.origin == "sampled" for s in self.spans], bool), self._lengths)

    @property
    def nodes(self) -> npt.NDArray[np.int32]:
        """(T,) canonical number of the node that owns each token."""
        return np.repeat(np.array([s.node for s in self.spans], np.int32), self._lengths)

    @property
    def versions(self) -> npt.NDArray[np.int64]:
        """(T,) policy version of each token; -1 = none."""
        return np.repeat(
            np.array([-1 if s.version is None else s.version for s in self.spans], np.int64), self._lengths
        )

    @property
    def positive(self) -> Doubles_T:
        """(T,) the part of each advantage that leaves with positive advantages give. `advantages - positive` is never
        above 0."""
        parts = np.array([np.nan if span.positive is None else span.positive for span in self.spans])
        of_tokens = np.repeat(parts, self._lengths)
        return np.where(np.isnan(of_tokens), np.maximum(self.advantages, 0.0), of_tokens)

    @property
    def shares(self) -> Doubles_T:
        """(T,) what a term of the loss without an advantage is multiplied by in place of the advantage."""
        return np.repeat(np.array([span.share for span in self.spans]), self._lengths)

    @property
    def has_logprobs(self) -> bool:
        """Whether every token that it trains has the logprob it was sampled with."""
        return not np.isnan(self.logprobs[self.weights > 0]).any()

    @property
    def coefficients(self) -> Doubles_T:
        """(T,) weight * advantage / normaliser. Summed over the rows of a tree, these are the credit's coefficients."""
        return self.weights * self.advantages / self.normaliser

    @property
    def runs(self) -> list[tuple[Origin, int]]:
        """(origin, number of tokens) of every longest run of one origin. A turn is one run, even if it was split."""
        spans = (span for span in self.spans if span.num_tokens)
        return [(origin, sum(s.num_tokens for s in run)) for origin, run in groupby(spans, key=_origin)]

    @property
    def num_turns(self) -> int:
        """Number of times the model spoke."""
        return sum(origin == "sampled" for origin, _ in self.runs)

    @property
    def step_rewards(self) -> Doubles_T:
        """(T,) reward of each step of an environment, at the last token that was sampled before its observation; 0
        elsewhere. The row's reward is made of them, and of a score at the end, by the run's rule."""
        rewards = np.zeros(len(self))
        end = last = 0
        for span in self.spans:
            end += span.num_tokens
            last = end if span.origin == "sampled" and span.num_tokens else last
            if span.call is not None and span.call.reward is not None and last:
                rewards[last - 1] += span.call.reward
        return rewards

    @property
    def trained(self) -> Doubles_T:
        """(T,) weight * advantage: the value per token for a trainer that supports masks but no weights."""
        return np.where(self.weights > 0, self.weights * self.advantages, 0.0)

    @property
    def _lengths(self) -> list[int]:
        return [span.num_tokens for span in self.spans]


def rows_of(
    tree: Tree,
    *,
    credit: str | OwnCredit = "auto",
    policy: Policy = "once",
    kept: Sequence[int] | None = None,
    shared: Shared = "sum",
    normaliser: float | None = None,
    unjudged: Unjudged = "error",
    post_hoc_reasons: tuple[str, ...] = (),
    post_hoc: PostHocRule | None = None,
    caveats: tuple[str, ...] = (),
    max_tokens: int | None = None,
) -> list[Row]:
    """Rows of a finished tree, one per leaf, in canonical order or in the order of `kept`. Rows without a trained token
    are left out.

    `kept`: ids of the leaves to export. For an exact gradient they must be drawn uniformly. Credit is computed on all
    leaves, and the kept leaves stand for the rest. A leaf named twice gives one row, or two as published (`per_leaf`).
    `normaliser`: the divisor, one for all trees that are trained together; None = the number of kept leaves, which is
    exact only if all these trees have as many.
    `post_hoc_reasons`: why the strategy's forks depend on tokens, whatever this tree shows. `post_hoc`: the rule by
    which it forks finished paths, for credits with balanced shares. `caveats`: why these rows are not exact, whatever
    the credit. `max_tokens`: longer paths, prompt included, make no row, and the rows of their tree say so. Tokens that
    such a path shares are trained by other rows, with the coefficients that they have.

    Raises `ExportError` for a codec that is not the model's, for a leaf without a reward, and for kept nodes that may
    not be trained. Raises `ContractError` for an exact credit on forks that are not predictable, or not balanced.
    Mutates nothing.
    """
    _refuse_inexact(tree.codec)
    if normaliser is not None and not 0 < normaliser < math.inf:
        raise ExportError(f"normaliser = {normaliser!r}: a finite number above 0 is needed")
    forest = forest_of(
        tree, unjudged=unjudged, post_hoc_reasons=post_hoc_reasons, selected=kept, measures=measures_of(credit)
    )
    if post_hoc is not None and needs_balance(credit):
        forest = balanced(forest, tree, post_hoc)
    leaves = _kept(forest, kept, policy)
    fitting = [leaf for leaf in leaves if is_fitting(tree, int(forest.nodes[leaf]), max_tokens)]
    if not fitting:
        return []
    if num_long := len(leaves) - len(fitting):
        caveats += (f"{num_long} of {len(leaves)} path(s) left out: more than rows.max_tokens = {max_tokens} tokens",)
    forest = replace(forest, caveats=(*forest.caveats, *caveats))
    export = _Export(
        tree, credited_by(credit, forest), policy, fitting, num_kept=_num_kept(forest, leaves), normaliser=normaliser
    )
    rows = [export.row(number, of_nodes) for number, of_nodes in enumerate(export.trained(shared))]
    return [row for row in rows if row.weights.any()]


def is_fitting(tree: Tree, leaf: int, max_tokens: int | None) -> bool:
    """Whether the path to a leaf has at most `max_tokens` tokens, prompt included; None = any path."""
    return max_tokens is None or len(tree.branch(leaf).ids) <= max_tokens


def _refuse_inexact(codec: Codec) -> None:
    if not codec.is_exact:
        raise ExportError(
            f"codec {codec.name!r} only carries text, its ids are not those the model sampled: rows of tokens cannot "
            "be made from it; export messages, or use an engine that returns token ids"
        )


def _kept(forest: Forest, kept: Sequence[int] | None, policy: Policy) -> list[int]:
    """Forest indices of the leaves to export."""
    if kept is None:
        return forest.leaves.tolist()
    index = {int(forest.nodes[leaf]): int(leaf) for leaf in forest.leaves}
    unknown = [node for node in kept if node not in index]
    if unknown:
        raise ExportError(f"nodes {unknown[:8]} are not trainable leaves; trainable are {sorted(index)[:16]}")
    return [index[node] for node in (kept if policy == "per_leaf" else dict.fromkeys(kept))]


def _num_kept(forest: Forest, leaves: Sequence[int]) -> Doubles_T:
    """(num_leaves,) how often each leaf of the forest is kept."""
    found = np.zeros(forest.num_leaves)
    np.add.at(found, np.searchsorted(forest.leaves, leaves), 1.0)
    return found


class _Export:
    """Builds the rows of one tree. Paths are indices of its forest."""

    def __init__(
        self,
        tree: Tree,
        credited: Credited,
        policy: Policy,
        leaves: Sequence[int],
        *,
        num_kept: Doubles_T,
        normaliser: float | None,
    ) -> None:
        """`leaves` make rows. `num_kept`: how often each leaf is kept; those that are kept stand for all."""
        self._tree = tree
        self._credited = credited
        self._forest = credited.forest
        self._policy: Policy = policy
        self._leaves = leaves
        self._num_kept = num_kept
        self._normaliser = normaliser or float(num_kept.sum())
        self._normaliser_of: Literal["run", "tree"] = "tree" if normaliser is None else "run"
        self._paths = [self._path(leaf) for leaf in leaves]
        self._weights = row_weights(self._paths, policy)
        self._number = {node: number for number, node in enumerate(tree.subtree())}
        self._index = {node: index for index, node in enumerate(self._forest.nodes.tolist())}
        self._steps: dict[int, tuple[_Terms, _Step]] = {}
        """The latest step of each node, with what it is trained with."""

    def trained(self, shared: Shared) -> list[Mapping[int, _Terms]]:
        """For each row: index of a node on its path -> what the tokens sampled there are trained with."""
        of_leaves = self._credited.leaf_advantages
        if of_leaves is not None and (self._policy == "per_leaf" or shared == "mean"):
            place = {int(leaf): number for number, leaf in enumerate(self._forest.leaves)}
            scale = self._normaliser / float(self._num_kept.sum())
            values = [float(of_leaves[place[leaf]]) * scale for leaf in self._leaves]
            if self._policy == "once":
                means = path_means(self._paths, values)
                positive = path_means(self._paths, [max(value, 0.0) for value in values])
                return [{node: _Terms(means[node], positive[node], scale) for node in means}] * len(self._paths)
            return [
                dict.fromkeys(path, _Terms(value, max(value, 0.0), scale))
                for path, value in zip(self._paths, values, strict=True)
            ]
        return [dict(enumerate(self._of_nodes()))] * len(self._paths)

    def row(self, number: int, trained: Mapping[int, _Terms]) -> Row:
        tree, forest, credited = self._tree, self._forest, self._credited
        leaf = self._leaves[number]
        node = int(forest.nodes[leaf])
        of_row = self._weights[number]
        steps: list[_Step] = []
        weights: list[float] = []
        path = tree.context(node)
        for above in path:
            index = self._index.get(above)
            step = self._step(above, _NOTHING if index is None else trained[index])
            weight = 0.0 if index is None else of_row[index]
            weights += [weight if is_sampled else 0.0 for is_sampled in step.is_sampled]
            steps.append(step)
        lengths = [length for step in steps for length in step.lengths]
        ids, logprobs, entropies = tree.tokens(path)
        scores, reward = tree.scores(node), tree.reward_score(node)
        return Row(
            uid=tree.problem.uid,
            tree_seed=tree.seed,
            split=tree.problem.split,
            leaf=self._number[node],
            leaf_id=node,
            ids=ids,
            weights=np.repeat(np.array(weights), lengths),
            advantages=np.repeat(np.array([value for step in steps for value in step.advantages]), lengths),
            logprobs=logprobs,
            entropies=entropies,
            spans=tuple(span for step in steps for span in step.spans),
            reward=float(forest.reward[leaf]),
            parts=dict(reward.parts) if reward is not None else {},
            is_oracle=any(score.is_oracle for score in scores),
            stop=tree.stop(node) or "",
            credit=credited.name,
            reasons=self._reasons,
            policy=self._policy,
            normaliser=float(self._normaliser),
            normaliser_of=self._normaliser_of,
            codec=tree.codec.name,
            codec_sha256=tree.codec.sha256,
            public=tree.problem.public,
        )

    @cached_property
    def _reasons(self) -> tuple[str, ...]:
        """Why the gradient is not exact: the credit's reasons, and the policy's own reason."""
        is_repeated = self._policy == "per_leaf" and self._credited.leaf_advantages is None and self._forest.is_forked
        own = ("policy 'per_leaf' trains a shared token once a row with its whole coefficient",) if is_repeated else ()
        versions = sorted(self._tree.versions(self._forest.nodes.tolist()))
        mixed = (f"several policy versions sampled its tree: {', '.join(map(str, versions))}",)
        return (*self._credited.reasons, *own, *(mixed if len(versions) > 1 else ()))

    def _path(self, leaf: int) -> list[int]:
        path = [leaf]
        while (parent := int(self._forest.parent[path[-1]])) != STEM:
            path.append(parent)
        return path[::-1]

    def _of_nodes(self) -> list[_Terms]:
        """What the credit says of each node, scaled to the size of advantages. The kept leaves stand for the leaves
        that are not kept."""
        forest = self._forest
        share_kept = forest.over_leaves(self._num_kept) / forest.over_leaves(np.ones(forest.num_leaves))
        scale = self._normaliser * (forest.num_leaves / float(self._num_kept.sum()))
        of_leaves, coefficients = self._credited.leaf_advantages, self._credited.coefficients
        if of_leaves is None:
            positive, share = np.maximum(coefficients, 0), self._credited.weights
        else:
            positive = forest.over_leaves(np.maximum(of_leaves, 0)) / forest.num_leaves
            share = forest.over_leaves(np.ones(forest.num_leaves)) / forest.num_leaves
        parts = ((part * scale * share_kept).tolist() for part in (coefficients, positive, share))
        return [_Terms(*of_node) for of_node in zip(*parts, strict=True)]

    def _step(self, node: int, terms: _Terms) -> _Step:
        """What a node adds to a row in which its sampled tokens are trained with `terms`."""
        known = self._steps.get(node)
        if known is not None and known[0] == terms:
            return known[1]
        tree, labels = self._tree, self._tree.labels(node)
        is_sampled = [label.origin == "sampled" for label in labels]
        entropy = tree.measure(node, STEP_ENTROPY)
        made = _Step(
            lengths=[label.num_tokens for label in labels],
            is_sampled=is_sampled,
            advantages=[terms.advantage if sampled else 0.0 for sampled in is_sampled],
            spans=[
                RowSpan(
                    num_tokens=label.num_tokens,
                    node=self._number[node],
                    origin=label.origin,
                    version=label.version,
                    source=label.source,
                    call=label.tool_call,
                    step_entropy=entropy if sampled else None,
                    positive=terms.positive if sampled else 0.0,
                    share=terms.share if sampled else 0.0,
                )
                for label, sampled in zip(labels, is_sampled, strict=True)
            ],
        )
        self._steps[node] = terms, made
        return made


def _origin(span: RowSpan) -> Origin:
    return span.origin
