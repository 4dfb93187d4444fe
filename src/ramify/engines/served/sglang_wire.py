"""SGLang wire: the requests and answers of SGLang's route for token ids.

The body names every sampling parameter: a server fills missing ones from its --preferred-sampling-params. Answers are
decoded into typed structs and not repaired.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ramify.core.errors import EngineError
from ramify.engines.served.answer import VersionSpan, decoded, version_number, version_spans
from ramify.engines.served.turn import Ask, Sampled

MAX_STOPS: Final = 32
"""SGLang's own limit on the stop texts of a request (MAX_STOP_COUNT); further stop words are found in the answer."""

_Logprob = tuple[float | None, int, str | None]
"""Logprob, token id, and the token's text if that was asked for."""


class _Finish(msgspec.Struct):
    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None


class _Meta(msgspec.Struct):
    id: str | None = None
    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    weight_version: str | None = None
    weight_versions: list[VersionSpan] | None = None
    output_token_logprobs: list[_Logprob] | None = None
    output_top_logprobs: list[list[_Logprob] | None] | None = None


class _Generated(msgspec.Struct):
    meta_info: _Meta
    output_ids: list[int] | None = None


GENERATED: Final = msgspec.json.Decoder(_Generated)


@dataclass(frozen=True, slots=True)
class Native:
    """`POST /generate`. Seeds are sent only to servers that use them: others refuse or ignore them."""

    has_seeds: bool = False
    has_logprobs: bool = True
    path: str = "/generate"

    def body(self, ask: Ask) -> bytes:
        sampling: dict[str, Any] = {
            "n": 1,
            "max_new_tokens": ask.max_tokens,
            "min_new_tokens": 0,
            "temperature": ask.sampling.temperature,
            "top_p": ask.sampling.top_p,
            "top_k": ask.sampling.top_k or -1,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop": ask.stops[:MAX_STOPS],
            "stop_token_ids": ask.end_ids,
            "ignore_eos": False,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
        }
        if self.has_seeds:
            sampling["sampling_seed"] = ask.seed
        return msgspec.json.encode(
            {
                "rid": ask.request_id,
                "input_ids": ask.ids,
                "sampling_params": sampling,
                "return_logprob": self.has_logprobs,
                "logprob_start_len": -1,
                "top_logprobs_num": ask.topk,
                "stream": False,
            }
        )

    def sampled(self, answer: bytes, ask: Ask) -> Sampled:
        told = decoded(GENERATED, answer)
        meta, ids = told.meta_info, told.output_ids
        if ids is None:
            raise EngineError("no_token_ids", "the answer has no output_ids")
        if meta.finish_reason is None:
            raise EngineError("unknown_finish", "the answer does not say how it ended")
        if meta.finish_reason.type != "abort" and (meta.prompt_tokens is None or meta.completion_tokens is None):
            raise EngineError("no_usage", "the answer does not say what it cost")
        given = meta.output_token_logprobs
        if given is not None and [token for _, token, _ in given] != ids:
            raise EngineError("bad_logprobs", "the logprobs belong to other tokens than output_ids")
        matched = meta.finish_reason.matched
        return Sampled(
            ids=ids,
            finish=meta.finish_reason.type,
            matched=matched if isinstance(matched, str) else None,
            logprobs=None if given is None else [logprob for logprob, _, _ in given],
            topk=[
                _with_own(each or (), own)
                for each, own in zip(meta.output_top_logprobs or (), given or (), strict=False)
            ],
            num_prompt=meta.prompt_tokens,
            num_told=meta.completion_tokens,
            num_cached=meta.cached_tokens,
            versions=version_spans(meta.weight_versions or ()),
            version=None if meta.weight_version is None else version_number(meta.weight_version),
            request_id=meta.id or "",
        )


def _with_own(top: Iterable[_Logprob], own: _Logprob) -> list[float]:
    """Top logprobs, including the sampled token's."""
    values = {token: logprob for logprob, token, _ in (*top, own)}
    return [logprob for logprob in values.values() if logprob is not None]
