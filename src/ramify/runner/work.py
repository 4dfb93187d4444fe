"""Work: one Grow being carried out: its position, what it may still use, and its current step.

Values and bookkeeping without I/O. The sampler and the grower use them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramify.core.branch import Branch, Piece
from ramify.core.codec import Codec
from ramify.core.command import Grow, Score, Tokens
from ramify.core.cut import is_unresolved
from ramify.core.engine import Generation
from ramify.core.format import Span, span_ids
from ramify.core.ledger import Spend
from ramify.core.quick_init import quick_init
from ramify.core.seeds import child_seed
from ramify.core.segment import FREE, Finish, Floats_T, Ids_T, Origin, Origination, Segment, Usage, token_array
from ramify.core.tree import Place, Step, Tree
from ramify.runner.driver import spend_of


class Contexts(Sequence[Branch]):
    """The contexts on the way to a node (`Tree.contexts`), made when they are read: a deep path has many, and most
    prompts cite the last alone."""

    def __init__(self, tree: Tree, node: int) -> None:
        self._tree, self._node = tree, node
        self._every: list[Branch] | None = None

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, index: Any) -> Any:
        return self._tree.branch(self._node) if index == -1 and self._every is None else self._made[index]

    @property
    def _made(self) -> list[Branch]:
        if self._every is None:
            self._every = self._tree.contexts(self._node)
        return self._every


@quick_init
@dataclass(frozen=True, slots=True)
class Work:
    """One Grow to carry out."""

    tree: str
    """Name of the tree for tools and engines."""
    command: Grow
    place: Place
    branch: Branch
    """The path to continue. An action that quotes starts a fresh context instead."""
    contexts: Sequence[Branch]
    """For an action that quotes: one branch for each fresh context on the path."""
    allotment: Spend
    limited: frozenset[str]
    """Names of the amounts in `allotment` that are limited."""
    report: Callable[[Step], None]
    """Called with each complete step."""
    done: tuple[Step, ...] = ()
    """Steps grown before the run was resumed."""
    deadline: float | None = None
    """By the loop's monotonic clock."""


@dataclass(slots=True)
class Path:
    """How far the work has come."""

    work: Work
    branch: Branch
    seed: int
    """Seed of the next step."""
    spent: Spend = field(default_factory=Spend)
    """Used so far of the allotment; counted only if some amount is limited."""
    num_steps: int = 0
    num_sampled: int = 0
    is_over: bool = False
    turn: "Turn | None" = None
    """The unfinished step."""
    asides: list[Step] = field(default_factory=list[Step])
    """What the environment's model said in the unfinished step."""

    @classmethod
    def begin(cls, work: Work) -> "Path":
        path = cls(work, work.branch, work.place.seed)
        for step in work.done:
            path.add(step)
        return path

    def taken_asides(self) -> tuple[Step, ...]:
        """The asides of the step that is complete now."""
        asides, self.asides = self.asides, []
        return tuple(asides)

    def add(self, step: Step) -> None:
        """Add a complete step."""
        turn, self.turn = self.turn, None
        self.branch = self._behind(step) if turn is None else turn.branch
        if self.work.limited:
            for each in step.with_asides:
                self.spent.add(spend_of(each))
        self.num_steps += 1
        self.num_sampled += sum(num_sampled(s) for s in step.segments)
        self.seed = child_seed(self.seed, len(self.branch), 0)
        until = self.work.command.until
        is_enough = until == "step" or (isinstance(until, Tokens) and self.num_sampled >= until.n)
        self.is_over = step.stop is not None or is_enough

    def _behind(self, step: Step) -> Branch:
        """The branch after a step that was grown before the run was resumed."""
        is_fresh = step.edge == "quotes" and not self.num_steps
        base = Branch(self.branch.codec, self.branch.node, ()) if is_fresh else self.branch
        return extended(base, step.segments, node=self.next_node)

    @property
    def next_node(self) -> int:
        """Placeholder for the id of the next step's node. Nodes not yet on the tree have negative ids."""
        return -1 - self.num_steps

    def left(self, name: str) -> int | None:
        """What is left of a counted amount of the allotment; None = it is not limited."""
        if name not in self.work.limited:
            return None
        return getattr(self.work.allotment, name) - getattr(self.spent, name)


@dataclass(slots=True)
class Turn:
    """An unfinished step."""

    branch: Branch
    seed: int
    """Seed of the next request. For the first request it is the seed of the node."""
    node: int
    """Placeholder for the id its node will have."""
    segments: list[Segment] = field(default_factory=list)
    topk: list[Floats_T] = field(default_factory=list)
    finish: Finish | None = None
    stop: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    scores: tuple[Score, ...] = ()
    """Scores of the judge of steps that the prune rule reads."""

    def take(self, *segments: Segment) -> None:
        self.segments.extend(segments)
        self.branch = extended(self.branch, segments, node=self.node)

    def hear(self, generation: Generation, source: Origination, *, picodollars: int = 0) -> None:
        """Add what an engine sampled, and its cost."""
        self.take(*sampled_segments(generation, source, self.seed, picodollars=picodollars))
        self.topk.extend(generation.topk)
        self.notes.update(generation.notes)
        self.finish = generation.finish
        self.seed = child_seed(self.seed, len(self.branch), 0)

    @property
    def num_sampled(self) -> int:
        """Tokens sampled so far. For messages, the engine's own count."""
        return sum(num_sampled(s) for s in self.segments)

    @property
    def message(self) -> Mapping[str, Any] | None:
        """The last chat message of the model, if the engine takes messages."""
        last = self.segments[-1] if self.segments else None
        return last.message if last is not None and last.is_sampled else None

    @property
    def billed(self) -> Spend:
        """What its requests have cost so far."""
        spend = Spend()
        for segment in self.segments:
            spend.bill(segment.usage)
        return spend

    @property
    def was_ended(self) -> bool:
        """Whether the model ended its turn: by a stop word or the end of the sequence."""
        return self.finish is not None and self.finish.kind in ("stop", "end_of_sequence")

    def is_full(self, max_tokens: int | None) -> bool:
        """Whether it has as many tokens as its action may sample."""
        return max_tokens is not None and self.num_sampled >= max_tokens

    def is_resolved(self, words: Sequence[str], *, max_tokens: int | None, num_lacking: int | None) -> bool:
        """Whether sampling may stop here: at a stop word, the end of the sequence or its action's limit, or because
        the command has all its tokens and no stop word or character is incomplete."""
        if self.finish is None:
            return False
        if self.finish.kind != "length" or self.is_full(max_tokens):
            return True
        return num_lacking is not None and num_lacking < 1 and not is_unresolved(self.branch.run_bytes, words)


def num_sampled(segment: Segment) -> int:
    """Tokens that the model sampled. The ids of a message are bytes, so the engine's count is used instead."""
    if not segment.is_sampled:
        return 0
    return len(segment) if segment.message is None else segment.usage.num_billed


def extended(branch: Branch, segments: Sequence[Segment], *, node: int) -> Branch:
    """`branch` with `segments` of one more node appended."""
    return Branch(branch.codec, branch.node, (*branch.pieces, *(Piece(node, s) for s in segments)))


def prompt_segments(codec: Codec, spans: Sequence[Span]) -> list[Segment]:
    """The opening of a context, with control tokens only where they are trusted. One segment, or one per message."""
    return message_segments("prompt", codec, spans) or [Segment("prompt", token_array(span_ids(codec, spans)))]


def message_segments(origin: Origin, codec: Codec, spans: str | Sequence[Span]) -> list[Segment]:
    """One segment per message; empty if the spans are text only."""
    if isinstance(spans, str):
        return []
    return [
        Segment(origin, token_array(span_ids(codec, [span])), message=span.message)
        for span in spans
        if span.message is not None
    ]


def behind_end(observation: Ids_T, end: int, codec: Codec) -> Ids_T:
    """An observation without the end-of-turn token it begins with, if the model has already written that token."""
    places = np.flatnonzero(observation == end)
    if len(places) and not codec.decode(observation[: places[0]]).strip():
        return observation[places[0] + 1 :]
    return observation


def usage_of(generation: Generation, *, picodollars: int = 0) -> Usage:
    """What a generation used, at a price."""
    return Usage(1, generation.num_billed, generation.num_cached, generation.num_prefilled, picodollars)


def sampled_segments(generation: Generation, source: Origination, seed: int, *, picodollars: int = 0) -> list[Segment]:
    """One segment per policy version of a generation. The first bills it, the last says how it finished."""
    spans = generation.versions or ((None, len(generation.ids)),)
    segments: list[Segment] = []
    start = 0
    for number, (version, length) in enumerate(spans):
        end = start + length
        segments.append(
            Segment(
                "sampled",
                generation.ids[start:end],
                logprobs=None if generation.logprobs is None else generation.logprobs[start:end],
                measures={name: values[start:end] for name, values in generation.measures.items()},
                source=source,
                version=version,
                finish=generation.finish if number == len(spans) - 1 else None,
                seed=seed,
                usage=usage_of(generation, picodollars=picodollars) if number == 0 else FREE,
                message=generation.message if number == len(spans) - 1 else None,
            )
        )
        start = end
    return segments
