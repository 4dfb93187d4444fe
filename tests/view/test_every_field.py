"""Every field that a run can hold can be seen: a run whose values occur nowhere else has each of them in a document.

A record gets its values by the types of its fields, so a new field is filled here by itself. It must be shown, or stand
in `UNSHOWN` with a reason.
"""

import base64
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from tests.sharded.divided import config

from ramify.runner import loop
from ramify.runner.folder import checked_start
from ramify.store import records
from ramify.store.records import (
    Accepted,
    AskedRecord,
    CancelValue,
    ClosedRecord,
    CloseValue,
    DoneValue,
    Dropped,
    FailureValue,
    ForkValue,
    GrownRecord,
    GrowValue,
    Handed,
    Header,
    JudgeValue,
    Marked,
    OpenedRecord,
    OutcomeRecord,
    ReadingValue,
    Record,
    RunRecord,
    ScoredValue,
    ScoreValue,
    Sealed,
    SegmentValue,
    ShardValue,
    StepValue,
    Updated,
    UsageValue,
    WeightsValue,
)
from ramify.store.store import FolderStore
from ramify.view.documents import Documents
from ramify.view.token_document import grouped_bytes

UNSHOWN: Final = {
    "Sealed.num_records": "frames: it says how a file ends, and nothing of the run",
    "Sealed.crc": "frames: it says how a file ends, and nothing of the run",
    "GrownRecord.number": "the place of a node among the nodes of its event",
    "OutcomeRecord.num_steps": "the number of nodes of its event",
}
"""Field -> why no document has it."""
STANDS_AT: Final = {
    "Header.format": "header.format",
    "Header.config_hash": "header.config_hash",
    "WeightsValue.codec_sha256": "header.weights.codec_sha256",
    "ReadingValue.judges": "header.reading.judges",
    "ReadingValue.is_text": "header.reading.is_text",
    "ReadingValue.has_post_hoc_rule": "header.reading.has_post_hoc_rule",
    "OpenedRecord.tree": "tree",
    "OpenedRecord.codec_sha256": "codec_sha256",
    "AskedRecord.tree": "tree",
    "AskedRecord.first_id": "events.asked",
    "GrownRecord.tree": "tree",
    "GrownRecord.command_id": "events.told",
    "OutcomeRecord.tree": "tree",
    "OutcomeRecord.command_id": "events.told",
    "ClosedRecord.tree": "tree",
    "Handed.trees": "service.handed.trees",
    "SegmentValue.origin": "nodes.segments.origin",
    "SourceValue.logprobs": "nodes.segments.source.logprobs",
    "FinishValue.kind": "nodes.segments.finish.kind",
    "ToolCallValue.status": "nodes.segments.tool_call.status",
    "ToolCallValue.end": "nodes.segments.tool_call.end",
    "ScoreValue.is_oracle": "scores.is_oracle",
    "ScoreValue.is_of_step": "scores.is_of_step",
    "StepValue.stop": "stops",
    "StepValue.edge": "edges",
    "StepValue.role": "roles",
    "ForkValue.num_siblings": "forks.num_siblings",
    "GrowValue.node": "events.commands.node",
    "GrowValue.at": "events.commands.at",
    "GrowValue.fork": "events.commands.fork",
    "JudgeValue.nodes": "events.commands.nodes",
    "CloseValue.node": "events.commands.node",
    "CloseValue.stop": "events.commands.stop",
    "CancelValue.command_id": "events.commands.command_id",
    "FailureValue.is_retryable": "events.is_retryable",
}
"""Field whose value occurs elsewhere too, because it is a number of a node or one of a few words -> its place in a
document, without the numbers of items and nodes."""
NESTED: Final = "a record"
"""Stands for a record in a field of another: its own fields have the values."""
Leaf: TypeAlias = tuple[str, str]
"""Where a value stands, and the value as text."""


# -- values that occur nowhere else -----------------------------------------------------------------------------------


class Fresh:
    """Makes values, each of them once. Mutable: it counts."""

    def __init__(self) -> None:
        self._number = 7_000_000

    def filled(self, kind: type[Any], **given: Any) -> Any:
        """A record with a value in every field. `given` are those that something else depends on."""
        hints = get_type_hints(kind)
        made = {name: self.value(hints[name]) for name in kind.__struct_fields__ if name not in given}
        return kind(**made, **given)

    def value(self, kind: Any) -> Any:
        """A value of a type."""
        inner = get_args(kind)
        if get_origin(kind) in (Union, UnionType):
            return self.value(self._chosen([each for each in inner if each is not NoneType]))
        if get_origin(kind) is Literal:
            return inner[-1]
        if get_origin(kind) is dict:
            return {self.value(str): self.value(inner[1])}
        if get_origin(kind) is tuple:
            return tuple(self.value(each) for each in inner if each is not Ellipsis)
        return self.filled(kind) if is_record(kind) else self._plain(kind)

    @staticmethod
    def _chosen(kinds: Sequence[Any]) -> Any:
        return next((kind for kind in kinds if is_record(kind)), kinds[0])

    def _plain(self, kind: Any) -> Any:
        self._number += 1
        makers = {
            str: lambda: f"text {self._number}",
            int: lambda: self._number,
            float: lambda: self._number / 1e7,
            bool: lambda: True,
            bytes: lambda: self._number.to_bytes(4, "little") * 2,
            Any: lambda: f"any {self._number}",
        }
        return makers[kind]()


def is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def forged() -> tuple[Header, list[RunRecord]]:
    """A run of one tree: two commands grow a node each, one of which is judged and closed; one command fails."""
    fresh = Fresh()
    shard = fresh.filled(ShardValue)
    number, sha256 = shard.index + shard.count, fresh.value(str)
    weights = tuple(fresh.filled(WeightsValue, codec_sha256=sha256) for _ in range(2))
    reading = fresh.filled(ReadingValue, judges=("grade",))
    header = fresh.filled(Header, config_hash="", weights=weights, shard=shard, reading=reading, format=records.FORMAT)
    context: dict[str, Any] = {"origin": "prompt", "logprobs": None, "measures": {}, "finish": None}
    prompt = (fresh.filled(SegmentValue, usage=fresh.filled(UsageValue, num_calls=201), **context),)
    fork = fresh.filled(ForkValue, num_siblings=2, shares=(fresh.value(float), fresh.value(float)))
    grow = fresh.filled(GrowValue, node=0, at=2, fork=fork)
    judge = fresh.filled(JudgeValue, nodes=(2,))
    close = fresh.filled(CloseValue, node=2, stop="roulette")

    def asked(first_id: int, *commands: Any) -> AskedRecord:
        return fresh.filled(AskedRecord, tree=number, first_id=first_id, commands=commands)

    def step(num_calls: int, stop: str | None) -> StepValue:
        usage = fresh.filled(UsageValue, num_calls=num_calls)
        segments = (fresh.filled(SegmentValue, origin="sampled", usage=usage),)
        return fresh.filled(StepValue, segments=segments, stop=stop)

    def grew(command_id: int, stop: str | None, *asides: StepValue) -> GrownRecord:
        grown = step(202 + command_id, stop)
        return fresh.filled(GrownRecord, tree=number, command_id=command_id, number=0, step=grown, asides=asides)

    def ended(command_id: int, ending: Any, *, num_steps: int = 0) -> OutcomeRecord:
        return fresh.filled(OutcomeRecord, tree=number, command_id=command_id, ending=ending, num_steps=num_steps)

    return header, [
        fresh.filled(OpenedRecord, tree=number, codec_sha256=sha256, prompt=prompt),
        asked(0, grow, fresh.filled(GrowValue, node=0, at=None, fork=0)),
        grew(0, "repetition"),
        ended(0, DoneValue(), num_steps=1),
        grew(1, None, step(204, "end_of_sequence")),
        ended(1, DoneValue(), num_steps=1),
        asked(2, judge, close, CancelValue(command_id=2)),
        ended(2, ScoredValue(scores=(fresh.filled(ScoreValue),))),
        ended(3, DoneValue()),
        ended(4, fresh.filled(FailureValue)),
        fresh.filled(ClosedRecord, tree=number),
        fresh.filled(Updated),
        fresh.filled(Handed, trees=(number,)),
        fresh.filled(Dropped),
        fresh.filled(Marked),
        fresh.filled(Accepted),
    ]


# -- what is recorded, and what is shown ------------------------------------------------------------------------------


def recorded(value: Any, at: str = "") -> Iterator[Leaf]:
    """(record and field, value) of everything in a record. A record in a field is a value of that field too."""
    match value:
        case msgspec.Struct():
            yield at, NESTED
            for name in value.__struct_fields__:
                yield from recorded(getattr(value, name), f"{type(value).__name__}.{name}")
        case dict():
            for part in chain.from_iterable(value.items()):
                yield from recorded(part, at)
        case tuple() | list():
            for part in value:
                yield from recorded(part, at)
        case bytes():
            yield at, base64.b64encode(grouped_bytes(value)).decode()
        case None:
            pass
        case _:
            yield at, str(value)


def shown(value: Any, at: str = "") -> Iterator[Leaf]:
    """(place, value) of everything in a document. Names are values too; `step` marks a measure of a whole step."""
    match value:
        case dict():
            for name, part in value.items():
                yield at, name.removeprefix("step ")
                yield from shown(part, at if name.isdecimal() else f"{at}.{name}".lstrip("."))
        case list():
            for part in value:
                yield from shown(part, at)
        case _:
            yield at, str(value)


def fields_of_a_run() -> set[str]:
    """All fields of all records, and of what they are made of."""
    kinds = list(get_args(Record))
    for kind in kinds:
        kinds += [each for each in structs_in(list(get_type_hints(kind).values())) if each not in kinds]
    return {f"{kind.__name__}.{name}" for kind in kinds for name in kind.__struct_fields__}


def structs_in(hints: Sequence[Any]) -> Iterator[Any]:
    for hint in hints:
        if is_record(hint):
            yield hint
        yield from structs_in(get_args(hint))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Leaf], list[Leaf]]:
    """What a run has recorded, and what its documents show."""
    path = tmp_path_factory.mktemp("every_field") / "run"
    grade = {"edge": "quotes", "role": "judge", "template": "grade {previous}"}
    flags = {f"actions.grade.{name}": value for name, value in grade.items()}
    began, text, _ = loop.run(checked_start(config(**flags)))
    header, lines = forged()
    header = msgspec.structs.replace(header, config_hash=began.config_hash)
    with closing(FolderStore.create(path, header, text)) as store:
        for record in lines:
            store.append(record)
    documents = Documents.open([path])
    assert [changed for _, changed in documents.look()] == [{lines[0].tree}]
    whole = documents.get("run/0")
    assert whole["faults"] == []
    tree = documents.get(f"run/0/tree/{lines[0].tree}")
    tokens = [documents.tokens(0, lines[0].tree, chunk) for chunk in range(len(tree["chunks"]))]
    in_records = [leaf for record in (header, *lines) for leaf in recorded(record)]
    in_documents = [leaf for each in (whole, tree, *tokens) for leaf in shown(json.loads(json.dumps(each)))]
    return in_records, in_documents


# -- facts ------------------------------------------------------------------------------------------------------------


def test_every_field_of_a_run_has_a_value_here(run: tuple[list[Leaf], list[Leaf]]) -> None:
    sealed = {f"Sealed.{name}" for name in Sealed.__struct_fields__}
    assert fields_of_a_run() - {at for at, _ in run[0]} == sealed, "record the new field in `forged`"


def test_every_value_of_a_run_is_shown(run: tuple[list[Leaf], list[Leaf]]) -> None:
    values = {value for _, value in run[1]}
    for at, value in run[0]:
        if at not in UNSHOWN and value != NESTED:
            assert value in values, f"no document has {at} = {value!r}"


def test_a_value_that_occurs_elsewhere_too_stands_in_its_own_place(run: tuple[list[Leaf], list[Leaf]]) -> None:
    in_documents = set(run[1])
    for at, value in run[0]:
        if value != NESTED and (place := STANDS_AT.get(at)):
            assert (place, value) in in_documents, f"no document has {at} = {value!r} at {place}"


def test_every_other_value_occurs_in_one_field(run: tuple[list[Leaf], list[Leaf]]) -> None:
    """So that nothing else can be what is shown."""
    times = Counter(value for _, value in run[0])
    fields = {at for at, value in run[0] if value != NESTED}
    told = {at for at, value in run[0] if times[value] == 1}
    assert fields - told - UNSHOWN.keys() <= STANDS_AT.keys(), "say in `STANDS_AT` where the new field stands"


def test_the_exceptions_are_fields(run: tuple[list[Leaf], list[Leaf]]) -> None:
    assert (STANDS_AT.keys() | UNSHOWN.keys()) <= fields_of_a_run()
    assert not STANDS_AT.keys() & UNSHOWN.keys()
