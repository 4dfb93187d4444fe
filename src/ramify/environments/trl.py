"""TRL: a class of TRL's `environment_factory` as an environment. `trl_class` is the other way round.

The public methods of the class are the functions of the model, `reset(**row)` opens an episode, and `get_reward()` is
the score. TRL hands `reset` the whole row; here it gets no secret column unless `needs_secret`. A fork is a deep copy,
whose methods are taken anew. Neither side imports trl. Checked against the source of TRL 1.16.0.
"""

import asyncio
import copy
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

from ramify.core.environment import AgentTurn, Observation, Takes
from ramify.core.errors import ConfigError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.edge.error_text import error_text
from ramify.environments.blocking import BlockingEnvironment
from ramify.environments.game_digest import game_digest
from ramify.tools.signature import Signature

SECRET: Final = ("answer", "solution", "ground_truth", "target", "label")
"""Columns that hold an answer by the customs of data sets."""
OWN: Final = ("reset", "get_reward")


@dataclass(frozen=True, kw_only=True)
class Trl(BlockingEnvironment):
    """A class of TRL's `environment_factory`, with the rows of its data set."""

    name: ClassVar[str] = "trl"
    takes: ClassVar[Takes] = "calls"
    factory: str
    """`path/to/file.py:Class` or `package.module:Class`; it is called without arguments."""
    rows: str | Sequence[Mapping[str, Any]]
    """The rows, or a JSONL file of them; every split has the same. `prompt` is a text or messages."""
    secret_columns: Sequence[str] = SECRET
    """Columns that only a score with `needs_secret` may see."""
    needs_secret: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]
    """Whether `reset` gets the secret columns. The score is then an oracle's."""

    @cached_property
    def made(self) -> Callable[[], Any]:
        """The class. Raises `ConfigError`."""
        where, _, name = self.factory.rpartition(":")
        try:
            module = _file_module(Path(where)) if where.endswith(".py") else importlib.import_module(where)
            return vars(module)[name]
        except KeyError as error:
            raise ConfigError(f"environment 'trl': {where} has no {name!r}") from error
        except Exception as error:
            raise ConfigError(f"environment 'trl': {self.factory!r} cannot be imported: {error_text(error)}") from error

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return self._schemas

    @cached_property
    def _schemas(self) -> Sequence[Mapping[str, Any]]:
        instance = self.made()
        signatures = {name: Signature.of(getattr(instance, name), name=name) for name in methods_of(type(instance))}
        return [
            {"name": name, "description": read.description, "parameters": read.parameters}
            for name, read in signatures.items()
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("made", "_schemas")}

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        rows = self.rows
        if isinstance(rows, str):
            try:
                rows = [json.loads(line) for line in Path(rows).read_text("utf-8").splitlines() if line.strip()]
            except (OSError, ValueError) as error:
                raise ConfigError(f"environment 'trl': rows = {self.rows!r}: {error}") from error
        if num_problems > len(rows):
            raise ConfigError(f"environment 'trl': {num_problems} problems asked for, {len(rows)} rows given")
        return [self._problem(number, row, split) for number, row in enumerate(rows[:num_problems])]

    def _problem(self, number: int, row: Mapping[str, Any], split: str) -> Problem:
        secret = {key: row[key] for key in self.secret_columns if key in row}
        public = {key: value for key, value in row.items() if key not in secret}
        prompt = public.get("prompt", "")
        texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
        first = self._reset(self.made(), {**public, **(secret if self.needs_secret else {})})
        question = "\n\n".join(filter(None, [*texts[:-1], (texts[-1] if texts else "") + first]))
        return Problem(str(row.get("uid", f"row-{number}")), question, public, secret, split)

    def world(self, problem: Problem, seed: int) -> "TrlWorld":
        instance = self.made()
        self._reset(instance, {**problem.public, **problem.secret})
        return TrlWorld(instance)

    def _reset(self, instance: Any, row: Mapping[str, Any]) -> str:
        """What `reset` adds to the last message. Raises `ConfigError`."""
        try:
            return _waited(instance.reset(**row)) or ""
        except TypeError as error:
            hint = "a secret column reaches it with needs_secret = true"
            raise ConfigError(f"environment 'trl': reset of {self.factory!r}: {error}; {hint}") from error


@dataclass(slots=True)
class TrlWorld:
    """An instance of the class in one state."""

    instance: Any

    def step(self, turn: AgentTurn, seed: int) -> Observation:
        try:
            method = getattr(self.instance, turn.tool)  # Taken anew: a bound method keeps the instance it came from.
            call = Signature.of(method, name=turn.tool).read(turn.arguments)
            said = _waited(method(**call))
        except Exception as error:  # noqa: BLE001 - TRL tells the model what a method raises
            return Observation(error_text(error), "error")
        return Observation(said if isinstance(said, str) else json.dumps(said, default=str))

    def copy(self) -> "TrlWorld":
        return TrlWorld(copy.deepcopy(self.instance))

    def digest(self) -> str | None:
        return game_digest(vars(self.instance))

    def score(self, said: str, problem: Problem) -> Verdict | None:
        if not hasattr(self.instance, "get_reward"):
            return None
        value = _waited(self.instance.get_reward())
        return Verdict(None if value is None else float(value))

    def close(self) -> None:
        pass


def methods_of(made: type) -> list[str]:
    """The methods of a class that TRL offers as tools."""
    members = (name for name, _ in inspect.getmembers(made, predicate=inspect.isfunction))
    return [name for name in members if name not in OWN and not name.startswith("_")]


def _waited(said: Any) -> Any:
    """The result of a method, which may be a coroutine."""

    async def waited() -> Any:
        return await said

    return asyncio.run(waited()) if inspect.isawaitable(said) else said


def _file_module(path: Path) -> Any:
    """The module of a file, imported once for each process."""
    name = f"ramify_trl_{path.resolve().as_posix().strip('/').replace('/', '_').replace('.', '_')}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise FileNotFoundError(f"there is no file {str(path)!r}")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
