"""The OpenAI-compatible engine against a real server: what it sends, what it makes of every kind of answer."""

import base64
import json
import math
import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.endpoint import Endpoint, Reply, call, calling, said
from tests.engines.fault_server import FaultServer, Hang, always

from ramify.core.engine import Generation, Request, checked
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import Finish, Sampling, token_array
from ramify.edge.patience import Patience
from ramify.engines.openai import OpenAI
from ramify.engines.openai_answer import generation_of
from ramify.engines.retrying import Retrying
from ramify.store.packing import pack_data

KEY = "sk-secret-0123456789abcdef"
USER = {"role": "user", "content": "make 8 from 7 1"}
STOPS = ("</search>", "</answer>")
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8
ENDS = Finish("end_of_sequence")


def request(**fields: Any) -> Request:
    defaults: dict[str, Any] = {"max_tokens": 50, "seed": (1 << 63) + 5, "messages": (USER,), "stops": STOPS}
    return Request(token_array(list(b"make 8 from 7 1")), **{**defaults, **fields})


async def asked(endpoint: Endpoint, asking: Request | None = None, **options: Any) -> Generation:
    """The checked answer of a fresh engine."""
    asking = asking or request()
    engine = OpenAI("m", base_url=endpoint.url, **options)
    try:
        return checked(await engine.generate(asking), asking, engine.codec.vocab_size)
    finally:
        await engine.close()


async def answered(answer: Mapping[str, Any] | Reply, asking: Request | None = None) -> Generation:
    with Endpoint(lambda _: answer) as endpoint:
        return await asked(endpoint, asking)


def text(generation: Generation) -> str:
    return bytes(i for i in generation.ids.tolist() if i < 256).decode()


# -- what is sent ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("S2.7")
async def test_a_request_says_what_was_asked_for_and_nothing_that_is_not():
    tool = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    with Endpoint(lambda _: said("hm")) as endpoint:
        await asked(endpoint, request(sampling=Sampling(0.5, 0.9), tools=(tool,), request_id="0/ab"))
        await asked(endpoint, request(stops=(), sampling=Sampling(top_k=7)), extra_body={"top_p": 0.1, "min_p": 0.2})
    first, second = endpoint.requests
    assert first == {
        "model": "m",
        "messages": [USER],
        "max_tokens": 50,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 5,
        "n": 1,
        "stop": [*STOPS],
        "tools": [{"type": "function", "function": tool}],
    }
    assert endpoint.headers[0]["X-Request-Id"] == "0/ab"
    assert "Authorization" not in endpoint.headers[0]
    assert (second["top_k"], second["top_p"], second["min_p"]) == (7, 0.1, 0.2)
    assert not {"stop", "tools", "logprobs"} & set(second)


async def test_fields_that_a_server_does_not_take_are_left_out():
    before = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    options: dict[str, Any] = {"unsent": ["seed", "reasoning_content"], "max_tokens_as": "max_completion_tokens"}
    with Endpoint(lambda _: said("hm")) as endpoint:
        await asked(endpoint, request(messages=(USER, before, USER)), **options)
    (sent,) = endpoint.requests
    assert sent["messages"][1] == {"role": "assistant", "content": "a"}
    assert "seed" not in sent and "max_tokens" not in sent and sent["max_completion_tokens"] == 50


async def test_messages_go_back_exactly_as_they_came():
    arguments = '{"query" :  "caf\\u00e9",}'
    came = calling(call("search", arguments), content=None, reasoning_content="I must look.", audio=None)
    with Endpoint(lambda _: came) as endpoint:
        generation = await asked(endpoint)
        assert generation.message is not None
        answer = {"role": "tool", "tool_call_id": "call_a", "content": "nothing"}
        await asked(endpoint, request(messages=(USER, generation.message, answer)))
    assert endpoint.requests[1]["messages"] == [
        USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("search", arguments)],
            "reasoning_content": "I must look.",
        },
        answer,
    ]


async def test_an_image_is_sent_as_its_data_and_nothing_else_of_the_machine_is(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "secret.png").write_text("password", "utf-8")
    (tmp_path / "sound.webp").write_bytes(b"RIFF\0\0\0\0WAVEfmt ")
    os.mkfifo(tmp_path / "pipe.png")

    def showing(name: str, role: str = "user") -> Request:
        parts = [
            {"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": f"file://{tmp_path / name}"}},
        ]
        return request(messages=({"role": role, "content": parts}, USER))

    with Endpoint(lambda _: said("hm")) as endpoint:
        await asked(endpoint, showing("a.png"))
        await asked(endpoint, showing("a.png", role="assistant"))
        for name in ("secret.png", "none.png", "sound.webp", "pipe.png", "nul\0.png"):
            with pytest.raises(EngineError, match="bad_attachment"):
                await asked(endpoint, showing(name))
    first, second = (sent["messages"][0]["content"][1]["image_url"]["url"] for sent in endpoint.requests)
    assert first == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert second.startswith("file://"), "a file that the model's own message names is never read"


def nested(depth: int) -> Any:
    """Lists in one another."""
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


# -- what comes back ------------------------------------------------------------------------------------------------


async def test_a_turn_that_ends_is_its_text_and_the_end():
    generation = await answered(said("Red. ☃"))
    assert text(generation) == "Red. ☃"
    assert generation.ids[-1] == 256
    assert (generation.finish, generation.num_billed, generation.num_prefilled) == (ENDS, 3, 7)
    assert generation.message == {"role": "assistant", "content": "Red. ☃"}
    assert generation.logprobs is None and not generation.notes


@pytest.mark.parametrize(
    ("content", "choice", "kept", "finish", "restored"),
    [
        ("<search>a", {}, "<search>a</search>", "</search>", True),
        ("<search>a", {"stop_reason": "</search>"}, "<search>a</search>", "</search>", True),
        ("a", {"stop_reason": "</search>"}, "a</search>", "</search>", True),
        ("<search>a</search>", {"stop_reason": "</search>"}, "<search>a</search>", "</search>", False),
        ("<search>a</search>", {"matched_stop": "</search>"}, "<search>a</search>", "</search>", False),
        ("<search>a", {"stop_reason": None}, "<search>a", None, False),
        ("<search>a", {"matched_stop": 151645}, "<search>a", None, False),
        ("<search>a</search> and <answer>", {}, "<search>a</search> and <answer>", "</search>", False),
        ("an <answer> tag, then <search>a", {}, "an <answer> tag, then <search>a</search>", "</search>", True),
        ("no tag at all", {}, "no tag at all", None, False),
    ],
)
async def test_a_stop_word_that_the_server_cut_off_is_put_back_and_marked(
    content: str, choice: Mapping[str, Any], kept: str, finish: str | None, restored: bool
):
    generation = await answered(said(content, **{f"choice_{k}": v for k, v in choice.items()}))
    assert text(generation) == kept
    assert generation.message == {"role": "assistant", "content": kept}
    assert generation.finish == (ENDS if finish is None else Finish("stop", finish))
    assert dict(generation.notes) == ({"restored": finish} if restored else {})


async def test_calls_are_rendered_with_their_arguments_as_they_came():
    broken = '{"query": caf'
    generation = await answered(calling(call("a", '{"x":1}'), call("b", broken, "call_b"), content="So:"))
    assert text(generation) == (
        'So:\n<tool_call>\n{"name": "a", "arguments": {"x":1}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "b", "arguments": {broken}}}\n</tool_call>'
    )
    assert generation.finish == Finish("stop", "</tool_call>")
    assert 256 not in generation.ids


async def test_a_call_without_an_id_gets_one_that_it_can_be_answered_by():
    generation = await answered(calling({"function": {"name": "a", "arguments": {"x": "é"}}}, content=""))
    assert generation.message is not None
    assert [c["id"] for c in generation.message["tool_calls"]] == ["call_1_0"]
    assert text(generation) == '<tool_call>\n{"name": "a", "arguments": {"x": "é"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a"], ["a", "call_1_1"]),
        ([None, ""], ["call_1_0", "call_1_1"]),
        ([7, "a"], ["call_1_0", "a"]),
    ],
)
async def test_every_call_of_a_turn_can_be_answered_by_its_own_id(ids: list[Any], kept: list[str]):
    generation = await answered(calling(*({**call("f", "{}"), "id": one} for one in ids)))
    assert generation.message is not None
    assert [c["id"] for c in generation.message["tool_calls"]] == kept


async def test_numbers_of_any_size_go_back_as_they_came():
    came = calling({"id": "a", "function": {"name": "f", "arguments": {"n": 10**30, "x": 0.1}}})
    with Endpoint(lambda _: came) as endpoint:
        generation = await asked(endpoint)
        assert generation.message is not None
        await asked(endpoint, request(messages=(USER, generation.message)))
    sent = endpoint.requests[1]["messages"][1]
    assert sent["tool_calls"][0]["function"]["arguments"] == {"n": 10**30, "x": 0.1}


@pytest.mark.parametrize("finish", ["length", "max_tokens", "model_length"])
async def test_a_turn_that_was_cut_is_whole_and_has_no_end(finish: str):
    generation = await answered(said("<search>a", finish=finish, usage=(7, 50)))
    assert (text(generation), generation.finish) == ("<search>a", Finish("length"))
    assert 256 not in generation.ids


async def test_a_turn_that_thought_until_it_was_cut_says_nothing_and_is_billed():
    generation = await answered(said(None, finish="length", usage=(7, 50), reasoning="hm hm"))
    assert (len(generation.ids), generation.num_billed) == (0, 50)
    assert generation.message == {"role": "assistant", "content": None, "reasoning": "hm hm"}


@pytest.mark.parametrize(
    ("answer", "shown", "finish", "notes"),
    [
        (said(None), "", ENDS, {}),
        (said(None, refusal="I can't."), "I can't.", ENDS, {}),
        (
            said("So", finish="content_filter"),
            "So",
            Finish("end_of_sequence", "content_filter"),
            {"finish_reason": "content_filter"},
        ),
        (said("So", finish="eos"), "So", ENDS, {"finish_reason": "eos"}),
        (said("So", finish=None), "So", ENDS, {}),
        (said([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab", ENDS, {}),
        (said("a\ud800b\0"), "a\ufffdb\0", ENDS, {}),
        (Reply(b"\xef\xbb\xbf" + json.dumps(said("a")).encode()), "a", ENDS, {}),
        (said("a", **{"\ud800": "x"}), "a", ENDS, {}),
    ],
    ids=["null", "refusal", "filter", "other-word", "no-word", "parts", "surrogate", "mark", "odd-key"],
)
async def test_unusual_turns(answer: Mapping[str, Any], shown: str, finish: Finish, notes: Mapping[str, Any]):
    generation = await answered(answer)
    assert (text(generation), generation.finish, dict(generation.notes)) == (shown, finish, notes)


@pytest.mark.parametrize(
    ("answer", "reason", "is_retryable"),
    [
        (Reply(b"<html>Bad gateway</html>"), "bad_body", True),
        (Reply('{"choices": "caf\u00e9"}'.encode("latin-1")), "bad_body", True),
        (Reply(json.dumps(said("a")).encode("utf-16")), "bad_body", True),
        (Reply(b"[" * 100_000), "bad_body", True),
        (Reply(b"[]"), "bad_body", True),
        (Reply(b""), "bad_body", True),
        ({"choices": []}, "no_choices", True),
        ({"error": {"message": "upstream is ill"}}, "no_choices", True),
        ({"choices": [{"finish_reason": "stop"}]}, "bad_message", False),
        ({"choices": [*said("a")["choices"], *said("b")["choices"]]}, "many_choices", False),
        (Reply(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n'), "bad_body", True),
        (said("a", usage=(7, 51)), "too_many_tokens", False),
        (said(5), "bad_message", False),
        (said({"text": "a"}), "bad_message", False),
        (said("a", tool_calls={"id": "a"}), "bad_message", False),
        (said("a", tool_calls=[call("f", "{}"), "g"]), "bad_message", False),
        (said("a", extra=math.nan), "bad_message", False),
        (Reply(json.dumps(said("a", extra="X")).replace('"X"', "-1e999").encode()), "bad_message", False),
        (said("a", extra=nested(33)), "bad_message", False),
        (said("a", extra=nested(400)), "bad_message", False),
        ({"choices": [{"message": nested(400)}]}, "bad_message", False),
        ({"error": nested(400)}, "bad_message", False),
        (said("a", finish={"type": "stop"}), "unknown_finish", False),
        (said("a", choice_logprobs={"content": [{"token": "a", "logprob": -(10**400)}]}), "bad_logprobs", False),
        (said("a", choice_logprobs={"content": [{"token": "a", "logprob": -1e308}] * 2}), "bad_logprobs", False),
        (said("a", choice_logprobs={"content": [{"token": "a", "logprob": math.nan}]}), "bad_logprobs", False),
        (said("a", choice_logprobs={"content": [None]}), "bad_logprobs", False),
        (said("a", choice_logprobs={"content": [{"token": "a", "logprob": 0.5}]}), "bad_logprobs", False),
        (Reply(b'{"error": {"message": "no such model"}}', 404), "http_404", False),
        (Reply(b"slow down", 429, {"Retry-After": "0"}), "busy", True),
        (Reply(b"oops", 500), "http_500", True),
    ],
)
async def test_an_answer_that_is_none_has_a_name(answer: Any, reason: str, is_retryable: bool):
    with pytest.raises(EngineError) as caught:
        await answered(answer)
    assert (caught.value.reason, caught.value.is_retryable) == (reason, is_retryable)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=3)
    | st.sampled_from(["stop", "length", "abort", *STOPS, "<search>", 10**400, "\ud800"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["text", "id", "function"]), inner),
    max_leaves=4,
)  # fmt: skip
LOGPROBS = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -2.0}]}]}


def spoilt(value: Any, data: st.DataObject) -> Any:
    """`value` with something odd in a place of it."""
    keys = [*value] if isinstance(value, dict) else [*range(len(value))] if isinstance(value, list) else []
    if not keys or data.draw(st.integers(0, 4)) == 0:
        return data.draw(ODD)
    key = data.draw(st.sampled_from(keys))
    value[key] = spoilt(value[key], data)
    return value


@given(st.data())
def test_an_answer_spoilt_anywhere_is_refused_by_name_or_can_be_kept_and_sent_back(data: st.DataObject):
    answer = deepcopy(calling(call("f", "{}"), call("g", "{"), content="<search>", choice_logprobs=LOGPROBS))
    for _ in range(data.draw(st.integers(1, 3))):
        answer = spoilt(answer, data)
    asking = request(topk=2)
    try:
        generation = generation_of(json.dumps(answer).encode(), asking, model="m")
        checked(generation, asking, 257)
    except EngineError as error:
        str(error).encode()
    else:
        assert pack_data(generation.message) is not None and pack_data(dict(generation.notes)) is not None
        msgspec.json.encode(generation.message)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 512 tokens. However, you requested 600 tokens",
        "the request exceeds the available context size. try increasing the context size",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "The input token count (1) exceeds the maximum number of tokens allowed (2).",
    ],
)
async def test_a_conversation_that_does_not_fit_is_called_so(message: str):
    with pytest.raises(EngineError) as caught:
        await answered(Reply(json.dumps({"error": {"message": message}}).encode(), 400))
    assert (caught.value.reason, caught.value.is_retryable) == ("context_full", False)


async def test_a_turn_that_the_server_gave_up_is_asked_again():
    answers = [said("a", finish="abort"), said("b", finish="error"), said("c")]
    with Endpoint(lambda _: answers.pop(0)) as endpoint:
        engine = Retrying(OpenAI("m", base_url=endpoint.url))
        generation = await engine.generate(request())
        await engine.close()
    assert text(generation) == "c"
    assert len({sent["seed"] for sent in endpoint.requests}) == 1


@pytest.mark.parametrize(
    ("usage", "billed", "cached", "prefilled"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}, 4, 8, 1),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": None}, 4, 0, 9),
        ({"prompt_tokens": 2, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}, 4, 2, 0),
        (None, 50, 0, 0),
        ({"prompt_tokens": 0, "completion_tokens": 0}, 50, 0, 0),
        ({"prompt_tokens": "9", "completion_tokens": -1}, 50, 0, 0),
        ({"prompt_tokens": 10**30, "completion_tokens": 10**30}, 50, 0, 0),
        ({"prompt_tokens": 9, "completion_tokens": 3.5}, 50, 0, 9),
        ([9, 4], 50, 0, 0),
    ],
)
async def test_a_server_that_tells_no_usage_is_billed_all_that_was_allowed(
    usage: Any, billed: int, cached: int, prefilled: int
):
    generation = await answered({**said("a", usage=None), "usage": usage})
    assert (generation.num_billed, generation.num_cached, generation.num_prefilled) == (billed, cached, prefilled)
    assert ("usage" in generation.notes) == (billed == 50)


async def test_logprobs_are_of_the_provider_s_tokens_so_no_id_has_one():
    top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.5}]
    content = [
        {"token": "a", "logprob": -0.1, "top_logprobs": top},
        {"token": "c", "logprob": -9999.0, "top_logprobs": top},
        {"token": "d", "logprob": -1.0, "top_logprobs": []},
    ]
    with Endpoint(lambda _: said("acd", choice_logprobs={"content": content})) as endpoint:
        generation = await asked(endpoint, request(topk=10, topk_tokens=2), max_topk=2)
    assert (endpoint.requests[0]["logprobs"], endpoint.requests[0]["top_logprobs"]) == (True, 2)
    assert generation.logprobs is None
    assert generation.notes["num_logprobs"] == 3 and generation.notes["logprob"] == pytest.approx(-10000.1)
    first, second = generation.topk
    assert np.allclose(first, [-0.1, -2.5]) and np.allclose(second, [-0.1, -2.5, -9999.0])


async def test_top_logprobs_that_were_asked_for_do_not_fail_to_come_in_silence():
    turns = [said("a", choice_logprobs=None), calling(call("f", "{}")), said("a", finish="abort")]
    with Endpoint(lambda _: turns.pop(0)) as endpoint:
        with pytest.raises(EngineError, match="no_logprobs"):
            await asked(endpoint, request(topk=2), max_topk=2)
        assert not (await asked(endpoint, request(topk=2), max_topk=2)).topk
        assert (await asked(endpoint, request(topk=2), max_topk=2)).finish.kind == "abort"


async def test_who_answered_is_noted_where_it_is_another_one():
    generation = await answered({**said("a"), "model": "m-2025-01-01", "system_fingerprint": "fp_1"})
    assert generation.notes == {"model": "m-2025-01-01", "fingerprint": "fp_1"}


async def test_a_server_that_hangs_is_given_up_at_the_request_s_own_deadline():
    async with FaultServer(plan=always(Hang())) as server:
        engine = OpenAI("m", base_url=server.url, patience=Patience(start_s=0.2, prefill_s=0.0, token_s=0.0))
        assert engine.capabilities.keeps_deadlines
        with pytest.raises(EngineError) as caught:
            await engine.generate(request())
        await engine.close()
    assert (caught.value.reason, caught.value.is_retryable) == ("timeout", True)


# -- before the start -----------------------------------------------------------------------------------------------


async def connected(endpoint: Endpoint, model: str = "m", **options: Any) -> OpenAI:
    engine = OpenAI(model, base_url=endpoint.url, **options)
    try:
        await engine.connect()
        await engine.connect()
    finally:
        await engine.close()
    return engine


@pytest.mark.parametrize(
    ("models", "options", "context_length"),
    [
        ([{"id": "m", "max_model_len": 512}], {}, 512),
        ([{"id": "m", "context_length": 512}], {"context_length": 100}, 100),
        ([{"id": "m", "context_window": 512}], {"context_length": 1000}, 512),
        ([{"id": "m"}], {"context_length": 1000}, 1000),
        ([{"id": "models/m"}], {}, 128_000),
        ([{"id": "m:free"}, {"id": "other"}], {}, 128_000),
        ([{"id": "some/*"}], {}, 128_000),
        ([], {}, 128_000),
        (None, {}, 128_000),
    ],
)
async def test_a_server_says_how_much_context_a_model_has(models: Any, options: dict[str, Any], context_length: int):
    with Endpoint(lambda _: said("a"), models=models) as endpoint:
        engine = await connected(endpoint, **options)
    assert engine.capabilities.context_length == context_length
    assert not engine.capabilities.has_token_ids and not engine.capabilities.can_continue_turn


async def test_a_model_that_the_server_lists_not_is_refused():
    refused = pytest.raises(ConfigError, match="has no model 'gpt-5-mni'; did you mean 'gpt-5-mini'")
    with Endpoint(lambda _: said("a"), models=[{"id": "gpt-5-mini"}]) as endpoint, refused:
        await connected(endpoint, "gpt-5-mni")


@pytest.mark.parametrize(
    ("listed", "model", "is_there"),
    [
        ("qwen:7b", "qwen:7b", True),
        ("qwen:7b", "qwen", True),
        ("qwen", "qwen:nitro", True),
        ("qwen:7b", "qwen:70b", False),
    ],
)
async def test_two_variants_of_a_model_are_two_models(listed: str, model: str, is_there: bool):
    with Endpoint(lambda _: said("a"), models=[{"id": listed}]) as endpoint:
        if is_there:
            await connected(endpoint, model)
        else:
            with pytest.raises(ConfigError, match=f"has no model '{model}'"):
                await connected(endpoint, model)


async def test_a_list_of_models_that_is_none_is_believed():
    async with FaultServer(lambda received: b"[" * 100_000) as server:
        engine = OpenAI("m", base_url=server.url)
        await engine.connect()
        await engine.close()


async def test_a_key_is_needed_where_openai_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    engine = OpenAI("m")
    with pytest.raises(ConfigError, match="set the environment variable OPENAI_API_KEY"):
        await engine.connect()
    await engine.close()


async def test_a_server_that_is_not_there_is_named():
    engine = OpenAI("m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(EngineError, match="unreachable"):
        await engine.connect()
    await engine.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": ""}, "needs the name of a model"),
        ({"max_topk": 21}, "max_topk = 21"),
        ({"context_length": 0}, "context_length = 0"),
        ({"extra_body": {"stream": True}}, "extra_body: ramify itself sets stream of a request"),
        ({"max_tokens_as": "limit"}, "max_tokens_as = 'limit'"),
        ({"unsent": "seed"}, "unsent = 'seed' must be a list of names"),
        ({"base_url": "127.0.0.1:80"}, "an address such as"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        OpenAI(**{"model": "m", **options})
    assert message in str(caught.value)


# -- the key --------------------------------------------------------------------------------------------------------


async def test_the_key_is_sent_and_nowhere_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    with Endpoint(lambda _: said(f"your key is {KEY}")) as endpoint:
        engine = OpenAI("m", base_url=endpoint.url, api_key_env="MY_KEY")
        generation = await engine.generate(request())
        await engine.close()
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert text(generation) == "your key is ***"
    assert KEY not in repr(engine) + repr(engine.capabilities) + repr(generation)


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_a_server_that_says_the_key_back_does_not_spread_it(status: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", KEY)
    body = json.dumps({"error": {"message": f"Incorrect key: {KEY}; your header was Bearer {KEY}"}}).encode()
    with Endpoint(lambda _: Reply(body, status)) as endpoint:
        engine = OpenAI("m", base_url=endpoint.url, api_key_env="MY_KEY")
        with pytest.raises(EngineError) as caught:
            await engine.generate(request())
        await engine.close()
    assert "Incorrect key" in str(caught.value) and KEY not in str(caught.value)
    assert caught.value.__cause__ is None


def test_what_can_be_no_key_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "sk-\nsplit")
    with pytest.raises(ConfigError) as caught:
        OpenAI("m", api_key_env="MY_KEY")
    assert "MY_KEY" in str(caught.value) and "split" not in str(caught.value)
