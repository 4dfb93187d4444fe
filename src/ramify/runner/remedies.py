"""Remedies: what to change when an engine's server refuses, by the kind of the fault and by the server's own words."""

import re
from typing import Final

ADDRESS: Final = (
    "check {path}.base_url: it is the part of the address in front of /chat/completions, and mostly ends in /v1"
)
KEY: Final = (
    "set the environment variable that holds the key (OPENAI_API_KEY of the engine openai), or name another one by "
    "{path}.options.api_key_env"
)
MONEY: Final = "the account has no money left"
MODEL: Final = "check {path}.model; the server lists its models at {path}.base_url + /models"
UNSENT: Final = "--set {path}.options.unsent='[\"{field}\"]'"
REFUSED: Final = r"http_4\d\d"
FIELD: Final = r"\b(?P<field>temperature|top_p|top_k|seed|n|tools|tool_choice|reasoning_content|reasoning|refusal)\b"
"""A field of a request that some server refuses."""
ODD: Final = r"(unsupported|not support|unrecognized|unknown|unexpected|not permitted|extra inputs|does not accept)"

REMEDIES: Final[tuple[tuple[str, str, str], ...]] = (
    (REFUSED, r"use\W+'?max_completion_tokens", "--set {path}.options.max_tokens_as=max_completion_tokens"),
    (REFUSED, rf"max_completion_tokens\b.*{ODD}|{ODD}.*max_completion_tokens",
     "--set {path}.options.max_tokens_as=max_tokens"),
    (rf"{REFUSED}|no_logprobs", r"logprobs",
     "--set {path}.options.max_topk=0, with a strategy that reads no entropies"),
    (REFUSED, r"\bstop\b.{0,80}(at most|maximum|too many|too long)",
     "--set {path}.options.max_stops to what it takes, and call tools natively or have fewer"),
    (REFUSED, rf"{ODD}.{{0,80}}?{FIELD}", UNSENT),
    (REFUSED, rf"{FIELD}.{{0,80}}?{ODD}", UNSENT),
    (r"http_429", r"quota|billing|credit|balance", MONEY),
    (r"http_402", r"", MONEY),
    (r"http_400", r"(api|auth|access)[ _-]?(key|token)", KEY),
    (r"http_40[13]", r"", KEY),
    (r"http_40[04]", r"model\b.{0,80}(not exist|not found|no such|unknown|not available|invalid)", MODEL),
    (r"http_40[45]|http_3\d\d|bad_body|no_choices", r"", ADDRESS),
    (r"context_full", r"", "{path}.options.context_length, or fewer tokens: growth.max_response_tokens"),
    (r"busy|no_open_files", r"too many open files",
     "ulimit -n with a higher number, or fewer requests at once: {path}.options.max_in_flight"),
    (r"busy", r"", "fewer requests at once: {path}.options.max_in_flight"),
    (r"http_5\d\d", r"", "the server's own log says more"),
    (r"unreachable", r"", "start the server, or check {path}.base_url"),
    (r"tls_refused", r"", "check {path}.base_url, or have this machine trust the server's certificate"),
    (r"disconnected", r"", "the server, or what is in front of it, ends connections; its own log says more"),
    (r"timeout|engine_hang|engine_silent", r"", "more time: {path}.retry.patience.start_s and .token_s"),
    (r"body_too_long|too_many_tokens", r"", "check what answers at {path}.base_url: it keeps to no max_tokens"),
)  # fmt: skip
"""Kind of fault, words of the server, remedy. The first row that fits counts."""


def remedy(kind: str, said: str, *, engine: str = "policy") -> str | None:
    """What to change when the engine of this name in the configuration fails so; None = that is not known."""
    path = "engine" if engine == "policy" else f"engines.{engine}"
    for kinds, words, text in REMEDIES:
        found = re.search(words, said, re.IGNORECASE | re.DOTALL)
        if re.fullmatch(kinds, kind) and found:
            return text.format(path=path, field=found.groupdict().get("field", "").lower())
    return None
