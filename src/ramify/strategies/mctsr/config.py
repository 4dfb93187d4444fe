"""MCTSr's switches: one for each point where the published codes differ from each other or from the correct method.

Defaults are the corrected ones; their numbers are mcts-llm's. `AS_PUBLISHED` is mcts-llm, `MATHBLACKBOX` is the paper's
own code. Both are the same strategy with other values. Source: arXiv 2406.07394; BrendanGraham14/mcts-llm
src/mcts_llm/mctsr.py; trotsky1997/MathBlackBox run_with_earlystopping.py.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from ramify.core.errors import ConfigError
from ramify.core.strategy import Vote
from ramify.strategies.mctsr.scores import LogForm, Negative, Penalty
from ramify.strategies.parts.steering import REWARD, Oracle

Selection = Literal["greedy", "importance", "pairwise"]
Initialise = Literal["zero_shot", "dummy", "both"]
LeafVisits = Literal["judged", "ancestor", "judgements"]
RootScore = Literal["own_visits", "constant", "no_bonus"]
QMemory = Literal["own_q", "assigned", "leaves"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MCTSrPublished:
    """Switches that only reproduce the published code; the defaults are the corrected behaviour."""

    log_form: LogForm = "code"
    leaf_visits: LeafVisits = "judged"
    """`judged`: the first judgement of an answer is its first visit. `ancestor`: an answer has no visits before it is
    refined (published; its bonus is then in the ten thousands, so the newest answer always wins). `judgements`: the
    judgements of an answer are its visits (MathBlackBox)."""
    root_score: RootScore = "own_visits"
    """`own_visits`: a root uses its own visits as its parent's. `constant`: it scores 10 000 (published; not comparable
    with other scores). `no_bonus`: it has no bonus (MathBlackBox)."""
    q_memory: QMemory = "own_q"
    """`own_q`: q follows from an answer's own samples and its best child, and is updated upward after every change.
    `assigned`: a judgement assigns q, and every rollout from it or below it halves the distance to its best child again
    (published). `leaves`: MathBlackBox's scores, which reach the parent of a leaf and usually no further."""
    expanded: Literal["either", "both"] = "either"
    """When an answer counts as fully expanded. `either`: it has the maximum number of children, or a better child.
    `both`: it has the maximum number, and a child at least as good (MathBlackBox)."""
    ties: Literal["breadth_first", "created"] = "breadth_first"
    """Of answers with equal scores, the first: breadth first, or the one that came first (MathBlackBox)."""
    all_expanded: Literal["all", "root"] = "all"
    """If every answer is fully expanded: all may be refined again, or only the root (published)."""
    importance_weights: Negative = "clipped"
    """`kept`: published weights may be negative, and the answer is drawn by a binary search in their sums, as there. If
    their sum is not positive there is no distribution, and the search ends."""
    pairwise_single: Literal["uniform", "ends"] = "uniform"
    """For one candidate, or several equal ones. `ends`: the published code raises an error; here the search ends with
    what it has."""
    judge_root: Literal["at_start", "when_selected"] = "at_start"
    """When the first answers are judged: at the start, or when they are first selected."""
    judge_failure: Literal["ends_rollout", "ends_search"] = "ends_rollout"
    """A judgement that failed or gave no score ends its rollout (`ends_rollout`). In the published code the third
    failed attempt loses the whole search."""
    answer_by: Literal["own_q", "q"] = "own_q"
    """`q` (published): an answer may win because of its refinements, and an answer never judged counts as 0."""


@dataclass(frozen=True, slots=True)
class MCTSrConfig:
    """How answers are chosen, refined and judged."""

    max_rollouts: int = 16
    """Refinements to try, failed ones included. The default is MathBlackBox's; mcts-llm takes it as an argument."""
    in_flight: int = 1
    """Rollouts at once. With more than one, rollouts choose without each other's outcome."""
    selection: Selection = "importance"
    """`greedy`: the answer with the highest score. `importance`: drawn in proportion to its score. `pairwise`: the
    better of a pair drawn in proportion to the score difference. Greedy costs O(log n) for each rollout, the others
    O(n) and O(n log n)."""
    initialise: Initialise = "zero_shot"
    """The first answers: one from the policy, one from the action `dummy`, or both."""
    max_children: int = 2
    """Rewrites of an answer after which it is fully expanded."""
    exploration: float = 1.0
    """Weight of the exploration bonus in the UCT score."""
    eps: float = 1e-10
    """Added to the number of visits, so that the bonus of an answer without visits is finite; above 0."""
    judge: str = "grade"
    """Name of the run's judge. Each of its judgements is a sample. The judge returns raw scores; the penalty is applied
    here."""
    reward_limit: float = 95.0
    """Score above which the penalty applies."""
    excess_penalty: float = 5.0
    """What the penalty `excess` subtracts."""
    penalty: Penalty = "excess"
    scale: float = 100.0
    """Divides q before the bonus is added. The published 1 puts a bonus of about 1 beside a q of 100."""
    stop_judge: str = ""
    """A judge asked about each answer; a score of 1 or more ends the search. '' = none. MathBlackBox stops at the true
    answer: this needs the name of the judge that knows it, and `oracle = "declared"`."""
    oracle: Oracle = "refused"
    vote: Vote = "best"
    published: MCTSrPublished = MCTSrPublished()
    """Switches that reproduce the published code."""

    def __post_init__(self) -> None:
        if min(self.max_rollouts, self.in_flight, self.max_children) < 1:
            raise ConfigError(f"mctsr: max_rollouts, in_flight and max_children must be at least 1, got {self!r}")
        if not (self.eps > 0 and 0 < self.scale < math.inf and 0 <= self.exploration < math.inf):
            raise ConfigError(f"mctsr: need eps > 0, scale > 0 and exploration >= 0, all finite, got {self!r}")
        if not (math.isfinite(self.reward_limit) and math.isfinite(self.excess_penalty)):
            raise ConfigError(f"mctsr: reward_limit and excess_penalty must be finite, got {self!r}")
        if not self.judge or REWARD in (self.judge, self.stop_judge):
            raise ConfigError(f"mctsr: judge = {self.judge!r}: a rewrite has no reward; name a judge of the run")

    @property
    def planned_leaves(self) -> int:
        return self.max_rollouts + (2 if self.initialise == "both" else 1)


AS_PUBLISHED: Final = MCTSrConfig(
    scale=1.0,
    published=MCTSrPublished(
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
)
"""mcts-llm."""

MATHBLACKBOX: Final = MCTSrConfig(
    selection="greedy",
    initialise="both",
    max_children=3,
    exploration=1.4,
    eps=1e-5,
    penalty="fifty",
    scale=1.0,
    published=MCTSrPublished(
        leaf_visits="judgements", root_score="no_bonus", q_memory="leaves", expanded="both", ties="created"
    ),
)
"""MathBlackBox without its oracle. Here answers with equal text stay separate, and failures are not retried forever."""
