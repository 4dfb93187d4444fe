"""Growing: one tree of a decision problem, by a real strategy and the real driver, with every draw out of `draw`.

A token is a step. Commands are carried out one after another in the order asked, and each outcome is told before the
next command begins. Measures and logprobs are those of the exact probabilities. A judge's value of a prefix is its
exact expected reward.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache, lru_cache
from typing import Final

import numpy as np

from ramify.core.codec import ByteCodec
from ramify.core.command import Grow, Judge, Role, Score, Tokens
from ramify.core.errors import ConfigError, ContractError
from ramify.core.growth import Done, Failure, Scored
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.core.stop import KEPT, ROULETTE
from ramify.core.strategy import Strategy
from ramify.core.tree import Step, Tree
from ramify.experiments.certify.decision_problem import DecisionProblem, Law
from ramify.experiments.certify.draws import coin_law
from ramify.experiments.certify.replay import Draw
from ramify.runner.driver import Driver, Start
from ramify.strategies.parts.entropy import STEP_ENTROPY

CODEC: Final = ByteCodec(is_exact=True)
MAX_COMMANDS: Final = 20_000
"""After so many commands of one tree, a strategy counts as endless."""
ROLES: Final[Mapping[str, Role]] = {"policy": "policy", "probe": "probe", "lookahead": "probe"}
"""Actions that a decision problem can carry out."""
ROOT_TASK: Final = Problem("decision problem", "which digits?")
PROMPT: Final = Segment("prompt", token_array(CODEC.encode("?")))


def bare_problem_tree() -> Tree:
    """A tree that has only its prompt."""
    return Tree(ROOT_TASK, CODEC, [PROMPT], seed=1)


def grown(problem: DecisionProblem, strategy: Strategy, draw: Draw, *, twin: Strategy | None = None) -> Tree:
    """The tree that `strategy` grows. Raises `ContractError` if it breaks a rule or does not come to an end, and
    `ConfigError` for a command that a decision problem cannot carry out.

    `twin`: a second strategy built the same way, which must ask for the same commands.
    """
    driver = Driver(bare_problem_tree(), strategy, twin=twin)
    waiting: dict[int, Start] = {}
    for _ in range(MAX_COMMANDS):
        try:
            pumped = driver.pump()
        except ContractError as error:
            raise ContractError(
                f"strategy {type(strategy).__name__} on decision problem {problem.name!r}: {error}"
            ) from error
        waiting |= {start.command_id: start for start in pumped.starts}
        cancelled = [command_id for command_id in pumped.cancels if waiting.pop(command_id, None)]
        for command_id in cancelled:
            driver.ended(command_id, Failure("cancelled"))
        if cancelled:
            continue
        if not waiting:
            if driver.is_finished:
                return driver.tree
            continue
        command_id = next(iter(waiting))
        _carry_out(driver, waiting.pop(command_id), problem, draw)
    raise ContractError(f"strategy {type(strategy).__name__} has not come to an end after {MAX_COMMANDS} commands")


def _carry_out(driver: Driver, start: Start, problem: DecisionProblem, draw: Draw) -> None:
    if isinstance(start.command, Judge):
        values = (float(problem.values[prefix_of(driver.tree, node)]) for node in start.command.nodes)
        scores = tuple(Score(start.command.judge, value, attempt=start.command.attempt) for value in values)
        driver.ended(start.command_id, Scored(scores))
        return
    assert start.place is not None
    if start.command.action not in ROLES:
        raise ConfigError(
            f"strategy {type(driver.strategy).__name__} asks for the action {start.command.action!r}; a decision "
            f"problem has no texts, so only {', '.join(ROLES)} can be certified"
        )
    prefix, num_grown = prefix_of(driver.tree, start.place.parent), 0
    is_over = False
    while not is_over:
        token = draw(problem.probs[prefix])
        step = _step(problem, prefix, token, start.command.action)
        prefix, num_grown = f"{prefix}{token}", num_grown + 1
        if start.command.action == "policy" and prefix in problem.coins:
            step = _tossed(step, problem.coins[prefix], draw)
        driver.grew(start.command_id, step)
        is_over = step.stop is not None or _is_fulfilled(start.command, num_grown)
    driver.ended(start.command_id, Done())


def prefix_of(tree: Tree, node: int) -> str:
    """The tokens sampled from the root to the end of `node`."""
    ids = (segment.ids for each in tree.path(node) for segment in tree.segments(each) if segment.is_sampled)
    return "".join(map(_digits, ids))


def _digits(ids: np.ndarray) -> str:
    return ids.astype(np.uint8).tobytes().decode("ascii")


def _is_fulfilled(command: Grow, num_grown: int) -> bool:
    match command.until:
        case "step":
            return True
        case "end":
            return False
        case Tokens(n):
            return num_grown == n


def _tossed(step: Step, keep: Fraction, draw: Draw) -> Step:
    """The step behind which a coin was thrown, as a run writes it."""
    if draw(coin_law(keep)):
        return replace(step, notes={KEPT: float(keep)})
    return replace(step, stop=ROULETTE)


@lru_cache(maxsize=10_000)
def _step(problem: DecisionProblem, prefix: str, token: int, action: str) -> Step:
    """The step of one token. Equal calls return one object."""
    law, role = problem.probs[prefix], ROLES[action]
    reward = problem.rewards.get(f"{prefix}{token}")
    entropy = _entropy(law)
    segment = Segment(
        "sampled",
        token_array(CODEC.encode(str(token))),
        logprobs=np.array([math.log(law[token])], np.float32),
        measures={"entropy": np.array([entropy], np.float32)},
    )
    vocabulary = max(2, *(len(each) for each in problem.probs.values()))
    return Step(
        (segment,),
        stop=None if reward is None else "answer",
        action=action,
        role=role,
        measures={STEP_ENTROPY: entropy / math.log(vocabulary)},
        scores=() if reward is None or role != "policy" else (Score("reward", float(reward)),),
    )


@cache
def _entropy(law: Law) -> float:
    """In nats."""
    return -math.fsum(float(p) * math.log(p) for p in law)
