import asyncio
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runner.parts import OneChain, grown, only_leaf

from ramify.config.run_config import GrowthConfig
from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.runner.library import Rollout
from ramify.tasks.herds import (
    HELDOUT_PERCENT,
    MAX_CALLS,
    MAX_NUMBER,
    MAX_TARGET,
    MIN_TARGET,
    NUM_HERDS,
    NUM_TOWNS,
    SPLITS,
    Herds,
    HerdsProblem,
    Split,
    draw_problem,
    generate,
    index_of,
    numbers_found,
    parse_question,
    passages_of,
    score,
    solutions,
    split_of,
)
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import Rule, ScriptedTurn
from ramify.tools.calculator import value_of

PROBLEM = HerdsProblem(20, "norford", ("cat", "owl", "bee", "pig", "ant"), (13, 7, 2, 10, 5))


def looked_up(*records: str) -> str:
    """The calls and pages of a transcript that shows these records."""
    return "".join(f"<search> x</search>\n\n<information>record {each}</information>\n\n" for each in records)


FOUND = looked_up("norford cat 13", "norford owl 7", "norford bee 2", "selwick pig 10")


def looker(turn: ScriptedTurn) -> str:
    """Looks all herds up in the order of the question, then solves the problem from what it was shown."""
    question = re.search(r"make .*(?=<\|end\|>)", turn.context)
    assert question is not None
    target, town, kinds = parse_question(question[0])
    found = numbers_found(question[0], turn.context[question.end() :])
    if len(found) < len(kinds):
        return f"<search> {town} {kinds[len(found)]}</search>"
    return f"<answer>{solutions(list(found.values()), target)[0]}</answer>"


def rollout(rule: Rule = looker, **fields: Any) -> Rollout:
    """One chain a problem, with room for what are many bytes and few tokens."""
    return grown(OneChain, Scripted(rule), task=Herds(), growth=GrowthConfig(max_response_tokens=4096), **fields)


def test_a_question_is_read_back() -> None:
    assert PROBLEM.question == "make 20 from two of norford 's cat owl bee pig ant"
    assert parse_question(PROBLEM.question) == (20, "norford", PROBLEM.kinds)


@pytest.mark.parametrize(
    "question", ["", "make 20 from 13 7", "make 20 from two of norford 's", "make x from two of y 's z"]
)
def test_other_questions_are_refused(question: str) -> None:
    with pytest.raises(ValueError, match="not a herds question"):
        parse_question(question)


@given(st.integers(0, 10_000))
def test_every_problem_is_in_range_and_can_be_solved(seed: int) -> None:
    problem = draw_problem(random.Random(seed))
    assert MIN_TARGET <= problem.target <= MAX_TARGET
    assert len(set(problem.kinds)) == len(set(problem.numbers)) == NUM_HERDS
    assert all(1 <= number <= MAX_NUMBER for number in problem.numbers)
    assert solutions(problem.numbers, problem.target)


def test_solutions_are_all_of_them_with_the_larger_number_first() -> None:
    assert solutions((13, 7, 2, 10, 5), 20) == ["13+7", "10*2"]
    assert solutions((13, 7, 2), 11) == ["13-2"]
    assert solutions((13, 7), 99) == []


@given(st.permutations(range(NUM_HERDS)), st.sampled_from(("selwick", "torstead")))
def test_the_split_ignores_the_order_and_the_names(order: list[int], town: str) -> None:
    other = HerdsProblem(20, town, PROBLEM.kinds, tuple(PROBLEM.numbers[i] for i in order))
    assert other.key == PROBLEM.key == "20:2,5,7,10,13"
    assert split_of(other) == split_of(PROBLEM)


def test_the_split_is_frozen() -> None:
    problems = [HerdsProblem(target, "norford", PROBLEM.kinds, (13, 7, 2, 10, 5)) for target in range(10, 100)]
    held_out = [problem.target for problem in problems if split_of(problem) == "heldout"]
    assert held_out == [16, 22, 27, 35, 46, 58, 74, 79, 84, 88, 95, 99]


def test_about_a_tenth_is_held_out() -> None:
    rng = random.Random(0)
    keys = {problem.key: problem for problem in (draw_problem(rng) for _ in range(10_000))}
    share = sum(split_of(problem) == "heldout" for problem in keys.values()) / len(keys)
    assert abs(100 * share - HELDOUT_PERCENT) < 1.5


@pytest.mark.parametrize("split", SPLITS)
def test_generated_problems_are_distinct_of_one_split_and_the_same_for_one_seed(split: Split) -> None:
    problems = list(generate(split, 300, 3))
    assert len({problem.key for problem in problems}) == 300
    assert {split_of(problem) for problem in problems} == {split}
    assert problems == list(generate(split, 300, 3))


def test_every_kind_has_one_record_in_every_town() -> None:
    passages = passages_of(PROBLEM)
    records = [passage.split() for passage in passages]
    assert len(passages) == len(set(passages)) == NUM_HERDS * NUM_TOWNS
    assert {word for word, *_ in records} == {"record"}
    assert len({town for _, town, _, _ in records}) == NUM_TOWNS
    own = {kind: int(number) for _, town, kind, number in records if town == "norford"}
    assert own == dict(zip(PROBLEM.kinds, PROBLEM.numbers, strict=True))
    assert all(1 <= int(number) <= MAX_NUMBER for *_, number in records)


def test_a_search_for_town_and_kind_shows_the_one_record() -> None:
    for problem in generate("heldout", 20, 0):
        for kind, number in zip(problem.kinds, problem.numbers, strict=True):
            for query in (f"{problem.town} {kind}", f"record {problem.town} {kind}"):
                (hit,) = index_of(problem).search(query, 1)
                assert hit.passage.text == f"record {problem.town} {kind} {number}"


def test_a_search_for_a_kind_alone_mostly_shows_another_towns() -> None:
    problems = list(generate("heldout", 60, 0))
    shown = [(p, index_of(p).search(kind, 1)[0].passage.text) for p in problems for kind in p.kinds]
    own = sum(text.startswith(f"record {problem.town} ") for problem, text in shown)
    assert 0.1 < own / len(shown) < 0.25


def test_numbers_are_found_of_the_asked_herds_only_and_behind_a_call_only() -> None:
    assert numbers_found(PROBLEM.question, FOUND) == {"cat": 13, "owl": 7, "bee": 2}
    assert numbers_found(PROBLEM.question, looked_up("norford dog 4")) == {}
    assert numbers_found(PROBLEM.question, "\n\n<information>record norford cat 13</information>\n\n") == {}


@pytest.mark.parametrize(
    ("answer", "found", "made"),
    [
        ("13+7", 1, 1),
        ("7+13", 1, 1),
        (" 13 + 7 ", 1, 1),
        ("13+2", 1, 0),
        ("10*2", 0, 1),
        ("7-13", 1, 0),
        ("10+10", 0, 1),
        ("2+2", 0, 0),
        ("13+7+2", 0, 0),
        ("20", 0, 0),
        ("", 0, 0),
        ("13+", 0, 0),
        ("9999+9999", 0, 0),
        ("\u0661\u0663+7", 0, 0),
    ],
)
def test_an_answer_must_make_the_target_from_two_herds_that_were_looked_up(answer: str, found: int, made: int) -> None:
    parts = score(PROBLEM.question, f"{FOUND}<answer>{answer}</answer>")
    assert parts == {"found": found, "made": made}


def test_no_answer_scores_nothing() -> None:
    assert score(PROBLEM.question, FOUND) == {"found": 0.0, "made": 0.0}


def test_nothing_is_secret_and_the_judge_is_no_oracle() -> None:
    task = Herds()
    assert all(not problem.secret for problem in task.problems("heldout", 20, 0))
    assert not any(judge.is_oracle for judge in task.judges)


def test_a_rollout_looks_up_answers_and_is_judged_by_what_it_was_shown() -> None:
    result = rollout(prompts=5)
    for tree in result.trees:
        (leaf,) = tree.leaves()
        branch = tree.branch(leaf)
        assert tree.reward(leaf) == 1.0
        assert tree.stop(leaf) == "answer"
        assert [call.status for call in branch.tool_calls] == ["ok"] * NUM_HERDS
        assert len(branch.tool_calls) < MAX_CALLS
    assert not result.report.is_oracle


def test_a_guess_without_looking_up_earns_nothing() -> None:
    tree, leaf = only_leaf(rollout(lambda turn: "<answer>10+10</answer>", prompts=1))
    assert tree.reward(leaf) == 0.0


def test_nothing_is_given_up_early() -> None:
    tree, leaf = only_leaf(rollout(prompts=1))
    assert Herds().prune(tree.branch(leaf)) is None


def test_answers_are_the_same_whatever_space_is_in_them() -> None:
    assert Herds().is_same_answer("13+7", " 13 + 7")
    assert not Herds().is_same_answer("13+7", "7+13")


@pytest.mark.parametrize("public", [{}, {"numbers": 3}, {"numbers": [1, 2]}])
def test_a_problem_without_its_numbers_is_a_fault_that_says_so(public: dict[str, Any]) -> None:
    (tool,) = Herds().tools
    with pytest.raises(ToolError, match="needs a public column 'numbers' with 5 numbers"):
        asyncio.run(tool.open(Problem("p", PROBLEM.question, public)))


def test_a_question_of_another_task_is_a_fault_that_says_so() -> None:
    (tool,) = Herds().tools
    with pytest.raises(ToolError, match="not a herds question"):
        asyncio.run(tool.open(Problem("p", "make 20 from 13 7", {"numbers": [13, 7]})))


def test_another_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="split 'test': herds has 'train' and 'heldout'"):
        Herds().problems("test", 1, 0)


def test_problems_state_the_numbers_their_records_hold() -> None:
    for problem in Herds().problems("train", 10, 0):
        target, _, kinds = parse_question(problem.question)
        assert problem.public["target"] == target
        assert len(problem.public["numbers"]) == len(kinds)
        assert any(
            value_of(*pair)[0] == target
            for left in problem.public["numbers"]
            for right in problem.public["numbers"]
            for pair in [(left, operator, right) for operator in "+-*"]
        )
