"""Work: one Grow being carried out: where it stands, what it may still use, the step in the making.

Values and bookkeeping without any I/O; the sampler and the grower do what they say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ramify.core.branch import Branch, Piece
from ramify.core.codec import Codec
from ramify.core.command import Grow, Score, Tokens
from ramify.core.cut import is_unresolved
from ramify.core.engine import Generation
from ramify.core.format import Span, span_ids
from ramify.core.ledger import Spend
from ramify.core.seeds import child_seed
from ramify.core.segment import Finish, Floats_T, Ids_T, Origin, Origination, Segment, Usage, token_array
from ramify.core.tree import Place, Step
from ramify.runner.driver import spend_of


@dataclass(frozen=True, slots=True)
class Work:
    """One Grow to carry out."""

    tree: str
    """Names the tree to tools and engines."""
    command: Grow
    place: Place
    branch: Branch
    """The path it continues; an action that quotes starts afresh instead."""
    contexts: tuple[Branch, ...]
    """For an action that quotes: one branch a fresh context on the way here."""
    allotment: Spend
    limited: frozenset[str]
    """Names of the amounts in `allotment` that bind."""
    report: Callable[[Step], None]
    """Called with each complete step."""
    done: tuple[Step, ...] = ()
    """Steps grown before the run was resumed."""
    deadline: float | None = None
    """By the loop's monotonic clock."""


@dataclass(slots=True)
class Path:
    """How far a piece of work has come."""

    work: Work
    branch: Branch
    seed: int
    """Of the next step."""
    spent: Spend = field(default_factory=Spend)
    """Of the allotment; counted only where something in it binds."""
    num_steps: int = 0
    num_sampled: int = 0
    is_over: bool = False
    turn: "Turn | None" = None
    """The step in the making."""

    @classmethod
    def begin(cls, work: Work) -> "Path":
        path = cls(work, work.branch, work.place.seed)
        for step in work.done:
            path.add(step)
        return path

    def add(self, step: Step) -> None:
        """A step is complete."""
        turn, self.turn = self.turn, None
        self.branch = self._behind(step) if turn is None else turn.branch
        if self.work.limited:
            self.spent.add(spend_of(step))
        self.num_steps += 1
        self.num_sampled += sum(num_sampled(s) for s in step.segments)
        self.seed = child_seed(self.seed, len(self.branch), 0)
        until = self.work.command.until
        is_enough = until == "step" or (isinstance(until, Tokens) and self.num_sampled >= until.n)
        self.is_over = step.stop is not None or is_enough

    def _behind(self, step: Step) -> Branch:
        """The branch with a step behind it that was grown before the run was resumed."""
        is_fresh = step.edge == "quotes" and not self.num_steps
        base = Branch(self.branch.codec, self.branch.node, ()) if is_fresh else self.branch
        return extended(base, step.segments, node=self.next_node)

    @property
    def next_node(self) -> int:
        """Stands for the id the next step's node will have; ids of nodes that are not on the tree yet count down."""
        return -1 - self.num_steps

    def left(self, name: str) -> int | None:
        """What the allotment leaves of a counted amount; None = it does not bind."""
        if name not in self.work.limited:
            return None
        return getattr(self.work.allotment, name) - getattr(self.spent, name)


@dataclass(slots=True)
class Turn:
    """A step in the making."""

    branch: Branch
    seed: int
    """Of the next request: the node's own for the first."""
    node: int
    """Stands for the id its node will have."""
    segments: list[Segment] = field(default_factory=list)
    topk: list[Floats_T] = field(default_factory=list)
    finish: Finish | None = None
    stop: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    scores: tuple[Score, ...] = ()
    """Of a judge of steps that the prune rule reads."""

    def take(self, *segments: Segment) -> None:
        self.segments.extend(segments)
        self.branch = extended(self.branch, segments, node=self.node)

    def hear(self, generation: Generation, source: Origination, *, picodollars: int = 0) -> None:
        """Add what an engine sampled, and what it cost."""
        self.take(*sampled_segments(generation, source, self.seed, picodollars=picodollars))
        self.topk.extend(generation.topk)
        self.notes.update(generation.notes)
        self.finish = generation.finish
        self.seed = child_seed(self.seed, len(self.branch), 0)

    @property
    def num_sampled(self) -> int:
        """Tokens sampled so far; of messages as the engine counts them."""
        return sum(num_sampled(s) for s in self.segments)

    @property
    def message(self) -> Mapping[str, Any] | None:
        """The chat message that the model said last, from an engine that speaks in them."""
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

    def is_resolved(self, words: Sequence[str], *, num_lacking: int | None) -> bool:
        """Whether sampling may stop here: by a stop word or the end, or because the step lacks no token of its number
        and no word or character is begun."""
        if self.finish is None:
            return False
        if self.finish.kind != "length":
            return True
        return num_lacking is not None and num_lacking < 1 and not is_unresolved(self.branch.run_bytes, words)


def num_sampled(segment: Segment) -> int:
    """Tokens that the model sampled; the ids of a message are bytes, so its engine's count stands for them."""
    if not segment.is_sampled:
        return 0
    return len(segment) if segment.message is None else segment.usage.num_billed


def extended(branch: Branch, segments: Sequence[Segment], *, node: int) -> Branch:
    """`branch` with `segments` of one more node behind it."""
    return Branch(branch.codec, branch.node, (*branch.pieces, *(Piece(node, s) for s in segments)))


def prompt_segments(codec: Codec, spans: Sequence[Span]) -> list[Segment]:
    """A context's opening: control tokens only where they are trusted; one segment, or one a message."""
    return message_segments("prompt", codec, spans) or [Segment("prompt", token_array(span_ids(codec, spans)))]


def message_segments(origin: Origin, codec: Codec, spans: str | Sequence[Span]) -> list[Segment]:
    """One segment a message; none where the spans are text alone."""
    if isinstance(spans, str):
        return []
    return [
        Segment(origin, token_array(span_ids(codec, [span])), message=span.message)
        for span in spans
        if span.message is not None
    ]


def behind_end(observation: Ids_T, end: int, codec: Codec) -> Ids_T:
    """An observation without the end of the turn it begins with, where the model has written that itself."""
    places = np.flatnonzero(observation == end)
    if len(places) and not codec.decode(observation[: places[0]]).strip():
        return observation[places[0] + 1 :]
    return observation


def usage_of(generation: Generation) -> Usage:
    """What a generation used, its price left out."""
    return Usage(1, generation.num_billed, generation.num_cached, generation.num_prefilled)


def sampled_segments(generation: Generation, source: Origination, seed: int, *, picodollars: int = 0) -> list[Segment]:
    """One segment a policy version of a generation; the first bills it, the last says how it finished."""
    spans = generation.versions or ((None, len(generation.ids)),)
    segments: list[Segment] = []
    start = 0
    for number, (version, length) in enumerate(spans):
        end = start + length
        usage = replace(usage_of(generation), picodollars=picodollars)
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
                usage=usage if number == 0 else Usage(),
                message=generation.message if number == len(spans) - 1 else None,
            )
        )
        start = end
    return segments
