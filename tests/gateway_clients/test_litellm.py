"""LiteLLM, unchanged: a gateway in front of many providers."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.endpoint import Endpoint, said
from tests.gateway_clients.served import served

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    litellm: Any = pytest.importorskip("litellm", reason="make test-gateway")

pytestmark = pytest.mark.filterwarnings("ignore")
"""LiteLLM's own warnings are no fault of ours."""
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 6 times 7?"}]
COMMON = {"messages": ASKED, "api_key": "sk-gateway-0123456789", "max_retries": 0}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with Endpoint(lambda body: said("The answer is 42.")) as endpoint:
        presets = ["self_consistency", "adaptive_consistency"]
        with served(endpoint.url, tmp_path, presets) as address:
            yield address


def test_a_search_answers(url: str) -> None:
    answer = litellm.completion(model="openai/adaptive_consistency", api_base=url, temperature=0.7, **COMMON)
    assert answer.choices[0].message.content == "The answer is 42."
    assert answer.usage.completion_tokens == 4 * 3


def test_a_search_streams(url: str) -> None:
    chunks = litellm.completion(model="openai/self_consistency", api_base=url, stream=True, **COMMON)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The answer is 42."


def test_a_budget_is_passed_on(url: str) -> None:
    extra = {"ramify": {"options": {"n": 2}, "budget": {"decode_tokens": 9000}}}
    answer = litellm.completion(model="openai/m@self_consistency", api_base=url, extra_body=extra, **COMMON)
    assert answer.usage.completion_tokens == 2 * 3


def test_an_unknown_model_is_its_own_error(url: str) -> None:
    with pytest.raises(litellm.NotFoundError, match="did you mean"):
        litellm.completion(model="openai/self_consistancy", api_base=url, **COMMON)
