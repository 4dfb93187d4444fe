"""vLLM wire: the requests and answers of vLLM's two routes for token ids.

`Generate` is `/inference/v1/generate`, which speaks only ids; `Completions` is `/v1/completions`, which every server
has. The body names every sampling parameter: a server fills missing ones from the model's own generation_config.json.
Answers are decoded into typed structs and not repaired.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ramify.core.errors import EngineError
from ramify.engines.served.answer import VersionSpan, decoded, version_spans
from ramify.engines.served.turn import CLAMPED_LOGPROB, Ask, Sampled


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Cached | None = None


class _Answer(msgspec.Struct):
    id: str | None = None
    request_id: str | None = None
    usage: _Usage | None = None
    model: str | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: list[VersionSpan] | None = None


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]


class _Completed(_Choice):
    logprobs: _Logprobs | None = None

    def measured(self, *, has_topk: bool) -> "_Measured":
        given = self.logprobs
        if given is None:
            return None, ()
        return given.token_logprobs, [_numbers((top or {}).values()) for top in given.top_logprobs] if has_topk else ()


class _Completion(_Answer, kw_only=True):
    choices: list[_Completed]


class _Candidate(msgspec.Struct):
    token_id: int
    logprob: float | None


class _Token(_Candidate):
    top_logprobs: list[_Candidate]


class _Tokens(msgspec.Struct):
    content: list[_Token] | None = None


class _Generated(_Choice):
    logprobs: _Tokens | None = None

    def measured(self, *, has_topk: bool) -> "_Measured":
        given = self.logprobs and self.logprobs.content
        if given is None:
            return None, ()
        if [each.token_id for each in given] != self.token_ids:
            raise EngineError("bad_logprobs", "the logprobs belong to other tokens than token_ids")
        top = [_numbers(each.logprob for each in token.top_logprobs) for token in given] if has_topk else ()
        return [each.logprob for each in given], top


class _Generation(_Answer, kw_only=True):
    choices: list[_Generated]


_Measured = tuple[Sequence[float | None] | None, Sequence[Sequence[float]]]
"""The tokens' logprobs (None = the server gives none) and the top logprobs of each token."""

COMPLETION: Final = msgspec.json.Decoder(_Completion)
GENERATION: Final = msgspec.json.Decoder(_Generation)


@dataclass(frozen=True, slots=True)
class Completions:
    """`POST /v1/completions` for the model called `served`. Top logprobs are keyed by token id, so that no two share a
    key."""

    served: str
    has_logprobs: bool = True
    path: str = "/v1/completions"

    def body(self, ask: Ask) -> bytes:
        law = _law(ask, has_logprobs=self.has_logprobs)
        told = {"return_token_ids": True, "return_tokens_as_token_ids": True, "return_weight_versions": True}
        return msgspec.json.encode(
            {"model": self.served, "prompt": ask.ids, "request_id": ask.request_id, **told, **law}
        )

    def sampled(self, answer: bytes, ask: Ask) -> Sampled:
        told = decoded(COMPLETION, answer)
        return _sampled(told, told.choices, ask, served=self.served)


@dataclass(frozen=True, slots=True)
class Generate:
    """`POST /inference/v1/generate` for the model called `served`."""

    served: str
    has_logprobs: bool = True
    path: str = "/inference/v1/generate"

    def body(self, ask: Ask) -> bytes:
        law = {**_law(ask, has_logprobs=self.has_logprobs), "detokenize": bool(ask.stops)}
        return msgspec.json.encode(
            {"model": self.served, "token_ids": ask.ids, "request_id": ask.request_id, "sampling_params": law}
        )

    def sampled(self, answer: bytes, ask: Ask) -> Sampled:
        told = decoded(GENERATION, answer)
        return _sampled(told, told.choices, ask, served=self.served)


def _law(ask: Ask, *, has_logprobs: bool) -> dict[str, Any]:
    """Every parameter of sampling and stopping, so that no default of the server applies."""
    return {
        "logprobs": ask.topk if has_logprobs else None,
        "n": 1,
        "max_tokens": ask.max_tokens,
        "min_tokens": 0,
        "temperature": ask.sampling.temperature,
        "top_p": ask.sampling.top_p,
        "top_k": ask.sampling.top_k,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": ask.seed,
        "stop": ask.stops,
        "stop_token_ids": ask.end_ids,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "include_stop_str_in_output": True,
    }


def _numbers(logprobs: Iterable[float | None]) -> list[float]:
    """Top logprobs without those that mean minus infinity."""
    return [value for value in logprobs if value is not None and value > CLAMPED_LOGPROB]


def _sampled(told: _Answer, choices: Sequence[_Completed | _Generated], ask: Ask, *, served: str) -> Sampled:
    if len(choices) != 1:
        raise EngineError("no_choices", f"{len(choices)} choices; one was asked for")
    choice = choices[0]
    logprobs, topk = choice.measured(has_topk=ask.topk > 0)
    if told.model is not None and told.model != served:
        raise EngineError("other_model", f"{told.model!r} answered; {served!r} was asked")
    if choice.token_ids is None:
        raise EngineError("no_token_ids", "the answer has text only; a server that knows return_token_ids is needed")
    if told.usage is None:
        raise EngineError("no_usage", "the answer does not say what it cost")
    details = told.usage.prompt_tokens_details
    return Sampled(
        ids=choice.token_ids,
        finish=choice.finish_reason or "none",
        matched=choice.stop_reason if isinstance(choice.stop_reason, str) else None,
        logprobs=logprobs,
        topk=topk,
        num_prompt=told.usage.prompt_tokens,
        num_told=told.usage.completion_tokens,
        num_cached=details and details.cached_tokens,
        versions=version_spans(choice.weight_versions or ()),
        request_id=told.request_id or told.id or "",
    )
