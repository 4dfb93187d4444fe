"""Action spaces: gymnasium's spaces of actions and observations in words. It needs no gymnasium."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ramify.core.errors import ConfigError
from ramify.environments.text_games import IllegalMove


def actions_in_words(space: Any, names: Sequence[str]) -> str:
    """The legal actions of a space; `names` are those of a Discrete one, empty = its numbers. Raises `ConfigError` for
    a space whose actions cannot be written."""
    match type(space).__name__:
        case "Discrete":
            if names and len(names) != space.n:
                raise ConfigError(f"environment 'gym': actions = {list(names)!r}: the space has {space.n} actions")
            first = int(space.start)
            return f"Actions: {', '.join(names) if names else f'a number from {first} to {first + int(space.n) - 1}'}."
        case "MultiDiscrete":
            return f"Actions: {space.nvec.size} numbers, each from 0 to below {in_words(space.nvec)}."
        case "MultiBinary":
            return f"Actions: {int(np.prod(space.shape))} numbers, each 0 or 1."
        case "Box":
            return f"Actions: {int(np.prod(space.shape))} numbers from {in_words(space.low)} to {in_words(space.high)}."
        case "Text":
            return f"Actions: a text of {space.min_length} to {space.max_length} of the characters {space.characters}"
        case kind:
            raise ConfigError(f"environment 'gym': a {kind} action space cannot be played in words: {space}")


def action_of(text: str, space: Any, names: Sequence[str]) -> Any:
    """The action of the space that a text names. Raises `IllegalMove`."""
    named = text.strip("[]()<>\"'`.! ").lower()
    known = [name.lower() for name in names]
    kind = type(space).__name__
    try:
        if kind == "Text":
            action: Any = text
        elif kind == "Discrete":
            action = space.dtype.type(int(space.start) + known.index(named) if named in known else int(named))
        else:
            action = np.array([float(number) for number in re.split(r"[\s,]+", named)])
            action = action.reshape(space.shape).astype(space.dtype, casting="unsafe")
        if space.contains(action):
            return action
    except (ValueError, OverflowError):
        pass
    raise IllegalMove(f"{text[:80]!r} is no action. {actions_in_words(space, names)}")


def in_words(state: Any) -> str:
    """Numbers in brackets, with four significant digits; other things as Python prints them."""
    if isinstance(state, Mapping):
        return "{" + ", ".join(f"{name}: {in_words(value)}" for name, value in state.items()) + "}"
    if isinstance(state, tuple | list) or (isinstance(state, np.ndarray) and state.ndim):
        return "[" + ", ".join(map(in_words, state)) + "]"
    if isinstance(state, float | np.floating):
        return f"{float(state):.4g}"
    return str(state)
