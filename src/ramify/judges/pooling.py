"""Pooling: step scores from a vLLM server: `/classify` gives one score per text, `/pooling` one per step.

It owns the wire format (vLLM 0.33). `{"model", "input": [text]}` to `/classify` is answered by `data[i].probs`. With
`task = "token_classify"`, `/pooling` is answered by `data[i].data`, a row of classes for every step tag if the server's
pooler is of type STEP (the default of Qwen2ForProcessRewardModel, else set by `--pooler-config`). Temporary faults are
retried only here. A server that stays down is a `JudgeError`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ramify.core.errors import EngineError, JudgeError
from ramify.edge.http import Http
from ramify.edge.retries import RetryPolicy, Tries

CALL_S: Final = 60.0
"""Seconds for one request of a batch."""
POLICY: Final = RetryPolicy(max_tries=4, cap_s=5.0, max_busy_s=60.0)


class _One(msgspec.Struct):
    index: int = 0
    probs: list[float] | None = None
    data: list[list[float] | float] | None = None


class _Answer(msgspec.Struct):
    data: list[_One]


class Pooling:
    """Implements `StepScorer`. Raises `ConfigError` for an invalid address, or if the extra `http` is missing."""

    def __init__(self, base_url: str, *, model: str | None, has_steps: bool, positive: int) -> None:
        self._http = Http(base_url.rstrip("/").removesuffix("/v1"))
        self._model: Final = model
        self._has_steps: Final = has_steps
        self._positive: Final = positive

    async def scores(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A list of scores per text. Raises `JudgeError`."""
        body: dict[str, Any] = {"input": list(texts)}
        if self._model is not None:
            body["model"] = self._model
        if self._has_steps:
            body["task"] = "token_classify"
        answer = await self._answered("/pooling" if self._has_steps else "/classify", body)
        if sorted(one.index for one in answer.data) != list(range(len(texts))):
            raise JudgeError(f"{self._http.base_url} answered {len(answer.data)} of {len(texts)} texts")
        return [self._read(one) for one in sorted(answer.data, key=lambda one: one.index)]

    async def close(self) -> None:
        await self._http.close()

    async def _answered(self, path: str, body: Mapping[str, Any]) -> _Answer:
        tries = Tries(POLICY, seed=0)
        while True:
            try:
                said = await self._http.post(path, msgspec.json.encode(body), deadline_s=CALL_S)
            except EngineError as error:
                pause_s = _pause_s(tries, error)
                if pause_s is None:
                    raise JudgeError(str(error)) from error
                await asyncio.sleep(pause_s)
                continue
            try:
                return msgspec.json.decode(said, type=_Answer)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise JudgeError(f"{self._http.base_url}{path} answered what is no list of scores: {error}") from None

    def _read(self, one: _One) -> list[float]:
        """The scores of one text. From a row of classes it takes the score of the positive class."""
        rows: Any = [one.probs] if one.probs is not None else one.data or []
        try:
            return [float(row[self._positive] if isinstance(row, list) else row) for row in rows]
        except IndexError:
            raise JudgeError(f"{self._http.base_url}: there is no class {self._positive} in {rows!r:.100}") from None


def _pause_s(tries: Tries, error: EngineError) -> float | None:
    """Seconds to wait before the next try; None = do not retry."""
    if not error.is_retryable:
        return None
    return tries.pause_s(error.reason) if error.retry_after_s is None else tries.busy_pause_s(error.retry_after_s)
