"""Refusals: checks, before the start, that the run's problems, engines, tools and actions can do what it asks for.

Each check raises `ConfigError` and changes nothing. Checks for engines that take messages are in `whole_turns.py`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from ramify.config.run_config import RunConfig
from ramify.core.action import ActionConfig
from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Engine
from ramify.core.environment import TURN
from ramify.core.errors import ConfigError, nearest
from ramify.core.format import Format, MessageFormat, TurnFormat
from ramify.core.limits import Limits
from ramify.core.prices import PICODOLLARS, Prices
from ramify.core.problem import Problem
from ramify.core.tree import ROOT, Tree
from ramify.formats.chat import Chat
from ramify.formats.conversation import Conversation
from ramify.formats.messages import Messages
from ramify.formats.refine import Refine
from ramify.formats.rstar import RStar
from ramify.formats.tags import TagFormat, check_quote
from ramify.strategies.parts.entropy import LOGPROBS, STEP_ENTROPY


def check_problems(problems: Sequence[Problem], config: RunConfig) -> None:
    """Refuse two problems with one uid, and more problems than the run's limits can be shared among."""
    counts = Counter(problem.uid for problem in problems)
    twice = [uid for uid, count in counts.items() if count > 1]
    if twice:
        raise ConfigError(f"two problems with one uid: {', '.join(map(repr, twice[:3]))}; a uid names one tree")
    if problems:
        config.run_limits.share(len(problems), len(problems) - 1)


def check_prices(config: RunConfig, prices: Mapping[str, Prices]) -> None:
    """Refuse a limit in dollars if an engine that some action uses has no prices."""
    if config.limits.dollars is None and config.run_limits.dollars is None:
        return
    for name in sorted({action.engine for action in config.actions.values() if not action.text}):
        if name not in prices:
            path = "engine" if name == "policy" else f"engines.{name}"
            raise ConfigError(
                f"a budget in dollars needs prices, and engine {name!r} has none; set {path}.prices.prompt and "
                f"{path}.prices.output to dollars a million tokens"
            )


def check_opening(tree: Tree, prices: Prices, limits: Limits) -> None:
    """Refuse a limit in dollars that does not pay for the opening context of `tree` and one more token."""
    num_tokens = tree.branch(ROOT).most_tokens
    least = prices.most(num_tokens, 1)
    if least > limits.counted()["picodollars"]:
        raise ConfigError(
            f"a budget of {limits.dollars!r} dollars is too small for the question {tree.problem.uid!r}: its context "
            f"of up to {num_tokens} tokens and one token of an answer may cost {least / PICODOLLARS:.3g}"
        )


def check_codecs(engines: Mapping[str, Engine], codec: Codec) -> None:
    for name, engine in engines.items():
        if engine.codec.sha256 != codec.sha256:
            raise ConfigError(
                f"engine {name!r} has the tokenizer {engine.codec.name!r} and 'policy' {codec.name!r}: what grows on a "
                "tree has one; only judges ask by another, and engines that speak in messages can be mixed at will"
            )


def check_measures(measures: Iterable[str], capabilities: Capabilities, strategy: str) -> None:
    """Refuse a strategy that reads measures its engine cannot give."""
    given = capabilities.measures | ({STEP_ENTROPY} if capabilities.max_topk else set())
    given |= {LOGPROBS} if capabilities.logprobs is not None else set()
    for measure in sorted(measures):
        if measure not in given:
            raise ConfigError(
                f"strategy {strategy!r} reads the measure {measure!r}, which engine {capabilities.name!r} cannot give; "
                f"it gives {sorted(given) or 'none'}{_helps(measure)}"
            )


def _helps(measure: str) -> str:
    """What gives a measure, at an endpoint that was not asked for it."""
    return (
        "; if its server gives top logprobs, say how many: engine.options.max_topk" if measure == STEP_ENTROPY else ""
    )


def check_tools(format: Format, names: Collection[str]) -> None:
    """Refuse a format that calls tools the run does not have."""
    for tool, tag in format.tools().items():
        if tool not in names:
            raise ConfigError(
                f"the format calls a tool {tool!r} by <{tag}>, but the task has no such tool; {nearest(tool, names)}"
            )


def check_turns(format: Format, names: Collection[str]) -> None:
    """Refuse an environment that answers every turn in a format that cannot read one."""
    if TURN in names and not isinstance(format, TurnFormat):
        raise ConfigError(
            f"the environment answers every turn, and the format {type(format).__name__} reads no whole turns; name "
            "'chat' or 'messages', or leave the format out"
        )


def check_spelling(stops: Iterable[str], codec: Codec) -> None:
    """Refuse stop words that change when the tokenizer encodes and decodes them."""
    for word in stops:
        text = codec.decode(codec.encode(word))
        if word not in text:
            raise ConfigError(
                f"the tokenizer of {codec.name!r} cannot spell the stop word {word!r}: it comes back as {text!r}; use "
                "a tokenizer.json that encodes any text, or a format with tags that it knows"
            )


def check_actions(actions: Mapping[str, ActionConfig], engines: Mapping[str, Engine], format: Format) -> None:
    for name, action in actions.items():
        if action.engine not in engines:
            raise ConfigError(f"action {name!r} names engine {action.engine!r}; {nearest(action.engine, engines)}")
        if action.fields:
            _check_fields(name, action, engines[action.engine].capabilities, format)
        if action.template and isinstance(format, Refine):
            format.check(name, action.template)
        elif action.template and isinstance(format, TagFormat | Chat | Conversation | Messages | RStar):
            check_quote(action.template)


def _check_fields(name: str, action: ActionConfig, engine: Capabilities, format: Format) -> None:
    """Refuse fields that no request of the action has a place for, or that would take that of the format's own."""
    if engine.has_token_ids:
        raise ConfigError(
            f"actions.{name}.fields: engine {engine.name!r} samples tokens and takes no {', '.join(action.fields)}; "
            "only engines that take chat messages have further fields"
        )
    own = {"stop": format.stops, "tools": format.schemas if isinstance(format, MessageFormat) else ()}
    for field, values in own.items():
        if field in action.fields and values:
            raise ConfigError(f"actions.{name}.fields.{field}: the format {type(format).__name__} has its own")
