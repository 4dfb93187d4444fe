"""Shared tree: the samples of one prompt as one tree. Messages that are equal from the start stand on it once.

Equal = the same origin, text, tokens and tool call. Where no message of the model follows, a sample keeps its messages
to itself, so that each sample has its own leaf. A message of the model and what answers it make one node, as on trees
of our own; a node never joins messages behind a fork. Measures of a shared message are the means over its samples.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final

import numpy as np

from ramify.core.codec import ByteCodec
from ramify.core.command import Fork, Grow, Grown, Score
from ramify.core.errors import StoreError
from ramify.core.growth import Done, Growth
from ramify.core.problem import Problem
from ramify.core.segment import Origin, Segment, token_array
from ramify.core.tree import ROOT, Step, Tree
from ramify.view.readers.foreign_run import ForeignTree

CODEC: Final = ByteCodec()
BYTES: Final = "tokens are the bytes of the text: the file has no text for single tokens"
MAX_TREES: Final = 50_000
SAMPLES: Final = "samples"
"""Rule of the forks: the file does not say why paths part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a sample."""

    segment: Segment
    after: int | None = None
    """Place in the sample of the message that it follows; None = it is a first message."""
    measures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values of the whole message. On the tree, each of its bytes has them too, so that a page can colour it."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tokens: bytes = b""
    """Hash of the token ids that the file gives it. It only tells messages apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEnd:
    """How a path ended."""

    stop: str = "end_of_sequence"
    scores: tuple[Score, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def text_segment(origin: Origin, text: str) -> Segment:
    """`text` as bytes. A character that UTF-8 cannot hold becomes '?'."""
    return Segment(origin, token_array(CODEC.encode(text)))


def problem_of(uid: str, question: str) -> Problem:
    """A problem, where the file may name none."""
    return Problem(uid or "unnamed", question if question.strip() else "(the file names no question)")


@dataclass(slots=True)
class _Shared:
    """A message as it stands on the tree: once for all samples that begin alike."""

    message: ChatMessage
    children: "dict[bytes, _Shared]" = field(default_factory=dict[bytes, "_Shared"])
    values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Of each measure, in every sample."""
    end: SampleEnd | None = None

    def only_answer(self) -> "_Shared | None":
        """What follows, if it is one message that the model did not sample, and no path ends here."""
        if self.end is not None or len(self.children) != 1:
            return None
        (child,) = self.children.values()
        return None if child.message.segment.is_sampled else child


class SharedTree:
    """The samples of one prompt while a file is read."""

    def __init__(
        self, problem: Problem, *, facts: Mapping[str, Any] | None = None, caveats: Sequence[str] = ()
    ) -> None:
        self.problem = problem
        self.facts = facts or {}
        self.caveats = (BYTES, *caveats)
        self._above = _Shared(ChatMessage(segment=text_segment("prompt", "")))
        self._num_samples = 0

    def lay(self, messages: Sequence[ChatMessage], end: Callable[[int], SampleEnd]) -> None:
        """Add one sample; `end` says how the path ended whose last message has this place. A message stands behind the
        one that it follows. Without any message of the model, an empty one stands for it."""
        if not any(message.segment.is_sampled for message in messages):
            empty = ChatMessage(segment=text_segment("sampled", ""), after=len(messages) - 1 if messages else None)
            messages = [*messages, empty]
        is_last, is_shared = _followed(messages)
        places: list[_Shared] = []
        for i, message in enumerate(messages):
            above = self._above if message.after is None else places[message.after]
            key = _key(message, b"" if is_shared[i] else b"%d.%d" % (self._num_samples, i))
            places.append(above.children.setdefault(key, _Shared(message)))
            for name, value in message.measures.items():
                places[i].values.setdefault(name, []).append(value)
            if is_last[i]:
                places[i].end = end(i)
        self._num_samples += 1

    def grown(self, number: int) -> ForeignTree:
        """The tree of all samples."""
        last, prompt = self._above, [self._above.message.segment]
        while (only := last.only_answer()) is not None:
            last = only
            prompt.append(replace(only.message.segment, origin="prompt"))
        growth = Growth(Tree(self.problem, CODEC, prompt[1:], seed=number))
        waiting = [(ROOT, last)]
        while waiting:
            waiting += reversed(_grow_below(growth, *waiting.pop()))
        growth.tree.caveats = self.caveats
        growth.tree.trim()
        return ForeignTree(number, growth.tree, self.facts)


class SharedTrees:
    """The trees of a run while its files are read, in the order in which they begin."""

    def __init__(self) -> None:
        self._trees: dict[tuple[Any, ...], SharedTree] = {}

    def __len__(self) -> int:
        return len(self._trees)

    def tree(self, key: tuple[Any, ...], make: Callable[[], SharedTree]) -> SharedTree:
        """The tree of a prompt; `make` makes it if it is new. Raises `StoreError` if there are too many."""
        if key not in self._trees:
            if len(self) >= MAX_TREES:
                raise StoreError(f"there are more than {MAX_TREES:,} prompts, the most that are shown; cut the file")
            self._trees[key] = make()
        return self._trees[key]

    def grown(self) -> list[ForeignTree]:
        """All trees. Their messages are given back one tree after the other: afterwards nothing can be added."""
        keys = list(self._trees)
        return [self._trees.pop(key).grown(count) for count, key in enumerate(keys)]


def _followed(messages: Sequence[ChatMessage]) -> tuple[list[bool], list[bool]]:
    """For each message: whether nothing follows it, and whether a message of the model comes somewhere behind it."""
    is_last, is_shared = [True] * len(messages), [False] * len(messages)
    for i in reversed(range(len(messages))):
        after = messages[i].after
        if after is not None:
            is_last[after] = False
            is_shared[after] |= is_shared[i] or messages[i].segment.is_sampled
    return is_last, is_shared


def _key(message: ChatMessage, own: bytes) -> bytes:
    """What makes a message equal to another."""
    segment, call = message.segment, message.segment.tool_call
    parts = (segment.origin, call and (call.tool, call.arguments, call.status), own)
    key = hashlib.blake2b(repr(parts).encode("utf-8", "backslashreplace"), digest_size=16)
    for data in (segment.ids.tobytes(), message.tokens):
        key.update(len(data).to_bytes(8, "big") + data)
    return key.digest()


def _grow_below(growth: Growth, node: int, shared: _Shared) -> list[tuple[int, _Shared]]:
    """Grow what follows a message; returns the new nodes, each with its last message."""
    grown: list[tuple[int, _Shared]] = []
    fork: Fork | int | None = Fork(len(shared.children), SAMPLES) if len(shared.children) > 1 else None
    for child in shared.children.values():
        step, last = _step(child)
        command = growth.ask(Grow(node, fork=fork))
        fork = None if fork is None else len(growth.tree.forks) - 1
        growth.grow(command, step)
        outcome = growth.end(command, Done())
        assert isinstance(outcome, Grown)
        grown.append((outcome.tip, last))
    return grown


def _step(first: _Shared) -> tuple[Step, _Shared]:
    """A message and what answers it as one step, with the last of them."""
    run = [first]
    while (answer := run[-1].only_answer()) is not None:
        run.append(answer)
    end = run[-1].end
    measures = {name: fmean(values) for name, values in first.values.items()}
    said = first.message.segment
    if said.is_sampled:
        columns = {name: np.full(len(said), value, np.float32) for name, value in measures.items()}
        said = replace(said, measures=columns)
    step = Step(
        (said, *(one.message.segment for one in run[1:])),
        stop=None if end is None else end.stop,
        measures=measures,
        scores=() if end is None else end.scores,
        notes={**first.message.notes, **({} if end is None else end.notes)},
    )
    return step, run[-1]
