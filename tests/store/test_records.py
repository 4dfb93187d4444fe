"""Records keep every bit of what they record, whatever a tool, a judge or a data set puts in."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.growths import CODEC, COMMANDS, DATA, ENDINGS, HEADER, PROBLEMS, STEPS, answer, same, segments

from ramify.core.command import Candidate, Close, Command, Grow, Judge, Option, Score
from ramify.core.errors import StoreError
from ramify.core.growth import Done, Ending, Failure
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.tree import Step
from ramify.store import recording
from ramify.store.framing import decode, encode
from ramify.store.packing import clean_text, pack_data, unpack_data
from ramify.store.records import Record

NAN = float("nan")


def again(record: Record) -> Any:
    """`record` as it is read back."""
    read = decode(encode(record))
    assert encode(read) == encode(record)
    return read


@pytest.mark.slow
@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_a_step_reads_back_bit_for_bit(step: Step) -> None:
    assert same(recording.step_of(again(recording.grew(0, 1, 2, step=step)))) == same(step)


@given(st.lists(COMMANDS, max_size=3))
@settings(max_examples=100, deadline=None)
def test_commands_read_back_bit_for_bit(commands: list[Command]) -> None:
    assert same(recording.commands_of(again(recording.asked(0, 5, commands)))) == same(tuple(commands))


@given(ENDINGS)
@settings(max_examples=50, deadline=None)
def test_an_ending_reads_back_bit_for_bit(ending: Ending) -> None:
    record = recording.ended(3, 4, ending, num_steps=1, spent={"policy": {"decode": 2**40}})
    read = again(record)
    assert same(recording.ending_of(read)) == same(ending)
    assert read.spent == {"policy": {"decode": 2**40}}


@given(PROBLEMS, st.lists(segments().filter(lambda s: not s.is_sampled), max_size=2), st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_an_opening_reads_back_without_the_secret(problem: Problem, prompt: list[Segment], seed: int) -> None:
    record = recording.opened(9, problem, prompt=prompt, seed=seed, codec=CODEC)
    assert b"SECRET" not in encode(record)
    read = again(record)
    assert same(recording.problem_of(read)) == same(problem.for_agents())
    assert same(recording.prompt_of(read)) == same(tuple(prompt))
    assert (read.seed, read.codec_sha256) == (seed, CODEC.sha256)


@given(DATA)
@settings(max_examples=150, deadline=None)
def test_free_form_data_read_back_with_its_types(data: Any) -> None:
    assert same(unpack_data(msgspec.json.decode(msgspec.json.encode(pack_data(data))))) == same(data)


def test_the_header_and_the_allotments_read_back() -> None:
    assert again(HEADER) == HEADER
    record = recording.asked(0, 0, [Grow(0), Close(0, "x")], allotments=[{"decode": 224}, None])
    assert again(record).allotments == ({"decode": 224}, None)
    with pytest.raises(StoreError, match="1 allotments for 2 commands"):
        recording.asked(0, 0, [Grow(0), Grow(0)], allotments=[None])


@pytest.mark.parametrize("value", [NAN, float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_kept_where_the_encoder_alone_would_lose_it(value: float) -> None:
    assert msgspec.json.encode(value) == b"null"
    step = Step((), measures={"m": value}, scores=(Score("j", value, (("p", value),)),), notes={"n": value})
    record = recording.grew(0, 0, 0, step=step)
    assert b"null" not in encode(record)
    assert same(recording.step_of(again(record))) == same(step)
    why = (Option(0, value, (("u", value),)),)
    for command in (Grow(0, why=why), Judge((0,), "j", why=why), Close(0, "r", why)):
        assert same(recording.commands_of(again(recording.asked(0, 0, [command])))) == same((command,))


def test_no_record_of_a_step_holds_a_number_outside_json() -> None:
    logprobs = np.array([NAN, -np.inf, -0.0, 1e-45], np.float32)
    step = Step((Segment("sampled", token_array([1, 2, 3, 4]), logprobs=logprobs),))
    body = encode(recording.grew(0, 0, 0, step=step))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(body, parse_constant=refuse)["step"]["segments"][0]["logprobs"]
    assert same(recording.step_of(decode(body))) == same(step)


NASTY = ["\ud800", "a\udfffb", "\x00", "\ud83d\ude00", "line\nbreak\u2028", '"\\', "\ufeff", "é\udc80"]


@pytest.mark.parametrize("text", NASTY)
def test_no_text_kills_the_writer(text: str) -> None:
    call = ToolCall(text, text, "error", text, metadata={text: [text]})
    given_segment = Segment("given", token_array([1]), tool_call=call, message={"content": text}, attachments=(text,))
    step = Step((given_segment,), action=text, notes={text: text}, measures={text: 1.0}, scores=(Score(text, 1.0),))
    problem = Problem("u" + text, "q" + text, public={text: {text: text}}, split=text)
    records: list[Record] = [
        recording.grew(0, 0, 0, step=step),
        recording.opened(0, problem, prompt=[given_segment], seed=0, codec=CODEC),
        recording.asked(0, 0, [Judge((0,), text), Close(0, text), Grow(0, action=text)]),
        recording.ended(0, 0, Failure(text), num_steps=0),
        recording.shut(0, text, 0),
    ]
    for record in records:
        encode(record).decode("utf-8")
        again(record)
    call_read = recording.step_of(again(records[0])).segments[0].tool_call
    assert call_read is not None
    assert call_read.result == clean_text(text)


def test_only_lone_surrogates_are_replaced() -> None:
    assert clean_text("a\ud800b\x00é😀") == "a\ufffdb\x00é😀"
    assert clean_text("plain") == "plain"


def test_a_candidate_in_the_place_of_an_option_is_recorded_as_one() -> None:
    command = Grow(3, why=(Candidate(1, 0.5, (("q", 2.0),)),))  # pyright: ignore[reportArgumentType]
    (read,) = recording.commands_of(again(recording.asked(0, 0, [command])))
    assert isinstance(read, Grow)
    assert read.why == (Option(1, 0.5, (("q", 2.0),)),)
    assert read == command
    assert command == read
    assert hash(read.why[0]) == hash(Option(1, 0.5, (("q", 2.0),)))


def test_numbers_of_numpy_are_recorded_as_numbers() -> None:
    command = Grow(np.int64(3), at=np.int32(2), why=(Option(np.int64(1), np.float32(0.5)),))  # pyright: ignore
    assert recording.commands_of(again(recording.asked(0, 0, [command]))) == (command,)
    step = Step((), scores=(Score("j", np.float64(0.25)),), notes={"n": np.float32(0.5), "s": np.str_("x")})
    read = recording.step_of(again(recording.grew(0, 0, 0, step=step)))
    assert (read.scores[0].value, read.notes) == (0.25, {"n": 0.5, "s": "x"})


def test_what_cannot_be_kept_is_refused_with_its_place() -> None:
    step = Step((Segment("given", token_array([1]), tool_call=ToolCall("search", "q", metadata={"hits": {1, 2}})),))
    with pytest.raises(StoreError, match="metadata of tool 'search': a value of type set cannot be recorded"):
        recording.grew(0, 0, 0, step=step)
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(StoreError, match="deeper than 64"):
        pack_data(cycle)
    with pytest.raises(StoreError, match="cannot be written"):
        encode(recording.shut(0, "done", object()))  # pyright: ignore
    with pytest.raises(StoreError, match="creation time"):
        msgspec.structs.replace(HEADER, created=NAN)


def test_the_names_on_disk_are_those_of_the_design() -> None:
    records: list[Record] = [
        HEADER,
        recording.opened(0, Problem("u", "q"), prompt=[], seed=0, codec=CODEC),
        recording.asked(0, 0, [Grow(0)]),
        recording.grew(0, 0, 0, step=answer()),
        recording.ended(0, 0, Done(), num_steps=1),
        recording.shut(0, "done", 1),
    ]
    names = [json.loads(encode(record))["record"] for record in records]
    assert names == ["header", "opened", "asked", "grown", "outcome", "closed"]
