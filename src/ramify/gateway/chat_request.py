"""ChatRequest: the body of `POST /v1/chat/completions`, read and checked before anything is grown.

It owns which fields mean something here, which are refused by name, and which are passed on: every other field goes to
the endpoint with the requests that write answers. A field that is null counts as absent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import msgspec

from ramify.core.budgets import BUDGETS
from ramify.core.errors import nearest
from ramify.gateway.api_error import bad_request

T = TypeVar("T")
Json = Mapping[str, Any]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES: Final = 4096
MAX_CHOICES: Final = 128
"""OpenAI's limit on `n`."""
MAX_DEPTH: Final = 32
"""Most nesting of a field; the store takes 64."""
MAX_WHOLE: Final = 1 << 63
HERE: Final = frozenset(
    {"model", "messages", "n", "stream", "stream_options", "seed", "max_tokens", "max_completion_tokens", "temperature"}
    | {"top_p", "top_k", "ramify"}
)
"""Fields that the gateway itself reads."""
REFUSED: Final[Mapping[str, str]] = {
    "logprobs": "an answer is chosen among many samples, and no logprobs are kept; ask the endpoint itself",
    "top_logprobs": "an answer is chosen among many samples, and no logprobs are kept; ask the endpoint itself",
    "functions": "it is OpenAI's old form; use tools",
    "function_call": "it is OpenAI's old form; use tool_choice",
    "audio": "only text is answered",
    "best_of": "name a search as the model, such as best_of_n",
}
RAMIFY: Final = ("budget", "options")
"""Fields of the field `ramify`, beside `seed`."""
SECONDS: Final = "seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request. Its texts may be anything: none is trusted."""

    model: str
    messages: Sequence[Json]
    n: int = 1
    is_stream: bool = False
    wants_usage: bool = False
    """Whether a stream ends with the usage."""
    seed: int | None = None
    max_tokens: int | None = None
    """Most tokens of an answer."""
    sampling: Mapping[str, float] = field(default_factory=dict[str, float])
    """What it says of `temperature`, `top_p` and `top_k`."""
    fields: Json = field(default_factory=dict[str, Any])
    """Fields that are passed on."""
    budget: Mapping[str, float] = field(default_factory=dict[str, float])
    """Limit -> most of it for the whole tree."""
    options: Json = field(default_factory=dict[str, Any])
    """Options of the search."""


def chat_request(body: bytes | bytearray) -> ChatRequest:
    """The request in a body. Raises `ApiError` (400) that names the field."""
    try:
        values: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise bad_request(f"the body is {_kind(values)}; an object with model and messages is needed")
    given = {name: value for name, value in values.items() if value is not None}
    _refuse(given)
    _check_values(given)
    extra = _typed(given, "ramify", dict) or {}
    if unknown := sorted(set(extra) - {*RAMIFY, "seed"}):
        said = nearest(unknown[0], [*RAMIFY, "seed"])
        raise bad_request(f"ramify.{unknown[0]}: unknown; {said}", f"ramify.{unknown[0]}")
    limit = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    stream_options = _typed(given, "stream_options", dict) or {}
    return ChatRequest(
        model=_model(given),
        messages=_messages(given.get("messages")),
        n=_whole(given, "n", 1, MAX_CHOICES) or 1,
        is_stream=_typed(given, "stream", bool) or False,
        wants_usage=bool(stream_options.get("include_usage")),
        seed=_seed(given, extra),
        max_tokens=_whole(given, limit, 1, 1 << 31),
        sampling=_sampling(given),
        fields={name: value for name, value in given.items() if name not in HERE | set(REFUSED)},
        budget=_budget(extra.get("budget") or {}),
        options=_options(extra.get("options") or {}),
    )


def _refuse(given: Json) -> None:
    for name, why in REFUSED.items():
        if given.get(name) not in (None, False, 0):
            raise bad_request(f"{name} is refused: {why}", name)
    if "audio" in (given.get("modalities") or ()):
        raise bad_request("modalities: only text is answered", "modalities")


def _check_values(given: Json) -> None:
    """Refuse what could not be recorded: deep nesting, and whole numbers beyond 64 bits."""
    for name, value in given.items():
        level, depth = [value], 0
        while level:
            if any(isinstance(item, int) and not -MAX_WHOLE <= item < MAX_WHOLE for item in level):
                raise bad_request(f"{name} holds a whole number beyond 64 bits", name)
            inner = [
                item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)
            ]
            level, depth = [each for items in inner for each in items], depth + bool(inner)
            if depth > MAX_DEPTH:
                raise bad_request(f"{name} is nested more than {MAX_DEPTH} deep", name)


def _model(given: Json) -> str:
    model = given.get("model")
    if not isinstance(model, str) or not model.strip():
        raise bad_request(f"model = {model!r:.80}: the name of a model is needed; GET /v1/models lists them", "model")
    return model


def _seed(given: Json, extra: Json) -> int | None:
    own = extra.get("seed", given.get("seed"))
    if own is not None and (isinstance(own, bool) or not isinstance(own, int)):
        raise bad_request(f"seed = {own!r:.80}: a whole number is needed", "seed")
    return own


def _sampling(given: Json) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, low, high in (("temperature", 0.0, 2.0), ("top_p", 0.0, 1.0), ("top_k", 0.0, float(1 << 31))):
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise bad_request(f"{name} = {value!r:.80}: a number from {low:g} to {high:g} is needed", name)
        found[name] = value
    if found.get("top_p") == 0:
        raise bad_request("top_p = 0: it must be above 0; temperature = 0 takes the likeliest token", "top_p")
    return found if "top_k" not in found else {**found, "top_k": max(0, int(found["top_k"]))}


def _budget(given: Any) -> dict[str, float]:
    if not isinstance(given, dict):
        raise bad_request(f"ramify.budget is {_kind(given)}; an object such as {{'decode_tokens': 2000}} is needed")
    found: dict[str, float] = {}
    for name, amount in cast("Json", given).items():
        path = f"ramify.budget.{name}"
        if name not in BUDGETS and name != SECONDS:
            raise bad_request(f"{path}: unknown budget; {nearest(name, [*BUDGETS, SECONDS])}", path)
        kinds = (int, float) if name in ("dollars", SECONDS) else (int,)
        if isinstance(amount, bool) or not isinstance(amount, kinds) or not 0 < amount < 1e15:
            raise bad_request(f"{path} = {amount!r:.80}: a number above 0 is needed", path)
        found[BUDGETS.get(name, name)] = amount
    return found


def _options(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise bad_request(f"ramify.options is {_kind(given)}; an object such as {{'n': 8}} is needed", "ramify.options")
    return cast("dict[str, Any]", given)


# -- messages ---------------------------------------------------------------------------------------------------------


def _messages(given: Any) -> Sequence[Json]:
    if not isinstance(given, list) or not given:
        raise bad_request("messages: a list of at least one message is needed", "messages")
    if len(given) > MAX_MESSAGES:
        raise bad_request(f"messages: {len(given)} of them; at most {MAX_MESSAGES}", "messages")
    for number, message in enumerate(cast("list[Any]", given)):
        _check_message(message, f"messages[{number}]")
    return cast("list[Json]", given)


def _check_message(message: Any, path: str) -> None:
    if not isinstance(message, dict):
        raise bad_request(f"{path} is {_kind(message)}; a message is an object with role and content", path)
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise bad_request(f"{path}.role = {role!r:.80}; allowed are {', '.join(ROLES)}", f"{path}.role")
    if isinstance(content, list):
        for place, part in enumerate(cast("list[Any]", content)):
            _check_part(part, f"{path}.content[{place}]")
    elif not isinstance(content, str) and not (content is None and role == "assistant"):
        raise bad_request(f"{path}.content is {_kind(content)}; a text or a list of texts", f"{path}.content")


def _check_part(part: Any, path: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "refusal"):
        shown = kind if isinstance(kind, str) else _kind(part)
        raise bad_request(f"{path}: {shown!r:.80} is not supported; only text is", path, code="unsupported_content")
    if not isinstance(part.get(kind), str):
        raise bad_request(f"{path}.{kind}: a text is needed", path)


# -- values -----------------------------------------------------------------------------------------------------------


def _typed(given: Json, name: str, kind: type[T]) -> T | None:
    value = given.get(name)
    if value is not None and not isinstance(value, kind):
        wanted = {dict: "an object", bool: "true or false"}.get(kind, kind.__name__)
        raise bad_request(f"{name} is {_kind(value)}; {wanted} is needed", name)
    return value


def _whole(given: Json, name: str, low: int, high: int) -> int | None:
    value = given.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high):
        raise bad_request(f"{name} = {value!r:.80}: a whole number from {low} to {high} is needed", name)
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number"}
    return "null" if value is None else names.get(type(value), "a number")
