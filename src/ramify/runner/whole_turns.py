"""Whole turns: what a run must not ask for if its engines take messages.

Such an engine produces a whole turn and cannot continue inside it. Three things are refused before the start: a
strategy that grows by numbers of tokens, a rule that writes into a turn, and a format that writes no messages. A
position inside a turn, which only shows later, is a `ContractError` of the tree. `engines` are those that the run's
actions name.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ramify.config.run_config import RunConfig
from ramify.core.command import Command, Grow, Tokens
from ramify.core.engine import Capabilities
from ramify.core.errors import ConfigError, RamifyError
from ramify.core.format import Format, MessageFormat
from ramify.core.strategy import Strategy
from ramify.core.tree import Tree
from ramify.runner.stopping import STOP_POLICIES

BY_STEPS: Final = "chains, online, offline, tree_grpo or another that grows by steps"


def check_messages(config: RunConfig, format: Format, engines: Mapping[str, Capabilities]) -> None:
    """Refuse a format that the engines of the actions cannot use, and rules that write into a turn."""
    for name, engine in engines.items():
        if not engine.has_token_ids and not isinstance(format, MessageFormat):
            raise ConfigError(
                f"engine {name!r} takes chat messages, and the format {type(format).__name__} writes none; leave the "
                "format out, or name 'messages' or a tag format"
            )
        if engine.has_token_ids and isinstance(format, MessageFormat) and format.schemas:
            raise ConfigError(
                f"the format calls tools natively, and engine {name!r} samples tokens; set format_options.calls = "
                "'tags', or name 'chat'"
            )
        if not engine.can_continue_turn and STOP_POLICIES[config.growth.stop_rule].at_limit == "warn":
            raise ConfigError(
                f"growth.stop_rule = {config.growth.stop_rule!r} writes a warning into a turn, and engine {name!r} "
                "cannot go on inside one; use 'corrected' or 'arpo'"
            )


def check_stops(format: Format, engines: Mapping[str, Capabilities]) -> None:
    """Refuse more stop words than an engine accepts."""
    for name, engine in engines.items():
        if engine.max_stops is not None and len(format.stops) > engine.max_stops:
            raise ConfigError(
                f"the format has {len(format.stops)} stop words, {', '.join(format.stops)}, and engine {name!r} takes "
                f"{engine.max_stops} at most; use fewer tools, format_options.calls = 'native', or raise max_stops "
                "where the server takes more"
            )


def check_growths(config: RunConfig, strategy: Strategy, tree: Tree, engines: Mapping[str, Capabilities]) -> None:
    """Refuse a strategy whose first growths in `tree` are numbers of tokens. It has then been asked: use a fresh
    one."""
    for command in _first_commands(strategy, tree):
        if not isinstance(command, Grow) or not isinstance(command.until, Tokens):
            continue
        action = config.actions.get(command.action)
        engine = engines.get(action.engine) if action is not None else None
        if engine is not None and not engine.can_continue_turn:
            raise ConfigError(
                f"strategy {config.strategy.name!r} grows by numbers of tokens ({command.until}), and engine "
                f"{engine.name!r} cannot go on inside a turn; use {BY_STEPS}, or an engine with token ids"
            )


def _first_commands(strategy: Strategy, tree: Tree) -> Sequence[Command]:
    """What a strategy asks for first. Boundary to plug-in code: the run reports its other faults."""
    try:
        commands = strategy.ask(tree)
    except RamifyError:
        raise
    except Exception:  # noqa: BLE001 - the boundary
        return ()
    return commands if isinstance(commands, Sequence) else ()
