"""Whatever a server ran on to, a generation is what a watch over its ids says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.codec import ByteCodec
from ramify.core.engine import Generation, Request
from ramify.core.errors import EngineError
from ramify.core.segment import Finish, token_array
from ramify.engines.served.turn import Sampled, ServedTurn, completions, first_of, merged
from ramify.engines.stop_watch import StopWatch

CODEC = ByteCodec()
BYTES = [CODEC.token_bytes(i) for i in range(CODEC.vocab_size)]
END = CODEC.eos_id
REQUEST = Request(token_array([*b"<q>"]), max_tokens=40, seed=2**64 - 1, stops=("</a>", "aa"), request_id="t/1")


def turn_of(request: Request) -> ServedTurn:
    return ServedTurn(request, token_bytes=BYTES, end_ids=(END,), room=request.max_tokens)


def answer(ids: list[int], finish: str = "length", **more: object) -> Sampled:
    return replace(Sampled(ids, finish, logprobs=[-0.25] * len(ids)), **more)  # type: ignore[arg-type]


def watched(request: Request, stream: list[int]) -> tuple[list[int], Finish]:
    """What an engine that looks at every token as it samples it makes of `stream`."""
    run = request.ids[len(request.ids) - request.num_run :]
    watch = StopWatch(request.stops, [BYTES[token] for token in run[::-1].tolist()])
    ids: list[int] = []
    for token in stream[: request.max_tokens]:
        ids.append(token)
        found = None if token == END else watch.hear(BYTES[token])
        if token == END or found is not None:
            return ids, Finish("end_of_sequence") if found is None else Finish("stop", found[0])
    return ids, Finish("length")


def served(request: Request, stream: list[int]) -> Generation:
    """What comes of a server that samples `stream` and looks for stop texts in each answer of its own."""
    turn = turn_of(request)
    while True:
        ask = turn.ask("id.")
        said: list[int] = []
        for token in stream[len(turn.ids) :][: ask.max_tokens]:
            said.append(token)
            text = b"".join(BYTES[i] for i in said)
            matched = next((stop for stop in ask.stops if stop.encode() in text), None)
            if token == END or matched is not None:
                finish = turn.hear(answer(said, "stop", matched=matched), ask)
                break
        else:
            finish = turn.hear(answer(said), ask)
        if finish is not None:
            return turn.generation(finish)


@given(
    st.text("a<>/b", max_size=8),
    st.lists(st.sampled_from([*b"a<>/b", END]), min_size=12, max_size=12),
    st.integers(0, 8),
    st.integers(1, 12),
)
def test_a_server_that_knows_its_own_text_alone_gives_what_a_watch_over_all_ids_gives(
    run: str, stream: list[int], num_run: int, max_tokens: int
) -> None:
    ids = token_array([*b"<q>", *run.encode()])
    request = replace(REQUEST, ids=ids, num_run=min(num_run, len(run)), max_tokens=max_tokens)
    generation = served(request, stream)
    assert (generation.ids.tolist(), generation.finish) == watched(request, stream)
    assert generation.num_billed >= len(generation.ids)
    assert generation.logprobs is not None and len(generation.logprobs) == len(generation.ids)


def test_what_runs_on_behind_a_stop_is_cut_and_billed() -> None:
    turn = turn_of(REQUEST)
    finish = turn.hear(answer([*b"b</a>bbb"], "length"), turn.ask("id."))
    assert finish == Finish("stop", "</a>")
    generation = turn.generation(finish)
    assert (bytes(generation.ids.astype(np.uint8)), generation.num_billed) == (b"b</a>", 8)


def test_a_word_that_may_have_begun_is_looked_for_by_its_rest() -> None:
    assert completions(b"x</", ("</a>", "aa")) == ["a>"]
    assert completions(b"a", ("</a>", "aa")) == ["a"]
    assert completions("é".encode()[:1], ("é",)) == []
    assert turn_of(replace(REQUEST, ids=token_array([*b"<q></"]), num_run=2)).ask("id.").stops == ("</a>", "aa", "a>")
    assert turn_of(replace(REQUEST, ids=token_array([*b"<q></"]), num_run=0)).ask("id.").stops == ("</a>", "aa")


def test_a_second_ask_draws_other_numbers_and_asks_for_what_is_left() -> None:
    turn = turn_of(replace(REQUEST, topk=2, topk_tokens=2))
    first = turn.ask("1.")
    said = answer([*b"xyz"], "stop", matched="z", topk=[[-3.0, -0.25]] * 3)
    assert turn.hear(said, first) is None
    second = turn.ask("2.")
    assert first.seed == 2**63 - 1
    assert (second.seed != first.seed, second.seed < 2**63) == (True, True)
    assert (second.ids, second.max_tokens, second.topk) == ([*b"<q>xyz"], 37, 0)
    assert turn.hear(answer([END], "stop"), second) == Finish("end_of_sequence")
    generation = turn.generation(Finish("end_of_sequence"))
    assert [top.tolist() for top in generation.topk] == [[-0.25, -3.0]] * 2
    assert generation.num_billed == 4


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        (answer([*b"abc"], "stop"), "unknown_end"),
        (answer([*b"abc"]), "wrong_length"),
        (answer([*b"b"] * 41), "too_many_tokens"),
        (answer([]), "no_tokens"),
        (answer([*b"b"], "repetition"), "unknown_finish"),
        (answer([5000], "stop"), "bad_token_ids"),
        (answer([-1], "stop"), "bad_token_ids"),
        (answer([*b"bc"], num_told=3), "wrong_count"),
        (answer([*b"bc"], num_prompt=4), "other_prompt"),
        (answer([*b"bc"], num_cached=9), "bad_usage"),
        (answer([*b"bc"], versions=((0, 1),)), "bad_versions"),
        (answer([*b"bc"], logprobs=None), "bad_logprobs"),
        (answer([*b"bc"], logprobs=[-1.0]), "bad_logprobs"),
        (answer([*b"bc"], logprobs=[-1.0, None]), "bad_logprobs"),
        (answer([*b"bc"], logprobs=[-1.0, 0.5]), "bad_logprobs"),
        (answer([*b"bc"], logprobs=[-1.0, float("nan")]), "bad_logprobs"),
        (answer([*b"bc"], logprobs=[-1.0, -9999.0]), "bad_logprobs"),
    ],
)
def test_an_unsound_answer_is_refused_by_name(spoilt: Sampled, reason: str) -> None:
    turn = turn_of(REQUEST)
    with pytest.raises(EngineError) as caught:
        turn.hear(spoilt, turn.ask("id."))
    assert (caught.value.reason, caught.value.is_retryable) == (reason, False)


@pytest.mark.parametrize("topk", [(), [[-0.25]], [[-0.25], []], [[-0.25], [-0.25, 7.0]]])
def test_top_logprobs_that_were_asked_for_must_come(topk: list[list[float]]) -> None:
    turn = turn_of(replace(REQUEST, topk=3))
    with pytest.raises(EngineError, match="bad_topk"):
        turn.hear(answer([*b"bc"], "stop", matched="c", topk=topk), turn.ask("id."))


def test_an_abort_without_tokens_is_an_abort() -> None:
    turn = turn_of(REQUEST)
    assert turn.hear(Sampled([], "abort"), turn.ask("id.")) == Finish("abort")
    assert len(turn.generation(Finish("abort")).ids) == 0


def test_spans_are_cut_and_joined() -> None:
    assert first_of(((1, 3), (2, 4)), 5) == [(1, 3), (2, 2)]
    assert first_of(((1, 3), (2, 4)), 3) == [(1, 3)]
    assert merged([(1, 2), (1, 3), (2, 0), (2, 1)]) == [(1, 5), (2, 1)]
