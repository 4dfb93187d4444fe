"""SegmentArena: the token storage of one tree.

It owns flat pools of ids, logprobs and measures, and one row of small numbers per segment, so a segment costs tens of
bytes besides its tokens. It is append-only, except for `cut`, which divides one row in two without moving a token.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ramify.core.segment import (
    FREE,
    ORIGINS,
    Finish,
    Floats_T,
    Ids_T,
    Origination,
    Segment,
    SegmentLabel,
    ToolCall,
    Usage,
)

HAS_LOGPROBS, HAS_SEED, HAS_VERSION = 1, 2, 4
NO_FINISH = -1
SAMPLED = ORIGINS.index("sampled")


class _Pool:
    """A growable one-dimensional array. Views handed out stay valid and are read-only."""

    __slots__ = ("_data", "_read", "size")

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.size = 0
        self._hold(np.empty(0, dtype))

    def append(self, values: npt.NDArray[Any]) -> None:
        end = self.size + len(values)
        if end > len(self._data):
            grown = np.empty(max(64, end + end // 2), self._data.dtype)
            grown[: self.size] = self._data[: self.size]
            self._hold(grown)
        self._data[self.size : end] = values
        self.size = end

    def view(self, start: int, end: int) -> npt.NDArray[Any]:
        return self._read[start:end]

    def joined(self, places: list[slice]) -> npt.NDArray[Any]:
        """A copy of the values at `places`, one after the other."""
        return np.concatenate([self._data[place] for place in places])

    def trim(self) -> None:
        """Release unused capacity."""
        if len(self._data) > self.size:
            self._hold(self._data[: self.size].copy())

    def __getstate__(self) -> npt.NDArray[Any]:
        """For copies and pickles: `_read` must stay a view."""
        return self._data[: self.size]

    def __setstate__(self, data: npt.NDArray[Any]) -> None:
        self.size = len(data)
        self._hold(data)

    def _hold(self, data: npt.NDArray[Any]) -> None:
        self._data = data
        self._read = data.view()
        self._read.flags.writeable = False


class Extras(NamedTuple):
    """The rare fields of a segment; stored only for segments that have one."""

    message: Mapping[str, Any] | None
    tool_call: ToolCall | None
    attachments: tuple[str, ...]


class SegmentArena:
    """Segments by index. `add` copies a segment in; `get` returns a segment whose arrays are views."""

    __slots__ = (
        "_billed",
        "_cached",
        "_calls",
        "_end",
        "_extras",
        "_finish",
        "_finishes",
        "_flags",
        "_ids",
        "_logprobs",
        "_measured",
        "_measures",
        "_origin",
        "_picodollars",
        "_prefilled",
        "_seed",
        "_source",
        "_sources",
        "_start",
        "_version",
    )  # fmt: skip

    def __init__(self) -> None:
        self._ids = _Pool(np.int32)
        self._logprobs = _Pool(np.float32)
        self._measures: dict[str, _Pool] = {}
        self._measured: dict[int, tuple[str, ...]] = {}
        self._origin, self._flags, self._calls = array("B"), array("B"), array("B")
        self._start, self._end = array("i"), array("i")
        self._billed, self._cached, self._prefilled, self._version = array("i"), array("i"), array("i"), array("i")
        self._picodollars = array("q")
        self._finish, self._source, self._seed = array("h"), array("h"), array("Q")
        self._sources: list[Origination | None] = [None]
        self._finishes: list[Finish] = []
        self._extras: dict[int, Extras] = {}

    def __len__(self) -> int:
        return len(self._origin)

    def add(self, segment: Segment) -> int:
        """Copy `segment` in and return its index."""
        start = self._ids.size
        self._ids.append(segment.ids)
        self._append_values(segment)
        self._origin.append(ORIGINS.index(segment.origin))
        self._start.append(start)
        self._end.append(self._ids.size)
        flags = HAS_LOGPROBS * (segment.logprobs is not None) | HAS_SEED * (segment.seed is not None)
        self._flags.append(flags | HAS_VERSION * (segment.version is not None))
        self._finish.append(NO_FINISH if segment.finish is None else self._intern(self._finishes, segment.finish))
        self._source.append(self._intern(self._sources, segment.source))
        self._seed.append(segment.seed or 0)
        self._version.append(segment.version or 0)
        self._bill(segment.usage)
        index = len(self._origin) - 1
        if segment.measures:
            self._measured[index] = tuple(segment.measures)
        if segment.message is not None or segment.tool_call is not None or segment.attachments:
            self._extras[index] = Extras(segment.message, segment.tool_call, segment.attachments)
        return index

    def get(self, index: int) -> Segment:
        start, end, flags = self._start[index], self._end[index], self._flags[index]
        extras = self._extras.get(index)
        finish = self._finish[index]
        names = self._measured.get(index, ())
        return Segment(
            origin=ORIGINS[self._origin[index]],
            ids=self._ids.view(start, end),
            logprobs=self.known_logprobs(index),
            measures={name: self._measures[name].view(start, end) for name in names},
            source=self._sources[self._source[index]],
            version=self.version(index),
            finish=None if finish == NO_FINISH else self._finishes[finish],
            seed=self._seed[index] if flags & HAS_SEED else None,
            usage=self.usage(index),
            message=extras.message if extras else None,
            tool_call=extras.tool_call if extras else None,
            attachments=extras.attachments if extras else (),
        )

    def label(self, index: int) -> SegmentLabel:
        return SegmentLabel(
            self._end[index] - self._start[index],
            ORIGINS[self._origin[index]],
            self.version(index),
            self._sources[self._source[index]],
            self.tool_call(index),
        )

    def usage(self, index: int) -> Usage:
        numbers = (
            self._calls[index],
            self._billed[index],
            self._cached[index],
            self._prefilled[index],
            self._picodollars[index],
        )
        return Usage(*numbers) if any(numbers) else FREE

    def ids(self, index: int) -> Ids_T:
        return self._ids.view(self._start[index], self._end[index])

    def tokens(self, indices: Iterable[int], measure: str) -> tuple[Ids_T, Floats_T, Floats_T]:
        """(T,) int32 and twice (T,) float32, copies: ids, logprobs and a measure of segments, in order; NaN where a
        segment has none."""
        places: list[slice] = []
        begin = end = 0
        for index in indices:
            start = self._start[index]
            if start != end:  # It does not lie beside the one before.
                places.append(slice(begin, end))
                begin = start
            end = self._end[index]
        places.append(slice(begin, end))
        ids, logprobs, measures = self._ids.joined(places), self._logprobs.joined(places), self._measures.get(measure)
        return ids, logprobs, np.full(len(ids), np.nan, np.float32) if measures is None else measures.joined(places)

    def measure(self, index: int, name: str) -> Floats_T | None:
        if name not in self._measured.get(index, ()):
            return None
        return self._measures[name].view(self._start[index], self._end[index])

    def known_logprobs(self, index: int) -> Floats_T | None:
        """(T,) float32; None = the segment has none."""
        if not self._flags[index] & HAS_LOGPROBS:
            return None
        return self._logprobs.view(self._start[index], self._end[index])

    def length(self, index: int) -> int:
        return self._end[index] - self._start[index]

    def num_sampled(self, indices: range) -> int:
        """Number of sampled tokens of segments."""
        origin, start, end = self._origin, self._start, self._end
        return sum([end[i] - start[i] for i in indices if origin[i] == SAMPLED])

    def versions(self, indices: Iterable[int]) -> set[int]:
        """The versions that sampled tokens of segments."""
        origin, flags, version = self._origin, self._flags, self._version
        return {version[i] for i in indices if flags[i] & HAS_VERSION and origin[i] == SAMPLED}

    def is_sampled(self, index: int) -> bool:
        return self._origin[index] == SAMPLED

    def origin(self, index: int) -> int:
        """Position of the segment's origin in `ORIGINS`."""
        return self._origin[index]

    def version(self, index: int) -> int | None:
        return self._version[index] if self._flags[index] & HAS_VERSION else None

    def tool_call(self, index: int) -> ToolCall | None:
        extras = self._extras.get(index)
        return extras.tool_call if extras else None

    def cut(self, index: int, offset: int) -> int:
        """Divide a segment. A new segment (the head) takes its first `offset` tokens; `index` keeps the rest, finish
        and extras.

        The head bills its own tokens, and the calls, the prefill and the price of the whole segment. Both halves
        together bill what the whole segment did. Returns the head's index.
        """
        middle = self._start[index] + offset
        self._origin.append(self._origin[index])
        self._start.append(self._start[index])
        self._end.append(middle)
        self._flags.append(self._flags[index])
        self._finish.append(NO_FINISH)
        self._source.append(self._source[index])
        self._seed.append(self._seed[index])
        self._version.append(self._version[index])
        whole = self.usage(index)
        self._bill(replace(whole, num_billed=min(offset, whole.num_billed)))
        self._calls[index] = self._cached[index] = self._prefilled[index] = self._picodollars[index] = 0
        self._billed[index] = max(0, whole.num_billed - offset)
        self._start[index] = middle
        head = len(self._origin) - 1
        if index in self._measured:
            self._measured[head] = self._measured[index]
        return head

    def move(self, index: int) -> int:
        """Append a row equal to `index`; its tokens are not copied. The new row takes over the billing and the
        extras."""
        self.cut(index, self.length(index))
        new = len(self._origin) - 1
        self._finish[new] = self._finish[index]
        self._billed[new] += self._billed[index]
        self._billed[index] = 0
        extras = self._extras.pop(index, None)
        if extras:
            self._extras[new] = extras
        return new

    def trim(self) -> None:
        """Release unused capacity; called when a tree is finished."""
        for pool in (self._ids, self._logprobs, *self._measures.values()):
            pool.trim()

    def _append_values(self, segment: Segment) -> None:
        self._logprobs.append(_missing(segment) if segment.logprobs is None else segment.logprobs)
        for name in segment.measures:
            if name not in self._measures:
                self._measures[name] = pool = _Pool(np.float32)
                pool.append(np.full(self._ids.size - len(segment.ids), np.nan, np.float32))
        for name, pool in self._measures.items():
            pool.append(segment.measures[name] if name in segment.measures else _missing(segment))

    def _bill(self, usage: Usage) -> None:
        self._calls.append(usage.num_calls)
        self._billed.append(usage.num_billed)
        self._cached.append(usage.num_cached)
        self._prefilled.append(usage.num_prefilled)
        self._picodollars.append(usage.picodollars)

    @staticmethod
    def _intern(table: list[Any], value: object) -> int:
        try:
            return table.index(value)
        except ValueError:
            table.append(value)
            return len(table) - 1


def _missing(segment: Segment) -> Floats_T:
    """NaN for every value that `segment` does not have."""
    return np.full(len(segment.ids), np.nan, np.float32)
