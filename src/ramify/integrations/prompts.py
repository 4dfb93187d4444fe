"""Prompts: the question of a trainer's prompt, which is text or chat messages."""

from collections.abc import Mapping, Sequence
from typing import Any

from ramify.core.errors import ConfigError


def question_of(prompt: str | Sequence[Mapping[str, Any]], system: str | None = None) -> str:
    """The question of a prompt: its text, or the text of its only user message. Raises `ConfigError`."""
    if isinstance(prompt, str):
        return prompt
    others = [message for message in prompt if message.get("role") != "user"]
    asked = [message.get("content") for message in prompt if message.get("role") == "user"]
    if any(message.get("role") != "system" or message.get("content") != system for message in others):
        raise ConfigError(
            f"a prompt has messages that the run's format would not say: {others!r:.200}; a prompt is one message of "
            "the user, and the system's is format_options.system or actions.policy.system of the TOML"
        )
    if len(asked) != 1 or not isinstance(asked[0], str):
        raise ConfigError(f"a prompt must be text or one user message with text; got {asked!r:.200}")
    return asked[0]
