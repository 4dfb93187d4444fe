"""An agent of Pydantic AI, unchanged, whose every turn is a search."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engines.endpoint import Endpoint, call, calling, said
from tests.gateway_clients.served import served

pytest.importorskip("pydantic_ai", reason="make test-gateway")


def traveller(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Asks for the weather of Rome, now and then of Oslo, and tells what it hears."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return said(f"It is {last['content']} in Rome.")
    at = "Oslo" if body["seed"] % 3 == 0 else "Rome"
    return calling(call("weather", json.dumps({"place": at})))


def agent(url: str, name: str) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=url, api_key="sk-gateway-0123456789"))
    made = Agent(model, instructions="Use the tool.")

    @made.tool_plain
    def weather(place: str) -> str:
        """The weather of a place."""
        return {"Rome": "sunny", "Oslo": "snowing"}[place]

    return made


def test_an_agent_calls_the_tool_that_most_samples_call(tmp_path: Path) -> None:
    with Endpoint(traveller) as endpoint, served(endpoint.url, tmp_path, ["self_consistency"]) as url:
        result = agent(url, "self_consistency").run_sync("How is the weather in Rome?")
    assert result.output == "It is sunny in Rome."
    assert len(endpoint.requests) == 2 * 16, "each turn is a search"
    second = endpoint.requests[-1]["messages"]
    assert [message["role"] for message in second][-3:] == ["user", "assistant", "tool"]
    assert second[-1]["content"] == "sunny"


async def test_an_agent_streams(tmp_path: Path) -> None:
    with Endpoint(traveller) as endpoint, served(endpoint.url, tmp_path, ["adaptive_consistency"]) as url:
        async with agent(url, "adaptive_consistency").run_stream("How is the weather in Rome?") as result:
            text = await result.get_output()
    assert text == "It is sunny in Rome."


def test_an_agent_on_the_built_in_model(tmp_path: Path) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    with served(None, tmp_path, ["best_of_n"]) as url:
        model = OpenAIChatModel("best_of_n", provider=OpenAIProvider(base_url=url, api_key="sk-gateway-0123456789"))
        assert Agent(model).run_sync("make 24 from 4 6 8 2").output == "24"
