"""What is taken from a data file where the user names no column."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.saved_data import parquet

from ramify.config.configure import from_toml, resolve, to_toml
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError
from ramify.runner.build import build_task
from ramify.tasks.data import DataConfig, read_problems

Row = Mapping[str, Any]


def written(folder: Path, *rows: Row, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def config(path: Path, **flags: Any) -> RunConfig:
    return resolve(flags={"data.path": str(path), **{k.replace("__", "."): v for k, v in flags.items()}}).config


GSM8K = [
    {"question": "2 + 2?", "answer": "Two and two are <<2+2=4>>4.\n#### 4"},
    {"question": "A thousand?", "answer": "It is\n#### 1,000"},
]
MATH = [{"problem": "1/2?", "level": "Level 1", "type": "Algebra", "solution": r"We have $\boxed{\frac{1}{2}}$."}]
MATH_500 = [{**MATH[0], "answer": r"\frac{1}{2}", "subject": "Algebra", "unique_id": "a/1"}]
DEEPSCALER = [
    {"problem": "6 * 7?", "answer": "42", "solution": "One multiplies six by seven, and this gives the answer 42."},
    {"problem": "6 + 7?", "answer": "13", "solution": ""},
]
NQ_SEARCH = [
    {
        "id": "train_0",
        "question": "total number of death row inmates in the us",
        "golden_answers": ["2,718"],
        "data_source": "nq",
        "prompt": [{"role": "user", "content": "Answer the given question. total number …"}],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": ["2,718"]}, "style": "rule"},
        "extra_info": {"index": 0, "split": "train"},
    }
]
VERL = [
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "2 + 2? Think step by step."}],
        "ability": "math",
        "reward_model": {"ground_truth": "4", "style": "rule"},
        "extra_info": {"answer": "It is\n#### 4", "index": 0, "question": "2 + 2?", "split": "train"},
    }
]
AIME = [{"ID": "2024-I-1", "Problem": "204?", "Solution": r"So \boxed{204}.", "Answer": 204}]


@pytest.mark.parametrize(
    ("rows", "question", "answer", "golds", "public"),
    [
        (GSM8K, "question", "answer", ["4", "1,000"], {}),
        (MATH, "problem", "solution", [r"\frac{1}{2}"], {"level": "Level 1", "type": "Algebra"}),
        (MATH_500, "problem", "answer", [r"\frac{1}{2}"], {"level": "Level 1", "type": "Algebra", "subject": "Algebra",
                                                          "unique_id": "a/1"}),
        (DEEPSCALER, "problem", "answer", ["42", "13"], {}),
        (AIME, "Problem", "Answer", [204], {"ID": "2024-I-1"}),
        (
            NQ_SEARCH, "question", "golden_answers", [["2,718"]],
            {"id": "train_0", "data_source": "nq", "prompt": NQ_SEARCH[0]["prompt"], "ability": "fact-reasoning",
             "reward_model": {"style": "rule"}, "extra_info": {"index": 0, "split": "train"}},
        ),
        (
            VERL, "prompt", "reward_model.ground_truth", ["4"],
            {"data_source": "openai/gsm8k", "ability": "math", "reward_model": {"style": "rule"},
             "extra_info": {"index": 0, "question": "2 + 2?", "split": "train"}},
        ),
    ],
    ids=["gsm8k", "math", "math_500", "deepscaler", "aime", "nq_search", "verl"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_public_data_sets_are_read_as_they_are(
    tmp_path: Path, kind: str, rows: list[Row], question: str, answer: str, golds: list[Any], public: Row
) -> None:
    path = written(tmp_path, *rows) if kind == "jsonl" else parquet(tmp_path / "data.parquet", rows)
    data = config(path).data
    assert (data.question, data.answer) == (question, answer)
    problems, _ = read_problems(data)
    assert [problem.secret["answer"] for problem in problems] == golds
    assert problems[0].public == public


def test_all_rows_are_grown_unless_a_number_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, *({"question": f"{n}?", "answer": n} for n in range(20)))
    assert config(path).prompts == 20
    assert config(path, prompts=3).prompts == 3
    assert resolve(flags={"data": str(path)}).config.prompts == 20
    (tmp_path / "my.toml").write_text(f'prompts = 4\ndata = "{path}"\n')
    assert resolve(files=[tmp_path / "my.toml"]).config.prompts == 4
    for preset in ("chains", "search_r1", "mctsr", "beam"):
        assert resolve(preset=preset, flags={"data.path": str(path)}).config.prompts == 20
    assert resolve(overrides=['data.questions=["a?", "b?", "c?"]']).config.prompts == 3


def test_the_mapping_is_in_the_saved_configuration(tmp_path: Path) -> None:
    path = written(tmp_path, *GSM8K)
    found = config(path)
    path.unlink()
    assert from_toml(to_toml(found)) == found
    assert (found.data.answer, found.data.judge, found.prompts) == ("answer", "exact", 2)


def test_what_the_user_names_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path, {"question": "a?", "prompt": "b?", "answer": "1", "gold": "2", "solution": "3"})
    data = config(path, data__question="prompt", data__answer="gold").data
    (problem,), _ = read_problems(data)
    assert (problem.question, problem.secret, problem.public) == ("b?", {"answer": "2"}, {"question": "a?"})


def test_a_gold_column_that_is_named_public_is_public_and_maps_to_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, {"question": "a?", "answer": "x", "info": {"gold": "y", "level": 1}})
    found = config(path, data__public=["answer", "info"])
    (problem,), _ = read_problems(found.data)
    assert problem.public == {"answer": "x", "info": {"level": 1}}
    assert (found.data.answer, problem.secret) == ("info.gold", {"answer": "y"})
    found = config(path, data__public=["answer", "info.gold"])
    assert found.data.answer is None and not build_task(found).judges
    assert read_problems(found.data)[0][0].public == {"answer": "x", "info.gold": "y"}


def test_no_column_is_the_gold_answer_if_the_user_says_so(tmp_path: Path) -> None:
    found = resolve(overrides=[f"data.path={written(tmp_path, *GSM8K)}", "data.answer=none"]).config
    problems, _ = read_problems(found.data)
    assert not build_task(found).judges
    assert [(problem.secret, problem.public) for problem in problems] == [({}, {})] * 2


@pytest.mark.parametrize(
    "row",
    [
        {"answer": "4", "gold": "5"},
        {"answer": "4", "solution": "5"},
        {"answer": "4", "meta": {"label": "5"}},
        {"answer": ["4", "four"], "ground_truth": ["5"]},
        {"answer": "It is four.\n#### 4", "ground_truth": 5},
    ],
)
def test_gold_columns_that_disagree_are_refused_by_name(tmp_path: Path, row: Row) -> None:
    path = written(tmp_path, {"question": "a?", **dict.fromkeys(row, "1")}, {"question": "b?", **row})
    with pytest.raises(ConfigError) as caught:
        config(path)
    said = str(caught.value)
    names = [f"{name}.label" if isinstance(value, dict) else name for name, value in row.items()]
    assert f"{path}:2: " in said and all(repr(name) in said for name in names) and "data.answer=" in said
    assert config(path, data__answer="answer").data.answer == "answer"


@pytest.mark.parametrize(
    "row",
    [
        {"answer": "4", "gold": "4.0"},
        {"answer": "Paris", "answers": ["paris", "Paris, France"]},
        {"answer": "4", "solution": "Two is added to two, and so one gets four."},
        {"answer": "4", "gold": None},
    ],
)
def test_gold_columns_that_say_the_same_are_one(tmp_path: Path, row: Row) -> None:
    assert config(written(tmp_path, {"question": "a?", **row})).data.answer == "answer"


def test_a_file_without_a_question_is_refused_with_its_columns_and_the_option(tmp_path: Path) -> None:
    path = written(tmp_path, {"text": "a?", "meta": {"level": 1}, "answer": "x"})
    with pytest.raises(ConfigError) as caught:
        config(path)
    assert "the file has answer, meta, meta.level, text" in str(caught.value)
    assert "--set data.question=COLUMN" in str(caught.value)
    assert config(path, data__question="text").prompts == 1


@pytest.mark.parametrize(
    ("gold", "judge"),
    [
        ("4", "exact"),
        ("Paris", "exact"),
        ("1,000.5", "exact"),
        (r"\frac{1}{2}", "math"),
        ("x^2", "math"),
        ("3/4", "math"),
    ],
)
def test_the_judge_is_math_where_the_gold_looks_mathematical(tmp_path: Path, gold: str, judge: str) -> None:
    pytest.importorskip("math_verify")
    path = written(tmp_path, {"question": "a?", "answer": gold})
    found = config(path)
    assert (found.data.judge, [each.name for each in build_task(found).judges]) == (judge, [judge])
    other = "math" if judge == "exact" else "exact"
    assert config(path, data__judge=other).data.judge == other


def test_an_evaluation_of_a_service_finds_its_columns_too(tmp_path: Path) -> None:
    flags = {"service.batch_size": 1, "service.eval.mine.data.path": str(written(tmp_path, *VERL))}
    service = resolve(flags=flags).config.service
    assert service is not None
    assert service.eval["mine"].data.answer == "reward_model.ground_truth"


def test_a_data_config_without_a_mapping_keeps_gold_columns_secret_too(tmp_path: Path) -> None:
    (problem,), _ = read_problems(DataConfig(path=str(written(tmp_path, {"question": "a?", "answer": "x", "n": 1}))))
    assert problem.public == {"n": 1}
