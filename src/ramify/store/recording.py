"""Recording: the pure conversion between the values of the core and the records that a run writes down.

Lossless and bit-exact but for lone surrogates (see `packing`). Raises `StoreError` on values that cannot be kept.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from ramify.core.codec import Codec
from ramify.core.command import Cancel, Candidate, Close, Command, Fork, Grow, Judge, Option, Score, Tokens
from ramify.core.errors import StoreError
from ramify.core.growth import Done, Ending, Failure, Scored
from ramify.core.problem import Problem
from ramify.core.segment import Finish, Origination, Sampling, Segment, ToolCall, Usage
from ramify.core.tree import Step
from ramify.store.packing import (
    Number,
    clean_text,
    pack_data,
    pack_floats,
    pack_ids,
    pack_number,
    unpack_data,
    unpack_floats,
    unpack_ids,
    unpack_number,
)
from ramify.store.records import (
    Asked,
    CancelValue,
    CandidateValue,
    CloseValue,
    CommandValue,
    Counters,
    DoneValue,
    Ended,
    FailureValue,
    FinishValue,
    ForkValue,
    Grew,
    GrowValue,
    JudgeValue,
    Opened,
    ScoredValue,
    ScoreValue,
    SegmentValue,
    Shut,
    SourceValue,
    Spent,
    StepValue,
    ToolCallValue,
    UsageValue,
)

# -- core -> record ---------------------------------------------------------------------------------------------------


def opened(index: int, problem: Problem, *, prompt: Sequence[Segment], seed: int, codec: Codec) -> Opened:
    """The record that tree `index` began with `prompt`."""
    return Opened(
        tree=index,
        uid=clean_text(problem.uid),
        seed=seed,
        codec_sha256=codec.sha256,
        question=clean_text(problem.question),
        public=_pack_named(problem.public, f"the public columns of problem {problem.uid!r}"),
        prompt=tuple(map(_segment_value, prompt)),
        split=clean_text(problem.split),
    )


def asked(
    index: int, first_id: int, commands: Sequence[Command], *, allotments: Sequence[Mapping[str, int] | None] = ()
) -> Asked:
    """The record that the strategy of tree `index` asked for `commands`; `allotments` is empty or one a command."""
    if allotments and len(allotments) != len(commands):
        raise StoreError(f"{len(allotments)} allotments for {len(commands)} commands")
    return Asked(
        tree=index,
        first_id=first_id,
        commands=tuple(map(_command_value, commands)),
        allotments=tuple(None if a is None else _counters(a) for a in allotments),
    )


def grew(index: int, command_id: int, number: int, *, step: Step) -> Grew:
    """The record of the `number`-th step of a command."""
    value = StepValue(
        segments=tuple(map(_segment_value, step.segments)),
        stop=step.stop,
        action=clean_text(step.action),
        edge=step.edge,
        role=step.role,
        measures={clean_text(name): pack_number(x) for name, x in step.measures.items()},
        scores=tuple(map(_score_value, step.scores)),
        notes=_pack_named(step.notes, "notes"),
    )
    return Grew(tree=index, command_id=command_id, number=number, step=value)


def ended(
    index: int, command_id: int, ending: Ending, *, num_steps: int, spent: Mapping[str, Mapping[str, int]] | None = None
) -> Ended:
    """The record that a command was delivered with `num_steps` steps."""
    match ending:
        case Done():
            value = DoneValue()
        case Scored(scores):
            value = ScoredValue(scores=tuple(map(_score_value, scores)))
        case Failure(reason, is_retryable):
            value = FailureValue(reason=clean_text(reason), is_retryable=bool(is_retryable))
        case _:
            assert_never(ending)
    return Ended(tree=index, command_id=command_id, ending=value, num_steps=num_steps, spent=_spent(spent))


def shut(
    index: int,
    reason: str,
    num_leaves: int,
    *,
    spent: Mapping[str, Mapping[str, int]] | None = None,
    candidates: Sequence[Candidate] = (),
) -> Shut:
    """The record that tree `index` is finished."""
    return Shut(
        tree=index,
        reason=clean_text(reason),
        num_leaves=num_leaves,
        spent=_spent(spent),
        candidates=tuple(map(_candidate_value, candidates)),
    )


def candidates_of(record: Shut) -> tuple[Candidate, ...]:
    """What the search of a finished tree came to."""
    return tuple(map(_candidate, record.candidates))


def _segment_value(segment: Segment) -> SegmentValue:
    return SegmentValue(
        origin=segment.origin,
        ids=pack_ids(segment.ids),
        logprobs=None if segment.logprobs is None else pack_floats(segment.logprobs),
        measures={clean_text(name): pack_floats(values) for name, values in segment.measures.items()},
        source=None if segment.source is None else _source_value(segment.source),
        version=_integer(segment.version),
        finish=None if segment.finish is None else _finish_value(segment.finish),
        seed=_integer(segment.seed),
        usage=_usage_value(segment.usage),
        message=None if segment.message is None else _pack_named(segment.message, "the message"),
        tool_call=None if segment.tool_call is None else _tool_call_value(segment.tool_call),
        attachments=tuple(map(clean_text, segment.attachments)),
    )


def _finish_value(finish: Finish) -> FinishValue:
    return FinishValue(kind=finish.kind, matched=None if finish.matched is None else clean_text(finish.matched))


def _source_value(source: Origination) -> SourceValue:
    return SourceValue(
        engine=clean_text(source.engine),
        temperature=pack_number(source.sampling.temperature),
        top_p=pack_number(source.sampling.top_p),
        top_k=operator.index(source.sampling.top_k),
        logprobs=source.logprobs,
    )


def _usage_value(usage: Usage) -> UsageValue:
    return UsageValue(
        num_calls=operator.index(usage.num_calls),
        num_billed=operator.index(usage.num_billed),
        num_cached=operator.index(usage.num_cached),
        num_prefilled=operator.index(usage.num_prefilled),
        picodollars=operator.index(usage.picodollars),
    )


def _tool_call_value(call: ToolCall) -> ToolCallValue:
    return ToolCallValue(
        tool=clean_text(call.tool),
        arguments=clean_text(call.arguments),
        status=call.status,
        result=clean_text(call.result),
        duration_s=pack_number(call.duration_s),
        num_retries=operator.index(call.num_retries),
        metadata=_pack_named(call.metadata, f"the metadata of tool {call.tool!r}"),
        attachments=tuple(map(clean_text, call.attachments)),
    )


def _score_value(score: Score) -> ScoreValue:
    return ScoreValue(
        judge=clean_text(score.judge),
        value=_number(score.value),
        parts=_pack_terms(score.parts),
        attempt=operator.index(score.attempt),
        is_oracle=bool(score.is_oracle),
        is_of_step=bool(score.is_of_step),
    )


def _command_value(command: Command) -> CommandValue:
    match command:
        case Grow():
            return GrowValue(
                node=operator.index(command.node),
                at=_integer(command.at),
                until=operator.index(command.until.n) if isinstance(command.until, Tokens) else command.until,
                action=clean_text(command.action),
                fork=_fork_value(command.fork) if isinstance(command.fork, Fork) else _integer(command.fork),
                why=tuple(map(_candidate_value, command.why)),
            )
        case Judge():
            return JudgeValue(
                nodes=tuple(map(operator.index, command.nodes)),
                judge=clean_text(command.judge),
                attempt=operator.index(command.attempt),
                why=tuple(map(_candidate_value, command.why)),
            )
        case Close():
            return CloseValue(
                node=operator.index(command.node),
                reason=clean_text(command.reason),
                why=tuple(map(_candidate_value, command.why)),
                stop=command.stop,
            )
        case Cancel():
            return CancelValue(command_id=operator.index(command.command_id))
        case _:
            assert_never(command)


def _fork_value(fork: Fork) -> ForkValue:
    return ForkValue(
        num_siblings=operator.index(fork.num_siblings),
        rule=clean_text(fork.rule),
        shares=tuple(map(pack_number, fork.shares)),
        probability=_number(fork.probability),
        score=_number(fork.score),
        select_prob=_number(fork.select_prob),
    )


def _candidate_value(candidate: Candidate | Option) -> CandidateValue:
    return CandidateValue(
        node=operator.index(candidate.node), score=pack_number(candidate.score), terms=_pack_terms(candidate.terms)
    )


def _pack_terms(terms: tuple[tuple[str, float], ...]) -> tuple[tuple[str, Number], ...]:
    return tuple((clean_text(name), pack_number(x)) for name, x in terms)


def _pack_named(data: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A mapping of free-form data; a refusal says what it was."""
    if not data:
        return {}
    try:
        return pack_data(data)
    except StoreError as error:
        raise StoreError(f"{what}: {error}") from None


def _number(value: float | None) -> Number | None:
    return None if value is None else pack_number(value)


def _integer(value: int | None) -> int | None:
    return None if value is None else operator.index(value)


def _counters(counters: Mapping[str, int]) -> Counters:
    return {name: operator.index(value) for name, value in counters.items()}


def _spent(spent: Mapping[str, Mapping[str, int]] | None) -> Spent:
    return {role: _counters(counters) for role, counters in (spent or {}).items()}


# -- record -> core ---------------------------------------------------------------------------------------------------


def problem_of(record: Opened) -> Problem:
    """The problem of a tree, without its secret."""
    return Problem(uid=record.uid, question=record.question, public=unpack_data(record.public), split=record.split)


def prompt_of(record: Opened) -> tuple[Segment, ...]:
    """The opening context of a tree."""
    return tuple(map(_segment, record.prompt))


def commands_of(record: Asked) -> tuple[Command, ...]:
    return tuple(map(_command, record.commands))


def step_of(record: Grew) -> Step:
    step = record.step
    return Step(
        segments=tuple(map(_segment, step.segments)),
        stop=step.stop,
        action=step.action,
        edge=step.edge,
        role=step.role,
        measures={name: unpack_number(x) for name, x in step.measures.items()},
        scores=tuple(map(_score, step.scores)),
        notes=unpack_data(step.notes),
    )


def ending_of(record: Ended) -> Ending:
    match record.ending:
        case DoneValue():
            return Done()
        case ScoredValue(scores=scores):
            return Scored(tuple(map(_score, scores)))
        case FailureValue(reason=reason, is_retryable=is_retryable):
            return Failure(reason, is_retryable)
        case _:
            assert_never(record.ending)


def _segment(value: SegmentValue) -> Segment:
    return Segment(
        origin=value.origin,
        ids=unpack_ids(value.ids),
        logprobs=None if value.logprobs is None else unpack_floats(value.logprobs),
        measures={name: unpack_floats(data) for name, data in value.measures.items()},
        source=None if value.source is None else _source(value.source),
        version=value.version,
        finish=None if value.finish is None else Finish(value.finish.kind, value.finish.matched),
        seed=value.seed,
        usage=_usage(value.usage),
        message=None if value.message is None else unpack_data(value.message),
        tool_call=None if value.tool_call is None else _tool_call(value.tool_call),
        attachments=value.attachments,
    )


def _usage(value: UsageValue) -> Usage:
    return Usage(value.num_calls, value.num_billed, value.num_cached, value.num_prefilled, value.picodollars)


def _source(value: SourceValue) -> Origination:
    sampling = Sampling(unpack_number(value.temperature), unpack_number(value.top_p), value.top_k)
    return Origination(value.engine, sampling, value.logprobs)


def _tool_call(value: ToolCallValue) -> ToolCall:
    return ToolCall(
        tool=value.tool,
        arguments=value.arguments,
        status=value.status,
        result=value.result,
        duration_s=unpack_number(value.duration_s),
        num_retries=value.num_retries,
        metadata=unpack_data(value.metadata),
        attachments=value.attachments,
    )


def _score(value: ScoreValue) -> Score:
    return Score(
        judge=value.judge,
        value=_unpacked(value.value),
        parts=_unpack_terms(value.parts),
        attempt=value.attempt,
        is_oracle=value.is_oracle,
        is_of_step=value.is_of_step,
    )


def _command(value: CommandValue) -> Command:
    match value:
        case GrowValue():
            return Grow(
                node=value.node,
                at=value.at,
                until=Tokens(value.until) if isinstance(value.until, int) else value.until,
                action=value.action,
                fork=_fork(value.fork) if isinstance(value.fork, ForkValue) else value.fork,
                why=tuple(map(_option, value.why)),
            )
        case JudgeValue():
            return Judge(value.nodes, value.judge, value.attempt, tuple(map(_option, value.why)))
        case CloseValue():
            return Close(value.node, value.reason, tuple(map(_option, value.why)), value.stop)
        case CancelValue():
            return Cancel(value.command_id)
        case _:
            assert_never(value)


def _fork(value: ForkValue) -> Fork:
    return Fork(
        num_siblings=value.num_siblings,
        rule=value.rule,
        shares=tuple(map(unpack_number, value.shares)),
        probability=_unpacked(value.probability),
        score=_unpacked(value.score),
        select_prob=_unpacked(value.select_prob),
    )


def _option(value: CandidateValue) -> Option:
    return Option(value.node, unpack_number(value.score), _unpack_terms(value.terms))


def _candidate(value: CandidateValue) -> Candidate:
    return Candidate(value.node, unpack_number(value.score), _unpack_terms(value.terms))


def _unpack_terms(terms: tuple[tuple[str, Number], ...]) -> tuple[tuple[str, float], ...]:
    return tuple((name, unpack_number(x)) for name, x in terms)


def _unpacked(value: Number | None) -> float | None:
    return None if value is None else unpack_number(value)
