"""MCTSr's switches: one for each way in which the published codes differ from one another or from what is right.

Defaults are the corrected ones; their numbers are mcts-llm's. `AS_PUBLISHED` is mcts-llm, `MATHBLACKBOX` the paper's
own code, each the same strategy with other values. Source: arXiv 2406.07394; BrendanGraham14/mcts-llm
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
    """An answer's first judgement is its first visit, or it has none before it is refined (published, so that its bonus
    is in the ten thousands and the newest answer always wins), or its judgements are its visits (MathBlackBox)."""
    root_score: RootScore = "own_visits"
    """A root counts its own visits as its parent's, or scores 10 000 (published, incomparable with the rest), or has no
    bonus (MathBlackBox)."""
    q_memory: QMemory = "own_q"
    """q follows from an answer's own samples and its best child, upward after every change; or a judgement assigns it
    and every rollout above which it lies halves it again (published); or scores are MathBlackBox's, which reach the
    father of a leaf and no further."""
    expanded: Literal["either", "both"] = "either"
    """Fully expanded: as many children as there may be or a child that is better; or both, where a child as good will
    do (MathBlackBox)."""
    all_expanded: Literal["all", "root"] = "all"
    """Where every answer is fully expanded, all may be refined again, or the root is (published)."""
    importance_weights: Negative = "clipped"
    """Published weights may be negative; where they sum to nothing there is no distribution, and the search ends."""
    pairwise_single: Literal["uniform", "ends"] = "uniform"
    """One candidate, or none better than another: published code raises, here the search ends with what it has."""
    judge_root: Literal["at_start", "when_selected"] = "at_start"
    judge_failure: Literal["ends_rollout", "ends_search"] = "ends_rollout"
    """A judgement that failed, or gave no score, costs its rollout; published, the third attempt loses all."""
    answer_by: Literal["own_q", "q"] = "own_q"
    """Published, an answer may win by what was made of it, and one never judged stands at 0."""


@dataclass(frozen=True, slots=True)
class MCTSrConfig:
    """How answers are chosen, refined and judged."""

    max_rollouts: int = 16
    """Refinements to try, failed ones too. MathBlackBox's; mcts-llm asks for a number."""
    in_flight: int = 1
    """Rollouts at once. More of them choose without each other's outcome."""
    selection: Selection = "importance"
    """The answer of highest score, one drawn in proportion to its score, or the better of a pair drawn in proportion
    to the difference. Greedy costs O(log n) a rollout, the others O(n) and O(n log n)."""
    initialise: Initialise = "zero_shot"
    """Begins with an answer of the policy, with what the action `dummy` writes, or with both."""
    max_children: int = 2
    exploration: float = 1.0
    eps: float = 1e-10
    judge: str = "grade"
    """Name of the run's judge. Each of its judgements is a sample; it gives them raw, the penalty is taken here."""
    reward_limit: float = 95.0
    excess_penalty: float = 5.0
    penalty: Penalty = "excess"
    scale: float = 100.0
    """What q is divided by before the bonus is added; published 1, which leaves a bonus of about 1 beside q of 100."""
    stop_judge: str = ""
    """Judge that ends the search by a score of 1 or more, asked about each answer; '' = none. MathBlackBox stops at the
    true answer: the name of the judge that knows it, and `oracle = "declared"`."""
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
    published=MCTSrPublished(leaf_visits="judgements", root_score="no_bonus", q_memory="leaves", expanded="both"),
)
"""MathBlackBox without its oracle. Here answers of equal text stay apart, and failures are not retried for ever."""
