"""Framing: a record as one line of a journal file, and back. Pure.

    crc32hex SP {"n":17,"after":12,"record":"grown","tree":3, …} LF

The checksum covers the JSON. `n` numbers every line of a journal across its files, so a deleted, doubled or moved line
is detected although its checksum is right. `after` is the number of the previous record of the same tree, so a lost
line shows which tree misses a record. A file begins with the run's header. When it will not be written again, it ends
with a `sealed` record. The header line has the same framing in every format version.
"""

import re
import zlib
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeGuard, get_args

import msgspec

from ramify.core.errors import StoreError
from ramify.store.records import FORMAT, ClosedRecord, Header, Record, Sealed, TreeRecord

FRAME_BYTES = 64
"""Most bytes that a frame adds to a record's own JSON."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises on bytes that are not the JSON that was wanted."""

_FRAME = re.compile(rb'[0-9a-f]{8} \{"n":(\d{1,18}),(?:"after":(\d{1,18}),)?')
_KIND = re.compile(rb'\{"record":"(\w{1,32})"(?:,"tree":(\d{1,18})[,}])?')
_START = re.compile(rb'[0-9a-f]{8} \{"n":')
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Record)
_OF_TREES: Final = frozenset[type](get_args(TreeRecord))


class JournalLine(NamedTuple):
    """The content of a line with a right checksum."""

    number: int
    after: int | None
    body: bytes
    """The record's own JSON."""


class FramedLine(NamedTuple):
    """A line to be written, its number, and the file it belongs to."""

    number: int
    file_index: int
    data: bytes


class _Version(msgspec.Struct):
    """The part of a header that every version has."""

    format: int
    library: str


def file_name(index: int) -> str:
    return f"{index:06d}.jsonl"


def frame(number: int, after: int | None, body: bytes) -> bytes:
    before = b'"after":%d,' % after if after is not None else b""
    data = b'{"n":%d,%s%s' % (number, before, body[1:])
    return b"%08x %s\n" % (zlib.crc32(data), data)


def parse(raw: bytes) -> JournalLine | None:
    """The content of `raw`; None = it is not a complete line with a right checksum."""
    match = _frame_of(raw)
    if match is None:
        return None
    number, after = match.groups()
    return JournalLine(int(number), None if after is None else int(after), b"{" + raw[match.end() : -1])


def parse_number(raw: bytes) -> tuple[int, bytes] | None:
    """The number and the body that `parse` finds, for those who read a whole journal: in half of its time."""
    match = _frame_of(raw)
    return None if match is None else (int(match[1]), b"{" + raw[match.end() : -1])


def _frame_of(raw: bytes) -> re.Match[bytes] | None:
    """The frame of a line that is complete and whose checksum matches exactly; None = it is not."""
    match = _FRAME.match(raw)
    return match if match is not None and _is_whole(raw) else None


def kind_of(body: bytes) -> tuple[str, int | None]:
    """What a line's content is, by its first bytes: the record's name on disk, and its tree. Nothing else of it is
    checked. The name is empty if no record begins so; the tree is None if the record does not begin with one."""
    match = _KIND.match(body)
    if match is None:
        return "", None
    kind, tree = match.groups()
    return kind.decode(), None if tree is None else int(tree)


def sound_end(raw: bytes) -> bytes:
    """The valid line at the end of a damaged `raw`, where the line break before it was lost; empty if there is none."""
    ends = (raw[match.start() :] for match in _START.finditer(raw, 1))
    return next(filter(parse, ends), b"")


def _is_whole(raw: bytes) -> bool:
    """Whether a line is complete and its checksum matches exactly."""
    return raw[-1:] == b"\n" and raw[:9] == b"%08x " % zlib.crc32(raw[9:-1])


def encode(record: Record) -> bytes:
    """The record's JSON. Raises `StoreError` on values that JSON cannot hold."""
    try:
        return _ENCODER.encode(record)
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"a {_tag(record)!r} record cannot be written: {error}") from error


def _tag(record: Record) -> str:
    """The record's name on disk."""
    return str(record.__struct_config__.tag)


def decode(body: bytes) -> Record:
    """The inverse of `encode`. Raises `StoreError` on bytes that are no record of this format."""
    try:
        return _DECODER.decode(body)
    except UNREADABLE as error:
        raise StoreError(f"no record of format {FORMAT}: {error}") from error


def check_version(raw: bytes) -> None:
    """Raise `StoreError` if `raw` is a valid header line of another format version."""
    try:
        version = msgspec.json.decode(raw[9:-1], type=_Version)
    except UNREADABLE:
        return
    if _is_whole(raw) and version.format != FORMAT:
        raise StoreError(
            f"the store has format {version.format} (written by ramify {version.library}), and this version reads "
            f"format {FORMAT} only; use the version that wrote it"
        )


def is_of_tree(record: Record) -> TypeGuard[TreeRecord]:
    """As `isinstance`, which asks one class of the union after another, in a third of its time."""
    return type(record) in _OF_TREES


@dataclass(slots=True)
class Position:
    """The current place in a journal: the file, the byte and the next record. Only its methods mutate it."""

    file_index: int = 0
    number: int = 0
    """Number of the next record."""
    num_records: int = 0
    """Records in the current file."""
    num_bytes: int = 0
    crc: int = 0
    """CRC-32 of the current file so far."""
    last: dict[int, int] = field(default_factory=dict)
    """Tree -> number of its last record, without closed trees."""

    def after(self, record: Record) -> int | None:
        """Number of the previous record of the same tree; None = `record` is the tree's first, or belongs to no
        tree."""
        return self.last.get(record.tree) if is_of_tree(record) else None

    def advance(self, record: Record, data: bytes) -> None:
        """Advance past `record`, which was written or read as `data`."""
        if is_of_tree(record):
            self.last[record.tree] = self.number
            if type(record) is ClosedRecord:
                del self.last[record.tree]
        self.number += 1
        self.num_records += 1
        self.num_bytes += len(data)
        self.crc = zlib.crc32(data, self.crc)

    def turn(self) -> None:
        """Move to the next file."""
        self.file_index += 1
        self.num_records = self.num_bytes = self.crc = 0


class Lines:
    """Frames the records of a journal in order and decides where files end. Pure; starts at `position`."""

    def __init__(self, header: Header, position: Position, *, max_file_bytes: int, max_record_bytes: int) -> None:
        self._header = header
        self._position = position
        self._max_file_bytes = max_file_bytes
        self._max_record_bytes = max_record_bytes

    @property
    def number(self) -> int:
        """Number of the next line."""
        return self._position.number

    def begin(self) -> list[FramedLine]:
        """The header line, if the current file has none yet."""
        return [self._framed(self._header, encode(self._header))] if not self._position.num_records else []

    def add(self, record: Record) -> list[FramedLine]:
        """The line of `record`, after the lines that must come before it. If it raises `StoreError`, nothing was
        changed."""
        body = encode(record)
        if len(body) > self._max_record_bytes:
            raise StoreError(
                f"a {_tag(record)!r} record of {len(body)} bytes is refused: at most {self._max_record_bytes} "
                "are written; shorten what tools return or what is noted"
            )
        lines: list[FramedLine] = []
        is_full = self._position.num_bytes + len(body) + FRAME_BYTES > self._max_file_bytes
        if is_full and self._position.num_records > 1:
            lines += self.seal()
        return [*lines, *self.begin(), self._framed(record, body)]

    def seal(self) -> list[FramedLine]:
        """The footer of the current file, if the file has any record. The next line opens another file."""
        if not self._position.num_records:
            return []
        footer = Sealed(num_records=self._position.num_records, crc=self._position.crc)
        line = self._framed(footer, encode(footer))
        self._position.turn()
        return [line]

    def _framed(self, record: Record, body: bytes) -> FramedLine:
        position = self._position
        line = FramedLine(position.number, position.file_index, frame(position.number, position.after(record), body))
        position.advance(record, line.data)
        return line
