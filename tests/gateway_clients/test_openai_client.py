"""OpenAI's own client, unchanged."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engines.endpoint import Endpoint, call, calling, said
from tests.gateway_clients.served import served

from ramify.gateway.clients import ClientLimits
from ramify.gateway.server import GatewayConfig
from ramify.runner.saved import Saved

openai = pytest.importorskip("openai", reason="make test-gateway")

KEY = "sk-gateway-0123456789"
ASKED: list[Any] = [{"role": "user", "content": "What is 6 times 7?"}]
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def model(body: Mapping[str, Any]) -> Mapping[str, Any]:
    text = body["messages"][-1]["content"]
    if "Grade the answer" in text:
        return said("80")
    if "tools" in body:
        return calling(call("weather", '{"at": "Rome"}'))
    if "response_format" in body:
        return said('{"value": 42}')
    return said("The answer is 42.")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(model) as started:
        yield started


def client(url: str, **options: Any) -> Any:
    return openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, **options)


def test_every_search_answers(endpoint: Endpoint, tmp_path: Path) -> None:
    with served(endpoint.url, tmp_path) as url, client(url) as asking:
        names = [each.id for each in asking.models.list()]
        assert {"m", "mctsr", "ab_mcts", "best_of_n", "self_consistency", "adaptive_consistency"} <= set(names)
        for name in names:
            answer = asking.chat.completions.create(model=name, messages=ASKED, seed=1)
            assert answer.choices[0].message.content == "The answer is 42."
            assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


def test_a_budget_options_and_the_tree_of_an_answer(endpoint: Endpoint, tmp_path: Path) -> None:
    with served(endpoint.url, tmp_path, ["best_of_n"]) as url, client(url) as asking:
        raw = asking.chat.completions.with_raw_response.create(
            model="m@best_of_n",
            messages=ASKED,
            extra_body={"ramify": {"budget": {"decode_tokens": 20_000}, "options": {"n": 3}, "seed": 1}},
        )
        answer = raw.parse()
    tree = Saved.open(Path(raw.headers["x-ramify-run"])).tree(int(raw.headers["x-ramify-tree"]))
    assert tree is not None and tree.num_leaves == 3
    assert answer.usage.completion_tokens == 18
    assert answer.model_extra["ramify"]["candidates"] == 3


def test_streams_of_text_and_of_calls(endpoint: Endpoint, tmp_path: Path) -> None:
    with served(endpoint.url, tmp_path, ["self_consistency"]) as url, client(url) as asking:
        stream = asking.chat.completions.create(
            model="self_consistency", messages=ASKED, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "The answer is 42."
        assert chunks[-1].usage.completion_tokens == 48
        with asking.chat.completions.stream(model="self_consistency", messages=ASKED, tools=[TOOL]) as events:
            final = events.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"at": "Rome"}


def test_keep_alive_comments_are_no_events(endpoint: Endpoint, tmp_path: Path) -> None:
    config = GatewayConfig(progress_s=0.001)
    with served(endpoint.url, tmp_path, ["mctsr"], config) as url, client(url) as asking:
        chunks = list(asking.chat.completions.create(model="mctsr", messages=ASKED, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The answer is 42."


def test_structured_output_is_parsed(endpoint: Endpoint, tmp_path: Path) -> None:
    pydantic = pytest.importorskip("pydantic")
    answer_type = pydantic.create_model("Answer", value=(int, ...))
    with served(endpoint.url, tmp_path, ["self_consistency"]) as url, client(url) as asking:
        answer = asking.chat.completions.parse(
            model="self_consistency", messages=ASKED, response_format=answer_type, extra_body={"ramify": {"seed": 1}}
        )
    assert answer.choices[0].message.parsed.value == 42
    assert endpoint.requests[-1]["response_format"]["json_schema"]["name"] == "Answer"


def test_errors_are_those_of_the_client(endpoint: Endpoint, tmp_path: Path) -> None:
    config = GatewayConfig(keys=[KEY], clients=ClientLimits(max_tokens_a_day=3))
    with served(endpoint.url, tmp_path, ["self_consistency"], config) as url, client(url) as asking:
        with pytest.raises(openai.NotFoundError, match="did you mean 'self_consistency'"):
            asking.chat.completions.create(model="self_consistancy", messages=ASKED)
        with pytest.raises(openai.BadRequestError, match="no logprobs are kept") as caught:
            asking.chat.completions.create(model="m", messages=ASKED, logprobs=True)
        assert caught.value.param == "logprobs"
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=url, api_key="sk-other-0123456789").models.list()
        asking.chat.completions.create(model="m", messages=ASKED)
        with pytest.raises(openai.RateLimitError, match="at most 3"):
            asking.chat.completions.create(model="m", messages=ASKED)


async def test_the_asynchronous_client(endpoint: Endpoint, tmp_path: Path) -> None:
    import asyncio

    with served(endpoint.url, tmp_path, ["self_consistency"]) as url:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as asking:
            create = asking.chat.completions.create
            answers = await asyncio.gather(*(create(model="self_consistency", messages=ASKED) for _ in range(8)))
    assert {answer.choices[0].message.content for answer in answers} == {"The answer is 42."}


def test_the_built_in_model(tmp_path: Path) -> None:
    asked: list[Any] = [{"role": "user", "content": "make 24 from 4 6 8 2"}]
    with served(None, tmp_path, ["best_of_n"]) as url, client(url) as asking:
        answer = asking.chat.completions.create(model="best_of_n", messages=asked, seed=3)
    assert answer.choices[0].message.content == "24"
