"""Journey: drives a strategy through a world to its end, with no model, no event loop and no clock.

Commands complete in a chosen order, and each may fail, so that a strategy's promises can be checked exactly.
"""

import random
from collections.abc import Callable

from ramify.core.command import Grow, Judge, Score, Tokens
from ramify.core.errors import ContractError
from ramify.core.growth import Done, Ending, Failure, GrowthRules, Scored
from ramify.core.ledger import Spend
from ramify.core.limits import Limits
from ramify.core.strategy import Strategy
from ramify.core.tree import ROOT, Tree
from ramify.runner.driver import Asked, Delivered, Delivery, Driver, Start
from ramify.testing.worlds import (
    MAX_STEP_TOKENS,
    MAX_STEPS,
    QUOTING,
    JudgeOf,
    SeededWorld,
    StrategyWorld,
    bare_tree,
    seeded_values,
)

MAX_COMPLETIONS = 20_000
"""After this many completed commands, a strategy counts as endless."""


def worst_case(tree: Tree, command: object, place: object) -> Spend:
    """The most a command of `SeededWorld` may use."""
    if not isinstance(command, Grow):
        return Spend(judge_calls=1)
    turns = 1 if command.until == "step" else MAX_STEPS
    decode = command.until.n if isinstance(command.until, Tokens) else turns * MAX_STEP_TOKENS
    return Spend(leaves=1, decode=decode, turns=turns, tool_calls=turns)


class Journey:
    """Drives a strategy through a world to its end. Commands complete in a chosen order."""

    def __init__(
        self,
        strategy: Strategy,
        world: StrategyWorld | None = None,
        *,
        tree: Tree | None = None,
        delivery: Delivery = "ordered",
        limits: Limits | None = None,
        rules: GrowthRules = GrowthRules(quoting=QUOTING),
        order: random.Random | None = None,
        fails: Callable[[int], str | None] = lambda command_id: None,
        judge: JudgeOf | None = None,
    ) -> None:
        self.tree = tree or bare_tree()
        self.world = world or SeededWorld()
        self.driver = Driver(self.tree, strategy, delivery=delivery, limits=limits, rules=rules, need=worst_case)
        self.events: list[Asked | Delivered] = []
        self._order = order
        self._fails = fails
        self._judge = judge or seeded_values
        self._open: list[Start] = []

    def step(self) -> bool:
        """Complete one command. Returns False when nothing is left to do."""
        pumped = self.driver.pump()
        self.events += pumped.events
        self._open += pumped.starts
        cancelled = [start for start in self._open if start.command_id in pumped.cancels]
        for start in cancelled:
            self._end(start, Failure("cancelled"))
        if self._open and not cancelled:
            index = self._order.randrange(len(self._open)) if self._order else 0
            self._complete(self._open[index])
        return bool(self._open or cancelled or pumped.events or pumped.starts) or not self.driver.is_finished

    def run(self) -> "Journey":
        for _ in range(MAX_COMPLETIONS):
            if not self.step():
                return self
        raise ContractError(f"the strategy has not come to an end after {MAX_COMPLETIONS} completed commands")

    def _complete(self, start: Start) -> None:
        reason = self._fails(start.command_id)
        if reason is not None:
            return self._end(start, Failure(reason))
        if isinstance(start.command, Judge):
            command = start.command
            values = self._judge(self.tree, command)
            scores = tuple(Score(command.judge, value, attempt=command.attempt) for value in values)
            return self._end(start, Scored(scores))
        for step in self.world.steps(self.tree, start):
            self.driver.grew(start.command_id, step)
        return self._end(start, Done())

    def _end(self, start: Start, ending: Ending) -> None:
        self._open.remove(start)
        self.driver.ended(start.command_id, ending)


def journey(strategy: Strategy, world: StrategyWorld | None = None, **options: object) -> Journey:
    """Drive `strategy` to its end."""
    return Journey(strategy, world, **options).run()  # type: ignore[arg-type]


def canonical(tree: Tree) -> list[tuple[object, ...]]:
    """The tree in canonical order, without ids. Equal trees have equal results."""
    nodes = tree.subtree(ROOT)
    place = {node: i for i, node in enumerate(nodes)}
    return [
        (
            None if node == ROOT else place[tree.parent(node) or ROOT],
            [s.ids.tolist() for s in tree.segments(node)],
            tree.stop(node),
            tree.role(node),
            tree.reward(node),
            (fork.rule, fork.shares, fork.is_post_hoc, fork.probability) if (fork := tree.fork(node)) else None,
        )
        for node in nodes
    ]
