"""Rules for every environment: episodes are apart, forks and replays agree, no text holds a secret."""

import asyncio
from collections.abc import Callable, Collection, Sequence

from ramify.core.environment import AgentTurn, Environment
from ramify.environments.check import EnvironmentCheck
from ramify.testing.contracts.rules import BrokenRule, name_of


def check_environment(
    environment: Callable[[], Environment],
    *,
    turns: Sequence[AgentTurn | str] = (),
    num_turns: int = 12,
    num_problems: int = 2,
    seed: int = 0,
    without: Collection[str] = (),
) -> None:
    """Check every rule of an environment except those in `without`. Raises `BrokenRule` that says which rule was broken
    and where.

    `environment` makes an environment: a class, or a function without parameters. `turns` are what an agent may do;
    empty = the environment's examples, or words of the question. It finds state that branches share: it forks, acts
    differently in both, and compares with fresh replays.
    """
    moves = [AgentTurn(text=turn) if isinstance(turn, str) else turn for turn in turns]
    check = EnvironmentCheck(environment(), moves, num_problems=num_problems, num_turns=num_turns, seed=seed)
    for finding in asyncio.run(check.findings()):
        if finding.fault is not None and finding.rule not in without:
            raise BrokenRule(f"environment {name_of(environment)}: {finding.rule}: {finding.fault}")
