"""TRL class: an environment of ramify as a class for TRL's `environment_factory`.

TRL makes instances without arguments, calls `reset(**row)` before each rollout, offers the public methods as tools, and
asks `get_reward()` once at the end. It has no end of an episode: after it, each call is told that it is over.
"""

import asyncio
import inspect
import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ramify.core.branch import Branch
from ramify.core.codec import ByteCodec
from ramify.core.environment import AgentTurn, Environment, Reward
from ramify.core.problem import Problem
from ramify.core.seeds import step_seed, tree_seed, world_seed
from ramify.tools.signature import PLAIN

OVER: Final = "the episode is over"


def trl_rows(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """Rows of a data set for `as_trl`."""
    return [{"prompt": [{"role": "user", "content": problem.question}], "uid": problem.uid} for problem in problems]


def as_trl(environment: Environment, problems: Sequence[Problem], *, seed: int = 0) -> type:
    """A class for TRL's `environment_factory`: `GRPOTrainer(..., environment_factory=as_trl(environment, problems),
    train_dataset=Dataset.from_list(trl_rows(problems)))`.

    Each function of the environment is a method. One that takes turns has the method `act(action)`. `get_reward` gives
    the reward by the environment's rule; a score that reads the model's words gets none, since TRL shows them to no
    environment. All rollouts of a problem open with the same `seed`; each has noise of its own if the environment's
    `noise` is `path`. Episodes live in an event loop in a thread of its own, which ends with the process.
    """
    known = {problem.uid: problem for problem in problems}
    paths = itertools.count()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ramify-trl", daemon=True).start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def init(self: Any) -> None:
        self._played = None

    def reset(self: Any, **row: Any) -> None:
        if self._played is not None:
            run(self._played.episode.close())
        problem = known[row["uid"]]
        seen = problem if environment.needs_secret else problem.for_agents()
        path = next(paths) if environment.noise == "path" else 0
        self._played = _Played(problem, run(environment.open(seen, world_seed(seed))), tree_seed(seed, str(path)))

    def get_reward(self: Any) -> float | None:
        return run(self._played.reward(environment))

    def method(schema: Mapping[str, Any]) -> Callable[..., str]:
        def call(self: Any, **arguments: Any) -> str:
            turn = (
                AgentTurn(text=arguments["action"])
                if schema is ACT
                else AgentTurn(tool=schema["name"], arguments=json.dumps(arguments))
            )
            return run(self._played.step(turn))

        return _described(call, schema)

    schemas = [*environment.schemas, *([ACT] if environment.takes == "turns" else [])]
    methods = {schema["name"]: method(schema) for schema in schemas}
    named = "".join(part.capitalize() for part in environment.name.split("_"))
    return type(named, (), {"__init__": init, "reset": reset, "get_reward": get_reward, **methods})


ACT: Final[Mapping[str, Any]] = {
    "name": "act",
    "description": "Act in the environment.",
    "parameters": {"properties": {"action": {"type": "string", "description": "The action."}}, "required": ["action"]},
}


@dataclass(slots=True)
class _Played:
    """An episode that TRL plays."""

    problem: Problem
    episode: Any
    seed: int
    rewards: list[float | None] = field(default_factory=list[float | None])
    is_over: bool = False

    async def step(self, turn: AgentTurn) -> str:
        if self.is_over:
            return OVER
        observed = await self.episode.step(turn, step_seed(self.seed, len(self.rewards)))
        self.rewards.append(observed.reward)
        self.is_over = observed.end is not None
        return observed.text

    async def reward(self, environment: Environment) -> float | None:
        verdict = await self.episode.score(Branch(ByteCodec(), 0, ()), self.problem)
        return Reward(environment.reward).of_path(self.rewards, None if verdict is None else verdict.value)


def _described(call: Callable[..., str], schema: Mapping[str, Any]) -> Callable[..., str]:
    """`call` with the signature and the docstring that TRL reads a tool's schema from."""
    parameters: Mapping[str, Any] = schema["parameters"].get("properties", {})
    types = {kind: hint for hint, kind in PLAIN.items() if isinstance(hint, type)}
    hints: dict[str, Any] = {name: types.get(each.get("type", ""), str) for name, each in parameters.items()}
    needed = schema["parameters"].get("required", ())
    kinds = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name in sorted(parameters, key=lambda name: name not in needed):
        default = inspect.Parameter.empty if name in needed else parameters[name].get("default")
        kinds.append(
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=hints[name])
        )
    lines = [f"    {name}: {each.get('description') or name}" for name, each in parameters.items()]
    told = "\n".join(["", "", "Args:", *lines]) if lines else ""
    call.__name__ = call.__qualname__ = schema["name"]
    call.__doc__ = f"{schema.get('description') or schema['name']}{told}\n\nReturns:\n    What happened."
    call.__annotations__ = {**hints, "return": str}
    call.__signature__ = inspect.Signature(kinds, return_annotation=str)  # pyright: ignore[reportFunctionMemberAccess]
    return call
