"""OpenAI answer: turns the body of a chat completion into a generation of the byte codec.

The message is kept as it came, with four exceptions: fields without content (null, empty) are left out; lone surrogates
become U+FFFD; a call whose id is missing or repeated gets one; and a stop word that the server cut off is put back,
with a note on the generation. Anything that is no such message raises a named error. Ids are the bytes of the message's
rendering (`formats.messages.rendered`), followed by the end token if the model ended its turn.

Logprobs belong to the provider's tokens, which are not the ids. So their sum is a note, and no id has a logprob. If a
server does not report its usage, all allowed tokens are billed, so that no budget is overrun; a note says so.
"""

import codecs
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ramify.core.codec import ByteCodec
from ramify.core.engine import MAX_COUNT, MAX_TOKEN_BYTES, UNMETERED, Generation, Request
from ramify.core.errors import EngineError
from ramify.core.segment import Finish, Floats_T, token_array
from ramify.formats.calls import CALL_END
from ramify.formats.messages import rendered, text_of, tool_calls

CODEC: Final = ByteCodec()
CUT: Final = frozenset({"length", "max_tokens", "model_length"})
"""Finish reasons of a turn that reached a limit (OpenAI; the others are Mistral's and Anthropic's)."""
GIVEN_UP: Final = frozenset({"abort", "cancelled", "error"})
"""Finish reasons of a turn that the server aborted (vLLM, SGLang; OpenRouter)."""
USUAL: Final = frozenset({None, "stop", "tool_calls", *CUT})
"""Finish reasons that need no note."""
FILTERED: Final = "content_filter"
STOP_FIELDS: Final = ("stop_reason", "matched_stop")
"""Fields in which a server names the stop word it met, or null for none (vLLM, SGLang)."""
MIN_LOGPROB: Final = float(np.finfo(np.float32).min)
"""The smallest float32, which llama.cpp sends for an impossible token."""
MAX_CALLS: Final = 1000
"""Most tool calls in a message; OpenAI's own limit on parallel calls is 128."""
MAX_DEPTH: Final = 32
"""Maximum nesting of a kept answer: half of what the store takes."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_CLOSING = re.compile(r"</(.+)>")


@dataclass(frozen=True, slots=True)
class _Said:
    """A turn of the model."""

    message: Mapping[str, Any]
    finish: Finish
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])


def generation_of(body: bytes, request: Request, *, model: str) -> Generation:
    """The generation in an answer to a request for `model`.

    Raises `EngineError`: `bad_body` and `no_choices`, which a retry may help, `many_choices`, `bad_message`,
    `bad_logprobs`, `no_logprobs` if top logprobs were asked for, and `unknown_finish`.
    """
    answer = _decoded(body)
    choice = _choice(answer)
    said = _said(_kept(choice.get("message"), len(request.messages)), choice, request.stops)
    ids = CODEC.encode(rendered(said.message))
    num_bytes = len(ids) - MAX_TOKEN_BYTES * len(tool_calls(said.message))  # the frame of a call is no token of it
    billed, cached, prefilled = _usage(answer, num_bytes=num_bytes if num_bytes > 0 else len(ids[:1]))
    if said.finish == Finish("end_of_sequence"):
        ids.append(CODEC.eos_id)
    logprobs = _logprobs(choice)
    if request.topk and not logprobs and said.message.get("content") and said.finish.kind != "abort":
        raise EngineError(
            "no_logprobs", "top logprobs were asked for and none came; set max_topk = 0 for a server without them"
        )
    return Generation(
        token_array(ids),
        said.finish,
        topk=tuple(_top(entry) for entry in logprobs[: request.topk_tokens]) if request.topk else (),
        num_billed=request.max_tokens if billed is None else billed,
        num_cached=cached,
        num_prefilled=prefilled,
        message=said.message,
        notes={**said.notes, **_noted(answer, billed, logprobs), **_server(answer, model)},
    )


def _decoded(body: bytes) -> Mapping[str, Any]:
    """The answer as JSON. Anything else may be a gateway's error page, so a retry may help."""
    try:
        answer = _table(json.loads(body.removeprefix(codecs.BOM_UTF8).decode()))
    except (ValueError, RecursionError):
        answer = None
    if answer is None:
        beginning = " ".join(body[:200].decode("utf-8", errors="replace").split())
        raise EngineError("bad_body", f"the answer is no JSON object: {beginning!r}", is_retryable=True)
    return answer


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if isinstance(choices, list) and len(choices) > 1:
        raise EngineError("many_choices", f"{len(choices)} choices; one was asked for")
    choice = _table(choices[0]) if isinstance(choices, list) and choices else None
    if choice is None:
        told = _cleaned(answer.get("error", answer))
        raise EngineError("no_choices", f"the answer holds no choice: {told!r:.200}", is_retryable=True)
    return choice


def _kept(message: Any, number: int) -> dict[str, Any]:
    """The message, number `number` of the conversation, without empty fields. A call without a usable id of its own,
    which no result could name, gets one."""
    listed = message.get("tool_calls") if isinstance(message, dict) else None
    if isinstance(listed, list) and len(listed) > MAX_CALLS:
        raise EngineError("bad_message", f"{len(listed)} tool calls in one message; at most {MAX_CALLS}")
    told = _cleaned(message)
    if not isinstance(told, dict):
        raise EngineError("bad_message", f"the choice holds no message: {told!r:.200}")
    said = {key: value for key, value in told.items() if value not in (None, "", [], {})}
    kept: dict[str, Any] = {**said, "role": "assistant", "content": said.get("content")}
    calls = tool_calls(kept)
    if not isinstance(kept["content"], str | list | None) or calls != kept.get("tool_calls", []):
        raise EngineError(
            "bad_message",
            f"content must be a text or a list of parts, tool_calls a list of objects; got {kept!r:.200}",
        )
    if calls:
        kept["tool_calls"] = [{**call, "id": call_id} for call, call_id in zip(calls, _ids(calls, number), strict=True)]
    return kept


def _ids(calls: Sequence[Mapping[str, Any]], number: int) -> list[str]:
    """An id for each call: its own, if that is a text and no earlier call has it, or else a new one."""
    ids: list[str] = []
    known: set[str] = set()
    for i, call in enumerate(calls):
        own = call.get("id")
        ids.append(own if isinstance(own, str) and own and own not in known else f"call_{number}_{i}")
        known.add(ids[-1])
    return ids


def _said(message: dict[str, Any], choice: Mapping[str, Any], stops: Sequence[str]) -> _Said:
    """How a turn ended, and the message. A stop word that the server cut off is put back."""
    reason = _cleaned(choice.get("finish_reason"))
    if not isinstance(reason, str | None):
        raise EngineError("unknown_finish", f"finish_reason = {reason!r:.80}; expected a word")
    notes = {} if reason in USUAL else {"finish_reason": reason}
    if reason in GIVEN_UP:
        return _Said(message, Finish("abort"), notes)
    if reason in CUT:
        return _Said(message, Finish("length"), notes)
    if reason == FILTERED:
        return _Said(message, Finish("end_of_sequence", FILTERED), notes)
    if tool_calls(message):
        return _Said(message, Finish("stop", CALL_END), notes)
    word, was_cut_off = _stopped(text_of(message), choice, stops)
    if word is None:
        return _Said(message, Finish("end_of_sequence"), notes)
    if was_cut_off:
        message, notes = _with(message, word), {**notes, "restored": word}
    return _Said(message, Finish("stop", word), notes)


def _stopped(text: str, choice: Mapping[str, Any], stops: Sequence[str]) -> tuple[str | None, bool]:
    """The stop word that ended a text, and whether the server has cut it off.

    If the server does not name it, a stop word in the text is the one, because such a server cuts none off. Otherwise
    it is the closing tag of the last tag that the text opened and did not close. If a model itself ends its turn inside
    such a tag, the tag is closed too: the two cases cannot be told apart.
    """
    for name in STOP_FIELDS:
        told = choice.get(name)
        if isinstance(told, str) and told in stops:
            return told, not text.endswith(told)
    ends = {text.rfind(word): word for word in stops if word in text}
    if ends:
        return ends[max(ends)], False
    if any(name in choice for name in STOP_FIELDS):
        return None, False
    opened = {text.rfind(f"<{tag[1]}>"): word for word in stops if (tag := _CLOSING.fullmatch(word))}
    return (opened[max(opened)], True) if max(opened, default=-1) >= 0 else (None, False)


def _with(message: Mapping[str, Any], word: str) -> dict[str, Any]:
    """The message with a word after its content."""
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": word}]}
    return {**message, "content": f"{content or ''}{word}"}


def _usage(answer: Mapping[str, Any], *, num_bytes: int) -> tuple[int | None, int, int]:
    """Numbers of tokens: sampled, context cached, context computed. None = the server gives no count that a message of
    so many bytes can have."""
    usage = _table(answer.get("usage")) or {}
    sampled, read = _count(usage.get("completion_tokens")), _count(usage.get("prompt_tokens")) or 0
    cached = min(_count((_table(usage.get("prompt_tokens_details")) or {}).get("cached_tokens")) or 0, read)
    if sampled is None or num_bytes > sampled * MAX_TOKEN_BYTES:
        return None, cached, read - cached
    return max(1, sampled), cached, read - cached


def _noted(answer: Mapping[str, Any], billed: int | None, logprobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Notes on an answer: a missing usage, and the sum of its logprobs."""
    notes: dict[str, Any] = {} if billed is not None else {UNMETERED: "not told, so max_tokens are billed"}
    if logprobs:
        notes |= {"logprob": math.fsum(entry["logprob"] for entry in logprobs), "num_logprobs": len(logprobs)}
    return notes


def _server(answer: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Who answered: the model's name, if it differs from the requested one, and the system fingerprint."""
    told = {"model": answer.get("model"), "fingerprint": answer.get("system_fingerprint")}
    texts = {name: _cleaned(value) for name, value in told.items() if isinstance(value, str) and value}
    return {name: text for name, text in texts.items() if text != model}


def _logprobs(choice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """One entry for each of the provider's tokens, if it gives them."""
    content = (_table(choice.get("logprobs")) or {}).get("content")
    entries = [_table(entry) or {} for entry in content] if isinstance(content, list) else []
    for entry in entries:
        _logprob(entry)
    return entries


def _top(entry: Mapping[str, Any]) -> Floats_T:
    """The top logprobs of one token, including its own."""
    own, top = _logprob(entry), entry.get("top_logprobs")
    others = [_logprob(one) for one in map(_table, top) if one is not None] if isinstance(top, list) else []
    return np.array(others if own in others else [*others, own], np.float32)


def _logprob(entry: Mapping[str, Any]) -> float:
    value = entry.get("logprob")
    if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_LOGPROB <= value <= 1e-3:
        told = _cleaned(entry.get("token"))
        raise EngineError("bad_logprobs", f"{value!r:.80} of token {told!r:.80}; expected a number up to 0")
    return float(value)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None


def _table(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None


def _cleaned(value: Any, depth: int = 0) -> Any:
    """Plain data whose texts can be encoded. Raises `EngineError` for data that could not be stored or sent back."""
    match value:
        case str():
            return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
        case float() if not math.isfinite(value):
            raise EngineError("bad_message", f"it holds {value!r}, which is no number of JSON")
        case list() | dict() if depth == MAX_DEPTH:
            raise EngineError("bad_message", f"it is nested more than {MAX_DEPTH} deep")
        case list():
            return [_cleaned(item, depth + 1) for item in value]
        case dict():
            return {_cleaned(key): _cleaned(item, depth + 1) for key, item in value.items()}
        case _:
            return value
