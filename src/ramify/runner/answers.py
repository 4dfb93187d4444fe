"""Answers: the answer of a finished tree to its question, the other answers ranked, and every vote.

A search names its candidates. A tree without a search has its leaves as candidates, without scores, because their
rewards may come from a judge that knows the answer. The run's format reads the texts, the task says which answers mean
the same, and the strategy's vote picks one. No judge is asked and no secret is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.core.command import Candidate
from ramify.core.format import IsSame
from ramify.core.stop import ROULETTE
from ramify.core.strategy import Vote
from ramify.core.tree import Tree
from ramify.runner import votes

ReadAnswer = Callable[[str], str | None]
"""Response -> the answer in it."""


@dataclass(frozen=True, slots=True)
class Solution:
    """One answer, and what speaks for it."""

    text: str
    nodes: tuple[int, ...]
    """Where it was given, in order of request."""
    score: float
    """The highest of its candidates'."""
    weight: float
    """Sum of its candidates' scores, none of which counts below 0."""

    @property
    def num_votes(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class Answers:
    """What one tree answers."""

    uid: str
    answer: str | None
    """By the strategy's vote; None = no candidate gave one."""
    node: int | None
    """Where it was first given, or given with the highest score."""
    ranked: tuple[Solution, ...] = ()
    """All different answers: by score, then by weight, then in order of request."""
    num_candidates: int = 0
    by_vote: Mapping[Vote, int | None] = field(default_factory=dict[Vote, "int | None"])
    """Where the answer stands that each vote picks."""

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
            "node": self.node,
            "ranked": ranked,
            "num_candidates": self.num_candidates,
            "votes": {vote: self.text_at(node) for vote, node in self.by_vote.items()},
        }


@dataclass(frozen=True, slots=True)
class Answering:
    """How the trees of a run are asked for their answers."""

    vote: Vote
    read: ReadAnswer
    is_same: IsSame

    def of(self, tree: Tree) -> Answers:
        """The answers of a finished tree: those of its candidates; where no search named any, those of its leaves.

        A path that a coin ended answers nothing.
        """
        leaves = (leaf for leaf in tree.leaves() if tree.stop(leaf) != ROULETTE)
        candidates = tree.candidates or tuple(Candidate(leaf, 0.0) for leaf in leaves)
        texts = [self.read(tree.branch(candidate.node).response_text) for candidate in candidates]
        classes = votes.classes_of(texts, self.is_same)
        chosen = _chosen(classes, [candidate.score for candidate in candidates])
        winner = chosen[self.vote]
        return Answers(
            uid=tree.problem.uid,
            answer=None if winner is None else texts[winner],
            node=None if winner is None else candidates[winner].node,
            ranked=_ranked(candidates, texts, classes),
            num_candidates=len(candidates),
            by_vote={name: None if number is None else candidates[number].node for name, number in chosen.items()},
        )


def _chosen(classes: Sequence[int], scores: Sequence[float]) -> dict[Vote, int | None]:
    """Which answer each vote picks."""
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
