"""Limits that servers name only when they refuse."""

import pytest

from ramify.engines.told_limits import ToldLimits

OPENAI = (
    "This model's maximum context length is 4097 tokens. However, you requested 4927 tokens (3927 in the messages, "
)
VLLM = "However, you requested 256 output tokens and your prompt contains at least 257 input tokens, for a total of at "


@pytest.mark.parametrize(
    ("said", "limits"),
    [
        (f"{OPENAI}1000 in the completion).", (4097, 3927, None)),
        (f"litellm.ContextWindowExceededError: OpenAIException - {OPENAI}1000 in", (4097, 3927, None)),
        ("maximum context length is 16384 tokens. However, your messages resulted in 28491", (16384, 28491, None)),
        (f"This model's maximum context length is 512 tokens. {VLLM}least 513 tokens.", (512, 257, None)),
        (
            "64000. This model's maximum context length is 64001 tokens and your request has 24235 input tokens",
            (64001, 24235, None),
        ),
        (
            "You passed 25 input tokens. However, the model's context length is only 1024 tokens",
            (1024, 25, None),
        ),
        (
            "exceeds the model's maximum context length of 512 tokens. A total of 600 tokens: 88 tokens from the input",
            (512, 88, None),
        ),
        ("prompt is too long: 205371 tokens > 200000 maximum", (200000, 205371, None)),
        ("`max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease", (200000, 190000, None)),
        ("request (5000 tokens) exceeds the available context size (4096 tokens)", (4096, 5000, None)),
        ("Prompt contains 40000 tokens, too large for model with 32768 maximum context length", (32768, 40000, None)),
        ("The input token count (12) exceeds the maximum number of tokens allowed (10).", (10, 12, None)),
        ("max_tokens is too large: 32000. This model supports at most 16,384 completion tokens", (None, None, 16384)),
        ("max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens", (None, None, 64000)),
        ("the context is what it is", (None, None, None)),
        ("maximum context length is 0 tokens", (None, None, None)),
        (f"maximum context length is {'9' * 100_000}", (None, None, None)),
    ],
)
def test_limits_are_read_as_each_server_says_them(said: str, limits: tuple[int | None, ...]) -> None:
    told = ToldLimits.of(said)
    assert (told.context, told.read, told.output) == limits
