import random
from collections import Counter
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.tasks.countdown import (
    DEFAULT_DISTRIBUTION,
    HELDOUT_PERCENT,
    CountdownDistribution,
    CountdownProblem,
    draw_chain,
    generate,
    is_dead_end,
    parse_question,
    score,
    split_of,
)
from ramify.tools.calculator import CalculatorState, apply

QUESTION = "make 99 from 13 7 1 5"
GOOD = (
    "<calc>7+1</calc> <result>\n8 : 13 5 8\n</result><calc>13*8</calc> <result>\n104 : 5 104\n</result>"
    "<calc>104-5</calc> <result>\n99 : 99\n</result><answer>99</answer>"
)


@cache
def solutions_exist(numbers: tuple[int, ...], target: int) -> bool:
    """Exact solver over sorted numbers."""
    if len(numbers) == 1:
        return numbers[0] == target
    for left, right in combinations(sorted(numbers, reverse=True), 2):
        for operator in "+-*/":
            state, _, is_allowed = apply(CalculatorState(numbers), f"{left}{operator}{right}")
            if is_allowed and solutions_exist(tuple(sorted(state.numbers)), target):
                return True
    return False


def test_a_question_is_read_back() -> None:
    problem = CountdownProblem((13, 7, 1, 5), 99)
    assert problem.question == QUESTION
    assert parse_question(QUESTION) == problem


@pytest.mark.parametrize("question", ["", "make from 1 2", "make 9 from", "make 9 from 1 2 please"])
def test_other_questions_are_refused(question: str) -> None:
    with pytest.raises(ValueError, match="not a countdown question"):
        parse_question(question)


@given(st.lists(st.integers(1, 15), min_size=3, max_size=5), st.integers(10, 99), st.randoms())
def test_the_split_ignores_the_order_of_the_numbers(numbers: list[int], target: int, rng: random.Random) -> None:
    shuffled = rng.sample(numbers, len(numbers))
    one, other = CountdownProblem(tuple(numbers), target), CountdownProblem(tuple(shuffled), target)
    assert one.key == other.key
    assert split_of(one) == split_of(other)


def test_the_split_is_frozen() -> None:
    problems = [CountdownProblem((a, b, 7), 20 + a) for a in range(1, 16) for b in range(1, 16)]
    held_out = [problem.key for problem in problems if split_of(problem) == "heldout"]
    assert len(held_out) == 20
    assert held_out[:3] == ["21:1,5,7", "23:3,7,14", "24:3,4,7"]


@pytest.mark.slow
def test_about_a_tenth_is_held_out() -> None:
    rng = random.Random(0)
    keys = {problem.key: problem for problem, _ in (draw_chain(rng) for _ in range(20_000))}
    share = sum(split_of(problem) == "heldout" for problem in keys.values()) / len(keys)
    assert abs(100 * share - HELDOUT_PERCENT) < 1.5


@pytest.mark.slow
def test_generated_problems_are_distinct_and_of_one_split_only() -> None:
    train = [problem.key for problem in generate("train", 1500, 3)]
    held_out = [problem.key for problem in generate("heldout", 1500, 3)]
    assert len(set(train)) == len(set(held_out)) == 1500
    assert set(train).isdisjoint(held_out)


def test_one_seed_gives_the_same_problems_and_another_others() -> None:
    first = list(generate("heldout", 50, 1))
    assert first == list(generate("heldout", 50, 1))
    assert first != list(generate("heldout", 50, 2))


def test_three_to_five_numbers_all_occur() -> None:
    counts = Counter(len(problem.numbers) for problem in generate("heldout", 400, 0))
    assert set(counts) == {3, 4, 5}
    assert min(counts.values()) > 20


def test_every_problem_is_solvable_and_in_range() -> None:
    for problem in generate("heldout", 150, 5):
        assert DEFAULT_DISTRIBUTION.min_target <= problem.target <= DEFAULT_DISTRIBUTION.max_target
        assert all(1 <= number <= DEFAULT_DISTRIBUTION.max_number for number in problem.numbers)
        assert solutions_exist(tuple(sorted(problem.numbers)), problem.target)


def test_the_chain_that_made_a_problem_solves_it() -> None:
    rng = random.Random(2)
    for _ in range(300):
        problem, steps = draw_chain(rng)
        state = CalculatorState(problem.numbers)
        for step in steps:
            state, _, is_allowed = apply(state, step)
            assert is_allowed
        assert state.numbers == (problem.target,)
        assert len(steps) == len(problem.numbers) - 1


def test_an_impossible_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="num_numbers_weights"):
        CountdownDistribution(num_numbers_weights=((9, 1.0),))
    with pytest.raises(ValueError, match="max_target"):
        CountdownDistribution(max_target=5)


@pytest.mark.parametrize(
    ("text", "is_dead"),
    [
        ("8 : 13 5 8", False),
        ("99 : 99", False),
        ("98 : 98", True),
        ("error: 9 is not left", True),
        ("", True),
    ],
)
def test_dead_ends_are_what_the_tool_shows(text: str, is_dead: bool) -> None:
    assert (is_dead_end(99, text) is not None) == is_dead


def test_a_solved_episode_scores_both_parts() -> None:
    assert score(QUESTION, GOOD) == {"reached": 1.0, "answered": 1.0}


@pytest.mark.parametrize(
    ("transcript", "reached", "answered"),
    [
        ("", 0.0, 0.0),
        ("<answer>99</answer>", 0.0, 1.0),
        (GOOD.replace("<answer>99", "<answer>98"), 1.0, 0.0),
        (GOOD.replace("<answer>99", "<answer>0x63"), 1.0, 0.0),
        (GOOD.replace("<answer>99", "<answer>" + "9" * 5000), 1.0, 0.0),
        (GOOD.replace("99 : 99", "99 : 5 99"), 0.0, 1.0),
        (GOOD.replace("<answer>", "<calc>1+1</calc> <result>\nerror: 1 is not left\n</result><answer>"), 1.0, 1.0),
        (" <result>\n99 : 99\n</result><answer>99</answer>", 0.0, 1.0),
        (GOOD + "<answer>98</answer>", 1.0, 0.0),
    ],
)
def test_a_part_is_missing_when(transcript: str, reached: float, answered: float) -> None:
    assert score(QUESTION, transcript) == {"reached": reached, "answered": answered}
