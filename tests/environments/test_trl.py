"""TRL's environment classes, both ways. The trainer's own calls are repeated here as trl 1.16.0 makes them."""

import copy
import inspect
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.environments.worlds import Walking, paths_of

from ramify.core.environment import AgentTurn
from ramify.core.errors import ConfigError
from ramify.environments.task import EnvironmentTask
from ramify.environments.trl import Trl
from ramify.environments.trl_class import as_trl, trl_rows

FILE = str(Path(__file__).parent / "trl_classes.py")
ROWS = [{"prompt": [{"role": "user", "content": f"Guess {i}."}], "size": 10 + i, "answer": 5 + i} for i in range(4)]


def guessing(**options: Any) -> Trl:
    return Trl(factory=f"{FILE}:GuessGame", rows=ROWS, **options)


def call(number: Any) -> AgentTurn:
    return AgentTurn(tool="guess", arguments=json.dumps({"number": number}))


def test_public_methods_are_functions_with_their_parameters():
    guess, history = guessing().schemas
    assert (guess["name"], history["name"]) == ("guess", "history")
    assert guess["parameters"]["properties"]["number"]["type"] == "integer"


def test_the_question_is_the_last_message_with_what_reset_adds():
    first, *_ = guessing().problems("train", 2, 0)
    assert first.question == "Guess 0. It is from 0 to 10."
    assert first.secret == {"answer": 5} and "answer" not in first.public


@pytest.mark.parametrize("runs_in", ["thread", "process"])
async def test_a_copy_has_methods_of_its_own(runs_in: Any):
    environment = guessing(runs_in=runs_in)
    (problem,) = environment.problems("train", 1, 0)
    episode = await environment.open(problem.for_agents(), 0)
    assert (await episode.step(call(9), 0)).text == "lower"
    other = await episode.fork()
    assert (await other.step(call(5), 0)).text == "right"
    assert (await episode.step(AgentTurn(tool="history", arguments="{}"), 0)).text == "[9]"
    branch: Any = type("Said", (), {"said": ""})()
    scores = [await each.score(branch, problem) for each in (episode, other)]
    assert [score.value for score in scores if score] == [0.0, 0.5]
    await episode.close()
    await other.close()
    await environment.let_go()


async def test_forked_state_is_that_of_a_replay():
    environment = guessing()
    (problem,) = environment.problems("train", 1, 0)
    rng, done = random.Random(0), 0
    while done < 1000:
        numbers = [rng.choice([-1, 3, 5, "x"]) for _ in range(rng.randrange(2, 20))]
        episode = await environment.open(problem, 0)
        for number in numbers[:-1]:
            await episode.step(call(number), 0)
        fork, replay = await episode.fork(), await environment.open(problem, 0)
        before = episode.digest()
        seen = [await replay.step(call(number), 0) for number in numbers]
        assert await fork.step(call(numbers[-1]), 0) == seen[-1]
        assert fork.digest() == replay.digest() and episode.digest() == before
        done += 2 * len(numbers)


async def test_what_a_method_raises_is_an_error_that_the_model_reads():
    environment = guessing()
    (problem,) = environment.problems("train", 1, 0)
    episode = await environment.open(problem, 0)
    observed = await episode.step(call(-1), 0)
    assert (observed.status, observed.text) == ("error", "ValueError: the number is not negative")
    assert (await episode.step(AgentTurn(tool="guess", arguments="no JSON"), 0)).status == "error"


async def test_reset_gets_no_answer_unless_it_needs_the_secret():
    rows = [{"prompt": "Look.", "answer": 7}]
    with pytest.raises(ConfigError, match="needs_secret = true"):
        Trl(factory=f"{FILE}:NeedsAnswer", rows=rows).problems("train", 1, 0)
    knowing = Trl(factory=f"{FILE}:NeedsAnswer", rows=rows, needs_secret=True)
    (problem,) = knowing.problems("train", 1, 0)
    assert "7" not in problem.question
    assert (
        await (await knowing.open(problem, 0)).step(AgentTurn(tool="look", arguments="{}"), 0)
    ).text == "nothing here"
    environment = guessing()
    (problem,) = environment.problems("train", 1, 0)
    assert "answer" not in environment.world(problem.for_agents(), 0).instance.seen


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"factory": f"{FILE}:Nobody"}, "has no 'Nobody'"),
        ({"factory": "nowhere.py:A"}, "no file 'nowhere.py'"),
        ({"factory": "no_such_module:A"}, "no_such_module"),
        ({"rows": "none.jsonl"}, "none.jsonl"),
    ],
)
def test_what_cannot_be_found_is_a_config_error(options: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        Trl(**{"factory": f"{FILE}:GuessGame", "rows": ROWS, **options}).problems("train", 1, 0)


@pytest.mark.parametrize("preset", ["arpo", "offline", "mcts"])
def test_a_run_grows_it_twice_the_same(preset: str):
    task = EnvironmentTask(guessing())
    assert paths_of(task, preset) == paths_of(task, preset)


def as_the_trainer_does(made: type, row: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An instance after `reset`, and its tools, as `GRPOTrainer` takes them."""
    instance = made()
    tools = {
        name: getattr(instance, name)
        for name, _ in inspect.getmembers(type(instance), predicate=inspect.isfunction)
        if name not in ("reset", "get_reward") and not name.startswith("_")
    }
    assert instance.reset(**row) is None
    return instance, tools


def test_an_environment_that_takes_turns_is_a_class_for_the_trainer():
    environment = Walking()
    problems = environment.problems("train", 2, 0)
    made = as_trl(environment, problems)
    rows = trl_rows(problems)
    instance, tools = as_the_trainer_does(made, rows[1])
    other, _ = as_the_trainer_does(made, rows[0])
    assert list(tools) == ["act"] and list(inspect.signature(tools["act"]).parameters) == ["action"]
    texts = [tools["act"](action="on") for _ in range(9)]
    assert texts[0].startswith("you are at") and texts[-1] == "the episode is over"
    assert isinstance(instance.get_reward(), float)
    assert other.get_reward() == 0.0
    instance.reset(**rows[0])
    assert instance.get_reward() == 0.0


def test_rollouts_of_one_problem_have_noise_of_their_own():
    environment = Walking()
    problems = environment.problems("train", 1, 0)
    made = as_trl(environment, problems)
    (row,) = trl_rows(problems)
    told = set[tuple[str, ...]]()
    for _ in range(8):
        _, tools = as_the_trainer_does(made, row)
        told.add(tuple(tools["act"](action="on") for _ in range(6)))
    assert len(told) > 1


def test_functions_of_an_environment_are_methods_with_hints_and_docstrings():
    environment = guessing()
    problems = environment.problems("train", 1, 0)
    made = as_trl(environment, problems)
    instance, tools = as_the_trainer_does(made, trl_rows(problems)[0])
    assert sorted(tools) == ["guess", "history"]
    assert inspect.signature(tools["guess"]).parameters["number"].annotation is int
    assert "number: Your guess." in tools["guess"].__doc__
    assert tools["guess"](number=5) == "right" and tools["history"]() == "[5]"
    assert instance.get_reward() == 1.0
    assert copy.copy(instance) is not instance


def test_transformers_reads_the_schema_of_a_method():
    utils = pytest.importorskip("transformers.utils")
    environment = guessing()
    made = as_trl(environment, environment.problems("train", 1, 0))
    function = utils.get_json_schema(made().guess)["function"]
    assert function["parameters"]["properties"]["number"] == {"type": "integer", "description": "Your guess."}
