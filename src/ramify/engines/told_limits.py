"""Told limits: what a server says of its limits when it refuses a request, in the words of many servers.

Gateways hide the context length of the model behind them, and say it only in the text of a 400.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = r"(\d[\d,_]{0,14}(?!\d))"
CONTEXT: Final = (
    rf"maximum context length (?:is|of) (?:only )?{_NUMBER}",  # OpenAI, vLLM to 0.15, SGLang, TGI's router
    rf"context length is (?:only )?{_NUMBER} tokens",  # vLLM from 0.16 on
    rf"context (?:size|window|length)[^.\d]{{0,24}}{_NUMBER}",  # llama.cpp, Ollama
    rf"with {_NUMBER} maximum context length",  # Mistral
    rf"prompt is too long: {_NUMBER} tokens > {_NUMBER} maximum",  # Anthropic
    rf"exceed context limit: [^>]{{0,40}}> {_NUMBER}",  # Anthropic
    rf"maximum number of tokens allowed \({_NUMBER}\)",  # Google
    rf"exceed the configured limit of {_NUMBER}",  # OpenAI, of the input
    rf"`max_new_tokens` must be <= {_NUMBER}",  # TGI
    rf"max_model_len\D{{0,24}}{_NUMBER}",  # vLLM
)
"""Where a context length is said. The last number of a match counts."""
READ: Final = (
    rf"\({_NUMBER} in the (?:messages|prompt)",  # OpenAI, vLLM
    rf"messages resulted in {_NUMBER}",  # OpenAI
    rf"(?:has|passed|contains at least|contains) {_NUMBER} (?:input )?tokens",  # vLLM
    rf"{_NUMBER} tokens from the input",  # SGLang
    rf"prompt is too long: {_NUMBER} tokens",  # Anthropic
    rf"exceed context limit: {_NUMBER} \+",  # Anthropic
    rf"request \({_NUMBER} tokens\)",  # llama.cpp
    rf"Given: {_NUMBER} `inputs`",  # TGI
    rf"input token count \({_NUMBER}\)",  # Google
)
"""Where it is said how many tokens the request's context has."""
OUTPUT: Final = (
    rf"supports at most {_NUMBER} completion tokens",  # OpenAI
    rf"max(?:_completion|_output)?_tokens: \d+ > {_NUMBER}, which is the maximum allowed",  # Anthropic
    rf"max_(?:completion_)?tokens\b.{{0,160}}expected a value <= {_NUMBER}",  # Volcengine
    rf"max_(?:completion_)?tokens\W.{{0,80}}less than or equal to\W{{1,4}}{_NUMBER}",  # Groq, DeepSeek
    rf"valid range of max_tokens is \[1, ?{_NUMBER}\]",  # DeepSeek
)
"""Where it is said how many tokens may be sampled at most."""


@dataclass(frozen=True, slots=True)
class ToldLimits:
    """What a refusal says; None = nothing of it."""

    context: int | None = None
    """Most tokens of context and completion together."""
    read: int | None = None
    """Tokens of the request's context, or fewer."""
    output: int | None = None
    """Most tokens of a completion."""

    @classmethod
    def of(cls, said: str) -> "ToldLimits":
        return cls(_first(CONTEXT, said), _first(READ, said), _first(OUTPUT, said))


def _first(patterns: Sequence[str], said: str) -> int | None:
    """The number that the first fitting pattern finds, if it is above 0."""
    for pattern in patterns:
        if found := re.search(pattern, said, re.IGNORECASE):
            return int(re.sub(r"[,_]", "", found[found.lastindex or 1])) or None
    return None
