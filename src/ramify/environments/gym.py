"""Gym: environments of gymnasium, played in words.

A step's noise comes from its seed: the generator of the environment is replaced before each step. A fork is a deep copy
of the environment; one that cannot be copied so replays (`branching = "replay"`) or runs in a process. The digest is a
hash of what the environment and its wrappers hold, without generators. Checked with gymnasium 1.4.0.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from ramify.core.environment import Observation
from ramify.core.errors import ConfigError
from ramify.environments.action_spaces import action_of, actions_in_words, in_words
from ramify.environments.game_digest import game_digest
from ramify.environments.text_games import TextGames

ACTIONS: Final[Mapping[str, Sequence[str]]] = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "wait", "right"),
}
"""Name of an environment -> its actions in order, from gymnasium's pages."""
TABLE: Final = "P"
"""Where gymnasium's tabular environments keep their transitions, which never change and may be large: copies share
them."""
CONSTANT: Final = frozenset({"env", "spec", "_cached_spec", TABLE})
"""What is no state of an environment."""
_COLOUR: Final = re.compile(r"\x1b\[([0-9;]+)m(.*?)\x1b\[0m", re.DOTALL)
_MARKS: Final = {"4": "[]", "34;1": "()", "35": "<>"}
"""Colour -> the characters around a text that stand for it. FrozenLake marks the player, Taxi also its passenger and
the destination."""


@dataclass(frozen=True, kw_only=True)
class Gym(TextGames):
    """An environment of gymnasium. Its action space is Discrete, MultiDiscrete, MultiBinary, Box or Text."""

    name: ClassVar[str] = "gym"
    library: ClassVar[str] = "gymnasium"
    id: str
    """As in `gymnasium.make`, with its version: `FrozenLake-v1`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of `gymnasium.make`."""
    actions: Sequence[str] = ()
    """Names of the actions 0, 1, … of a Discrete space; empty = known ones, else the numbers."""

    def title(self) -> str:
        return self.id

    def check_start(self) -> None:
        super().check_start()
        self.game({"seed": 0}).close()

    def game(self, public: Mapping[str, Any]) -> "GymGame":
        gymnasium = self.imported()
        try:
            creator: Any = gymnasium.envs.registration.load_env_creator(gymnasium.spec(self.id).entry_point)
            has_ansi = "ansi" in getattr(creator, "metadata", {}).get("render_modes", ())
            options = {**({"render_mode": "ansi"} if has_ansi else {}), **self.kwargs}
            made = gymnasium.make(self.id, disable_env_checker=True, **options)
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise ConfigError(f"environment 'gym': gymnasium cannot make {self.id!r}: {error}") from error
        names = tuple(self.actions or ACTIONS.get(self.id.partition("-")[0], ()))
        try:
            return GymGame(made, actions_in_words(made.action_space, names), names, made.reset(seed=public["seed"])[0])
        except BaseException:
            made.close()
            raise


class GymGame:
    """An environment of gymnasium in progress."""

    def __init__(self, env: Any, moves: str, names: Sequence[str], first: Any) -> None:
        self._env = env
        self._names = names
        self.moves = moves
        self.opening = self._shown(first)

    def play(self, action: str, seed: int) -> Observation:
        chosen = action_of(action, self._env.action_space, self._names)
        self._env.unwrapped.np_random = np.random.default_rng(seed)
        state, reward, is_done, is_truncated, _ = self._env.step(chosen)
        return Observation(
            self._shown(state), reward=float(reward), end="done" if is_done else "truncated" if is_truncated else None
        )

    def copy(self) -> "GymGame":
        table = getattr(self._env.unwrapped, TABLE, None)
        return copy.deepcopy(self, {id(table): table})

    def digest(self) -> str | None:
        return game_digest(*_held(self._env))

    def close(self) -> None:
        self._env.close()

    def _shown(self, state: Any) -> str:
        """The picture of the state if there is one in characters, else its numbers."""
        if self._env.render_mode != "ansi":
            return f"Observation: {in_words(state)}"
        return _COLOUR.sub(_marked, str(self._env.render())).strip("\n")


def _marked(match: re.Match[str]) -> str:
    code, text = match.groups()
    left, right = next((marks for colour, marks in _MARKS.items() if code.startswith(colour)), ("", ""))
    return f"{left}{text}{right}"


def _held(env: Any) -> Iterator[Mapping[str, Any]]:
    """What an environment and each of its wrappers hold."""
    while True:
        held = vars(env)
        yield {key: value for key, value in held.items() if key not in CONSTANT}
        if env is env.unwrapped:
            return
        env = held["env"]
