"""TextArena against the real textarena."""

import random
from typing import Any

import pytest
from tests.environments.same_state import compare_forks_with_replays, compare_siblings
from tests.environments.worlds import paths_of

from ramify.core.environment import AgentTurn
from ramify.core.errors import ConfigError
from ramify.environments.task import EnvironmentTask
from ramify.environments.textarena import TextArena

textarena: Any = pytest.importorskip("textarena")

GAMES = {
    "GuessTheNumber-v0": [f"[{number}]" for number in range(1, 21)],
    "2048-v0": ["[Up]", "[Down]", "[Left]", "[Right]"],
    "Bandit-v0": ["[red]", "[blue]", "[green]", "[yellow]", "[purple]"],
    "Minesweeper-v0": [f"[{row} {column}]" for row in range(8) for column in range(8)],
    "TowerOfHanoi-v0": ["[A B]", "[A C]", "[B C]", "[C B]", "[B A]"],
    "LightsOut-v0": [f"[{row} {column}]" for row in range(5) for column in range(5)],
}


@pytest.mark.parametrize("id", GAMES)
async def test_a_forked_state_is_that_of_a_replay(id: str):
    environment = TextArena(id=id, max_steps=30)
    (problem,) = environment.problems("train", 1, 2)
    await compare_forks_with_replays(environment, problem, lambda rng, _: rng.choice(GAMES[id]), num_turns=400)
    await environment.let_go()


@pytest.mark.parametrize("id", GAMES)
async def test_a_forked_state_is_that_of_a_replay_in_threads(id: str):
    environment = TextArena(id=id, runs_in="thread", max_steps=30)
    (problem,) = environment.problems("heldout", 1, 2)
    await compare_forks_with_replays(environment, problem, lambda rng, _: rng.choice(GAMES[id]), num_turns=1000)


@pytest.mark.parametrize("id", GAMES)
async def test_siblings_are_independent(id: str):
    environment = TextArena(id=id)
    (problem,) = environment.problems("train", 1, 0)
    await compare_siblings(environment, problem, [random.Random(3).choice(GAMES[id]) for _ in range(12)])
    await environment.let_go()


async def test_an_observation_holds_only_what_is_new():
    environment = TextArena(id="GuessTheNumber-v0", runs_in="thread")
    (problem,) = environment.problems("train", 1, 5)
    episode = await environment.open(problem, 0)
    for number in ("[1]", "[2]", "[3]"):
        text = (await episode.step(AgentTurn(f"I say {number}"), 0)).text
        assert text in ("The target number is higher.", "The target number is lower.") or "Congratulations" in text


async def test_strikes_belong_to_the_game():
    environment = TextArena(id="GuessTheNumber-v0")
    (problem,) = environment.problems("train", 1, 5)
    episode = await environment.open(problem, 0)
    first, second = [await episode.step(AgentTurn("no number"), 0) for _ in range(2)]
    assert (first.status, first.end, first.reward) == ("ok", None, None)
    assert (second.end, second.reward, second.parts) == ("done", 0.0, {"invalid_move": 1.0})
    await environment.let_go()


@pytest.mark.parametrize(
    ("id", "words"), [("TicTacToe-v0", "has to be 2, received 1"), ("Nope-v0", "not found in registry")]
)
def test_a_game_that_does_not_start_is_a_config_error(id: str, words: str):
    with pytest.raises(ConfigError, match=words):
        TextArena(id=id).check_start()


@pytest.mark.parametrize("preset", ["arpo", "offline", "mcts"])
def test_a_run_grows_it_twice_the_same(preset: str):
    task = EnvironmentTask(TextArena(id="GuessTheNumber-v0"))
    assert paths_of(task, preset) == paths_of(task, preset)
