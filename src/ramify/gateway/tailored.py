"""Tailored: the parts that the tree of one request grows with, from those of its offer and what the request says.

What a client may set: sampling and length of the answers, fields of the requests that write answers, the budget within
that of the gateway, and options of the search. No option names a file, and no number in one is huge.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ramify import plugins
from ramify.config.run_config import RunConfig, StrategyConfig
from ramify.core.action import ActionConfig
from ramify.core.budgets import BUDGETS
from ramify.core.errors import ConfigError, ContractError
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.core.seeds import tree_seed
from ramify.core.strategy import SearchStrategy
from ramify.formats.chat import Chat
from ramify.formats.conversation import Conversation, transcript
from ramify.formats.messages import MESSAGES, text_of
from ramify.gateway.api_error import bad_request
from ramify.gateway.chat_request import ChatRequest
from ramify.gateway.offers import Offer
from ramify.runner.judges import check_strategy_judges
from ramify.runner.prepared import Prepared
from ramify.runner.refusals import check_opening, check_prices
from ramify.runner.run_strategy import RunStrategy

MAX_OPTION: Final = 1000
"""Largest number in an option of the search that a client may set, unless the preset's own is larger."""
IGNORED: Final = frozenset(
    {"metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"}
)
"""Fields that change nothing in an answer of an engine of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits of one request."""

    max_answer_tokens: int = 32_768
    """Most tokens of an answer that a client may ask for."""
    max_tokens: int | None = None
    """Most tokens that the whole tree of a request may sample; None = any number."""

    def __post_init__(self) -> None:
        if self.max_answer_tokens < 1 or (self.max_tokens is not None and self.max_tokens < 1):
            raise ConfigError(f"impossible limits {self!r}: at least 1 token is needed")


@dataclass(frozen=True, slots=True)
class Planting:
    """What a tree is grown from."""

    problem: Problem
    prepared: Prepared
    seed: int | None
    """Of the tree; None = made of the gateway's seed and the problem."""


def planting(offer: Offer, request: ChatRequest, limits: RequestLimits, *, uid: str) -> Planting:
    """The problem and the parts of a request's tree. Raises `ApiError` (400)."""
    prepared = _tailored(offer, request, limits)
    problem = _problem(offer, request, uid)
    seed = None if request.seed is None else tree_seed(request.seed, offer.name)
    _refuse_poor(prepared, problem)
    if not isinstance(prepared.format, Conversation):
        _refuse_unopened(prepared, problem)
    return Planting(problem, prepared, seed)


def _problem(offer: Offer, request: ChatRequest, uid: str) -> Problem:
    public: dict[str, Any] = {
        MESSAGES: list(request.messages),
        "model": offer.name,
        **({"fields": dict(request.fields)} if request.fields else {}),
        **({"options": dict(request.options)} if request.options else {}),
        **({"budget": dict(request.budget)} if request.budget else {}),
    }
    if _reads_conversations(offer.prepared):
        question = transcript(Problem(uid, "-", public=public))
    else:
        question = next((text_of(each) for each in reversed(request.messages) if each["role"] == "user"), "")
    if not question.strip():
        raise bad_request("messages: there is no text of the user in them", "messages")
    return Problem(uid, question, public=public)


def _reads_conversations(prepared: Prepared) -> bool:
    format = prepared.format
    return isinstance(format, Conversation) or (isinstance(format, Chat) and format.opens_conversations)


def _tailored(offer: Offer, request: ChatRequest, limits: RequestLimits) -> Prepared:
    base, config = offer.prepared, offer.prepared.config
    options = _options(offer, request)
    bounded = _limits(config.limits, request, limits)
    actions, most = _actions(offer, request, limits)
    if options is None and bounded == config.limits and actions is None and most is None:
        return base
    config = replace(
        config,
        limits=bounded,
        actions=config.actions if actions is None else actions,
        growth=config.growth if most is None else replace(config.growth, max_response_tokens=most),
        strategy=config.strategy if options is None else StrategyConfig(name=config.strategy.name, options=options),
    )
    changed = replace(base, config=config)
    return changed if options is None else _searching(changed, config)


# -- the search -------------------------------------------------------------------------------------------------------


def _options(offer: Offer, request: ChatRequest) -> Mapping[str, Any] | None:
    """The options of the search; None = those of the offer."""
    own = offer.prepared.config.strategy.options
    if offer.is_sample:
        if request.options:
            raise bad_request("ramify.options: one sample has none; name a search as the model", "ramify.options")
        return None if request.n == 1 else {**own, "n": request.n}
    if not request.options:
        return None
    for path, value in _numbers(request.options, "ramify.options"):
        if value > MAX_OPTION:
            raise bad_request(f"{path} = {value}: at most {MAX_OPTION} here", path)
    return _merged(own, request.options)


def _searching(prepared: Prepared, config: RunConfig) -> Prepared:
    """The parts with the strategy of `config`."""
    try:
        with plugins.built_in_only():
            strategy = RunStrategy.of(config, prepared.strategy.kind)
        sample = strategy.sample()
        check_strategy_judges(strategy.options, prepared.judging.judges, config.strategy.name)
    except (ConfigError, ContractError, plugins.NotLoaded) as error:
        raise bad_request(f"ramify.options: {error}", "ramify.options") from error
    vote = sample.vote if isinstance(sample, SearchStrategy) else prepared.answering.vote
    return replace(prepared, strategy=strategy, answering=replace(prepared.answering, vote=vote))


def _merged(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with those of a client; tables are merged."""
    merged = dict(own)
    for name, value in given.items():
        before = merged.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(before, value) if both else value  # pyright: ignore[reportArgumentType]
    return merged


def _numbers(value: Any, path: str) -> list[tuple[str, float]]:
    """Every number in a value, with its path."""
    match value:
        case bool():
            return []
        case int() | float():
            return [(path, value)]
        case dict():
            return [found for name, each in value.items() for found in _numbers(each, f"{path}.{name}")]
        case list():
            return [found for number, each in enumerate(value) for found in _numbers(each, f"{path}[{number}]")]
        case _:
            return []


# -- budget and answers -----------------------------------------------------------------------------------------------


def _limits(own: Limits, request: ChatRequest, limits: RequestLimits) -> Limits:
    """The budget of the tree. Raises `ApiError` for more than the gateway allows."""
    names = {limit: name for name, limit in BUDGETS.items()}
    allowed = own.within(Limits(decode=limits.max_tokens))
    for limit, amount in request.budget.items():
        most = getattr(allowed, limit)
        if most is not None and amount > most:
            path = f"ramify.budget.{names.get(limit, limit)}"
            raise bad_request(f"{path} = {amount:g}: at most {most:g} here", path)
    return allowed.within(Limits(**request.budget))  # pyright: ignore[reportArgumentType]


def _actions(
    offer: Offer, request: ChatRequest, limits: RequestLimits
) -> tuple[Mapping[str, ActionConfig] | None, int | None]:
    """The actions as the request wants them, and the most tokens of a response; None = as they are."""
    if request.max_tokens is not None and request.max_tokens > limits.max_answer_tokens:
        raise bad_request(f"max_tokens = {request.max_tokens}: at most {limits.max_answer_tokens} here", "max_tokens")
    takes_messages = not offer.prepared.engine.capabilities.has_token_ids
    fields = dict(request.fields) if takes_messages else _refuse_fields(offer, request)
    if not (fields or request.sampling or request.max_tokens):
        return None, None
    config = offer.prepared.config
    length = request.max_tokens if takes_messages else None
    changed = {
        name: _changed(action, request, fields, length) if action.role == "policy" and not action.text else action
        for name, action in config.actions.items()
    }
    most = config.growth.max_response_tokens if takes_messages else 0
    return changed, None if request.max_tokens is None else max(most, request.max_tokens)


def _changed(action: ActionConfig, request: ChatRequest, fields: Mapping[str, Any], length: int | None) -> ActionConfig:
    """An action that writes answers. Raises `ApiError` for a field that the gateway sets."""
    try:
        return replace(
            action,
            sampling=replace(action.sampling, **request.sampling),
            fields={**action.fields, **fields},
            max_tokens=length or action.max_tokens,
        )
    except (ConfigError, ContractError) as error:
        raise bad_request(str(error)) from error


def _refuse_fields(offer: Offer, request: ChatRequest) -> dict[str, Any]:
    """Refuse fields for an engine of tokens, which has no place for them."""
    ignored = {"tool_choice": "none", "tools": [], "response_format": {"type": "text"}, "stop": []}
    for name, value in request.fields.items():
        if name not in IGNORED and ignored.get(name, Ellipsis) != value:
            engine = offer.prepared.engine.capabilities.name
            raise bad_request(f"{name}: the engine {engine!r} samples tokens and has no place for it", name)
    return {}


def _refuse_unopened(prepared: Prepared, problem: Problem) -> None:
    """Refuse a conversation that the format cannot open."""
    try:
        prepared.format.open(problem)
    except ConfigError as error:
        raise bad_request(str(error), "messages") from error


def _refuse_poor(prepared: Prepared, problem: Problem) -> None:
    """Refuse a budget in dollars that nothing can be bought for."""
    limits = prepared.limits(0)
    if limits.dollars is None:
        return
    try:
        check_prices(prepared.config, prepared.prices)
        check_opening(prepared.tree(problem), prepared.prices["policy"], limits)
    except ConfigError as error:
        raise bad_request(f"ramify.budget.dollars: {error}", "ramify.budget.dollars") from error
