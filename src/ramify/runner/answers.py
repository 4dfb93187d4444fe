"""Answers: the answer of a finished tree to its question, the other answers ranked, and the result of every vote.

A search names its candidates. In a tree without a search every leaf is a candidate, without a score, because its reward
may come from a judge that knows the answer. Where an environment scores, the name of its state stands for an answer
that no text gives. The run's format reads the answers, the task says which answers mean the same, and the strategy's
vote picks one. No judge is asked and no secret is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ramify.core.branch import turns_of
from ramify.core.command import Candidate
from ramify.core.environment import ENVIRONMENT, STATE_NAME
from ramify.core.format import IsSame
from ramify.core.stop import ANSWERED, ROULETTE
from ramify.core.strategy import Vote
from ramify.core.tool import STATE_DIGEST, STATEFUL
from ramify.core.tree import Tree
from ramify.formats.thoughts import without_thoughts
from ramify.runner import votes

ReadAnswer = Callable[[str], str | None]
"""The model's own words (`Branch.said`) -> the answer in them."""
UNREAD_STOPS = (ANSWERED - {"done"}) | {"length", "context_full"}
"""Stop words of paths whose last words may stand for an answer: what ends them is no tool and no rule."""


@dataclass(frozen=True, slots=True)
class Solution:
    """One answer and its support."""

    text: str
    nodes: tuple[int, ...]
    """Nodes where it was given, in order of request."""
    score: float
    """The highest score of its candidates."""
    weight: float
    """Sum of its candidates' scores. If any candidate of the tree has a negative score, all scores are first raised so
    that the lowest is 0."""

    @property
    def num_votes(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one tree."""

    uid: str
    answer: str | None
    """Chosen by the strategy's vote; None = nothing was said."""
    node: int | None
    """The node whose answer the vote chose."""
    ranked: tuple[Solution, ...] = ()
    """All different answers: by score, then by weight, then in order of request."""
    num_candidates: int = 0
    by_vote: Mapping[Vote, int | None] = field(default_factory=dict[Vote, "int | None"])
    """Vote -> the node whose answer it picks."""
    is_unread: bool = False
    """Whether the format could read no answer at all: `answer` is then the last words of a path. None is ranked."""

    def text_at(self, node: int | None) -> str | None:
        """The answer given at `node`."""
        return next((solution.text for solution in self.ranked if node in solution.nodes), None)

    def as_dict(self) -> dict[str, Any]:
        ranked = [
            {"answer": s.text, "score": s.score, "weight": s.weight, "votes": s.num_votes, "nodes": list(s.nodes)}
            for s in self.ranked
        ]
        return {
            "uid": self.uid,
            "answer": self.answer,
            "unread": self.is_unread,
            "node": self.node,
            "ranked": ranked,
            "num_candidates": self.num_candidates,
            "votes": {vote: self.text_at(node) for vote, node in self.by_vote.items()},
        }


@dataclass(frozen=True, slots=True)
class Answering:
    """Finds the answers of the trees of a run."""

    vote: Vote
    read: ReadAnswer
    is_same: IsSame

    def of(self, tree: Tree) -> Answers:
        """The answers of a finished tree, from its candidates. If no search named any, every leaf is a candidate.

        A path that ended by random termination is no candidate.
        """
        leaves = (leaf for leaf in tree.leaves() if tree.stop(leaf) != ROULETTE)
        candidates = tree.candidates or tuple(Candidate(leaf, _score_of_state(tree, leaf)) for leaf in leaves)
        texts = [self.read(tree.branch(each.node).said) or state_name(tree, each.node) for each in candidates]
        is_unread = all(text is None for text in texts)
        if is_unread:
            texts = [_last_words(tree, candidate.node) for candidate in candidates]
        classes = votes.classes_of(texts, self.is_same)
        chosen = _chosen(classes, [candidate.score for candidate in candidates])
        winner = chosen[self.vote]
        found = Answers(
            uid=tree.problem.uid,
            answer=None if winner is None else texts[winner],
            node=None if winner is None else candidates[winner].node,
            ranked=_ranked(candidates, texts, classes),
            num_candidates=len(candidates),
            by_vote={name: None if number is None else candidates[number].node for name, number in chosen.items()},
        )
        if is_unread and winner is not None:
            found = replace(found, is_unread=True, ranked=(), by_vote=dict.fromkeys(chosen))
        return found


def state_name(tree: Tree, node: int) -> str | None:
    """The name of the state of an environment in which the path to `node` ended, in place of an answer; None = no
    environment scored it."""
    score = tree.reward_score(node)
    if score is None or score.judge != ENVIRONMENT:
        return None
    steps = (call.metadata for call in reversed(tree.branch(node).tool_calls) if call.status in STATEFUL)
    metadata = next(steps, {})
    digest = metadata.get(STATE_DIGEST)
    return str(metadata.get(STATE_NAME) or (f"state {digest[:12]}" if digest else f"the state at node {node}"))


def _score_of_state(tree: Tree, leaf: int) -> float:
    """The environment's score of a leaf, where it knows no secret; otherwise 0."""
    score = tree.reward_score(leaf)
    is_open = score is not None and score.judge == ENVIRONMENT and not score.is_oracle
    return (score.value or 0.0) if score is not None and is_open else 0.0


def _last_words(tree: Tree, node: int) -> str | None:
    """What the model said last on the path to `node`, without its thoughts; None = nothing that may be an answer."""
    if tree.stop(node) not in UNREAD_STOPS:
        return None
    branch = tree.branch(node)
    last = turns_of(branch.said)[-1].removesuffix(branch.codec.decode([branch.codec.eos_id]))
    return without_thoughts(last).strip() or None


def _chosen(classes: Sequence[int], scores: Sequence[float]) -> dict[Vote, int | None]:
    """The number of the answer that each vote picks."""
    return {
        "best": votes.best(classes, scores),
        "first": votes.first(classes),
        "majority": votes.majority(classes),
        "weighted": votes.weighted(classes, scores),
    }


def _ranked(
    candidates: Sequence[Candidate], texts: Sequence[str | None], classes: Sequence[int]
) -> tuple[Solution, ...]:
    weights = votes.weighted_sums(classes, votes.shifted([candidate.score for candidate in candidates]))
    given: dict[int, list[Candidate]] = {kind: [] for kind in weights}
    for candidate, kind in zip(candidates, classes, strict=True):
        if kind >= 0:
            given[kind].append(candidate)
    found = [
        Solution(texts[kind] or "", tuple(c.node for c in same), max(c.score for c in same), weights[kind])
        for kind, same in given.items()
    ]
    return tuple(sorted(found, key=lambda solution: (-solution.score, -solution.weight)))
