"""What every task that makes its own problems promises; add a task to the table and it is held to it."""

import re

import pytest

from ramify import plugins
from ramify.core.errors import ConfigError
from ramify.core.task import Task

NAMES = [name for name in plugins.known("task") if name != "data"]


@pytest.fixture(params=NAMES)
def task(request: pytest.FixtureRequest) -> Task:
    return plugins.build("task", request.param)


def test_problems_are_as_many_as_asked_for_and_distinct(task: Task) -> None:
    problems = task.problems("heldout", 100, 0)
    assert len(problems) == len({p.uid for p in problems}) == 100
    assert {p.split for p in problems} == {"heldout"}


def test_one_seed_gives_the_same_problems_and_fewer_are_the_first_of_them(task: Task) -> None:
    problems = task.problems("heldout", 40, 3)
    assert problems == task.problems("heldout", 40, 3)
    assert problems[:10] == task.problems("heldout", 10, 3)
    assert problems != task.problems("heldout", 40, 4)


def test_no_problem_is_on_both_sides_of_the_split(task: Task) -> None:
    train, heldout = ({p.uid for p in task.problems(split, 500, 0)} for split in ("train", "heldout"))
    assert not train & heldout


def test_an_unknown_split_is_refused_with_those_there_are(task: Task) -> None:
    with pytest.raises(ConfigError, match=r"split 'tset': .*'train' and 'heldout'"):
        task.problems("tset", 1, 0)


def test_its_format_calls_its_tools_and_it_has_a_judge(task: Task) -> None:
    assert set(task.format.tools()) == {tool.name for tool in task.tools}
    assert task.judges


def test_nobody_but_an_oracle_sees_the_secret(task: Task) -> None:
    for problem in task.problems("heldout", 20, 0):
        assert not problem.for_agents().secret
        assert not problem.secret or task.judges[-1].is_oracle
        assert not re.search(r"answer|gold", str(list(problem.public)))


def test_answers_are_the_same_whatever_space_is_around_them(task: Task) -> None:
    assert task.is_same_answer("12", " 12\n")
    assert not task.is_same_answer("12", "13")
