"""TextArena: games of one player of textarena.

Most of its games draw from Python's global generator, so a game runs in a process by default. In a thread, one game
draws at a time, and any other code that draws meanwhile changes the game. An observation holds only what is new.
Checked with textarena 0.7.4.
"""

import copy
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from ramify.core.environment import Observation
from ramify.core.errors import ConfigError
from ramify.environments.blocking import RunsIn
from ramify.environments.game_digest import game_digest
from ramify.environments.text_games import WHOLE_TURN, TextGames
from ramify.environments.world_process import seed_globals

DRAWING: Final = threading.Lock()
"""Held while a game may draw from the global generators."""


@dataclass(frozen=True, kw_only=True)
class TextArena(TextGames):
    """A game of one player. The game reads the whole turn and says itself how a move is written."""

    name: ClassVar[str] = "textarena"
    library: ClassVar[str] = "textarena"
    default_rules: ClassVar[str] = ""
    runs_in: RunsIn = "process"
    action_pattern: str = WHOLE_TURN
    id: str
    """As in `textarena.make`, such as `GuessTheNumber-v0`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of `textarena.make`."""

    def title(self) -> str:
        return self.id

    def check_start(self) -> None:
        super().check_start()
        self.game({"seed": 0})

    def game(self, public: Mapping[str, Any]) -> "TextArenaGame":
        textarena = self.imported()
        try:
            with DRAWING:
                seed_globals(public["seed"])
                env = textarena.make(self.id, **self.kwargs)
                while isinstance(env, textarena.Wrapper):  # Wrappers repeat the history.
                    env = env.env
                env.reset(num_players=1, seed=public["seed"])
        except (ValueError, TypeError, ImportError, AssertionError, LookupError, OSError) as error:
            raise ConfigError(
                f"environment 'textarena': {self.id!r} cannot be played by one player: {error}"
            ) from error
        return TextArenaGame(env)


class TextArenaGame:
    """A game in progress."""

    moves = ""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.opening = self._news()

    def play(self, action: str, seed: int) -> Observation:
        with DRAWING:
            seed_globals(seed)
            is_done, _ = self._env.step(action)
        text = self._news()
        if not is_done:
            return Observation(text)
        rewards, info = self._env.close()
        reason, is_invalid = info[0].get("reason"), bool(info[0].get("invalid_move"))
        text = "\n".join(filter(None, (text, reason)))
        return Observation(text, reward=float(rewards[0]), end="done", parts={"invalid_move": float(is_invalid)})

    def copy(self) -> "TextArenaGame":
        return copy.deepcopy(self)

    def digest(self) -> str | None:
        return game_digest(vars(self._env))

    def close(self) -> None:
        pass

    def _news(self) -> str:
        """What the game has said since it was last asked, without what the player said."""
        _, messages = self._env.get_observation()
        own = "PLAYER_ACTION"
        return "\n".join(text.strip() for _, text, kind in messages if kind.name != own)
