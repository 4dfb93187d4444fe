"""`ramify search` and `ramify eval`: answers within a budget, and how right they are."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.cli.commands import ramify

from ramify.cli.main import main
from ramify.config.configure import resolve
from ramify.engines.shipped import unknown_words
from ramify.runner.answers import Answering
from ramify.runner.folder import resume
from ramify.runner.library import rollout, rollout_sync
from ramify.runner.saved import Saved
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay
from ramify.testing.scripted import Scripted

QUESTION = "make 24 from 4 6 8 2"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def searched(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["search", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.covers("S4.7", engine="builtin")
def test_a_question_is_answered_and_every_vote_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = searched(capsys, QUESTION, "--preset", "best_of_n")
    (answers,) = told["answers"]  # type: ignore[misc]
    assert answers["answer"] == "24"
    assert set(answers["votes"]) == {"best", "first", "majority", "weighted"}
    assert answers["ranked"][0]["score"] == 1.0
    assert answers["num_candidates"] == 16


@pytest.mark.slow
@pytest.mark.covers("S4.7", engine="builtin")
def test_whole_trees_come_with_q_values_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    budget = ["--budget", "decode_tokens=80"]
    (answers,) = searched(capsys, QUESTION, "--preset", "mcts", *budget)["answers"]  # type: ignore[misc]
    assert "tree" not in answers
    (answers,) = searched(capsys, QUESTION, "--preset", "mcts", *budget, "--trees")["answers"]  # type: ignore[misc]
    nodes = {node["node"]: node for node in answers["tree"]["nodes"]}
    assert (answers["tree"]["judge"], answers["tree"]["outcome"]) == ("process", "process")
    assert all(node["parent"] in nodes for node in nodes.values() if node["node"])
    assert nodes[0]["visits"] == sum(node["value"] is not None for node in nodes.values()) > 1
    assert answers["node"] is None or nodes[answers["node"]]["stop"] == "answer"


def test_ground_truth_in_a_tree_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    told = searched(capsys, "--task", "hops", "--preset", "self_consistency", "--prompts", "1", "--trees")
    (answers,) = told["answers"]  # type: ignore[misc]
    rewarded = [node for node in answers["tree"]["nodes"] if node["reward"] is not None]
    assert rewarded and all(node["is_oracle"] for node in rewarded)


def test_trees_without_json_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", QUESTION, "--trees"]) == 2
    assert "--json" in capsys.readouterr().err


def test_several_questions_are_a_tree_each_and_people_read_the_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", QUESTION, "make 10 from 4 5 1", "--preset", "reject"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "question-0: 24"
    assert any(line.startswith("question-1: 10") for line in shown)
    assert "tokens sampled" in shown[-1]


def test_a_budget_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    told = searched(capsys, QUESTION, "--preset", "best_of_n", "--budget", "decode_tokens=60", "--budget", "leaves=2")
    assert told["decode_tokens"] <= 60  # type: ignore[operator]
    assert told["leaves"] <= 2  # type: ignore[operator]


@pytest.mark.slow
def test_a_file_is_searched_for_all_of_its_questions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = [{"question": QUESTION}, {"question": "make 10 from 4 5 1"}, {"question": "make 7 from 3 4 1"}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = searched(capsys, "--data", "q.jsonl", "--task", "countdown", "--preset", "reject")
    assert [each["uid"] for each in told["answers"]] == ["0", "1", "2"]  # type: ignore[union-attr]


def test_bad_rows_are_named_by_line_and_the_rest_runs_if_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "q.jsonl").write_text(f'{{"question": "{QUESTION}"}}\n{{"question": ""}}\nnonsense\n')
    data = ["--data", "q.jsonl", "--task", "countdown", "--preset", "reject"]
    assert main(["search", *data]) == 2
    said = capsys.readouterr().err
    assert "q.jsonl:2" in said and "q.jsonl:3" in said
    assert len(searched(capsys, *data, "--set", "data.on_bad_row=skip")["answers"]) == 1  # type: ignore[arg-type]


@pytest.mark.slow
def test_no_more_requests_are_made_than_a_budget_allows(capsys: pytest.CaptureFixture[str]) -> None:
    for preset in ("best_of_n", "mcts", "beam"):
        told = searched(capsys, QUESTION, "--preset", preset, "--budget", "calls=30")
        assert 0 < told["engine_calls"] <= 30, preset  # type: ignore[operator]


PRICED = ["--set", "engine.prices.prompt=2", "--set", "engine.prices.cached=0.5", "--set", "engine.prices.output=8"]


@pytest.mark.slow
def test_a_budget_in_dollars_is_kept_and_the_cost_told(capsys: pytest.CaptureFixture[str]) -> None:
    for preset in ("best_of_n", "mcts", "beam"):
        told = searched(capsys, QUESTION, "--preset", preset, *PRICED, "--budget", "dollars=0.004")
        assert 0 < told["dollars"] <= 0.004, preset  # type: ignore[operator]
    assert main(["search", QUESTION, "--preset", "best_of_n", *PRICED, "--budget", "dollars=.004"]) == 0
    assert " dollars, " in capsys.readouterr().out
    assert main(["rollout", "--prompts", "2", *PRICED, "--budget", "dollars=0.004", "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["dollars"] <= 2 * 0.004


@pytest.mark.parametrize("command", ["search", "rollout", "eval"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--budget", "dollars=1"], "set engine.prices.prompt and engine.prices.output"),
        ([*PRICED, "--budget", "dollars=0.00001"], "too small for the question"),
        ([*PRICED, "--budget", "dollars=0"], "numbers above 0"),
        ([*PRICED, "--budget", "dollars=nan"], "numbers above 0"),
        (["--budget", "euros=1"], "unknown budget 'euros'"),
        (["--budget", "calls=0.5"], "whole numbers"),
        (["--set", "engine.prices.prompt=-1", "--set", "engine.prices.output=1"], "prices.prompt = -1"),
        (["--set", "engine.prices.prompt=1"], "prompt and output go together"),
    ],
)
def test_bad_prices_and_budgets_are_refused(
    command: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = {"search": [QUESTION], "rollout": [], "eval": ["--presets", "best_of_n", "--problems", "2"]}[command]
    assert main([command, *problems, *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "budget", ["decode_tokens", "decode_tokens=0", "decode_tokens=-3", "tokens=5", "decode_tokens=x"]
)
def test_what_is_no_budget_is_refused(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", QUESTION, "--budget", budget]) == 2
    assert "--budget" in capsys.readouterr().err


def test_a_budget_too_small_for_one_answer_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", QUESTION, "--preset", "best_of_n", "--budget", "decode_tokens=1", "--json"]) == 4
    (answers,) = json.loads(capsys.readouterr().out)["answers"]
    assert answers["answer"] is None


def test_answers_of_a_saved_run_are_those_of_the_live_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = searched(capsys, QUESTION, "--preset", "reject", "--out", "run")
    assert [each.as_dict() for each in Saved.open(tmp_path / "run").answers()] == told["answers"]
    resume(tmp_path / "run")
    assert [each.as_dict() for each in Saved.open(tmp_path / "run").answers()] == told["answers"]


def test_trees_that_no_search_grew_answer_by_majority() -> None:
    grown = rollout_sync([QUESTION], preset="chains", max_trees=1)
    (answers,) = grown.answers()
    assert answers.num_candidates == 8
    assert answers.ranked and answers.answer == answers.text_at(answers.by_vote["majority"])
    assert {solution.score for solution in answers.ranked} == {0.0}
    assert answers.by_vote["best"] == answers.by_vote["first"]
    assert isinstance(grown.answering, Answering)


def test_a_question_for_an_endpoint_is_a_task_of_its_own() -> None:
    flags = {"data.questions": ["Why?"], "engine.name": "openai", "engine.model": "m"}
    assert resolve(flags=flags).config.task.name == "data"
    assert resolve(flags={"data.questions": ["make 3 from 1 2"]}).config.task.name == "countdown"


FEW = ["--problems", "2", "--seeds", "2", "--task", "countdown"]


@pytest.mark.slow
def test_presets_are_graded_at_every_budget(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    presets = "chains,self_consistency,best_of_n,reject"
    arguments = ["eval", "--presets", presets, *FEW, "--budget", "decode_tokens=160,80", "--plot", "plot.svg"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert shown.count("reject") >= 2
    assert "vs first" in shown and "unspent" in shown and "by the judge 'countdown'" in shown
    assert "best_of_n picks its answer with the judge that grades it" in shown
    assert "self_consistency picks" not in shown
    assert "reject" in (tmp_path / "plot.svg").read_text()


@pytest.mark.slow
def test_the_figures_of_eval_are_all_in_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--presets", "best_of_n,reject", *FEW, "--budget", "decode_tokens=100", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["lines"]
    assert first["less_first"] is None and set(second["less_first"]) == {"mean", "low", "high"}
    for line in (first, second):
        assert line["decode"] <= 100
        assert line["unspent"] == pytest.approx(1 - line["decode"] / 100)
        assert line["returned"] <= line["covered"]
        assert not line["is_steered_by_oracle"]


@pytest.mark.slow
def test_what_is_left_of_a_budget_is_of_what_was_limited(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, budgets, spent in (("calls", "10,40", "engine_calls"), ("dollars", "0.002,0.004", "dollars")):
        assert main(["eval", "--presets", "best_of_n", *FEW, *PRICED, "--budget", f"{kind}={budgets}", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["budget"] == kind
        for line in told["lines"]:
            assert 0 < line[spent] <= line["budget"]
            assert line["unspent"] == pytest.approx(1 - line[spent] / line["budget"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--presets", ","], "at least one preset"),
        (["--presets", "chains,chains"], "named twice"),
        (["--presets", "chains", "--budget", "words=3"], "--budget"),
        (["--presets", "chains", "--budget", "decode_tokens=3,x"], "whole numbers"),
        (["--presets", "chains", "--seeds", "0"], "--seeds"),
        (["--presets", "chains", "--data", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_a_comparison_of_nothing_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *arguments]) == 2
    assert said in capsys.readouterr().err


CRITIC = """
from ramify.testing.scripted import Scripted

def said(turn):
    if "Grade the answer" in turn.context:
        return str(turn.seed % 201 - 100)
    return f"Because it is so: \\\\boxed{{{turn.seed % 4}}}"

class Critic(Scripted):
    def __init__(self):
        super().__init__(said)
"""


@pytest.mark.covers("S2.6")
def test_what_mctsr_did_is_told_with_its_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "critic.py").write_text(CRITIC)
    told = searched(capsys, "How many?", "--preset", "mctsr", "--engine", "critic.py:Critic")
    (answers,) = told["answers"]  # type: ignore[misc]
    assert answers["answer"] in {"0", "1", "2", "3"}
    assert len(answers["critiques"]) == len(answers["refinements"]) == len(answers["selected_nodes"]) == 16
    assert len(answers["rewards"]) == 1 + 2 * 16
    assert all("boxed" in refinement for refinement in answers["refinements"])
    assert answers["num_candidates"] == 17


@pytest.mark.slow
@pytest.mark.covers("S4.5")
def test_many_problems_are_searched_in_the_time_of_one() -> None:
    def seconds(num_problems: int) -> float:
        options = {"n": 8, "judge": "reward"}
        problems = [f"make {i} from 3 5 7" for i in range(num_problems)]
        engine = Scripted(delay=Delay(call_s=1.0))

        async def grown() -> float:
            began = asyncio.get_running_loop().time()
            await rollout(problems, engine=engine, strategy__name="best_of_n", strategy__options=options, max_trees=64)
            return asyncio.get_running_loop().time() - began

        return run_virtual(grown())

    assert seconds(48) < 2 * seconds(1)


@pytest.mark.parametrize("more", [(), ("--preset", "mctsr")])
def test_a_search_without_a_question_is_a_usage_error(
    more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    said = ramify(capsys, "search", *more)
    assert said.code == 2
    assert "no question; give one" in said.err


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("make 24 from 4 6 8 2", None),
        ("what is fikol rekent 's teacher 's town 's mayor ?", None),
        ("Which is larger, 9.11 or 9.9?", ["Which", "larger"]),
        ("2+2?", []),
    ],
)
def test_what_the_shipped_model_cannot_read_is_known(question: str, words: list[str] | None) -> None:
    assert unknown_words(question) == words


def test_an_answer_that_means_nothing_comes_with_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = ramify(capsys, "search", "Who wrote Faust?", "--preset", "chains", "--out", tmp_path / "a")
    assert said.code == 0
    assert "warning: 'Who wrote Faust?'" in said.err
    assert "never seen 'Who', 'wrote', 'Faust'" in said.err


@pytest.mark.slow
def test_a_search_that_a_fault_ended_is_wrong_and_its_fault_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("eval", "--presets", "best_of_n", "--task", "hops", "--problems", 2, "--seeds", 1)
    said = ramify(capsys, *few, "--budget", "decode_tokens=128", "--json")
    (line,) = said.json["lines"]
    assert (line["num_failed"], line["returned"]) == (2, 0.0)
    assert "say so by strategy.options.oracle = 'declared'" in line["first_fault"]
    told = ramify(capsys, *few, "--budget", "decode_tokens=128").out
    assert "best_of_n at 128: 2 of 2 searches failed and count as wrong; the first: ContractError: " in told
