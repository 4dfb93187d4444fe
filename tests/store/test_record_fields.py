"""Every field of every record has a writer and a reader, shown by round trips; what has none stands here with a reason.

Each field of a value of the core is changed alone: the record's bytes must change, and the value must be read back
changed. Each field of a record is changed alone: what is made of the journal must change, or the record be refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from tests.store.growths import CODEC, HEADER, RULES, Live, answer, same, state

from ramify.core.command import Cancel, Candidate, Close, Command, Fork, Grow, Judge, Score, Tokens
from ramify.core.errors import StoreError
from ramify.core.growth import Asked, Done, Ending, Failure, Scored
from ramify.core.problem import Problem
from ramify.core.segment import Finish, Origination, Sampling, Segment, ToolCall, Usage, token_array
from ramify.core.tree import ROOT, Step
from ramify.runner.driver import Delivered
from ramify.runner.events import CommandsAsked, OutcomeTold, StepGrown, TreeClosed, TreeOpened
from ramify.runner.folder import refuse_other_weights
from ramify.runner.recorder import Recorder
from ramify.service.recovery import Recovered
from ramify.store import recording, records
from ramify.store.check import ledger_faults
from ramify.store.framing import decode, encode, file_name, frame, parse
from ramify.store.journal import Journal, read
from ramify.store.layout import shard_of
from ramify.store.records import Header, Record
from ramify.store.replay import replay
from ramify.store.store import FolderStore, MemoryStore, header_and_config

# -- values of the core -----------------------------------------------------------------------------------------------


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def of_segment(**values: Any) -> Step:
    return Step((Segment("given", token_array([1]), **values),))


def of_command(command: Command) -> tuple[Record, Callable[[Any], Any]]:
    return recording.asked(0, 0, [command]), recording.commands_of


def of_step(step: Step) -> tuple[Record, Callable[[Any], Any]]:
    return recording.grew(0, 0, 0, step=step), recording.step_of


def of_ending(ending: Ending) -> tuple[Record, Callable[[Any], Any]]:
    return recording.ended(0, 0, ending, num_steps=0), recording.ending_of


def of_problem(problem: Problem) -> tuple[Record, Callable[[Any], Any]]:
    return recording.opened(0, problem, prompt=[], seed=0, codec=CODEC), recording.problem_of


SAMPLED: Final = Segment("sampled", token_array([1, 2]))
REPLY: Final = Step((SAMPLED,), edge="quotes", role="user")
WHY: Final = (Candidate(1, 0.5),)
OTHER_SOURCE: Final = Origination("e", Sampling(0.5), "raw")
Case = tuple[Any, dict[str, Any], Callable[[Any], tuple[Record, Callable[[Any], Any]]]]
CASES: Final[list[Case]] = [
    (Problem("u", "q"), {"uid": "v", "question": "r", "public": {"a": 1}, "split": "test"}, of_problem),
    (
        SAMPLED,
        {
            "origin": "written", "ids": token_array([1, 3]), "logprobs": floats(-1, -2),
            "measures": {"entropy": floats(1, 2)}, "source": OTHER_SOURCE, "version": 3, "finish": Finish("stop"),
            "seed": 4, "usage": Usage(1), "message": {"role": "user"}, "tool_call": ToolCall("t", "a"),
            "attachments": ("f",),
        },
        lambda value: of_step(Step((value,))),
    ),
    (
        Origination("e"),
        {"engine": "f", "sampling": Sampling(0.5), "logprobs": "raw"},
        lambda value: of_step(of_segment(source=value)),
    ),
    (
        Sampling(),
        {"temperature": 0.5, "top_p": 0.25, "top_k": 4},
        lambda value: of_step(of_segment(source=Origination("e", value))),
    ),
    (
        Finish("stop"),
        {"kind": "length", "matched": "w"},
        lambda value: of_step(Step((replace(SAMPLED, finish=value),))),
    ),
    (
        Usage(1, 2, 3, 4, 5),
        {"num_calls": 9, "num_billed": 9, "num_cached": 9, "num_prefilled": 9, "picodollars": 9},
        lambda value: of_step(of_segment(usage=value)),
    ),
    (
        ToolCall("t", "a"),
        {
            "tool": "s", "arguments": "b", "status": "error", "result": "r", "duration_s": 0.5, "num_retries": 1,
            "metadata": {"m": (1,)}, "attachments": ("f",), "seed": 5, "reward": 0.25, "end": "done",
            "parts": {"p": 0.5},
        },
        lambda value: of_step(of_segment(tool_call=value)),
    ),
    (
        Score("j", 1.0),
        {
            "judge": "k", "value": None, "parts": (("p", 0.5),), "attempt": 1, "is_oracle": True, "is_of_step": True,
        },
        lambda value: of_step(Step((), scores=(value,))),
    ),
    (
        Step(()),
        {
            "segments": (SAMPLED,), "stop": "answer", "action": "critique", "edge": "quotes", "role": "critique",
            "measures": {"m": 0.5}, "scores": (Score("j", 1.0),), "notes": {"n": {1: 2}}, "asides": (REPLY,),
        },
        of_step,
    ),
    (Candidate(0, 0.5), {"node": 1, "score": 0.25, "terms": (("u", 1.0),)}, lambda v: of_command(Grow(0, why=(v,)))),
    (
        Fork(2, "r"),
        {"num_siblings": 3, "rule": "s", "shares": (0.25, 0.75), "probability": 0.5, "score": 0.5, "select_prob": 0.5},
        lambda value: of_command(Grow(0, fork=value)),
    ),
    (
        Grow(0),
        {"node": 1, "at": 2, "until": Tokens(3), "action": "critique", "fork": 4, "why": WHY},
        of_command,
    ),
    (Judge((0,), "j"), {"nodes": (1, 2), "judge": "k", "attempt": 1, "why": WHY}, of_command),
    (Close(0, "r"), {"node": 1, "reason": "s", "why": WHY, "stop": "roulette"}, of_command),
    (Cancel(0), {"command_id": 1}, of_command),
    (Done(), {}, of_ending),
    (Scored(()), {"scores": (Score("j", 1.0),)}, of_ending),
    (Failure("r"), {"reason": "s", "is_retryable": True}, of_ending),
]  # fmt: skip
"""(a value, field -> another value of it, how it is recorded and read back)."""

UNRECORDED: Final = {(Problem, "secret"): "gold answers never reach a journal"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[0]).__name__)
def test_every_field_of_a_value_is_written_and_read_back(case: Case) -> None:
    value, others, recorded = case
    unrecorded = {name for owner, name in UNRECORDED if owner is type(value)}
    assert set(others) | unrecorded == {field.name for field in fields(value)}, "give the new field another value"
    before, read_back = recorded(value)
    for name, other in others.items():
        after, _ = recorded(replace(value, **{name: other}))
        assert encode(after) != encode(before), f"nobody writes {type(value).__name__}.{name}"
        found, first = read_back(decode(encode(after))), read_back(before)
        assert same(found) != same(first), f"nobody reads {type(value).__name__}.{name}"
        assert encode(after) == encode(decode(encode(after)))


def test_every_value_of_the_journal_is_the_record_of_a_value_above() -> None:
    own = {type(record).__name__ for record in RECORDS}
    values = {kind.__name__ for kind in vars(records).values() if _is_record(kind)} - own
    recorded = {f"{type(value).__name__}Value" for value, *_ in CASES} - {"ProblemValue", "SamplingValue"}
    of_header = {"WeightsValue", "ShardValue", "ReadingValue", "InputsValue"}
    named_otherwise = {"OriginationValue": "SourceValue"}
    assert {named_otherwise.get(name, name) for name in recorded} == values - of_header


def _is_record(kind: Any) -> bool:
    is_struct = isinstance(kind, type) and issubclass(kind, records.JournalValue)
    return is_struct and bool(kind.__struct_fields__ or kind.__struct_config__.tag)


# -- records ----------------------------------------------------------------------------------------------------------


def closed_tree(index: int) -> list[Record]:
    """The records of a tree as the recorder of a run writes them."""
    live, store = Live(index), MemoryStore(HEADER)
    observe = Recorder(store).observe
    observe(TreeOpened(index, live.tree))
    command = Grow(ROOT)
    (command_id,) = live.ask(command)
    observe(CommandsAsked(index, Asked(command_id, (command,))))
    step = replace(answer(), asides=(REPLY,))
    live.grow(command_id, step)
    observe(StepGrown(index, command_id, 0, step))
    outcome = live.end(command_id)
    observe(OutcomeTold(index, Delivered(command_id, Done(), outcome, 1)))
    live.tree.candidates = (Candidate(1, 0.5),)
    observe(TreeClosed(index, live.tree))
    return [*store.records]


def journal() -> list[Record]:
    """One record of every kind that stands between a header and a seal, service's included; two trees."""
    return [
        *closed_tree(0),
        *closed_tree(1),
        records.Updated(version=1, source="w"),
        records.Handed(rollout_id=0, trees=(0,), version=1, first_sample=0, num_samples=1),
        records.Dropped(tree=1, reason="filtered"),
        records.Marked(rollout_id=0, source={"position": 1}),
        records.Accepted(what=("data",), inputs=records.InputsValue(problems="x")),
        *closed_tree(2),
    ]


def made_of(lines: list[Record]) -> Any:
    """All that a run, a service and `ramify check` make of records; the words of the error where they refuse them."""
    again: list[Any] = [decode(encode(record)) for record in lines]
    recalled = Recovered(CODEC, RULES)
    try:
        trees = replay(again, CODEC, RULES)
        for record in again:
            recalled.read(record)
    except (StoreError, AssertionError, KeyError) as error:
        return repr(error)
    closed = [
        (index, state(tree.growth), tree.events, tree.reason, tree.tree.candidates, tree.tree.is_broken,
         tree.tree.caveats, [] if tree.shut is None else list(ledger_faults(tree.tree, tree.shut.spent)))
        for index, tree in trees.items()
    ]  # fmt: skip
    buffer = recalled.buffer
    return (
        closed, list(recalled.trees), recalled.version, recalled.weights, recalled.source, recalled.marks,
        list(buffer.batches), buffer.num_samples, buffer.num_handed, dict(buffer.dropped),
        list(buffer.growing), list(buffer.checking), list(buffer.ready),
    )  # fmt: skip


OTHER: Final[Mapping[str, Mapping[str, Any]]] = {
    "OpenedRecord": {
        "tree": 7, "uid": "v", "seed": 9, "codec_sha256": "0" * 64, "question": "r", "public": {"a": 1},
        "prompt": (), "split": "test",
    },
    "AskedRecord": {"tree": 7, "first_id": 3, "commands": ()},
    "GrownRecord": {"tree": 7, "command_id": 3, "number": 3, "step": recording.STEP.pack(answer("5")), "asides": ()},
    "OutcomeRecord": {"tree": 7, "command_id": 3, "ending": recording.ENDING.pack(Failure("r")), "num_steps": 3},
    "ClosedRecord": {"tree": 7, "reason": "budget", "num_leaves": 3, "spent": {}, "candidates": ()},
    "Handed": {"rollout_id": 3, "trees": (1,), "first_sample": 3, "num_samples": 3},
    "Dropped": {"tree": 0, "reason": "stale"},
    "Updated": {"version": 3, "source": "x"},
    "Marked": {"rollout_id": 3, "source": {}},
    "Accepted": {"what": ("weights",)},
}  # fmt: skip
"""Record -> field -> another value of it."""
UNREAD: Final = {
    ("AskedRecord", "allotments"): "no run writes them: a command's allotment is worked out again when a run goes on",
    ("OutcomeRecord", "spent"): "no run writes it: it follows from the usage of the command's segments",
    ("Accepted", "inputs"): "read where a run goes on: tests/runner/test_inputs.py",
    ("Handed", "version"): "read where a batch is handed over again, by the producer",
}
"""Fields that nobody reads here, or that no run writes; the format keeps them."""
RECORDS: Final = [
    *{type(record): record for record in journal()}.values(),
    HEADER,
    records.Sealed(num_records=1, crc=0),
]


@pytest.mark.parametrize("name", OTHER)
def test_every_field_of_a_record_changes_what_is_made_of_the_journal(name: str) -> None:
    lines = journal()
    place = next(i for i, record in enumerate(lines) if type(record).__name__ == name)
    unread = {field for owner, field in UNREAD if owner == name}
    assert set(OTHER[name]) | unread == set(lines[place].__struct_fields__), "give the new field another value"
    before = made_of(lines)
    assert not isinstance(before, str), before
    for field, other in OTHER[name].items():
        after = made_of([*lines[:place], msgspec.structs.replace(lines[place], **{field: other}), *lines[place + 1 :]])
        assert same(after) != same(before), f"nobody reads {name}.{field}"


def test_every_field_with_a_default_is_written_by_a_run() -> None:
    """The others cannot be left out: a record is not made without them."""
    lines = journal()
    lines[0] = recording.opened(0, Problem("u", "q", split="test"), prompt=[], seed=0, codec=CODEC)
    for record in {type(record): record for record in reversed(lines)}.values():
        name, defaults = type(record).__name__, record.__struct_defaults__
        with_default = record.__struct_fields__[len(record.__struct_fields__) - len(defaults) :]
        empty = [field for field in with_default if not getattr(record, field)]
        assert set(empty) == {field for owner, field in UNREAD if owner == name and field in with_default}, name


# -- header and seal --------------------------------------------------------------------------------------------------

ONLY_SHOWN: Final = {"library", "seed", "delivery", "isolation", "created"}
"""What a header tells people, and the error about another format's version."""


def test_every_field_of_a_header_is_read_or_only_shown(tmp_path: Path) -> None:
    def opened(**other: Any) -> None:
        """Go on with a run whose journal has another header than it should."""
        header = msgspec.structs.replace(HEADER, **other)
        path = tmp_path / "_".join(other)
        FolderStore.create(path, header, "a = 1\n").close()
        refuse_other_weights(header_and_config(path)[0], HEADER)

    opened()
    other_weights = [
        msgspec.structs.replace(HEADER.weights[0], **{name: "x"}) for name in HEADER.weights[0].__struct_fields__
    ]
    for weights in other_weights:
        with pytest.raises(StoreError, match="begun with"):
            refuse_other_weights(msgspec.structs.replace(HEADER, weights=(weights,)), HEADER)
    with pytest.raises(StoreError, match="has format 2"):
        opened(format=2)
    folder = tmp_path / "hash"
    FolderStore.create(folder, HEADER, "a = 1\n").close()
    Path(folder / "config.toml").write_text("a = 2\n", "utf-8")
    with pytest.raises(StoreError, match="not what the run began with"):
        header_and_config(folder)
    shards = [records.ShardValue(index=i, count=n) for i, n in ((0, 2), (1, 2), (1, 3))]
    assert len({shard_of(msgspec.structs.replace(HEADER, shard=shard)) for shard in (None, *shards)}) == 4
    read_elsewhere = {"reading", "mac", "inputs"}  # tests/runner/test_looking.py, test_permission.py and test_inputs.py
    assert set(Header.__struct_fields__) == ONLY_SHOWN | {"weights", "format", "config_hash", "shard"} | read_elsewhere


@pytest.mark.parametrize("field", records.Sealed.__struct_fields__)
def test_every_field_of_a_seal_is_read(field: str, tmp_path: Path) -> None:
    written = Journal.create(tmp_path, HEADER)
    written.append(closed_tree(0)[0])  # pyright: ignore[reportArgumentType]
    written.close()
    path = tmp_path / file_name(0)
    *lines, seal = path.read_bytes().splitlines(keepends=True)
    line = parse(seal)
    assert line is not None
    record = decode(line.body)
    other = msgspec.structs.replace(record, **{field: getattr(record, field) + 1})
    path.write_bytes(b"".join([*lines, frame(line.number, line.after, encode(other))]))
    with pytest.raises(StoreError, match="not what its seal says"):
        read(tmp_path)
