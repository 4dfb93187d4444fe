"""Environments in trees: every turn is answered, ends and rewards are the world's, forks and replays agree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from tests.environments.worlds import Walk, Walking

import ramify
from ramify.core.branch import Branch
from ramify.core.environment import EARNED, ENVIRONMENT, AgentTurn, Noise, Observation, Reward, RewardRule
from ramify.core.errors import ConfigError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.segment import ToolCall
from ramify.core.tool import STATE_DIGEST
from ramify.core.tree import Tree
from ramify.credit import forest_of
from ramify.environments.blocking import BlockingEnvironment
from ramify.environments.task import EnvironmentTask
from ramify.rows import sft
from ramify.runner.toolbox import Toolbox
from ramify.testing import BrokenRule, check_environment

SETTINGS: dict[str, Any] = {"engine.name": "scripted", "prompts": 3, "seed": 2, "growth.max_response_tokens": 600}


def grown(environment: Any, preset: str = "offline", reward: Reward | None = None, **settings: Any) -> Any:
    return ramify.rollout_sync(task=EnvironmentTask(environment, reward), preset=preset, **{**SETTINGS, **settings})


def steps_of(tree: Tree, node: int) -> list[ToolCall]:
    """The calls on the branch of a node that the world answered."""
    return [call for call in tree.branch(node).tool_calls if call.status in ("ok", "empty", "error")]


def every_step(rollout: Any) -> list[ToolCall]:
    return [
        call
        for tree in rollout.trees
        for node in range(len(tree))
        for s in tree.segments(node)
        if (call := s.tool_call)
    ]


@pytest.mark.parametrize(
    "preset",
    [
        "arpo",
        "chains",
        "offline",
        "tree_grpo",
        "treerl",
        "treepo",
        "at2po",
        pytest.param("spo", marks=pytest.mark.slow),
    ],
)
def test_every_state_is_that_of_its_path(preset: str) -> None:
    """A fresh walk with the recorded seeds stands where each branch says."""
    rollout = grown(Walking(), preset)
    checked = 0
    for tree in rollout.trees:
        for leaf in tree.leaves():
            walk = Walk()
            for call in steps_of(tree, leaf):
                observed = walk.step(AgentTurn(text=call.arguments), call.seed or 0)
                assert (observed.text, observed.reward, observed.end) == (call.result, call.reward, call.end)
                assert walk.digest() == call.metadata[STATE_DIGEST]
                checked += 1
    assert checked > 10


@pytest.mark.slow
@pytest.mark.parametrize("branching", ["fork", "replay"])
def test_a_tree_is_the_same_however_its_states_branch(branching: Any) -> None:
    forked, other = grown(Walking()), grown(Walking(branching=branching))
    assert [row.ids.tolist() for row in forked.rows()] == [row.ids.tolist() for row in other.rows()]
    assert [row.reward for row in forked.rows()] == [row.reward for row in other.rows()]


def test_siblings_draw_apart_and_replays_draw_the_same() -> None:
    seeds = [call.seed for call in every_step(grown(Walking()))]
    assert len(set(seeds)) == len(seeds) and None not in seeds


@dataclass(frozen=True, kw_only=True)
class SharedWalking(Walking):
    noise: ClassVar[Noise] = "shared"


@dataclass(frozen=True, kw_only=True)
class QuietWalking(Walking):
    noise: ClassVar[Noise] = "none"


def test_shared_noise_is_a_seed_of_problem_and_depth() -> None:
    rollout = grown(SharedWalking())
    for tree in rollout.trees:
        by_depth: dict[int, set[Any]] = {}
        for leaf in tree.leaves():
            for depth, call in enumerate(steps_of(tree, leaf)):
                by_depth.setdefault(depth, set()).add(call.seed)
        assert by_depth and all(len(seeds) == 1 for seeds in by_depth.values())
    assert {call.seed for call in every_step(grown(QuietWalking()))} == {None}


def test_the_end_is_the_world_s() -> None:
    rollout = grown(Walking(), **{"growth.max_response_tokens": 4000})
    stops = {tree.stop(leaf) for tree in rollout.trees for leaf in tree.leaves()}
    assert {"done", "env_limit"} & stops
    for tree in rollout.trees:
        for leaf in tree.leaves():
            last = steps_of(tree, leaf)[-1]
            assert {"done": "done", "env_limit": "truncated"}.get(tree.stop(leaf) or "") == last.end


@pytest.mark.parametrize(
    ("rule", "discount", "wanted"),
    [
        ("sum", 1.0, lambda rewards, score: sum(rewards) + score),
        ("last", 1.0, lambda rewards, score: score),
        ("discounted", 0.5, lambda r, score: sum(x * 0.5**i for i, x in enumerate(r)) + score * 0.5 ** len(r)),
    ],
)
def test_rewards_are_composed_by_the_named_rule(rule: RewardRule, discount: float, wanted: Any) -> None:
    rollout = grown(Walking(), reward=Reward(rule, discount))
    for tree in rollout.trees:
        for leaf in tree.leaves():
            steps = steps_of(tree, leaf)
            place = int(steps[-1].result.split()[-1]) if steps else 0
            assert tree.reward(leaf) == pytest.approx(wanted([s.reward for s in steps], float(place)))
            notes = [tree.notes(node).get(EARNED) for node in tree.path(leaf) if EARNED in tree.notes(node)]
            assert len(notes) == (0 if rule == "last" else len(steps))
        forest = forest_of(tree)
        assert (forest.earned is None) == (rule == "last")


def test_the_parts_of_a_reward_are_kept() -> None:
    rollout = grown(Walking())
    score = rollout.trees[0].reward_score(rollout.trees[0].leaves()[0])
    assert score.judge == ENVIRONMENT and not score.is_oracle
    assert {"steps", "score", "slips", "place"} <= dict(score.parts).keys()


def test_a_turn_limit_ends_the_path_behind_its_last_step() -> None:
    rollout = grown(Walking(), **{"growth.max_turns": 2})
    ended = [(tree, leaf) for tree in rollout.trees for leaf in tree.leaves() if tree.stop(leaf) == "turn_limit"]
    assert ended and all(len(steps_of(tree, leaf)) == 2 for tree, leaf in ended)


# -- bad worlds -------------------------------------------------------------------------------------------------------


@dataclass
class BadWalk(Walk):
    how: str = ""

    def step(self, turn: AgentTurn, seed: int) -> Observation:
        observed = super().step(turn, seed)
        match self.how:
            case "nan":
                return replace(observed, reward=math.nan)
            case "raises":
                raise ValueError("the board is on fire")
            case "text":
                return "just a text"  # type: ignore[return-value]
            case "end":
                return replace(observed, end="over")  # type: ignore[arg-type]
            case _:
                return observed

    def copy(self) -> "BadWalk":
        return self if self.how == "shares" else BadWalk(self.place, self.num_steps, list(self.said), self.how)

    def score(self, said: str, problem: Problem) -> Verdict | None:
        if self.how == "score raises":
            raise KeyError("gold")
        return Verdict(math.nan) if self.how == "score nan" else None


@dataclass(frozen=True, kw_only=True)
class BadWalking(Walking):
    name: ClassVar[str] = "bad"
    how: str = ""

    def world(self, problem: Problem, seed: int) -> Walk:
        if self.how == "open":
            raise OSError("no such board")
        return BadWalk(how=self.how)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nan", "the reward nan; a reward is a finite number or None"),
        ("raises", "ValueError: the board is on fire"),
        ("end", "the end 'over'; there are None, 'done', 'truncated'"),
        ("open", "no such board"),
    ],
)
def test_a_fault_of_the_world_is_an_observation_that_says_it(how: str, said: str) -> None:
    rollout = grown(BadWalking(how=how), "chains", **{"tools.max_retries": 0, "prompts": 1})
    calls = every_step(rollout)
    assert calls and {call.status for call in calls} == {"crashed"}
    assert all(said in call.result for call in calls)
    assert {call.reward for call in calls} == {None}


def test_a_bare_text_is_an_observation() -> None:
    calls = every_step(grown(BadWalking(how="text"), "chains", prompts=1))
    assert {call.result for call in calls} == {"just a text"} and {call.reward for call in calls} == {None}


@pytest.mark.parametrize(("how", "said"), [("score raises", "KeyError: 'gold'"), ("score nan", "nan")])
def test_a_fault_of_a_score_is_no_reward(how: str, said: str) -> None:
    rollout = grown(BadWalking(how=how), "chains", prompts=1)
    (tree,) = rollout.trees
    assert all(tree.reward(leaf) is None and said in str(tree.notes(leaf)["judge"]) for leaf in tree.leaves())


def test_a_shared_state_is_found() -> None:
    with pytest.raises(BrokenRule, match="a fork and its trunk are apart"):
        check_environment(lambda: BadWalking(how="shares"), turns=["right", "left"])


@dataclass(frozen=True, kw_only=True)
class GlobalWalking(Walking):
    """Its walks draw from one generator that is carried along."""

    def world(self, problem: Problem, seed: int) -> Walk:
        return GlobalWalk()


class GlobalWalk(Walk):
    steps: ClassVar[list[int]] = []

    def step(self, turn: AgentTurn, seed: int) -> Observation:
        self.steps.append(seed)
        return replace(super().step(turn, seed), text=f"step {len(self.steps)} of all")

    def copy(self) -> "GlobalWalk":
        return GlobalWalk(self.place, self.num_steps, list(self.said))


def test_shared_globals_are_found() -> None:
    with pytest.raises(BrokenRule, match="a replay gives the same"):
        check_environment(GlobalWalking)


def test_shared_globals_are_found_at_run_time_by_a_replay() -> None:
    rollout = grown(GlobalWalking(branching="replay"), max_failed_share=1.0)
    stops = {tree.stop(node) for tree in rollout.trees for node in range(len(tree))}
    assert "replay_diverged" in stops


def test_the_walk_keeps_its_contract() -> None:
    check_environment(Walking)


@dataclass(frozen=True, kw_only=True)
class Tells(Walking):
    needs_secret: ClassVar[bool] = True

    def world(self, problem: Problem, seed: int) -> Walk:
        return TellingWalk(told=str(dict(problem.secret)))


@dataclass
class TellingWalk(Walk):
    told: str = ""

    def step(self, turn: AgentTurn, seed: int) -> Observation:
        return replace(super().step(turn, seed), text=self.told)

    def copy(self) -> "TellingWalk":
        return TellingWalk(self.place, self.num_steps, list(self.said), self.told)


def test_a_told_secret_is_found() -> None:
    with pytest.raises(BrokenRule, match="no text holds a secret"):
        check_environment(Tells)


def test_the_secret_reaches_only_an_environment_that_needs_it() -> None:
    problem = Problem("p", "walk", secret={"gold": "treasure"})

    @dataclass(frozen=True, kw_only=True)
    class Peeks(Walking):
        def world(self, problem: Problem, seed: int) -> Walk:
            return TellingWalk(told=str(dict(problem.secret)))

    rollout = ramify.rollout_sync(
        [problem], task=EnvironmentTask(Peeks()), preset="chains", **{**SETTINGS, "prompts": 1}
    )
    assert {call.result for call in every_step(rollout)} == {"{}"}
    rollout = ramify.rollout_sync(
        [problem], task=EnvironmentTask(Tells()), preset="chains", **{**SETTINGS, "prompts": 1}
    )
    assert all("treasure" in call.result for call in every_step(rollout))
    assert all(score.is_oracle for tree in rollout.trees for leaf in tree.leaves() for score in tree.scores(leaf))


@dataclass(frozen=True, kw_only=True)
class Refusing(Walking):
    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        return [Problem(f"r{i}", "walk") for i in range(num_problems)]


@pytest.mark.slow
def test_what_can_neither_be_forked_nor_replayed_is_refused_at_the_fork() -> None:
    calls = every_step(grown(Refusing(branching="refuse"), "arpo"))
    refused = {call.result for call in calls if call.status == "refused"}
    assert refused == {"its state is another branch's, and it can neither be copied nor rebuilt"}


def test_an_environment_that_cannot_be_used_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'walking' has branching = 'share'"):
        EnvironmentTask(Walking(branching="share"))

    class Mute(BlockingEnvironment):
        name = "mute"
        takes = "calls"

    with pytest.raises(ConfigError, match=r"'mute' takes calls and has no function to call"):
        EnvironmentTask(Mute())
    with pytest.raises(ConfigError, match=r"environment.discount = 0.5 has no effect with the rule 'sum'"):
        Reward("sum", 0.5)
    with pytest.raises(ConfigError, match=r"environment.discount = 2: it is above 0 and at most 1"):
        Reward("discounted", 2)


def test_a_run_says_at_its_start_what_cannot_be_resumed() -> None:
    told = Toolbox(EnvironmentTask(Walking(branching="refuse")).tools, problems={}).unresumable()
    assert len(told) == 1 and told[0].startswith("the state of walking can neither be copied nor rebuilt")
    assert Toolbox(EnvironmentTask(Walking()).tools, problems={}).unresumable() == []


def test_the_best_state_answers_where_no_text_does() -> None:
    rollout = grown(Walking(), "chains", prompts=1)
    (tree,) = rollout.trees
    (answers,) = rollout.answers()
    rewards = {leaf: tree.reward(leaf) for leaf in tree.leaves()}
    assert answers.node is not None and rewards[answers.node] == max(rewards.values())
    place = tree.branch(answers.node).tool_calls[-1].metadata[STATE_DIGEST]
    assert answers.answer == f"state {place}"
    assert not answers.is_unread


def test_a_search_ranks_states_by_their_score() -> None:
    settings = {
        "strategy": "mcts",
        "strategy.options": {"n": 12, "judge": "environment", "outcome": "reward"},
        "prompts": 2,
    }
    rollout = ramify.rollout_sync(task=EnvironmentTask(Walking()), **{**SETTINGS, **settings})
    for answers in rollout.answers():
        assert answers.ranked and [each.score for each in answers.ranked] == sorted(
            (each.score for each in answers.ranked), reverse=True
        )
        assert answers.answer is not None and answers.answer.startswith("state ")


def test_demonstrations_show_the_world_s_answer_as_the_user_s_turn() -> None:
    (tree,) = grown(Walking(), "chains", prompts=1).trees
    example = sft.examples(tree)[0]
    roles = [message["role"] for message in example.messages]
    assert "tool" not in roles and roles[:3] == ["user", "assistant", "user"]


def below(branch: Branch, value: float) -> str | None:
    return "too far to the left" if value < -0.5 else None


@pytest.mark.slow
def test_a_prune_rule_reads_the_environment_s_score() -> None:
    rule = {"growth.prune": f"{__file__}:below", "growth.prune_judge": "environment"}
    trees = grown(Walking(), "chains", **rule).trees
    notes = [tree.notes(leaf) for tree in trees for leaf in tree.leaves() if tree.stop(leaf) == "closed"]
    assert notes and {note["closed"] for note in notes} == {"too far to the left"}
    assert not any("judge" in tree.notes(node) for tree in trees for node in range(len(tree)))


@dataclass(frozen=True, kw_only=True)
class FewWalks(Walking):
    max_sessions: ClassVar[int] = 2


@pytest.mark.slow
def test_an_environment_may_limit_the_episodes_that_wait() -> None:
    few, many = grown(FewWalks()), grown(Walking())
    assert few.report.tools["tools/parked_sessions"] == 0  # all are released with their trees
    assert few.report.tools["tools/evicted_sessions"] > 0 == many.report.tools["tools/evicted_sessions"]
    assert [row.ids.tolist() for row in few.rows()] == [row.ids.tolist() for row in many.rows()]
