"""OpenAI: chat completions at any OpenAI-compatible address.

Such a server takes and returns messages: token ids go neither in nor out. So ids are those of the byte codec, the exact
messages travel beside them, and a turn is complete or absent (`can_continue_turn` is false). One call is one try with
its own deadline. The key comes from the environment variable that is named. It is sent only in the header of requests,
and `Http` removes it from whatever a server says.
"""

import base64
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ramify.core.branch import estimated_tokens
from ramify.core.codec import Codec
from ramify.core.engine import MAX_TOKEN_BYTES, Capabilities, Generation, Request
from ramify.core.errors import ConfigError, EngineError, nearest
from ramify.edge.http import Http, HttpLimits
from ramify.edge.patience import PATIENCE, Patience
from ramify.engines.openai_answer import CODEC, generation_of
from ramify.engines.told_limits import ToldLimits
from ramify.formats.messages import FILE

BASE_URL: Final = "https://api.openai.com/v1"
CONTEXT_LENGTH: Final = 128_000
"""Used where neither the configuration nor the server gives one: that of gpt-4o."""
MAX_STOPS: Final = 4
"""OpenAI's limit; other servers take more."""
MAX_TOPK: Final = 20
"""OpenAI's limit on `top_logprobs`."""
MODELS_S: Final = 30.0
"""Timeout for listing the models."""
MAX_SEED: Final = 1 << 31
"""Seeds are sent below it: some servers take signed 32-bit integers."""
MAX_IMAGE_BYTES: Final = 20 << 20
IMAGES: Final = {
    "png": rb"\x89PNG\r\n\x1a\n",
    "jpeg": rb"\xff\xd8\xff",
    "gif": rb"GIF8[79]a",
    "webp": rb"(?s)RIFF....WEBP",
}
"""Kinds of image files -> how such a file begins. Files of other kinds are not sent."""
OURS: Final = frozenset({"messages", "model", "n", "stop", "stream", "tools"})
"""Fields of a request that `extra_body` may not set."""
CONTEXT_FIELDS: Final = ("max_model_len", "context_length", "context_window", "max_context_length")
"""Fields in which a list of models gives their context length (vLLM, OpenRouter, Groq, Mistral)."""
ESCAPED_BYTES: Final = 6
"""Most bytes of a byte of text in JSON, such as `\\u00e9`."""
TOKEN_BYTES: Final = ESCAPED_BYTES * MAX_TOKEN_BYTES
LOGPROB_BYTES: Final = 512
"""Most bytes of a logprob in an answer: the token as text and as a list of numbers."""
ANSWER_BYTES: Final = 256 << 10
"""More bytes that an answer may have: names, usage, and what a provider adds, such as the pages it has searched."""
MAX_SHORTER: Final = 6
"""Requests for one turn with ever fewer tokens, because a server says that the turn may not be as long."""
TOO_LONG: Final = frozenset({"http_400", "http_413", "http_422"})

_TOO_LONG = re.compile(
    r"context.{0,12}(length|window|size|limit)|maximum number of (input )?tokens|(prompt|input) is too long|"
    r"max_model_len|input tokens exceed|max_new_tokens. must be",
    re.IGNORECASE,
)
"""How servers say that a conversation is too long (OpenAI, vLLM, SGLang, llama.cpp, Anthropic, Google)."""


class OpenAI:
    """Chat completions of `model` at `base_url`, the part of the address before `/chat/completions`.

    Keys are read from the environment, and no key is saved with a run. Raises `ConfigError`.
    """

    def __init__(
        self,
        model: str = "",
        *,
        base_url: str = BASE_URL,
        api_key_env: str = "OPENAI_API_KEY",
        context_length: int | None = None,
        max_topk: int = 0,
        max_stops: int = MAX_STOPS,
        max_tokens_as: Literal["max_tokens", "max_completion_tokens"] = "max_tokens",
        extra_body: Mapping[str, Any] | None = None,
        unsent: Sequence[str] = (),
        max_in_flight: int = HttpLimits().max_in_flight,
        patience: Patience = PATIENCE,
    ) -> None:
        """Raises `ConfigError`.

        - `model`: the server's name of the model.
        - `base_url`: the part of the address before `/chat/completions`.
        - `api_key_env`: environment variable with the server's key; no key is sent if it is not set.
        - `context_length`: most tokens of a context, if the server does not say less; None = what the server says, else
          128,000.
        - `max_topk`: top logprobs that the server gives with a token; 0 = do not ask for any, and steps have no
          entropy.
        - `max_stops`: most stop words that the server accepts in a request (OpenAI: 4).
        - `max_tokens_as`: the request's field for the limit of tokens; models that think often need
          `max_completion_tokens`.
        - `extra_body`: further fields of every request.
        - `unsent`: fields that the server does not accept: of requests (`seed`, `top_p`) and of the model's own
          messages (`reasoning_content`).
        - `max_in_flight`: most requests at one time; others wait.
        """
        if not model:
            raise ConfigError("engine 'openai' needs the name of a model: engine.model = ...")
        _check_bounds(max_topk, max_stops, context_length)
        _check_fields(max_tokens_as, extra_body or {}, unsent)
        key = _key(api_key_env)
        self._key_name, self._has_key = api_key_env, bool(key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = Http(base_url, limits=HttpLimits(max_in_flight=max_in_flight), headers=headers)
        self._model = model
        self._max_tokens_as = max_tokens_as
        self._extra_body = dict(extra_body or {})
        self._unsent = frozenset(unsent)
        self._patience = patience
        self._capabilities = Capabilities(
            name=f"openai:{model}",
            context_length=context_length or CONTEXT_LENGTH,
            max_topk=max_topk,
            max_stops=max_stops,
            has_token_ids=False,
            keeps_deadlines=True,
            can_continue_turn=False,
        )
        self._is_bounded = context_length is not None
        self._max_output = sys.maxsize
        """Most tokens of a completion that the server was heard to allow."""

    @property
    def codec(self) -> Codec:
        return CODEC

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def connect(self) -> None:
        """Ask which models there are. If the server keeps no list, the model is assumed to exist.

        Raises `ConfigError` if the key is refused or missing, or the model is not in the list.
        """
        if not self._has_key and self._http.base_url == BASE_URL:
            raise ConfigError(f"{BASE_URL} needs a key: set the environment variable {self._key_name}")
        listed = _listed(await self._models())
        if not listed:
            return
        if not any("*" in one or _is_same(one, self._model) for one in listed):
            raise ConfigError(f"{self._http.base_url} has no model {self._model!r}; {nearest(self._model, listed)}")
        told = listed.get(self._model) or 0
        known = self._capabilities.context_length
        if told:
            context_length = min(told, known) if self._is_bounded else told
            self._capabilities = replace(self._capabilities, context_length=context_length)

    async def generate(self, request: Request) -> Generation:
        """One completion of `request.messages`. Raises `EngineError`; `context_full` if they are too long."""
        if not request.messages:
            raise EngineError("no_messages", "the engine takes chat messages, and the request has none")
        asked = replace(request, max_tokens=min(request.max_tokens, self._max_output))
        num_asked = 0
        while True:
            num_asked += 1
            try:
                return await self._completed(asked)
            except EngineError as error:
                if error.reason not in TOO_LONG:
                    raise
                room = self._told_room(asked, str(error), is_again=num_asked > 1)
                if room is not None and num_asked < MAX_SHORTER:
                    asked = replace(asked, max_tokens=room)
                elif _TOO_LONG.search(str(error)):
                    raise EngineError("context_full", str(error)) from None
                else:
                    raise

    def _told_room(self, asked: Request, said: str, *, is_again: bool) -> int | None:
        """Fewer tokens by which a refused request may be continued, by what the server says of its limits. None = it
        says nothing of them, or none fits. Remembers the limits."""
        told = ToldLimits.of(said)
        room = asked.max_tokens // 2 if is_again else asked.max_tokens - 1
        if told.output is not None:
            self._max_output = min(self._max_output, told.output)
            room = min(room, told.output)
        elif told.context is not None and _TOO_LONG.search(said):
            known = self._capabilities.context_length
            self._capabilities = replace(self._capabilities, context_length=min(known, told.context))
            num_read = estimated_tokens(len(asked.ids)) if told.read is None else told.read
            room = min(room, told.context - num_read)
        else:
            return None
        return room if room > 0 else None

    async def _completed(self, request: Request) -> Generation:
        """One request, and its answer."""
        answer = await self._http.post(
            "/chat/completions",
            self._body(request),
            deadline_s=self._patience.deadline_s(request),
            headers={"X-Request-Id": request.request_id} if request.request_id else None,
            max_body_bytes=self._most_bytes(request),
        )
        try:
            return generation_of(answer, request, model=self._model)
        except EngineError as error:
            where = f"{self._http.base_url}/chat/completions"
            raise EngineError(error.reason, f"{where}: {error.detail}", is_retryable=error.is_retryable) from None

    def _most_bytes(self, request: Request) -> int:
        """Most bytes of an honest answer to `request`: its tokens as JSON, their top logprobs, and an echo of the
        messages."""
        num_top = max(request.topk, *(n for n in (self._extra_body.get("top_logprobs"), 0) if isinstance(n, int)))
        of_token = TOKEN_BYTES + LOGPROB_BYTES * (num_top + bool(num_top or self._extra_body.get("logprobs")))
        return ANSWER_BYTES + ESCAPED_BYTES * len(request.ids) + of_token * request.max_tokens

    async def close(self) -> None:
        await self._http.close()

    async def _models(self) -> bytes:
        try:
            return await self._http.get("/models", deadline_s=MODELS_S)
        except EngineError as error:
            if error.reason == "http_401":
                raise ConfigError(
                    f"the server refuses the key in the environment variable {self._key_name}: {error}"
                ) from None
            if error.is_retryable or not error.reason.startswith("http_4"):
                raise
            return b""

    def _body(self, request: Request) -> bytes:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [self._sent(message) for message in request.messages],
            self._max_tokens_as: request.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed % MAX_SEED,
            "n": 1,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if request.stops:
            body["stop"] = list(request.stops)
        if request.tools:
            body["tools"] = [{"type": "function", "function": schema} for schema in request.tools]
        if request.topk:
            body |= {"logprobs": True, "top_logprobs": min(request.topk, self._capabilities.max_topk)}
        body |= {**self._extra_body, **request.fields}
        return msgspec.json.encode({key: value for key, value in body.items() if key not in self._unsent})

    def _sent(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message as it is sent: an assistant message without the `unsent` fields, others with their image files
        inlined."""
        content = message.get("content")
        if message.get("role") == "assistant":
            sent = {key: value for key, value in message.items() if key not in self._unsent}
            says_nothing = content is None and not {"tool_calls", "refusal"} & set(sent)
            return {**sent, "content": ""} if says_nothing else sent
        return {**message, "content": [_inlined(part) for part in content]} if isinstance(content, list) else message


def _check_bounds(max_topk: int, max_stops: int, context_length: int | None) -> None:
    if not 0 <= max_topk <= MAX_TOPK or max_stops < 0 or (context_length is not None and context_length < 1):
        raise ConfigError(
            f"engine 'openai': max_topk = {max_topk!r} must be 0 to {MAX_TOPK}, max_stops = {max_stops!r} at least "
            f"0 and context_length = {context_length!r} at least 1"
        )


def _check_fields(max_tokens_as: str, extra_body: Mapping[str, Any], unsent: Sequence[str]) -> None:
    if max_tokens_as not in ("max_tokens", "max_completion_tokens"):
        raise ConfigError(f"max_tokens_as = {max_tokens_as!r}: it is max_tokens or max_completion_tokens")
    if ours := sorted(OURS & set(extra_body)):
        raise ConfigError(f"extra_body: ramify itself sets {', '.join(ours)} of a request; leave it out")
    if isinstance(unsent, str):
        raise ConfigError(f"engine 'openai': unsent = {unsent!r} must be a list of names: [{unsent!r}]")


def _key(name: str) -> str:
    """The key in an environment variable; '' = none."""
    key = os.environ.get(name, "").strip()
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"the environment variable {name} holds no valid key: a key is printable ASCII")
    return key


def _listed(body: bytes) -> dict[str, int | None]:
    """Model id -> context length, None if the list does not give it. Empty = the body is no list, or lists nothing."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    entries: Any = answer.get("data") if isinstance(answer, dict) else None
    found = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return {entry["id"]: _context(entry) for entry in found if isinstance(entry.get("id"), str)}


def _context(entry: Mapping[str, Any]) -> int | None:
    told = (entry.get(name) for name in CONTEXT_FIELDS)
    return next((value for value in told if isinstance(value, int) and value > 0), None)


def _is_same(listed: str, model: str) -> bool:
    """Whether two names mean the same model. Gateways put `models/` before a name and `:free` after it."""
    (first, _, variant), (second, _, other) = (name.removeprefix("models/").partition(":") for name in (listed, model))
    return first == second and (variant == other or not variant or not other)


def _inlined(part: Any) -> Any:
    """A content part with the image in place of the file it names. Raises `EngineError` if the file is no image."""
    url = part["image_url"].get("url") if isinstance(part, dict) and isinstance(part.get("image_url"), dict) else None
    if not isinstance(url, str) or not url.startswith(FILE):
        return part
    path = Path(url.removeprefix(FILE))
    try:
        if not path.is_file():  # opening a named pipe would wait for its writer
            raise EngineError("bad_attachment", f"{path} is no file")
        with path.open("rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise EngineError("bad_attachment", f"{path} cannot be read: {error.strerror}") from None
    kind = next((kind for kind, beginning in IMAGES.items() if re.match(beginning, data)), None)
    if kind is None or len(data) > MAX_IMAGE_BYTES:
        raise EngineError("bad_attachment", f"{path} is no PNG, JPEG, GIF or WebP image of at most 20 MiB")
    encoded = base64.b64encode(data).decode()
    return {**part, "image_url": {**part["image_url"], "url": f"data:image/{kind};base64,{encoded}"}}
