"""Recording: the pure conversion between the values of the core and the records of a run.

Every kind of value has one field table, which both directions use. The conversion is lossless and bit-exact, except for
lone surrogates (see `packing`). Raises `StoreError` on values that cannot be kept.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ramify.core.codec import Codec
from ramify.core.command import Cancel, Candidate, Close, Command, Fork, Grow, Judge, Option, Score, Tokens
from ramify.core.errors import StoreError
from ramify.core.growth import Done, Ending, Failure, Scored
from ramify.core.problem import Problem
from ramify.core.segment import Finish, Origination, Sampling, Segment, ToolCall, Usage
from ramify.core.tree import Step
from ramify.store.field_table import FieldTable, Packer, free_form, many, one_of, optional
from ramify.store.packing import clean_text
from ramify.store.records import (
    AskedRecord,
    CancelValue,
    CandidateValue,
    ClosedRecord,
    CloseValue,
    Counters,
    DoneValue,
    FailureValue,
    FinishValue,
    ForkValue,
    GrownRecord,
    GrowValue,
    JudgeValue,
    OpenedRecord,
    OutcomeRecord,
    ScoredValue,
    ScoreValue,
    SegmentValue,
    SourceValue,
    Spent,
    StepValue,
    ToolCallValue,
    UsageValue,
)

# -- tables -----------------------------------------------------------------------------------------------------------

PROBLEM: Final = FieldTable(
    Problem,
    dict,
    unrecorded=["secret"],
    public=free_form("the public columns of problem {0.uid!r}"),
)
FINISH: Final = FieldTable(Finish, FinishValue)
USAGE: Final = FieldTable(Usage, UsageValue)
TOOL_CALL: Final = FieldTable(ToolCall, ToolCallValue, metadata=free_form("the metadata of tool {0.tool!r}"))
SAMPLING: Final = FieldTable(Sampling, dict)
SOURCE: Final = Packer(
    lambda source: SourceValue(
        engine=clean_text(source.engine), logprobs=source.logprobs, **SAMPLING.pack(source.sampling)
    ),
    lambda record: Origination(record.engine, SAMPLING.unpack(record), record.logprobs),
)
SEGMENT: Final = FieldTable(
    Segment, SegmentValue, known={Origination: SOURCE, Finish: FINISH, Usage: USAGE, ToolCall: TOOL_CALL}
)
SCORE: Final = FieldTable(Score, ScoreValue)
STEP: Final = FieldTable(Step, StepValue, known={Segment: SEGMENT, Score: SCORE}, unrecorded=("asides",))
ASIDES: Final = many(STEP)
CANDIDATE: Final = FieldTable(Candidate, CandidateValue)
OPTION: Final = FieldTable(Option, CandidateValue)
FORK: Final = FieldTable(Fork, ForkValue)
COMMAND: Final = one_of(
    FieldTable(
        Grow,
        GrowValue,
        known={Option: OPTION},
        until=Packer(
            lambda until: operator.index(until.n) if isinstance(until, Tokens) else until,
            lambda until: Tokens(until) if isinstance(until, int) else until,
        ),
        fork=optional(
            Packer(
                lambda fork: FORK.pack(fork) if isinstance(fork, Fork) else operator.index(fork),
                lambda fork: FORK.unpack(fork) if isinstance(fork, ForkValue) else fork,
            )
        ),
    ),
    FieldTable(Judge, JudgeValue, known={Option: OPTION}),
    FieldTable(Close, CloseValue, known={Option: OPTION}),
    FieldTable(Cancel, CancelValue),
)
ENDING: Final = one_of(
    FieldTable(Done, DoneValue),
    FieldTable(Scored, ScoredValue, known={Score: SCORE}),
    FieldTable(Failure, FailureValue),
)
PROMPT: Final = many(SEGMENT)
COMMANDS: Final = many(COMMAND)
CANDIDATES: Final = many(CANDIDATE)

# -- core -> record ---------------------------------------------------------------------------------------------------


def opened(index: int, problem: Problem, *, prompt: Sequence[Segment], seed: int, codec: Codec) -> OpenedRecord:
    """The record that tree `index` began with `prompt`."""
    return OpenedRecord(
        tree=index, seed=seed, codec_sha256=codec.sha256, prompt=PROMPT.pack(tuple(prompt)), **PROBLEM.pack(problem)
    )


def asked(
    index: int, first_id: int, commands: Sequence[Command], *, allotments: Sequence[Mapping[str, int] | None] = ()
) -> AskedRecord:
    """The record that the strategy of tree `index` asked for `commands`. `allotments` is empty or has one per
    command."""
    if allotments and len(allotments) != len(commands):
        raise StoreError(f"{len(allotments)} allotments for {len(commands)} commands")
    return AskedRecord(
        tree=index,
        first_id=first_id,
        commands=COMMANDS.pack(tuple(commands)),
        allotments=tuple(None if a is None else _counters(a) for a in allotments),
    )


def grew(index: int, command_id: int, number: int, *, step: Step) -> GrownRecord:
    """The record of the `number`-th step of a command."""
    return GrownRecord(
        tree=index, command_id=command_id, number=number, step=STEP.pack(step), asides=ASIDES.pack(step.asides)
    )


def ended(
    index: int, command_id: int, ending: Ending, *, num_steps: int, spent: Mapping[str, Mapping[str, int]] | None = None
) -> OutcomeRecord:
    """The record that a command was delivered with `num_steps` steps."""
    return OutcomeRecord(
        tree=index, command_id=command_id, ending=ENDING.pack(ending), num_steps=num_steps, spent=_spent(spent)
    )


def shut(
    index: int,
    reason: str,
    num_leaves: int,
    *,
    spent: Mapping[str, Mapping[str, int]] | None = None,
    candidates: Sequence[Candidate] = (),
) -> ClosedRecord:
    """The record that tree `index` is finished."""
    return ClosedRecord(
        tree=index,
        reason=clean_text(reason),
        num_leaves=num_leaves,
        spent=_spent(spent),
        candidates=CANDIDATES.pack(tuple(candidates)),
    )


def _counters(counters: Mapping[str, int]) -> Counters:
    return {name: operator.index(value) for name, value in counters.items()}


def _spent(spent: Mapping[str, Mapping[str, int]] | None) -> Spent:
    return {role: _counters(counters) for role, counters in (spent or {}).items()}


# -- record -> core ---------------------------------------------------------------------------------------------------


def problem_of(record: OpenedRecord) -> Problem:
    """The problem of a tree, without its secret."""
    return PROBLEM.unpack(record)


def prompt_of(record: OpenedRecord) -> tuple[Segment, ...]:
    """The opening context of a tree."""
    return PROMPT.unpack(record.prompt)


def commands_of(record: AskedRecord) -> tuple[Command, ...]:
    return COMMANDS.unpack(record.commands)


def step_of(record: GrownRecord) -> Step:
    step = STEP.unpack(record.step)
    return replace(step, asides=ASIDES.unpack(record.asides)) if record.asides else step


def ending_of(record: OutcomeRecord) -> Ending:
    return ENDING.unpack(record.ending)


def candidates_of(record: ClosedRecord) -> tuple[Candidate, ...]:
    """The answers that the search of a finished tree found."""
    return CANDIDATES.unpack(record.candidates)
