"""Levels: Tree of Thoughts, breadth first. All paths of a level grow and are valued before the next level begins.

This file decides which paths are kept; the expansions do the growing and judging. Ties go to the path asked for first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ramify.core.command import SHOWN, Candidate, Fork, Grow, Judge, Option, siblings
from ramify.core.errors import ConfigError
from ramify.core.tree import ROOT, Tree
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.expansion import Child, Expansion, Expansions
from ramify.strategies.parts.proportional import ZeroValues, sampled, sampled_once
from ramify.strategies.tot.values import greedy
from ramify.strategies.tot.weigh import LevelGrowth, weighed


@dataclass(frozen=True, slots=True)
class LevelRules:
    """How a level is valued and which paths are kept."""

    evaluate: Literal["value", "vote"] = "value"
    """Each candidate is judged separately, or one judgement compares all candidates of a level."""
    select: Literal["greedy", "sample"] = "greedy"
    """Which paths of a level are kept: those of the highest values, or a draw in proportion to the values."""
    num_kept: int = 5
    """Paths kept of each level."""
    repeats: Literal["distinct", "kept"] = "distinct"
    """Whether equal paths, or paths with equal text, may be kept more than once (published)."""
    zero_values: ZeroValues = "uniform"

    def __post_init__(self) -> None:
        if self.num_kept < 1:
            raise ConfigError(f"tot: bfs.num_kept = {self.num_kept!r} must be at least 1")


@dataclass(frozen=True, slots=True)
class _Level:
    """The result of one level."""

    candidates: tuple[Candidate, ...]
    """The candidates with a value, in the order asked."""
    kept: tuple[int, ...]
    """Indices of the kept candidates, in the order chosen."""


class ToTLevels:
    """Processes one level at a time. `levels` has the result of each."""

    def __init__(self, rules: LevelRules, growing: LevelGrowth, expansions: Expansions, rng: Draws) -> None:
        self.rules = rules
        self.growing = growing
        self.is_over = False
        self.round = 0
        self.answers: list[Candidate] = []
        self.levels: list[_Level] = []
        self._expansions = expansions
        self._rng = rng
        self._current: Expansion | None = None
        self._is_valued = False
        """Whether the judgements of the current level were asked for."""

    def advance(self, tree: Tree) -> None:
        """Continue if all outcomes of the current level are told."""
        if self.is_over:
            return
        if self._current is None:
            self._grow([Candidate(ROOT, 0.0)], [0])
            return
        if self._expansions.is_settled(self._current) and self.rules.evaluate == "vote" and not self._is_valued:
            self._ask_for_votes(self._current)
        if self._expansions.is_settled(self._current):
            self._choose(tree, self._current)

    def _grow(self, paths: Sequence[Candidate], texts: Sequence[int]) -> None:
        """Grow these paths; paths with equal text have the same number in `texts`."""
        growing, self._is_valued = self.growing, False
        self.is_over = not paths or self.round >= growing.num_levels or self._expansions.is_stopped
        if self.is_over:
            return
        self.round += 1
        until = "end" if self.round == growing.num_levels else "step"
        ranked = sorted(paths, key=lambda path: -path.score) if self.round > 1 else []
        why = tuple(Option(path.node, path.score) for path in ranked[:SHOWN])
        grows: list[Grow] = []
        for path in paths:
            fork = Fork(growing.width, "level", score=path.score if self.round > 1 else None)
            grows += siblings(Grow(path.node, until=until, action=growing.action, fork=fork, why=why))
            why = ()
        self._current = self._expansions.grow(grows, [text for text in texts for _ in range(growing.width)])

    def _ask_for_votes(self, expansion: Expansion) -> None:
        """One judgement over all candidates; repeats are left out, unless each is judged separately (`own`)."""
        self._is_valued = True
        is_each = self.growing.duplicate_value == "own"
        nodes = tuple(child.tip for child in expansion.grown if is_each or child.twin is None)
        attempts = range(self._expansions.attempts if nodes else 0)
        self._expansions.score(expansion, [Judge(nodes, self.growing.judge, attempt) for attempt in attempts])

    def _choose(self, tree: Tree, expansion: Expansion) -> None:
        """Keep the best of the level. Ended paths are answers; the others grow."""
        found = weighed(tree, expansion, self._expansions, self.growing.duplicate_value)
        values = [value for _, value in found]
        kept = self._kept([child for child, _ in found], values)
        candidates = tuple(Candidate(child.tip, value) for child, value in found)
        self.levels.append(_Level(candidates, tuple(kept)))
        self.answers += [candidates[i] for i in sorted(set(kept)) if found[i][0].has_ended]
        alive = [i for i in kept if not found[i][0].has_ended]
        texts = [id(found[i][0].twin or found[i][0]) for i in alive]
        self._grow([candidates[i] for i in alive], [texts.index(text) for text in texts])

    def _kept(self, children: Sequence[Child], values: Sequence[float]) -> list[int]:
        """Indices of the kept paths, in the order chosen."""
        rules = self.rules
        is_once = rules.repeats == "distinct"
        firsts = [i for i, child in enumerate(children) if not (is_once and child.twin in children)]
        values = [values[i] for i in firsts]
        if rules.select == "greedy":
            chosen = greedy(values, rules.num_kept)
        else:
            draw = sampled_once if is_once else sampled
            chosen = draw(values, rules.num_kept, self._rng, zero_values=rules.zero_values)
        return [firsts[i] for i in chosen]
