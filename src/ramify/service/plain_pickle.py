"""Plain pickle: reads and writes a pickle of plain values as data. Python's unpickler is not used.

Plain values are None, booleans, numbers, texts, lists, tuples and dictionaries whose keys are texts. Tuples are read as
lists. A pickle is a program that may name any function and call it. This reader has no instruction that imports or
calls: a pickle that names something is refused by that name. It reads protocol 2, which `torch.save` writes (CPython
Lib/pickletools.py).

Invariant: memory and time are bounded by the length of the pickle. Values that stand in several places count for each
place, so a short pickle cannot hold a tree of a billion leaves.
"""

import io
import pickle
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ramify.core.errors import ExportError

MAX_DEPTH: Final = 64
"""Lists and dictionaries inside one another."""
MAX_REPEATS: Final = 4
"""A value is written once, and then it can stand in other places. All places together hold at most so many values for
each byte of the pickle."""
MAX_NAME: Final = 1000
"""Bytes of the name of a module, a class or a function."""
ORDERED: Final = "collections.OrderedDict"
"""The one class whose name is accepted; an empty dictionary is read for it, which the pickle then fills."""

_HEAD: Final = b"\x80\x02"
_END: Final = b"."
_SCALARS: Final = re.compile(rb"(?:K.|M..|J.{4}|G.{8}|[N\x88\x89])++", re.DOTALL)
_ALIKE: Final = re.compile(rb"(?:K.)++|(?:M..)++|(?:J.{4})++|(?:G.{8})++|N++|\x88++|\x89++", re.DOTALL)
_NUMBERS: Final[Mapping[int, struct.Struct]] = {
    ord("K"): struct.Struct("xB"),
    ord("M"): struct.Struct("<xH"),
    ord("J"): struct.Struct("<xi"),
    ord("G"): struct.Struct(">xd"),
}
"""Instruction -> layout of the instruction and its number."""
_CONSTANTS: Final[Mapping[int, bool | None]] = {ord("N"): None, 0x88: True, 0x89: False}


def dumped(value: Any) -> bytes:
    """The pickle of a plain value. Raises `ExportError` that names the type of a value that is not plain."""
    file = io.BytesIO()
    _PlainPickler(file, protocol=2).dump(value)
    return file.getvalue()


def loaded(data: bytes) -> Any:
    """The value of a pickle. Raises `ExportError` if it is torn, names anything, or is too deep or too large."""
    value = _Program(data).value()
    _Places(MAX_REPEATS * len(data)).count([value], depth=0)
    return value


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        raise ExportError(
            f"a sample holds {obj!r:.80} of type {type(obj).__module__}.{type(obj).__qualname__}; only numbers, texts, "
            "lists and dictionaries are saved"
        )


class _Named:
    """Stands on the stack for an accepted name until it is called."""


class _Program:
    """A pickle that is read once, instruction by instruction."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def value(self) -> Any:
        try:
            return self._run()
        except (IndexError, KeyError, struct.error, UnicodeDecodeError):
            raise ExportError(f"the pickle is torn at byte {self._at:,} of {len(self._data):,}") from None

    def _run(self) -> Any:
        if self._take(2) != _HEAD:
            raise ExportError(f"it begins with {self._data[:2]!r}, which is no pickle of protocol 2")
        while (code := self._take(1)) != _END:
            if (numbers := _SCALARS.match(self._data, self._at - 1)) is not None:
                self._at = numbers.end()
                self._stack.extend(_scalars(numbers[0]))
            elif (step := _STEPS.get(code)) is not None:
                step(self)
            else:
                raise ExportError(f"the pickle has the instruction {code!r}, which no plain value needs")
        if len(self._stack) != 1 or self._at != len(self._data):
            raise ExportError(f"the pickle ends at byte {self._at:,} of {len(self._data):,} and makes no single value")
        return self._stack.pop()

    def _take(self, length: int) -> bytes:
        """The next bytes. Raises `IndexError` if there are fewer."""
        self._at += length
        if self._at > len(self._data):
            raise IndexError
        return self._data[self._at - length : self._at]

    def _number(self, layout: str) -> int:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at, self._at + MAX_NAME)
        if end < 0:
            raise IndexError
        return self._take(end + 1 - self._at)[:-1].decode("utf-8", "replace")

    def _marked(self) -> list[Any]:
        """Remove and return what lies above the last mark."""
        start = self._marks.pop()
        found = self._stack[start:]
        del self._stack[start:]
        return found

    # -- instructions -------------------------------------------------------------------------------------------------

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def text(self) -> None:
        self._stack.append(self._take(self._number("<I")).decode("utf-8", "surrogatepass"))

    def long(self) -> None:
        self._stack.append(int.from_bytes(self._take(self._number("B")), "little", signed=True))

    def empty_list(self) -> None:
        self._stack.append([])

    def empty_dict(self) -> None:
        self._stack.append({})

    def append(self) -> None:
        self._grow([self._stack.pop()])

    def appends(self) -> None:
        self._grow(self._marked())

    def set_item(self) -> None:
        value = self._stack.pop()
        self._fill([self._stack.pop(), value])

    def set_items(self) -> None:
        self._fill(self._marked())

    def tuple_of(self, length: int) -> None:
        start = len(self._stack) - length
        if start < 0:
            raise IndexError
        self._stack[start:] = [self._stack[start:]]

    def marked_tuple(self) -> None:
        self._stack.append(self._marked())

    def put(self, layout: str) -> None:
        self._memo[self._number(layout)] = self._stack[-1]

    def get(self, layout: str) -> None:
        self._stack.append(self._memo[self._number(layout)])

    def name(self) -> None:
        named = f"{self._line()}.{self._line()}"
        if named != ORDERED:
            raise ExportError(
                f"the pickle names {named!r:.200}, and nothing that a file names is loaded: only numbers, texts, lists "
                "and dictionaries are read. Tensors, arrays, images and other objects must be left out, or be plain, "
                "when the samples are saved"
            )
        self._stack.append(_Named)

    def call(self) -> None:
        arguments, called = self._stack.pop(), self._stack.pop()
        if called is not _Named or arguments != []:
            raise ExportError(f"the pickle calls a value of type {type(called).__name__}; nothing is called here")
        self._stack.append({})

    def _grow(self, values: list[Any]) -> None:
        if not isinstance(target := self._stack[-1], list):
            raise ExportError("the pickle appends to what is no list")
        target.extend(values)

    def _fill(self, pairs: list[Any]) -> None:
        keys, target = pairs[0::2], self._stack[-1]
        if odd := [key for key in keys if not isinstance(key, str)]:
            raise ExportError(f"a dictionary has a key of type {type(odd[0]).__name__}; keys must be texts")
        if not isinstance(target, dict) or len(pairs) % 2:
            raise ExportError("the pickle sets items of what is no dictionary")
        target.update(zip(keys, pairs[1::2], strict=True))


_STEPS: Final[Mapping[bytes, Callable[[_Program], None]]] = {
    b"(": _Program.mark,
    b"X": _Program.text,
    b"\x8a": _Program.long,
    b"]": _Program.empty_list,
    b"}": _Program.empty_dict,
    b"a": _Program.append,
    b"e": _Program.appends,
    b"s": _Program.set_item,
    b"u": _Program.set_items,
    b")": lambda program: program.tuple_of(0),
    b"\x85": lambda program: program.tuple_of(1),
    b"\x86": lambda program: program.tuple_of(2),
    b"\x87": lambda program: program.tuple_of(3),
    b"t": _Program.marked_tuple,
    b"q": lambda program: program.put("B"),
    b"r": lambda program: program.put("<I"),
    b"h": lambda program: program.get("B"),
    b"j": lambda program: program.get("<I"),
    b"c": _Program.name,
    b"R": _Program.call,
}


class _Places:
    """Counts values, each as often as it stands somewhere."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._num = 0

    def count(self, value: Any, *, depth: int) -> None:
        """Raise `ExportError` for too many values, for lists that are too deep or that hold themselves, and for a
        value that is not plain."""
        if depth > MAX_DEPTH:
            raise ExportError(f"lists and dictionaries stand {depth} deep; at most {MAX_DEPTH} are read")
        inner = list(value.values()) if isinstance(value, dict) else value
        if not isinstance(inner, list):
            raise ExportError("the pickle names a class and does not call it; it holds no plain value")
        self._num += len(inner)
        if self._num > self._most:
            raise ExportError(
                f"the values stand in so many places that together they are more than {MAX_REPEATS} times the pickle"
            )
        for each in _containers(inner):
            self.count(each, depth=depth + 1)


def _containers(values: list[Any]) -> Iterator[Any]:
    """The values that are no scalars."""
    if set(map(type, values)) <= _SCALAR_TYPES:
        return iter(())
    return (each for each in values if type(each) not in _SCALAR_TYPES)


_SCALAR_TYPES: Final = frozenset({bool, float, int, str, type(None)})


def _scalars(run: bytes) -> list[Any]:
    """The values of a run of instructions that each push a number, a boolean or None."""
    found: list[Any] = []
    for alike in _ALIKE.findall(run):
        code = alike[0]
        if (layout := _NUMBERS.get(code)) is not None:
            found += [number for (number,) in layout.iter_unpack(alike)]
        else:
            found += [_CONSTANTS[code]] * len(alike)
    return found
