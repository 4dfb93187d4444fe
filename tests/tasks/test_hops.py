import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any

import pytest
from tests.runner.parts import OneChain, grown, only_leaf

from ramify.config.run_config import GrowthConfig, RunConfig, TaskConfig
from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, ToolError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.judges.exact import ANSWER
from ramify.runner.library import Rollout
from ramify.runner.library import rollout as run_rollout
from ramify.tasks.hops import MAX_HOPS, TOP_K, Hops, HopsProblem, draw_problem, generate, index_of, search_tool
from ramify.tasks.hops_world import RELATIONS, SPLITS, Split, split_of, world, world_name
from ramify.testing.clock import run_virtual
from ramify.testing.scripted import SCRIPTED, Scripted
from ramify.testing.scripts import Rule, ScriptedTurn

QUESTION = re.compile(r"what is (?P<subject>\w+ \w+) 's (?P<relations>.*) \?")
WIDE = Hops(tools=(search_tool(top_k=3),))
"""With pages wide enough for a record to be among the first, so that whoever follows them is always right."""
INFORMATION = re.compile(r"<information>(?P<page>.*?)</information>")


def follower(turn: ScriptedTurn) -> str:
    """Searches hop by hop for what the question asks, and believes records."""
    question = QUESTION.search(turn.context)
    assert question is not None
    place, relations = question["subject"], question["relations"].split(" 's ")
    for relation, page in zip(relations, INFORMATION.findall(turn.context), strict=False):
        prefix = f"record {place} {relation} "
        (place,) = [p.removeprefix(prefix) for p in page.split(" ; ") if p.startswith(prefix)]
    done = turn.context.count("</information>")
    return (
        f"<search> record {place} {relations[done]}</search>" if done < len(relations) else f"<answer> {place}</answer>"
    )


def rollout(rule: Rule = follower, task: Hops | None = None, **fields: Any) -> Rollout:
    """One chain a problem, with room for what are many bytes and few tokens."""
    engine = Scripted(rule, capabilities=replace(SCRIPTED, context_length=32_768))
    growth = GrowthConfig(max_response_tokens=8192)
    return grown(OneChain, engine, task=task or WIDE, growth=growth, **fields)


def searching(query: str) -> Rule:
    """Asks once, then answers."""
    return lambda turn: "<answer> x</answer>" if "</information>" in turn.context else f"<search>{query}</search>"


def test_a_question_reads_as_the_model_was_trained_on() -> None:
    problem = HopsProblem("heldout 0 0", "fikol rekent", ("teacher", "town", "mayor"))
    assert problem.question == "what is fikol rekent 's teacher 's town 's mayor ?"


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("num_hops", [1, 2, 3])
def test_answers_follow_from_the_facts(split: Split, num_hops: int) -> None:
    among = world(world_name(split, 3, 1))
    rng = Random(0)
    for _ in range(100):
        problem = draw_problem(rng, among, num_hops)
        place = problem.subject
        for relation in problem.relations:
            place = among.facts[place, relation]
        assert problem.answer == place
        assert len(problem.relations) == num_hops
        assert problem.subject in among.people


@pytest.mark.parametrize("split", SPLITS)
def test_problems_are_distinct_and_the_same_for_one_seed(split: Split) -> None:
    first = Hops().problems(split, 300, 4)
    assert first == Hops().problems(split, 300, 4)
    assert len({p.uid for p in first}) == len({(p.public["world"], p.question) for p in first}) == 300
    assert first[:20] == Hops().problems(split, 20, 4)
    assert {p.uid for p in first}.isdisjoint(p.uid for p in Hops().problems(split, 300, 5))


def test_problems_of_the_two_splits_share_no_person() -> None:
    people = {split: {p.subject for p in generate(split, 500, 0)} for split in SPLITS}
    assert people["train"].isdisjoint(people["heldout"])
    assert {split_of(person) for person in people["heldout"]} == {"heldout"}


def test_all_numbers_of_hops_and_all_relations_are_asked_for() -> None:
    problems = [p for num_hops in (1, 2, 3) for p in generate("heldout", 200, 0, num_hops=num_hops)]
    assert {len(p.relations) for p in generate("heldout", 50, 0)} == {MAX_HOPS}
    assert {relation for p in problems for relation in p.relations} == set(RELATIONS)
    assert {len(p.relations) for p in islice(generate("train", 50, 0, num_hops=2), 50)} == {2}
    assert {p.public["num_hops"] for p in Hops(num_hops=3).problems("heldout", 20, 0)} == {3}


def test_the_answer_is_secret_and_nothing_public_gives_it_away() -> None:
    for problem in Hops().problems("heldout", 50, 0):
        assert set(problem.secret) == {ANSWER}
        assert set(problem.public) == {"world", "num_hops"}
        seen = f"{problem.uid} {problem.question} {problem.public}"
        assert problem.secret[ANSWER] not in seen or problem.secret[ANSWER] in problem.question
        assert problem.for_agents().secret == {}


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_hops = 4: questions have 1 to 3 hops"):
        Hops(num_hops=4)
    with pytest.raises(ConfigError, match="split 'test': hops has 'train' and 'heldout'"):
        Hops().problems("test", 1, 0)


def test_the_tool_searches_the_problems_own_world() -> None:
    (tool,) = Hops().tools
    for problem in Hops().problems("heldout", 20, 1)[::8]:
        among = world(problem.public["world"])
        subject, relation = next(iter(among.facts))

        async def page(query: str, problem: Problem = problem) -> str:
            return (await (await tool.open(problem.for_agents())).call(query)).text

        found = asyncio.run(page(f"record {subject} {relation}")).split(" ; ")
        assert len(found) == TOP_K
        assert set(found) <= set(among.passages)
        assert all(subject in passage or relation in passage for passage in found)


@pytest.mark.parametrize("public", [{}, {"world": 3}])
def test_a_problem_without_a_world_is_a_fault_that_says_so(public: dict[str, Any]) -> None:
    (tool,) = Hops().tools
    with pytest.raises(ToolError, match="problem 'p' has no public column 'world'"):
        asyncio.run(tool.open(Problem("p", "what is it ?", public)))


def test_a_worlds_index_is_made_once() -> None:
    assert index_of("heldout 0 0") is index_of("heldout 0 0")
    assert index_of("heldout 0 0").num_passages == len(world("heldout 0 0").passages)


@pytest.mark.covers("S1.2")
def test_a_rollout_searches_is_informed_answers_and_is_judged() -> None:
    result = rollout(prompts=6)
    assert [tree.reward(leaf) for tree in result.trees for leaf in tree.leaves()] == [1.0] * 6
    for tree, problem in zip(result.trees, Hops().problems("heldout", 6, 0), strict=True):
        (leaf,) = tree.leaves()
        branch = tree.branch(leaf)
        origins = [piece.segment.origin for piece in branch.pieces]
        hops = problem.public["num_hops"]
        assert origins == ["prompt", *["sampled", "given"] * hops, "sampled"]
        assert tree.stop(leaf) == "answer"
        assert [call.status for call in branch.tool_calls] == ["ok"] * hops
        assert branch.transcript.endswith(f"<answer> {problem.secret[ANSWER]}</answer>")
        observation = f"\n\n<information>{branch.tool_calls[0].result}</information>\n\n"
        assert tree.codec.decode(branch.pieces[2].segment.ids) == observation
    assert result.report.is_oracle


@pytest.mark.covers("S1.3")
def test_no_token_of_a_page_is_trained() -> None:
    result = rollout(prompts=3)
    for row, tree in zip(result.rows(), result.trees, strict=True):
        trained = tree.codec.decode(row.ids[row.weights > 0])
        assert trained.count("<search>") == row.public["num_hops"]
        assert "information" not in trained and "rumor" not in trained


@pytest.mark.parametrize("text", ["<answer> nobody</answer>", "no answer at all"])
def test_a_wrong_answer_and_none_are_judged_zero(text: str) -> None:
    tree, leaf = only_leaf(rollout(lambda turn: text, prompts=1))
    assert tree.reward(leaf) == 0.0


@pytest.mark.parametrize(
    ("query", "status", "shown"),
    [("", "invalid", "error: use search or answer"), (" ?", "empty", ""), (" \x00", "empty", "")],
)
def test_an_empty_call_is_corrected_and_a_search_that_finds_nothing_shows_nothing(
    query: str, status: str, shown: str
) -> None:
    tree, leaf = only_leaf(rollout(searching(query), prompts=1))
    assert f"\n\n<information>{shown}</information>\n\n" in tree.branch(leaf).transcript
    assert [call.status for call in tree.branch(leaf).tool_calls] == [status]


def test_only_the_oracle_judge_is_handed_the_answer() -> None:
    seen: list[dict[str, Any]] = []

    @dataclass(frozen=True)
    class Curious:
        name: str = "curious"
        is_oracle: bool = False

        async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
            seen.append(dict(problem.secret))
            return [Verdict(0.0) for _ in branches]

    task = Hops()
    result = rollout(task=Hops(judges=(Curious(), *task.judges)), prompts=2)
    assert seen == [{}, {}]
    assert all(tree.reward(leaf) == 1.0 for tree in result.trees for leaf in tree.leaves())
    answers = [p.secret[ANSWER] for p in task.problems("heldout", 2, 0)]
    for row, answer in zip(result.rows(), answers, strict=True):
        assert answer not in str(row.public)


def test_a_configuration_names_the_task_and_its_options() -> None:
    config = RunConfig(task=TaskConfig(name="hops", options={"num_hops": 2}), prompts=2)
    engine = Scripted(searching(" boss"), capabilities=replace(SCRIPTED, context_length=32_768))
    result = run_virtual(run_rollout(config=config, engine=engine))
    assert [tree.problem.public["num_hops"] for tree in result.trees] == [2, 2]
