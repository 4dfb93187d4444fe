"""TextWorld against the real textworld."""

import random
from typing import Any

import pytest
from tests.environments.same_state import compare_forks_with_replays, compare_siblings
from tests.environments.worlds import paths_of

from ramify.core.environment import AgentTurn
from ramify.core.errors import ConfigError
from ramify.environments.task import EnvironmentTask
from ramify.environments.textworld import TextWorld

textworld: Any = pytest.importorskip("textworld")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")
OPTIONS = {"nb_rooms": 3, "nb_objects": 5, "quest_length": 3}


def command(rng: random.Random, text: str) -> str:
    """One of the commands that the last text lists, or nonsense."""
    listed = text.rpartition("Commands: ")[2].rstrip(".").split(", ") if "Commands: " in text else ["look"]
    return rng.choice([*listed, "dance"])


@pytest.mark.parametrize(
    "options",
    [
        {"runs_in": "process"},
        {"runs_in": "process", "branching": "replay"},
        {"runs_in": "thread", "branching": "replay"},
    ],
)
async def test_a_forked_state_is_that_of_a_replay(options: dict[str, Any]):
    environment = TextWorld(options=OPTIONS, shows_commands=True, **options)
    for problem in environment.problems("train", 2, 1):
        await compare_forks_with_replays(environment, problem, command, num_turns=500)
    await environment.let_go()


async def test_the_library_copies_a_game_in_a_thread():
    environment = TextWorld(options=OPTIONS, shows_commands=True, runs_in="thread")
    (problem,) = environment.problems("train", 1, 1)
    await compare_forks_with_replays(environment, problem, command, num_turns=1000)


@pytest.mark.parametrize("runs_in", ["thread", "process"])
async def test_siblings_are_independent(runs_in: Any):
    environment = TextWorld(options=OPTIONS, runs_in=runs_in)
    (problem,) = environment.problems("train", 1, 0)
    await compare_siblings(environment, problem, ["look", "inventory", "go east", "go west", "take all", "dance"] * 3)
    await environment.let_go()


async def test_the_walkthrough_wins(tmp_path: Any):
    environment = TextWorld(options=OPTIONS, folder=str(tmp_path))
    (problem,) = environment.problems("heldout", 1, 0)
    (file,) = tmp_path.glob("*.z8")
    named = TextWorld(games=[str(file)])
    (same,) = named.problems("train", 1, 0)
    assert same.question == problem.question and same.public == {"game": str(file)}
    game = textworld.generator.Game.load(str(file.with_suffix(".json")))
    episode = await named.open(same, 0)
    observed = [await episode.step(AgentTurn(each), 0) for each in game.metadata["walkthrough"]]
    assert observed[-1].end == "done" and sum(each.reward or 0 for each in observed) >= 1
    assert not any("$$" in text for text in (same.question, *(each.text for each in observed)))
    await named.let_go()


def test_files_and_options_are_checked(tmp_path: Any):
    with pytest.raises(ConfigError, match="there is no file"):
        TextWorld(games=[str(tmp_path / "none.z8")]).problems("train", 1, 0)
    with pytest.raises(ConfigError, match="2 problems asked for, 1 games named"):
        TextWorld(games=["a.z8"]).problems("train", 2, 0)
    with pytest.raises(ConfigError, match=r"options\.rooms"):
        TextWorld(options={"rooms": 3}, folder=str(tmp_path)).problems("train", 1, 0)


@pytest.mark.parametrize("preset", ["arpo", "offline", "mcts"])
def test_a_run_grows_it_twice_the_same(preset: str):
    task = EnvironmentTask(TextWorld(options=OPTIONS, max_steps=4))
    assert paths_of(task, preset) == paths_of(task, preset)
