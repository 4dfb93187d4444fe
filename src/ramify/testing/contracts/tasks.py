"""Rules for every task that makes its own problems."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from ramify.core.errors import ConfigError
from ramify.core.task import Task
from ramify.testing.contracts.rules import demand, keep_all, name_of, rules_of

TRAIN, HELDOUT = "train", "heldout"


@dataclass(frozen=True, slots=True)
class TaskCase:
    """A task, and the least number of problems in each of its splits."""

    build: Callable[[], Task]
    num_problems: int = 100


def check_task(task: Callable[[], Task], *, num_problems: int = 100, without: Collection[str] = ()) -> None:
    """Check every rule of a task except those in `without`. Raises `BrokenRule` that says which rule was broken and
    where.

    `task` makes a task: a class, or a function without parameters. `num_problems` is the number of problems to ask it
    for; it may have more.
    """
    keep_all(TASK_RULES, TaskCase(task, num_problems), f"task {name_of(task)}", without=without)


def problems_are_as_many_as_asked_for_and_distinct(case: TaskCase) -> None:
    problems = case.build().problems(HELDOUT, case.num_problems, 0)
    uids = {problem.uid for problem in problems}
    demand(len(problems) == case.num_problems, f"{len(problems)} problems, {case.num_problems} asked for")
    demand(len(uids) == len(problems), f"{len(problems)} problems have {len(uids)} uids")


def problems_name_their_split(case: TaskCase) -> None:
    splits = {problem.split for problem in case.build().problems(HELDOUT, case.num_problems, 0)}
    demand(splits == {HELDOUT}, f"problems of the split {HELDOUT!r} say {sorted(splits)}")


def one_seed_gives_the_same_problems_and_fewer_are_the_first_of_them(case: TaskCase) -> None:
    task, some = case.build(), max(1, case.num_problems * 2 // 5)
    fewer = max(1, some // 4)
    problems = list(task.problems(HELDOUT, some, 3))
    demand(problems == list(task.problems(HELDOUT, some, 3)), f"asked twice for {some} problems of seed 3, it differs")
    first = list(task.problems(HELDOUT, fewer, 3))
    demand(problems[:fewer] == first, f"{fewer} problems of seed 3 are not the first of {some}")


def another_seed_gives_other_problems(case: TaskCase) -> None:
    task, some = case.build(), max(1, case.num_problems * 2 // 5)
    one, other = task.problems(HELDOUT, some, 3), task.problems(HELDOUT, some, 4)
    demand(list(one) != list(other), f"{some} problems of seeds 3 and 4 are the same")


def no_problem_is_on_both_sides_of_the_split(case: TaskCase) -> None:
    task, number = case.build(), case.num_problems * 5 if case.num_problems >= 100 else case.num_problems
    train, heldout = ({p.uid for p in task.problems(split, number, 0)} for split in (TRAIN, HELDOUT))
    both = sorted(train & heldout)
    demand(not both, f"of {number} problems each, {len(both)} are in both splits: {both[:8]}")


def an_unknown_split_is_refused_with_those_there_are(case: TaskCase) -> None:
    try:
        case.build().problems("tset", 1, 0)
    except ConfigError as error:
        names_all = re.search(r"split 'tset': .*'train' and 'heldout'", str(error))
        wanted = f"split 'tset': there are {TRAIN!r} and {HELDOUT!r}"
        return demand(names_all is not None, f"the error must be like {wanted!r}, it is {str(error)!r}")
    return demand(False, "problems('tset', 1, 0) is no ConfigError")


def its_format_calls_its_tools_and_it_has_a_judge(case: TaskCase) -> None:
    task = case.build()
    called, held = set(task.format.tools()), {tool.name for tool in task.tools}
    demand(called == held, f"its format calls {sorted(called)}, its tools are {sorted(held)}")
    demand(bool(task.judges), "it has no judge")


def nobody_but_an_oracle_sees_the_secret(case: TaskCase) -> None:
    task = case.build()
    for problem in task.problems(HELDOUT, min(20, case.num_problems), 0):
        demand(not problem.for_agents().secret, f"problem {problem.uid!r} shows its secret to agents")
        is_safe = not problem.secret or task.judges[-1].is_oracle
        demand(is_safe, f"problem {problem.uid!r} has a secret, and the last judge is no oracle")
        public = re.search(r"answer|gold", str(list(problem.public)))
        demand(public is None, f"problem {problem.uid!r} has the public columns {list(problem.public)}")


def answers_are_the_same_whatever_space_is_around_them(case: TaskCase) -> None:
    task = case.build()
    demand(task.is_same_answer("12", " 12\n"), "'12' and ' 12\\n' are not the same answer")
    demand(not task.is_same_answer("12", "13"), "'12' and '13' are the same answer")


TASK_RULES: Final = rules_of(
    problems_are_as_many_as_asked_for_and_distinct,
    problems_name_their_split,
    one_seed_gives_the_same_problems_and_fewer_are_the_first_of_them,
    another_seed_gives_other_problems,
    no_problem_is_on_both_sides_of_the_split,
    an_unknown_split_is_refused_with_those_there_are,
    its_format_calls_its_tools_and_it_has_a_judge,
    nobody_but_an_oracle_sees_the_secret,
    answers_are_the_same_whatever_space_is_around_them,
)
"""Rule in plain English -> the function that checks it."""
