"""Engine: the model servers that verl started, by its own client: token ids in, token ids out.

verl places a request, and loads new weights. It says no more than `completed` of an end, so stop words and the end of a
sequence are found in the ids, as with every server of token ids (`engines/served/turn.py`).

Source: verl 0.9.1, verl/workers/rollout/llm_server.py `LLMServerClient.generate` and replica.py `TokenOutput`.
"""

from typing import Any, Final, Literal
from uuid import uuid4

from ramify.core.engine import Capabilities, Generation, Request, room_for
from ramify.core.errors import EngineError
from ramify.core.segment import Finish, LogprobKind
from ramify.engines.served.sglang_wire import MAX_STOPS
from ramify.engines.served.turn import Ask, Sampled, ServedTurn
from ramify.engines.tokenizer_json import TokenizerJson

Server = Literal["vllm", "sglang"]
ABORTED: Final = frozenset({"aborted", "abort"})


class VerlEngine:
    """Implements `Engine` with `client`, an `LLMServerClient` of verl. Holds nothing of its own."""

    def __init__(
        self, client: Any, codec: TokenizerJson, *, server: Server, context_length: int, logprobs: LogprobKind
    ) -> None:
        """`logprobs`: what the servers' logprobs mean."""
        self.client = client
        self._codec = codec
        self._server: Server = server
        self._bytes = [codec.token_bytes(token) for token in range(codec.vocab_size)]
        self._capabilities = Capabilities(
            name=f"verl ({server})",
            context_length=context_length,
            logprobs=logprobs,
            has_seeds=server == "vllm",
            has_versions=True,
        )

    @property
    def codec(self) -> TokenizerJson:
        return self._codec

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def generate(self, request: Request) -> Generation:
        """One request, with one try. Raises `EngineError`."""
        room = room_for(request, context_length=self._capabilities.context_length, vocab_size=self._codec.vocab_size)
        turn = ServedTurn(request, token_bytes=self._bytes, end_ids=self._codec.end_ids, room=room)
        finish: Finish | None = None
        while finish is None:
            ask = turn.ask(uuid4().hex)
            finish = turn.hear(await self._sampled(ask), ask)
        return turn.generation(finish)

    async def close(self) -> None:
        """verl owns the servers."""

    async def _sampled(self, ask: Ask) -> Sampled:
        try:
            answer = await self.client.generate(ask.request_id, prompt_ids=ask.ids, sampling_params=self._law(ask))
        except Exception as error:
            raise EngineError("server_failed", f"{type(error).__name__}: {error}", is_retryable=True) from error
        ids, told = [int(token) for token in answer.token_ids], answer.extra_fields
        step = told.get("global_steps")
        return Sampled(
            ids=ids,
            finish="abort" if answer.stop_reason in ABORTED else "length" if len(ids) == ask.max_tokens else "stop",
            matched=self._matched(ids, ask),
            logprobs=answer.log_probs,
            num_cached=told.get("num_cached_tokens"),
            versions=() if step is None else ((int(step), len(ids)),),
        )

    def _law(self, ask: Ask) -> dict[str, Any]:
        """The sampling parameters of a request, in the server's own names."""
        law: dict[str, Any] = {
            "temperature": ask.sampling.temperature,
            "top_p": ask.sampling.top_p,
            "top_k": ask.sampling.top_k or -1,
            "repetition_penalty": 1.0,
            "logprobs": True,
            "max_tokens": ask.max_tokens,
            "stop": [*ask.stops],
            "stop_token_ids": [*ask.end_ids],
            "skip_special_tokens": False,
        }
        if self._server == "vllm":
            return {**law, "seed": ask.seed, "include_stop_str_in_output": True}
        return {**law, "stop": law["stop"][:MAX_STOPS], "no_stop_trim": True}

    def _matched(self, ids: list[int], ask: Ask) -> str | None:
        """The text at which the server stopped; None = it stopped at no text."""
        said = b"".join(self._bytes[token] for token in ids if token < len(self._bytes))
        return next((stop for stop in ask.stops if stop.encode() in said), None)
