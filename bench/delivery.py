"""What it costs a search to be told outcomes in the order of its commands: seconds `ordered` over seconds `eager`.

A strategy whose tree does not depend on that order is told at once, whatever the delivery (`against_lockstep.py`). The
searches here choose by what they know so far. With `ordered`, equal seeds give equal trees, and an outcome waits until
all commands before it have ended. With `eager` nothing waits, and the tree depends on what ended first.

The agent, its tool and the modelled server are those of `against_lockstep.py`, in virtual time: times are exact. A
judge's number follows from the text. `time` is the seconds of `ordered` over those of `eager`, 1.00 = order costs
nothing; `tokens` is the same of sampled tokens, because both grow other trees.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from against_lockstep import QUICK, SLOW, simulated
from smoke import few

from ramify.config.run_config import Delivery, StrategyConfig
from ramify.core.branch import Branch
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.seeds import tree_seed
from ramify.runner.library import rollout
from ramify.testing.clock import run_virtual

SEARCHES: Final[Sequence[tuple[str, int, Mapping[str, Any]]]] = few(
    (
        ("mcts", 4, {"n": 64, "in_flight": 4}),
        ("mcts", 16, {"n": 64, "in_flight": 16}),
        ("self_consistency", 8, {"n": 40, "in_flight": 8}),
    ),
    (("mcts", 4, {"n": 8, "in_flight": 4}),),
)
"""Name, requests in flight a tree, options."""
NUM_TREES: Final = few((8, 64), (2,), book=(8,))


@dataclass(frozen=True)
class TextJudge:
    """Gives each text a number of its own."""

    name: str
    is_oracle: bool = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        return [Verdict(tree_seed(1, branch.said) / 2**64) for branch in branches]


JUDGES: Final = tuple(map(TextJudge, ("reward", "process", "agreement")))
HEAD: Final = (
    f"{'search':18}{'in flight':>10}{'calls':>12}{'trees':>7}{'ordered s':>11}{'eager s':>9}{'time':>7}{'tokens':>8}"
)


async def grown(
    search: str, options: Mapping[str, Any], *, between_s: tuple[float, float], num_trees: int, delivery: Delivery
) -> tuple[float, int]:
    """Seconds of the loop's clock, and sampled tokens."""
    work = simulated(num_trees, between_s)
    config = replace(work.config(delivery), strategy=StrategyConfig(name=search, options=dict(options)))
    engine = work.engine()
    began = asyncio.get_running_loop().time()
    try:
        trees = await rollout(work.problems, config=config, engine=engine, task=replace(work.task, judges=JUDGES))
        assert not trees.report.failed_trees, trees.report.unfinished
        return asyncio.get_running_loop().time() - began, engine.stats.num_decoded
    finally:
        await engine.close()


def main() -> None:
    print(HEAD)
    for search, in_flight, options in SEARCHES:
        for between_s in (QUICK, SLOW):
            for num_trees in NUM_TREES:
                (ordered_s, ordered), (eager_s, eager) = (
                    run_virtual(grown(search, options, between_s=between_s, num_trees=num_trees, delivery=delivery))
                    for delivery in ("ordered", "eager")
                )
                calls = f"{between_s[0]:g}-{between_s[1]:g} s"
                print(
                    f"{search:18}{in_flight:10}{calls:>12}{num_trees:7}{ordered_s:11.1f}{eager_s:9.1f}"
                    f"{ordered_s / eager_s:7.2f}{ordered / eager:8.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
