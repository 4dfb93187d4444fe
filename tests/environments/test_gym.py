"""Gym against the real gymnasium."""

import random
from typing import Any

import pytest
from tests.environments.same_state import compare_forks_with_replays, compare_siblings
from tests.environments.worlds import paths_of

from ramify.core.environment import AgentTurn
from ramify.core.errors import ConfigError
from ramify.environments.action_spaces import action_of, actions_in_words
from ramify.environments.gym import Gym
from ramify.environments.task import EnvironmentTask
from ramify.environments.text_games import IllegalMove

gymnasium: Any = pytest.importorskip("gymnasium")

GAMES = {
    "FrozenLake-v1": ["left", "down", "right", "up", "no such thing"],
    "Taxi-v4": ["south", "north", "east", "west", "pickup", "dropoff"],
    "CliffWalking-v1": ["up", "0", "right", "down"],
    "Blackjack-v1": ["hit", "stick", "I think it over\nhit"],
    "CartPole-v1": ["left", "right"],
    "Pendulum-v1": ["0.5", "[-1.25]", "9", "nothing"],
}


def game(id: str, **options: Any) -> Gym:
    return Gym(id=id, **{"max_steps": 40, **options})


@pytest.mark.parametrize("id", GAMES)
async def test_a_forked_state_is_that_of_a_replay(id: str):
    environment = game(id)
    for problem in environment.problems("train", 2, 3):
        await compare_forks_with_replays(environment, problem, lambda rng, _: rng.choice(GAMES[id]), num_turns=1000)


@pytest.mark.parametrize("id", ["FrozenLake-v1", "Blackjack-v1"])
async def test_a_forked_state_is_that_of_a_replay_in_processes(id: str):
    environment = game(id, runs_in="process")
    (problem,) = environment.problems("heldout", 1, 0)
    await compare_forks_with_replays(environment, problem, lambda rng, _: rng.choice(GAMES[id]), num_turns=300)
    await environment.let_go()


@pytest.mark.parametrize("id", GAMES)
async def test_siblings_are_independent(id: str):
    environment = game(id)
    (problem,) = environment.problems("train", 1, 0)
    await compare_siblings(environment, problem, [random.Random(7).choice(GAMES[id]) for _ in range(20)])


async def test_a_step_draws_from_its_seed_alone():
    environment = game("FrozenLake-v1")
    (problem,) = environment.problems("train", 1, 0)
    seen: dict[int, set[str]] = {}
    for seed in (*range(20), *range(20)):
        episode = await environment.open(problem, 0)
        seen.setdefault(seed, set()).add((await episode.step(AgentTurn("right"), seed)).text)
    assert all(len(texts) == 1 for texts in seen.values())
    assert len(set.union(*seen.values())) > 1


def test_a_problem_is_a_seed_with_its_first_observation():
    first, second = game("FrozenLake-v1").problems("train", 2, 0)
    (held_out,) = game("FrozenLake-v1").problems("heldout", 1, 0)
    assert (first.uid, second.uid) == ("FrozenLake-v1-0", "FrozenLake-v1-1")
    assert second.public == {"seed": 1} and held_out.public == {"seed": 1 << 30}
    assert "[S]FFF" in first.question and first.question.endswith("Actions: left, down, right, up.")


def test_rules_and_action_names_come_from_options():
    environment = Gym(id="CliffWalking-v1", rules="Walk.", actions=["N", "E", "S", "W"])
    (problem,) = environment.problems("train", 1, 0)
    assert problem.question.startswith("Walk.\n\n") and problem.question.endswith("Actions: N, E, S, W.")
    world = environment.world(problem, 0)
    assert world.step(AgentTurn("N"), 0).reward == -1
    with pytest.raises(ConfigError, match="the space has 4 actions"):
        Gym(id="CliffWalking-v1", actions=["N"]).problems("train", 1, 0)


def test_what_is_no_action_is_an_error_and_no_step():
    environment = game("Blackjack-v1")
    (problem,) = environment.problems("train", 1, 0)
    world = environment.world(problem, 0)
    before = world.game.digest()
    for text in ("", "maybe", "7", "-1", "1.5", "nan", "9" * 400):
        observed = world.step(AgentTurn(text), 0)
        assert observed.status == "error" and observed.reward is None and "stick, hit" in observed.text
    assert world.game.digest() == before


@pytest.mark.parametrize(
    ("text", "is_read"), [("0 1", True), ("[0, 1]", True), ("0 2", False), ("0", False), ("0 x", False)]
)
def test_several_numbers_are_an_action(text: str, is_read: bool):
    space = gymnasium.spaces.MultiDiscrete([2, 2])
    if is_read:
        assert action_of(text, space, ()).tolist() == [0, 1]
    else:
        with pytest.raises(IllegalMove, match="is no action"):
            action_of(text, space, ())


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (gymnasium.spaces.MultiBinary(2), "1 0"),
        (gymnasium.spaces.Box(-1.0, 1.0, (2, 2)), "0.5, 0, -1, 1"),
        (gymnasium.spaces.Text(5), "Hello"),
        (gymnasium.spaces.Discrete(3, start=4), "6"),
    ],
)
def test_spaces_say_their_actions_and_read_them(space: Any, text: str):
    assert actions_in_words(space, ()).startswith("Actions: ")
    assert space.contains(action_of(text, space, ()))


def test_the_limit_of_turns_truncates_and_counts_unread_turns():
    environment = Gym(id="FrozenLake-v1", max_steps=3)
    (problem,) = environment.problems("train", 1, 0)
    world = environment.world(problem, 0)
    assert [world.step(AgentTurn("?"), 0).end for _ in range(3)] == [None, None, "truncated"]


@pytest.mark.parametrize(
    ("id", "words"),
    [("Taxi-v3", "Please use `Taxi-v4` instead"), ("Nope-v0", "doesn't exist"), ("nomodule:Foo-v1", "nomodule")],
)
def test_an_id_that_gymnasium_refuses_is_told_in_its_words(id: str, words: str):
    with pytest.raises(ConfigError, match=words):
        Gym(id=id).check_start()


@pytest.mark.parametrize("preset", ["arpo", "offline", "mcts"])
def test_a_run_grows_it_twice_the_same(preset: str):
    task = EnvironmentTask(game("FrozenLake-v1", max_steps=6))
    assert paths_of(task, preset) == paths_of(task, preset)
