"""The task `reasoning_gym` against the real reasoning_gym."""

from typing import Any

import pytest

import ramify
from ramify.core.errors import ConfigError
from ramify.tasks.reasoning_gym import ReasoningGym
from ramify.testing.scripted import Scripted

reasoning_gym: Any = pytest.importorskip("reasoning_gym")


def test_entries_depend_on_seed_and_index_alone():
    few, many = (ReasoningGym("leg_counting").problems("train", number, 3) for number in (2, 5))
    assert many[:2] == few
    assert {problem.uid for problem in many}.isdisjoint(
        problem.uid for problem in ReasoningGym("leg_counting").problems("heldout", 5, 3)
    )
    assert len({problem.question for problem in many}) == 5


def grown(set: str, answer: str) -> list[Any]:
    options: dict[str, Any] = {"prompts": 1, "preset": "chains", "max_failed_share": 1.0}
    (tree,) = ramify.rollout_sync(
        task=ReasoningGym(set), engine=Scripted(lambda turn: f"<answer>{answer}</answer>"), **options
    ).trees
    return [(tree.reward(leaf), tree.stop(leaf)) for leaf in tree.leaves()]


def test_the_sets_own_scorer_gives_the_reward():
    (problem,) = ReasoningGym("leg_counting").problems("heldout", 1, 0)
    rewards = {reward for reward, _ in grown("leg_counting", problem.secret["answer"])}
    assert rewards == {1.0}
    assert {reward for reward, _ in grown("leg_counting", "many")} == {0.0}


def test_a_scorer_that_raises_is_a_fault_of_the_judge():
    assert {reward for reward, _ in grown("prime_factorization", "nonsense")} == {None}


def test_a_set_without_answers_is_scored():
    (problem,) = ReasoningGym("rubiks_cube").problems("train", 1, 0)
    assert problem.secret == {"answer": None}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"set": "nope"}, "'nope' not registered"),
        ({"set": "leg_counting", "options": {"legs": 3}}, "legs"),
        ({"set": "leg_counting", "size": 2}, "size = 2"),
    ],
)
def test_a_set_that_cannot_be_made_is_a_config_error(options: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        ReasoningGym(**options).problems("train", 3, 0)
