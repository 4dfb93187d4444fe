"""rStar's view of a tree: nodes with the fields of its source, including statistics.

The statistics are computed from the stored tree alone, not from a search's memory. Every final answer updates its path
to the root once. A step that a value judge scored is updated by that score alone. An ending without an answer counts as
the negative reward, for its path to the root or, as published, only for itself. The result equals the counts of rStar's
search at its end, whatever search grew the tree. A tree alone is read by the judge that scored its steps;
`RStarReading.of` reads it as its run was configured. Paths that the strategy gave up, or that a budget or a fault cut
short, update nothing. Only steps of the policy are nodes.

Source: microsoft/rStar, branch rStar-math, `BaseNode` and `MCTSNode` (arXiv 2501.04519).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, Literal

from ramify.config.run_config import StrategyConfig
from ramify.config.strategy_options import read_options
from ramify.core.command import Score
from ramify.core.errors import ConfigError
from ramify.core.stop import ANSWERED, GIVEN_UP, STOP_WORDS
from ramify.core.tree import ROOT, Tree
from ramify.formats.rstar import ErrorMatch, RStar, consecutive_errors
from ramify.strategies.parts.steering import REWARD
from ramify.strategies.parts.ucb import uct
from ramify.strategies.rstar_mcts import RStarMCTSConfig, answer_worth

ReadAnswer = Callable[[str], str | None]
BOXED: Final[ReadAnswer] = RStar().answer
"""The answer that rStar's own format reads."""
ENDINGS: Final[Mapping[str, str]] = MappingProxyType(
    {"no_valid_step": "no_valid_child", "depth_limit": "too_many_steps", "tool_errors": "too_many_code_errors"}
)
"""Stop word -> what the source writes in place of an answer. For other endings it is the stop word itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RStarReading:
    """How a tree is read."""

    answer: ReadAnswer = BOXED
    """What the model said -> its final answer: the format's function."""
    outcome: str = REWARD
    """Judge of final answers; `reward` = the judge whose score is the path's reward."""
    judge: str | None = None
    """Judge of steps that go on; None = they have no value of their own (`terminal_sample`)."""
    positive_reward: float = 1.0
    """Value of a right answer by the ground truth: a reward of 1 or more, by a judge that saw the answer."""
    negative_reward: float = -1.0
    """Value of an ending without an answer, and of a wrong answer by the ground truth: a reward of 0 or less."""
    failures: Literal["to_root", "local"] = "to_root"
    """Which nodes an ending without an answer updates; published: only itself (`local`)."""
    c_puct: float = 2.0
    error_match: ErrorMatch = "status"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.negative_reward + self.positive_reward) and 0 <= self.c_puct < math.inf):
            raise ConfigError(f"rewards and c_puct must be finite, and c_puct at least 0, got {self!r}")

    @classmethod
    def of(cls, strategy: StrategyConfig, *, answer: ReadAnswer = BOXED) -> "RStarReading":
        """The reading of a run's trees by its own strategy `rstar_mcts`. `answer`: the function of the run's format."""
        if strategy.name != "rstar_mcts":
            raise ConfigError(f"only the strategy 'rstar_mcts' says how its trees are read here, got {strategy.name!r}")
        options, *_ = read_options(RStarMCTSConfig, strategy.options)
        assert options is not None
        return cls(
            answer=answer,
            outcome=options.outcome,
            judge=options.judge if options.steps == "judged" else None,
            positive_reward=options.positive_reward,
            negative_reward=options.negative_reward,
            failures="local" if options.published.backup_failures == "leaf" else "to_root",
            c_puct=options.exploration,
        )

    @classmethod
    def by_scores(cls, tree: Tree) -> "RStarReading":
        """The reading of a tree alone. Its judge is the first one that scored a step that goes on; if that judge also
        scored an answer, it is the judge of answers, else their rewards count."""
        judge = next((s.judge for n in _steps(tree) if not tree.is_leaf(n) for s in tree.scores(n) if _counts(s)), None)
        answers = [node for node in _steps(tree) if tree.is_leaf(node) and tree.stop(node) in ANSWERED]
        is_judged = any(s.judge == judge and _counts(s) for node in answers for s in tree.scores(node))
        return cls(judge=judge, outcome=judge if judge is not None and is_judged else REWARD)


@dataclass(slots=True)
class Visits:
    """Visit count and value sum of a node. Mutated by `update`."""

    count: int = 0
    value_sum: float = 0.0

    def update(self, value: float) -> None:
        self.count += 1
        self.value_sum += value

    @property
    def q_value(self) -> float:
        """Mean of the values; 0 without any."""
        return self.value_sum / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RStarNode:
    """One step. Parents and children are node ids of the tree."""

    node: int
    tag: str
    """Path from the root by child numbers from 1: `0.1.2`."""
    parent: int | None
    children: tuple[int, ...]
    depth: int
    state: Mapping[str, Any]
    """`text`, `action`, `action_input`, `observation`, `final_answer`, and as additional keys `stop`, `scores` (judge
    -> values) and the notes of the tree's node."""
    is_terminal: bool
    """Whether nothing can grow after it any more."""
    reward: float | None
    """Reward of the ended path; None = it has not ended, or was not judged."""
    value: float | None
    """The first update that the node itself caused; None = it caused none."""
    consecutive_errors: int
    visit_count: int
    value_sum: float
    q_value: float
    puct: float
    """q + c sqrt(ln N / n). No bonus if n or the parent's N is 0, and at the root."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"state": dict(self.state), "children": list(self.children)}


def rstar(tree: Tree, node: int, reading: RStarReading | None = None) -> RStarNode:
    """One node; reading None = by the tree's own scores. It walks the whole tree: for all nodes use `rstar_nodes`."""
    reading = reading or RStarReading.by_scores(tree)
    visits = statistics(tree, reading)
    if node not in visits:
        raise ConfigError(f"node {node} is no step of the policy from the root on, which alone are nodes here")
    return _seen(tree, node, _tag(tree, node), visits, reading)


def rstar_nodes(tree: Tree, reading: RStarReading | None = None) -> list[RStarNode]:
    """All nodes in canonical order; reading None = by the tree's own scores."""
    reading = reading or RStarReading.by_scores(tree)
    visits, tags = statistics(tree, reading), {ROOT: "0"}
    found: list[RStarNode] = []
    for node in _steps(tree):
        for number, child in enumerate(tree.policy_children(node), start=1):
            tags[child] = f"{tags[node]}.{number}"
        found.append(_seen(tree, node, tags[node], visits, reading))
    return found


def statistics(tree: Tree, reading: RStarReading) -> dict[int, Visits]:
    """Visits of every step."""
    visits = {node: Visits() for node in _steps(tree)}
    for node in visits:
        value = value_of(tree, node, reading)
        if value is None:
            continue
        is_local = not tree.is_leaf(node) or (tree.stop(node) not in ANSWERED and reading.failures == "local")
        update_recursive(tree, visits, node, value, start=node if is_local else ROOT)
    return visits


def update_recursive(tree: Tree, visits: Mapping[int, Visits], node: int, value: float, *, start: int = ROOT) -> None:
    """Update `node` and all nodes above it up to `start`. Mutates `visits`."""
    current: int | None = node
    while current is not None:
        visits[current].update(value)
        current = None if current == start else tree.parent(current)


def value_of(tree: Tree, node: int, reading: RStarReading) -> float | None:
    """The value with which a step is first updated: the outcome of a final answer, the negative reward of any other
    ending, or the first score of the judge of steps."""
    stop = tree.stop(node)
    if not tree.is_leaf(node):
        return _scored(tree, node, reading.judge)
    if stop in ANSWERED:
        return _rewarded(tree, node, reading) if reading.outcome == REWARD else _scored(tree, node, reading.outcome)
    is_known = stop is not None and stop not in GIVEN_UP and STOP_WORDS[stop].is_trainable
    return reading.negative_reward if is_known else _scored(tree, node, reading.judge)


def puct(visits: Visits, above: Visits | None, c_puct: float) -> float:
    """rStar's score of a child. For the root it is q."""
    if above is None:
        return visits.q_value
    return uct(visits.q_value, visits.count, above.count, exploration=c_puct)


def _seen(tree: Tree, node: int, tag: str, visits: Mapping[int, Visits], reading: RStarReading) -> RStarNode:
    parent, own = tree.parent(node), visits[node]
    return RStarNode(
        node=node,
        tag=tag,
        parent=parent,
        children=tuple(tree.policy_children(node)),
        depth=tag.count("."),
        state=_state(tree, node, reading),
        is_terminal=tree.is_ended(node),
        reward=tree.reward(node) if tree.is_leaf(node) else None,
        value=value_of(tree, node, reading),
        consecutive_errors=consecutive_errors(tree.branch(node).tool_calls, reading.error_match),
        visit_count=own.count,
        value_sum=own.value_sum,
        q_value=own.q_value,
        puct=puct(own, None if parent is None else visits[parent], reading.c_puct),
    )


def _state(tree: Tree, node: int, reading: RStarReading) -> dict[str, Any]:
    segments = tree.segments(node)
    calls = [segment.tool_call for segment in segments if segment.tool_call is not None]
    own = [segment for segment in segments if segment.origin != "prompt"]
    text = "".join(tree.codec_of(node).decode(segment.ids) for segment in own)
    scores: dict[str, list[float | None]] = {}
    for score in tree.scores(node):
        scores.setdefault(score.judge, []).append(score.value)
    return {
        **tree.notes(node),
        "text": text,
        "action": calls[-1].tool if calls else "",
        "action_input": calls[-1].arguments if calls else "",
        "observation": calls[-1].result if calls else "",
        "final_answer": _final_answer(tree, node, reading) or "",
        "stop": tree.stop(node),
        "scores": scores,
    }


def _final_answer(tree: Tree, node: int, reading: RStarReading) -> str | None:
    stop = tree.stop(node)
    if stop is None or not tree.is_leaf(node):
        return None
    if stop in ANSWERED:
        return reading.answer(tree.branch(node).said)
    return ENDINGS.get(stop, stop)


def _scored(tree: Tree, node: int, judge: str | None) -> float | None:
    """The first value that a judge gave; None = it gave none."""
    return next((s.value for s in tree.scores(node) if s.judge == judge and s.value is not None), None)


def _rewarded(tree: Tree, node: int, reading: RStarReading) -> float | None:
    reward = tree.reward_score(node)
    if reward is None:
        return None
    return answer_worth(reward, positive=reading.positive_reward, negative=reading.negative_reward)


def _counts(score: Score) -> bool:
    """Whether it is a value of the search. What a prune rule was given is none."""
    return score.value is not None and not score.is_of_step


def _tag(tree: Tree, node: int) -> str:
    path = tree.path(node)
    numbers = [tree.policy_children(above).index(below) + 1 for above, below in pairwise(path)]
    return ".".join(map(str, [0, *numbers]))


def _steps(tree: Tree) -> Iterator[int]:
    """Steps of the policy, breadth first."""
    nodes = [ROOT]
    for node in nodes:
        yield node
        nodes.extend(tree.policy_children(node))
