"""Text games: the base of environments whose episodes are games of a library, played in words.

A problem is a seed, or a file, of the game. Its question is the rules, the first observation and the legal actions. The
last match of `action_pattern` in a turn is the action. What is no legal action is answered with status `error`, without
a step of the game; the game itself counts strikes, if it has any. After `max_steps` turns a path is truncated.
"""

import hashlib
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Protocol

from ramify.core.environment import AgentTurn, Observation
from ramify.core.errors import ConfigError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.environments.blocking import BlockingEnvironment

LAST_LINE: Final = r"(?m)^[ \t]*(\S.*?)[ \t]*$"
WHOLE_TURN: Final = r"(?s)\A\s*(\S.*?)\s*\Z"
SPLITS: Final = {"train": 0, "heldout": 1 << 30}
"""Split -> its first seed. Seeds are below 2**31, which every library takes."""
RUN_STRIDE: Final = 100_003
"""Distance between the first seeds of two runs; a prime, so that runs of round sizes overlap little."""


class IllegalMove(Exception):
    """What a turn asked for is no legal action; the text goes to the model."""


class Game(Protocol):
    """A game in progress. Methods may block; they are called one at a time."""

    @property
    def opening(self) -> str:
        """What the player sees first."""
        ...

    @property
    def moves(self) -> str:
        """The legal actions in words; may be empty."""
        ...

    def play(self, action: str, seed: int) -> Observation:
        """Carry out one action, with all randomness from `seed`. Raises `IllegalMove`, and changes nothing then."""
        ...

    def copy(self) -> "Game":
        """An independent copy with the same state."""
        ...

    def digest(self) -> str | None:
        """A hash of the state, without generators; None = unknown."""
        ...

    def close(self) -> None: ...


def action_in(text: str, pattern: re.Pattern[str], moves: str) -> str:
    """The action in a turn. Raises `IllegalMove`."""
    found = list(pattern.finditer(text))
    if not found:
        raise IllegalMove(f"No action was found. {moves}".strip())
    return found[-1][1]


def limited(observed: Observation, num_turns: int, max_steps: int) -> Observation:
    """`observed`, whose path is truncated if this was its last turn."""
    is_over = observed.end is None and num_turns >= max_steps
    return replace(observed, end="truncated") if is_over else observed


@dataclass(slots=True)
class GameWorld:
    """A game as a world."""

    game: Game
    pattern: re.Pattern[str]
    max_steps: int
    num_turns: int = 0

    def step(self, turn: AgentTurn, seed: int) -> Observation:
        self.num_turns += 1
        try:
            observed = self.game.play(action_in(turn.text, self.pattern, self.game.moves), seed)
        except IllegalMove as error:
            observed = Observation(str(error), "error")
        return limited(observed, self.num_turns, self.max_steps)

    def copy(self) -> "GameWorld":
        return replace(self, game=self.game.copy())

    def digest(self) -> str | None:
        digest = self.game.digest()
        return None if digest is None else hashlib.sha256(f"{self.num_turns} {digest}".encode()).hexdigest()

    def score(self, said: str, problem: Problem) -> Verdict | None:
        return None

    def close(self) -> None:
        self.game.close()


@dataclass(frozen=True, kw_only=True)
class TextGames(BlockingEnvironment):
    """An environment of games. A subclass has `name`, `library`, `title` and `game`."""

    library: ClassVar[str]
    """The package that it needs; the extra of ramify that installs it has the environment's name."""
    default_rules: ClassVar[str] = "You play a game. End each turn with a line that holds only your action."
    max_steps: int = 100
    """Turns after which a path is truncated."""
    rules: str = ""
    """What the question begins with; empty = a sentence of the adapter's."""
    action_pattern: str = LAST_LINE
    """The first group of its last match in a turn is the action (Python's `re`). The default takes the last line."""

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ConfigError(f"{self.name}: max_steps = {self.max_steps!r}: at least 1 is needed")
        try:
            has_group = re.compile(self.action_pattern).groups > 0
        except re.error as error:
            raise ConfigError(f"{self.name}: action_pattern = {self.action_pattern!r}: {error}") from error
        if not has_group:
            raise ConfigError(f"{self.name}: action_pattern = {self.action_pattern!r} has no group for the action")

    def imported(self) -> Any:
        """The package. Raises `ConfigError` that says how to install it."""
        try:
            return importlib.import_module(self.library)
        except ImportError as error:
            install = f"pip install 'ramify[{self.name}]'"
            raise ConfigError(
                f"environment {self.name!r} needs the package {self.library}: {install} ({error})"
            ) from error

    def prepare(self) -> None:
        self.imported()

    def title(self) -> str:
        """Name of the game, for the uids of problems."""
        raise NotImplementedError

    def game(self, public: Mapping[str, Any]) -> Game:
        """The game of a problem's public columns, at its start. Raises `ConfigError`."""
        raise NotImplementedError

    def columns(self, split: str, num_problems: int, seed: int) -> Sequence[Mapping[str, Any]]:
        """The public columns of problems: a `seed` each, of which those of `heldout` are in no other split. Raises
        `ConfigError`."""
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: {self.name} has {' and '.join(map(repr, SPLITS))}")
        every = range(seed * RUN_STRIDE, seed * RUN_STRIDE + num_problems)
        return [{"seed": SPLITS[split] + number % (1 << 30)} for number in every]

    def uid(self, public: Mapping[str, Any]) -> str:
        return f"{self.title()}-{public['seed']}"

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        """Plays no turn, but makes each game once, to show its first observation."""
        self.prepare()
        return [self._problem(public, split) for public in self.columns(split, num_problems, seed)]

    def _problem(self, public: Mapping[str, Any], split: str) -> Problem:
        game = self.game(public)
        try:
            shown = (self.rules or self.default_rules, game.opening, game.moves)
            return Problem(self.uid(public), "\n\n".join(filter(None, shown)), public, split=split)
        finally:
            game.close()

    def world(self, problem: Problem, seed: int) -> GameWorld:
        return GameWorld(self.game(problem.public), re.compile(self.action_pattern), self.max_steps)
