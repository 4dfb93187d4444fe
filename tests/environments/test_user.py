"""A simulated user: its model is the run's, its replies are billed, recorded, replayed, and never trained."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import pytest
from tests.environments.cut_runs import record_ends, resumed_at_cuts, tenths
from tests.environments.test_grown import SETTINGS, every_step

import ramify
import ramify.config.configure
from ramify.core.command import Grow
from ramify.core.environment import REPLIES, AgentTurn, AskModel, Noise, Observation, RewardRule, Takes
from ramify.core.errors import ConfigError
from ramify.core.judge import Verdict
from ramify.core.ledger import Spend
from ramify.core.problem import Problem
from ramify.core.segment import Segment, Usage, token_array
from ramify.core.tool import Branching
from ramify.core.tree import Step
from ramify.environments.task import EnvironmentTask
from ramify.runner.folder import begin
from ramify.runner.saved import Saved
from ramify.runner.work import Path, Work
from ramify.store.check import tree_faults
from ramify.testing import Scripted, ScriptedTurn, bare_tree, check_environment


@dataclass
class Talk:
    """A dialogue. The user's model says what the user says; the user leaves after four replies."""

    shop: "Shop"
    heard: tuple[str, ...] = ()

    async def step_by(self, ask: AskModel, turn: AgentTurn, seed: int) -> Observation:
        reply = "..."
        for _ in range(self.shop.num_asks):
            reply = (await ask(f"You are a customer. The shop said: {turn.text}")).text
        self.heard = (*self.heard, reply)
        return Observation(f"user: {reply}", reward=0.25, end="done" if len(self.heard) == 4 else None)

    async def step(self, turn: AgentTurn, seed: int) -> Observation:
        raise AssertionError("a user is asked through the run")

    async def fork(self) -> "Talk":
        return replace(self)

    def digest(self) -> str | None:
        return repr(self.heard)

    async def score(self, branch: Any, problem: Problem) -> Verdict | None:
        return None

    async def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Shop:
    name: str = "shop"
    action: str = "user"
    takes: Takes = "turns"
    branching: Branching = "fork"
    noise: Noise = "none"
    reward: RewardRule = "sum"
    needs_secret: bool = False
    schemas: Sequence[Any] = ()
    num_asks: int = 1

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        return [Problem(f"shop-{i}", "A customer comes in.") for i in range(num_problems)]

    async def open(self, problem: Problem, seed: int) -> Talk:
        return Talk(self)


def says(turn: ScriptedTurn) -> str:
    """The customer says where it stands, the shop greets."""
    return (
        f"I want a hat, number {turn.seed % 1000}" if "You are a customer" in turn.context else f"hello {turn.seed % 7}"
    )


def grown(environment: Any = Shop(), preset: str = "offline", **settings: Any) -> Any:
    return ramify.rollout_sync(
        task=EnvironmentTask(environment), engine=Scripted(says), preset=preset, **{**SETTINGS, **settings}
    )


def of_user(tree: Any) -> list[int]:
    return [node for node in range(len(tree)) if tree.role(node) == "user"]


@pytest.mark.parametrize("preset", ["arpo", "chains", "offline", "tree_grpo"])
def test_the_user_s_words_are_nodes_beside_the_path(preset: str) -> None:
    rollout = grown(preset=preset)
    for tree in rollout.trees:
        assert not list(tree_faults(tree)) and of_user(tree)
        for node in of_user(tree):
            parent = tree.parent(node)
            assert parent is not None and node in tree.derived(parent) and tree.role(parent) == "policy"
            (call,) = [s.tool_call for s in tree.segments(parent) if s.tool_call is not None]
            assert call.metadata[REPLIES][0]["text"] in tree.branch(node).text
            assert call.result == f"user: {call.metadata[REPLIES][0]['text']}"
        for leaf in tree.leaves():
            assert all(piece.role == "policy" for piece in tree.branch(leaf).pieces)
            assert "I want a hat" not in tree.branch(leaf).said


def test_the_user_is_billed_under_its_own_role_and_never_trained() -> None:
    rollout = grown()
    for tree in rollout.trees:
        spent = tree.spent()
        assert spent["user"].decode == sum(tree.num_sampled(node) for node in of_user(tree)) > 0
    users = {(tree.problem.uid, node) for tree in rollout.trees for node in of_user(tree)}
    for row in rollout.rows():
        text = rollout.trees[0].codec.decode(row.ids[row.weights > 0].tolist())
        assert "I want a hat" not in text
    assert users


def test_a_replay_reads_the_replies_from_the_record() -> None:
    forked, replayed = grown(), grown(Shop(branching="replay"))
    assert [row.ids.tolist() for row in forked.rows()] == [row.ids.tolist() for row in replayed.rows()]
    assert [len(of_user(tree)) for tree in forked.trees] == [len(of_user(tree)) for tree in replayed.trees]
    assert replayed.report.tools["tools/replayed_calls"] > 0


def test_a_user_that_never_stops_asking_is_cut_and_says_so() -> None:
    rollout = grown(Shop(num_asks=100), "chains", prompts=1)
    calls = every_step(rollout)
    assert calls and {call.status for call in calls} == {"crashed"}
    assert all("asked its model more than 8 times in one step" in call.result for call in calls)
    (tree,) = rollout.trees
    assert not list(tree_faults(tree)) and len(of_user(tree)) == 8 * len(calls)


def test_a_budget_holds_with_what_the_user_says() -> None:
    rollout = grown(preset="chains", prompts=2, **{"limits.decode": 60})
    for tree in rollout.trees:
        assert sum(spend.decode for spend in tree.spent().values()) <= 60


def test_an_action_of_another_role_is_refused() -> None:
    settings = {"actions.user": {"role": "judge", "edge": "quotes", "template": "{question}"}}
    with pytest.raises(ConfigError, match=r"asks its model by action 'user', which has role = 'judge'"):
        grown(**settings)


SHOP = """
from tests.environments.test_user import Shop
"""


@pytest.mark.slow
def test_a_saved_run_is_read_and_resumed_with_its_users(tmp_path: FilePath) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    config = ramify.config.configure.resolve(
        preset="offline",
        flags={**SETTINGS, "environment.name": f"{tmp_path / 'shop.py'}:Shop", "prompts": 2},
    ).config
    begin(config, tmp_path / "run")
    whole = Saved.open(tmp_path / "run").tree(0)
    assert whole is not None and of_user(whole) and not list(tree_faults(whole))
    cuts = list(record_ends(tmp_path / "run"))[1:-1]
    assert len(resumed_at_cuts(tmp_path / "run", cuts)) > 20


BROKEN = """
from ramify.core.errors import EngineError
from ramify.testing import Scripted


class Broken(Scripted):
    async def generate(self, request):
        raise EngineError("server_error", "the customer's server is on fire")
"""


@pytest.mark.slow
def test_a_run_whose_user_failed_resumes_to_the_same_trees(tmp_path: FilePath) -> None:
    """The record of a failed reply stands behind its step, and is no failure of the path."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "broken.py").write_text(BROKEN)
    flags = {
        "environment.name": f"{tmp_path / 'shop.py'}:Shop",
        "engines.customer.name": f"{tmp_path / 'broken.py'}:Broken",
        "actions.user": {"engine": "customer", "role": "user", "edge": "quotes", "template": "{question}"},
    }
    config = ramify.config.configure.resolve(preset="chains", flags={**SETTINGS, **flags, "prompts": 1}).config
    begin(config, tmp_path / "whole")
    whole = Saved.open(tmp_path / "whole").tree(0)
    assert whole is not None and {whole.stop(node) for node in of_user(whole)} == {"engine_error"}
    assert len(resumed_at_cuts(tmp_path / "whole", tenths(tmp_path / "whole", range(2, 10)))) == 8


def test_a_step_that_ends_early_bills_what_its_user_said() -> None:
    tree = bare_tree(seed=1)
    work = Work("0", Grow(0), tree.follow(0), tree.branch(0), (), Spend(decode=9), frozenset({"decode"}), print)
    path = Path.begin(work)
    said = Segment("sampled", token_array([1, 2, 3]), usage=Usage(num_calls=1, num_billed=3))
    path.asides.append(Step((said,), "answer", "user", "quotes", "user"))
    path.add(Step((), "cancelled", asides=path.taken_asides()))
    assert path.left("decode") == 6 and path.asides == []


def test_an_environment_with_a_user_keeps_the_contract() -> None:
    check_environment(Shop, turns=["hello", "goodbye"])
