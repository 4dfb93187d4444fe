"""The batch loop that the runner is measured against grows the runner's own trees, and waits at its barriers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from bench.lockstep_reference import LockStep, Node
from tests.runner.parts import Small, problems, small_with

from ramify.config.run_config import GrowthConfig, RunConfig, StrategyConfig
from ramify.core.engine import Engine
from ramify.core.errors import ConfigError
from ramify.core.segment import Segment
from ramify.core.tree import ROOT, Tree
from ramify.engines.builtin import Builtin
from ramify.runner.build import prepared_run
from ramify.runner.library import rollout
from ramify.runner.run import Run
from ramify.tasks.countdown import Countdown
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn
from ramify.testing.simulated import Simulated

Form = tuple[Any, ...]
STRATEGIES = [
    ("offline", {}),
    ("offline", {"initial_rollouts": 2, "expansion_iterations": 3, "expansion_nodes": 2, "beam_size": 3}),
    ("online", {}),
    ("online", {"n": 10, "initial_rollouts": 2, "beam_size": 3}),
]
ENGINES = {
    "law": Scripted,
    "calls": lambda: Scripted(chains(1, 2, 5)),
    "simulated": lambda: Simulated(max_batch=7),
}


def told(segments: Sequence[Segment]) -> Form:
    return tuple((s.origin, s.ids.tolist(), s.seed, s.finish, s.tool_call and s.tool_call.status) for s in segments)


def form_of_node(node: Node) -> Form:
    reward = node.scores[-1].value if node.scores else None
    return told(node.segments), node.stop, reward, [form_of_node(child) for child in node.children]


def form_of_tree(tree: Tree, node: int = ROOT) -> Form:
    children = [form_of_tree(tree, child) for child in tree.children(node)]
    return told(tree.segments(node)), tree.stop(node), tree.reward(node), children


def config(name: str, options: dict[str, Any], **growth: Any) -> RunConfig:
    return RunConfig(strategy=StrategyConfig(name=name, options=options), growth=GrowthConfig(**growth))


@pytest.mark.slow
@pytest.mark.covers("S0.6", "S0.8", "S0.11")
@pytest.mark.parametrize(("name", "options"), STRATEGIES)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_both_grow_the_same_trees_from_the_same_seeds(engine: Any, name: str, options: dict[str, Any]) -> None:
    async def main() -> None:
        wanted = config(name, options, max_response_tokens=120, max_tool_calls=3)
        grown = await rollout(problems(6), config=wanted, engine=engine(), task=Small())
        roots = await LockStep(Run(prepared_run(wanted, problems(6), engine=engine(), task=Small()))).grow()
        assert [form_of_node(root) for root in roots] == [form_of_tree(tree) for tree in grown.trees]
        assert [len(root.leaves()) for root in roots] == [tree.num_leaves for tree in grown.trees]
        assert len(grown.report.stop_words) > 1

    run_virtual(main())


@pytest.mark.slow
@pytest.mark.covers("S0.11", engine="builtin")
@pytest.mark.parametrize(("name", "options"), STRATEGIES[:3:2])
def test_on_the_built_in_model_both_sample_the_same_tokens(name: str, options: dict[str, Any]) -> None:
    async def main() -> None:
        wanted, task = config(name, options), Countdown()
        asked = task.problems("heldout", 3, 0)
        grown = await rollout(asked, config=wanted, engine=Builtin(), task=task)
        roots = await LockStep(Run(prepared_run(wanted, asked, engine=Builtin(), task=task))).grow()
        assert [form_of_node(root) for root in roots] == [form_of_tree(tree) for tree in grown.trees]

    run_virtual(main())


WAITS = {"make 0": ("2", "1"), "make 1": ("1", "2")}
"""Seconds that the tool takes, call by call, in the trees of two problems."""


def waits(turn: ScriptedTurn) -> str:
    own = next(seconds for question, seconds in WAITS.items() if question in turn.context)
    num_done = turn.context.count("</result>")
    return f"<calc>{own[num_done]}</calc>" if num_done < len(own) else "<answer>3</answer>"


async def wait(arguments: str) -> str:
    await asyncio.sleep(float(arguments))
    return "done"


@pytest.mark.covers("S0.11")
def test_an_iteration_waits_for_the_slowest_and_the_runner_for_nobody() -> None:
    wanted = config("offline", {"initial_rollouts": 1, "expansion_iterations": 0})

    def engine() -> Engine:
        return Scripted(waits, delay=Delay(call_s=0.25))

    async def both() -> tuple[float, float, int]:
        clock = asyncio.get_running_loop().time
        lockstep = LockStep(Run(prepared_run(wanted, problems(2), engine=engine(), task=small_with(wait))))
        began = clock()
        await lockstep.grow()
        middle = clock()
        await rollout(problems(2), config=wanted, engine=engine(), task=small_with(wait))
        return middle - began, clock() - middle, lockstep.num_iterations

    barriers_s, free_s, num_iterations = run_virtual(both())
    assert (barriers_s, free_s, num_iterations) == (2 + 2 + 3 * 0.25, 2 + 1 + 3 * 0.25, 3)


@pytest.mark.covers("S0.11")
def test_a_round_of_expansion_waits_for_the_whole_batch() -> None:
    wanted = config("offline", {"initial_rollouts": 1, "expansion_iterations": 1})

    def short_and_long(turn: ScriptedTurn) -> str:
        return "<answer>3</answer>" if "make 0" in turn.context else "<calc>5</calc>"

    async def starts() -> list[float]:
        engine = Clocked(Scripted(short_and_long))
        run = Run(prepared_run(wanted, problems(2), engine=engine, task=small_with(wait)))
        await LockStep(run).grow()
        return engine.times["make 0"]

    assert run_virtual(starts()) == [0.0, 6 * 5.0]


class Clocked:
    """An engine in front of another one that keeps when it was asked for each problem."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.codec, self.capabilities, self.close = engine.codec, engine.capabilities, engine.close
        self.times: dict[str, list[float]] = {}

    async def generate(self, request: Any) -> Any:
        question = self.codec.decode(request.ids).partition("make")[2][:2]
        self.times.setdefault(f"make{question}", []).append(asyncio.get_running_loop().time())
        return await self._engine.generate(request)


@pytest.mark.parametrize(
    ("name", "options"),
    [("chains", {}), ("offline", {"commit": "before"}), ("online", {"rule": "aepo", "counter": "forks"})],
)
def test_what_the_published_loop_does_not_do_is_refused(name: str, options: dict[str, Any]) -> None:
    run = Run(prepared_run(config(name, options), problems(1), engine=Scripted(), task=Small()))
    with pytest.raises(ConfigError, match="lock-step loop knows"):
        run_virtual(LockStep(run).grow())
