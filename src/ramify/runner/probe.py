"""Probe: one token before the start, which shows whether an endpoint of messages gives the top logprobs a run reads.

Such an endpoint says nothing of what it can do. Without the probe every path would fail for the same reason. Engines of
token ids find it out when they connect.
"""

from typing import Final

from ramify.core.engine import Request
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import Usage, token_array
from ramify.engines.retrying import Retrying
from ramify.runner.engine_faults import OF_ALL
from ramify.runner.work import usage_of

PROBE: Final = "Say a word."


async def probe_logprobs(engine: Retrying, *, topk: int, strategy: str) -> Usage:
    """Ask for one token with its top logprobs; returns what it cost. A refusal for another reason decides nothing.

    Raises `ConfigError` if it gives no logprobs, `EngineError` if it refuses everything or does not answer.
    """
    message = {"role": "user", "content": PROBE}
    ids = token_array(engine.codec.encode(PROBE))
    request = Request(ids, max_tokens=1, seed=0, topk=topk, topk_tokens=1, messages=(message,), request_id="probe")
    try:
        return usage_of(await engine.generate(request))
    except EngineError as error:
        if error.reason == "no_logprobs" or (error.reason.startswith("http_4") and "logprobs" in str(error)):
            raise ConfigError(
                f"strategy {strategy!r} reads entropies of top logprobs, and the endpoint of engine "
                f"{engine.capabilities.name!r} gives none: {error.detail}; choose an endpoint that gives them, or a "
                "strategy that reads none, with engine.options.max_topk = 0"
            ) from error
        if error.reason in OF_ALL or error.is_retryable:
            raise
        return Usage(1, num_billed=int(error.reason == "too_many_tokens"))
