"""One request, one tree, one answer: what arrives at the endpoint, and what comes back."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engines.endpoint import Endpoint, call, calling, said
from tests.engines.models import write_model
from tests.gateway.gateways import ASKED, gateway, offers

from ramify.formats.chat import Chat
from ramify.runner.saved import Saved

WEATHER = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": {"type": "object"}}}


def in_turn(*answers: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """A model that gives these answers in turn, again and again."""
    number = iter(range(1_000_000))
    return lambda body: answers[next(number) % len(answers)]


def counting(*words: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    return in_turn(*(said(word) for word in words))


async def test_a_plain_model_is_one_request_with_the_clients_own_messages(tmp_path: Path) -> None:
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}], "name": "Eve"},
        {"role": "assistant", "content": None, "tool_calls": [call("weather", '{"at": "Rome"}')]},
        {"role": "tool", "content": "rain", "tool_call_id": "call_a"},
        {"role": "user", "content": "So?"},
    ]
    with Endpoint(lambda body: said("Take an umbrella.", usage=(31, 5))) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["best_of_n"]) as asking:
            heard = await asking.chat("m", talk)
    assert heard.status == 200
    assert heard.content == "Take an umbrella."
    assert heard.body["choices"][0]["finish_reason"] == "stop"
    assert heard.body["usage"] == {
        "prompt_tokens": 31,
        "completion_tokens": 5,
        "total_tokens": 36,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    (request,) = endpoint.requests
    assert request["messages"] == talk


async def test_fields_go_to_the_endpoint_with_answers_and_not_with_grades(tmp_path: Path) -> None:
    fields = {"tools": [WEATHER], "tool_choice": "auto", "response_format": {"type": "json_object"}, "stop": ["END"]}
    more = {"user": "eve", "reasoning_effort": "low", "chat_template_kwargs": {"x": [1]}, "parallel_tool_calls": False}
    model = lambda body: said("7" if "Grade the answer" in body["messages"][-1]["content"] else "{}")  # noqa: E731
    with Endpoint(model) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["best_of_n"]) as asking:
            options = {"options": {"n": 2}}
            sampling = {"temperature": 0.3, "top_p": 0.9, "max_completion_tokens": 77}
            heard = await asking.chat("best_of_n", **fields, **more, **sampling, ramify=options)
    assert heard.status == 200
    answers = [request for request in endpoint.requests if request["messages"] == ASKED]
    grades = [request for request in endpoint.requests if request["messages"] != ASKED]
    assert (len(answers), len(grades)) == (2, 2)
    for request in answers:
        assert {name: request[name] for name in {**fields, **more}} == {**fields, **more}
        assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.3, 0.9, 77)
    for request in grades:
        assert not set(request) & {*fields, *more}
        assert (request["temperature"], request["max_tokens"]) == (1.0, 2048)


async def test_the_majority_of_free_words_is_found_by_what_they_say(tmp_path: Path) -> None:
    model = counting("It is 41.", "6 * 7 = 42", "The answer is **42**.", "No idea.")
    with Endpoint(model) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            heard = await asking.chat("self_consistency", ramify={"options": {"n": 4}})
    assert heard.content in ("6 * 7 = 42", "The answer is **42**."), "an answer comes whole"
    assert heard.body["ramify"]["votes"] == 2
    assert heard.body["usage"]["completion_tokens"] == 12


async def test_votes_over_calls_compare_their_json(tmp_path: Path) -> None:
    model = in_turn(
        calling(call("weather", '{"at": "Oslo"}')),
        calling(call("weather", '{"at": "Rome", "on": 1}'), content="I look."),
        calling(call("weather", '{ "on": 1, "at": "Rome" }', "call_b")),
        said("Rome is fine."),
    )
    with Endpoint(model) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            heard = await asking.chat("self_consistency", tools=[WEATHER], ramify={"options": {"n": 4}})
    (choice,) = heard.body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (chosen,) = choice["message"]["tool_calls"]
    assert json.loads(chosen["function"]["arguments"]) == {"at": "Rome", "on": 1}
    assert heard.body["ramify"]["votes"] == 2


async def test_mctsr_quotes_the_conversation_and_returns_the_best_answer(tmp_path: Path) -> None:
    def model(body: Mapping[str, Any]) -> Mapping[str, Any]:
        text = body["messages"][-1]["content"]
        if "Grade the answer" in text:
            return said("90" if "forty-two" in text else "10")
        if "Critique:" in text:
            return said("forty-two", usage=(50, 4))
        return said("Too short." if "Say what is wrong" in text else "42")

    talk = [{"role": "system", "content": "Use words."}, *ASKED]
    with Endpoint(model) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["mctsr"]) as asking:
            heard = await asking.chat("mctsr", talk, ramify={"options": {"max_rollouts": 2, "in_flight": 1}})
    assert heard.content == "forty-two"
    assert endpoint.requests[0]["messages"] == talk
    kinds = Counter(len(request["messages"]) for request in endpoint.requests)
    assert kinds == {2: 1, 1: len(endpoint.requests) - 1}, "what else is asked is one message"
    quoted = [request["messages"][0]["content"] for request in endpoint.requests[1:]]
    assert all("[system]\nUse words.\n\n[user]\nWhat is 6 times 7?" in text for text in quoted)
    assert {"policy", "critique", "judge"} == set(heard.body["ramify"]["spent"])
    spent = heard.body["ramify"]["spent"].values()
    assert heard.body["usage"]["completion_tokens"] == sum(each["decode"] for each in spent)


async def test_several_choices_are_samples_of_a_model_and_the_best_answers_of_a_search(tmp_path: Path) -> None:
    with Endpoint(counting("a", "b", "b", "c")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            samples = await asking.chat("m", n=4)
            voted = await asking.chat("self_consistency", n=2, ramify={"options": {"n": 4}})
            few = await asking.chat("self_consistency", n=9, ramify={"options": {"n": 4}})
    texts = lambda heard: [choice["message"]["content"] for choice in heard.body["choices"]]  # noqa: E731
    assert sorted(texts(samples)) == ["a", "b", "b", "c"]
    assert [choice["index"] for choice in samples.body["choices"]] == [0, 1, 2, 3]
    assert texts(voted)[0] == "b" and texts(voted)[1] in "ac"
    assert sorted(texts(few)) == ["a", "b", "b", "c"], "there are no more"


async def test_adaptive_consistency_stops_when_four_answers_agree(tmp_path: Path) -> None:
    presets = ["adaptive_consistency", "early_stopping_consistency"]
    with Endpoint(lambda body: said("It is 42.")) as endpoint:
        async with gateway(endpoint.url, tmp_path, presets) as asking:
            await asking.chat("adaptive_consistency")
            assert len(endpoint.requests) == 4
            heard = await asking.chat("early_stopping_consistency")
    assert len(endpoint.requests) == 4 + 5
    assert heard.body["ramify"]["votes"] == 5


async def test_a_budget_bounds_the_whole_tree(tmp_path: Path) -> None:
    with Endpoint(lambda body: said("x", usage=(5, min(100, body["max_tokens"])))) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            heard = await asking.chat("self_consistency", ramify={"budget": {"decode_tokens": 250}})
            calls = await asking.chat("self_consistency", ramify={"budget": {"calls": 3}})
    assert 100 <= heard.body["usage"]["completion_tokens"] <= 250
    assert calls.body["ramify"]["spent"]["policy"]["engine_calls"] <= 3


async def test_a_cut_answer_says_so_and_an_empty_one_is_returned(tmp_path: Path) -> None:
    with Endpoint(in_turn(said("It i", finish="length"), said(""))) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            cut, empty = await asking.chat("m", max_tokens=3), await asking.chat("m")
    assert cut.body["choices"][0]["finish_reason"] == "length"
    assert (empty.status, empty.content) == (200, None)


async def test_further_fields_of_a_message_come_back(tmp_path: Path) -> None:
    with Endpoint(lambda body: said("42", reasoning_content="six sevens")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            heard = await asking.chat("m")
    assert heard.body["choices"][0]["message"]["reasoning_content"] == "six sevens"


async def test_the_tree_of_an_answer_is_in_the_folder_that_the_headers_name(tmp_path: Path) -> None:
    with Endpoint(lambda body: said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            first = await asking.chat("m", user="eve")
            second = await asking.chat("m@self_consistency", ramify={"options": {"n": 3}, "budget": {"leaves": 9}})
    assert second.body["model"] == "m@self_consistency"
    assert first.place == (tmp_path / "one-sample", 0)
    assert second.place == (tmp_path / "self_consistency", 1)
    folder, number = second.place
    tree = Saved.open(folder).tree(number)
    assert tree is not None
    assert tree.num_leaves == 3
    assert tree.problem.question == ASKED[0]["content"]
    assert tree.problem.public["messages"] == ASKED
    assert tree.problem.public["options"] == {"n": 3}
    assert tree.problem.public["budget"] == {"leaves": 9}
    assert not Saved.open(folder).gaps()


async def test_requests_share_the_engine_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    with Endpoint(lambda body: said(body["messages"][0]["content"])) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            asked = [asking.chat("m", [{"role": "user", "content": f"say {i}"}]) for i in range(40)]
            heard = await asyncio.gather(*asked)
    assert [each.content for each in heard] == [f"say {i}" for i in range(40)]
    assert sorted(each.place[1] for each in heard) == list(range(40))


@pytest.mark.slow
async def test_the_built_in_model_makes_24_and_the_same_seed_grows_the_same_tree(tmp_path: Path) -> None:
    asked = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "make 24 from 4 6 8 2"}]
    async with gateway(None, tmp_path, ["best_of_n", "mctsr"]) as asking:
        one = await asking.chat("best_of_n", asked, seed=3)
        again = await asking.chat("builtin@best_of_n", asked, seed=3)
        other = await asking.chat("best_of_n", asked, seed=4)
        short = await asking.chat("builtin", asked, max_tokens=5, temperature=0.5)
    assert one.content == "24"
    assert one.body["ramify"]["spent"]["policy"]["decode"] == again.body["ramify"]["spent"]["policy"]["decode"]
    trees = [Saved.open(each.place[0]).tree(each.place[1]) for each in (one, again, other)]
    texts = [[tree.branch(leaf).text for leaf in tree.leaves()] for tree in trees if tree is not None]
    assert texts[0] == texts[1] != texts[2]
    assert short.body["choices"][0]["finish_reason"] == "length"
    assert short.body["usage"]["completion_tokens"] <= 5


@pytest.mark.parametrize("name", ["m", "self_consistency"])
async def test_models_are_listed_and_found_by_name(tmp_path: Path, name: str) -> None:
    with Endpoint(lambda body: said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            listed = await asking.get("/v1/models")
            found = await asking.get(f"/v1/models/{name}")
            health = await asking.get("/health")
    assert [each["id"] for each in listed.body["data"]] == ["m", "self_consistency"]
    assert found.body["id"] == name
    assert health.body == {"status": "ok", "in_flight": 0}


async def test_an_engine_of_tokens_gets_the_conversation_by_its_chat_template(tmp_path: Path) -> None:
    template = Path(__file__).parents[1] / "formats" / "chat_templates" / "trims.jinja"
    settings = {"format": "chat", "format_options.template": str(template), "format_options.opening": "messages"}
    talk = [*ASKED, {"role": "assistant", "content": "42"}, {"role": "user", "content": "And 6 times 8?"}]
    async with gateway(None, tmp_path, ["self_consistency"], **settings) as asking:
        heard = await asking.chat("self_consistency", talk, max_tokens=4, ramify={"options": {"n": 2}})
        calls = await asking.chat("builtin", [*talk, {"role": "tool", "content": "48"}])
    assert heard.status == 200
    tree = Saved.open(heard.place[0]).tree(heard.place[1])
    assert tree is not None
    opening = tree.branch(0).text
    places = [opening.find(text) for text in ("What is 6 times 7?", "42", "And 6 times 8?")]
    assert -1 < places[0] < places[1] < places[2]
    assert (calls.status, calls.error["param"]) == (400, "messages")


def test_models_with_chat_templates_are_asked_by_them(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}model:"
    )
    settings = {"engine.name": "vllm", "engine.model": str(folder), "engine.base_url": "http://127.0.0.1:9"}
    served = offers(None, ["mctsr", "best_of_n"], **settings)
    for offer in served:
        format = offer.prepared.format
        assert isinstance(format, Chat) and format.opens_conversations
    mctsr = served.find("mctsr").prepared.config
    assert "Here are a request, somebody's answer" in mctsr.actions["rewrite"].template
