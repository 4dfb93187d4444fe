"""Data: gold answers are secret wherever a file keeps them, and every question is asked."""

import csv
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.cli.commands import SCRIPTED, Said, ramify
from tests.tasks.saved_data import parquet, save_to_disk, stream

import ramify as library
from ramify.engines.builtin import Builtin
from ramify.testing import Scripted, table

pytestmark = pytest.mark.hostile

GOLD = "xylophone-4711"
"""A gold answer that no other text holds."""
EXPORTS = {"jsonl": "jsonl", "search_r1": "npz", "verl": "npz", "slime": "jsonl", "sft": "jsonl"}
"""Exports with public columns -> how their file ends. The columns of an .npz file are the .jsonl file beside it."""


def jsonl(path: Path, rows: Iterable[Mapping[str, Any]], *, start: str = "") -> Path:
    path.write_text(start + "".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def grown(capsys: pytest.CaptureFixture[str], path: Path, *flags: object) -> Said:
    return ramify(capsys, "rollout", *SCRIPTED, "--data", path, "--out", path.parent / "run", *flags)


def shown_anywhere(folder: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Where the gold answer is: in the folder of a run, in what `show` prints of it, in its exports."""
    places = [str(path) for path in run.rglob("*") if path.is_file() and GOLD.encode() in path.read_bytes()]
    for arguments in (["show", run], ["show", run, "0"], ["check", run, "--json"]):
        said = ramify(capsys, *arguments)
        places += [str(arguments)] if GOLD in said.out + said.err else []
    for to, suffix in EXPORTS.items():
        out = folder / f"{to}.{suffix}"
        assert ramify(capsys, "export", run, "--to", to, "--out", out).code == 0, to
        places += [to] if GOLD in out.with_suffix(".jsonl").read_text("utf-8") else []
    return places


PLANTED: dict[str, dict[str, Any]] = {
    "plain": {"answer": GOLD},
    "case": {"Gold_Answer": GOLD},
    "dashes": {"ground-truth": GOLD},
    "worked": {"solution": f"One counts, and so the answer is \\boxed{{{GOLD}}}."},
    "gsm8k": {"answer": f"One counts.\n#### {GOLD}"},
    "verl": {"reward_model": {"style": "rule", "ground_truth": GOLD}, "extra_info": {"answer": GOLD, "index": 1}},
    "search_r1": {"reward_model": {"style": "rule", "ground_truth": {"target": [GOLD, "other"]}}},
    "squad": {"answers": {"text": [GOLD], "answer_start": [3]}},
    "trivia_qa": {"answer": {"value": GOLD, "aliases": [GOLD, "b"], "normalized_aliases": [GOLD]}},
    "two": {"answer": GOLD, "meta": {"deep": {"deeper": [{"expected_answer": GOLD}, {"level": 2}]}}},
    "copy": {"answer": GOLD, "zz": GOLD, "meta": {"zz": [GOLD]}},
    "copy in the case of a shout": {"answer": GOLD, "zz": f"  {GOLD.upper()} "},
    "response": {"answer": "x", "response": GOLD, "generated_solution": f"thus {GOLD}"},
    "messages": {
        "answer": GOLD,
        "messages": [{"role": "user", "content": "what?"}, {"role": "assistant", "content": f"I say {GOLD}"}],
        "conversations": [{"from": "human", "value": "what?"}, {"from": "gpt", "value": f"I say {GOLD}"}],
    },
    "json text": {"answer": GOLD, "extra_info": json.dumps({"index": 1, "answer": f"I say {GOLD}"})},
    "python text": {"answer": GOLD, "reward_model": str({"ground_truth": f"I say {GOLD}"})},
    "json text in a list": {"answer": GOLD, "notes": [json.dumps({"gold": f"I say {GOLD}"})]},
    "dotted name": {"answer": GOLD, "extra.solution": f"I say {GOLD}", "extra__gold": f"I say {GOLD}"},
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_gold_answer_is_in_no_row(
    planted: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gold answer that a data file keeps under a usual name, or twice, is in no row, file or output of its run."""
    rows = [{"question": f"say {n}?", "level": n, **planted} for n in range(2)]
    assert grown(capsys, jsonl(tmp_path / "q.jsonl", rows), "--preset", "chains").code == 0
    assert shown_anywhere(tmp_path, tmp_path / "run", capsys) == []
    rows = [json.loads(line) for line in (tmp_path / "jsonl.jsonl").read_text("utf-8").splitlines()]
    assert {row["public"]["level"] for row in rows} == {0, 1}


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "bom"])
def test_a_gold_answer_is_secret_in_every_kind_of_file(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gold answer is secret in a Parquet, Arrow and CSV file, and behind a byte order mark."""
    rows = [{"question": f"say {n}?", "answer": GOLD, "info": {"gold": GOLD, "level": n}} for n in range(2)]
    match kind:
        case "parquet":
            path = parquet(tmp_path / "q.parquet", rows)
        case "arrow":
            path = save_to_disk(tmp_path / "saved", [rows])
        case "csv":
            path = tmp_path / "q.csv"
            with path.open("w", encoding="utf-8-sig", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["answer", " question", "info"])
                writer.writerows([GOLD, row["question"], json.dumps(row["info"])] for row in rows)
        case _:
            path = jsonl(
                tmp_path / "q.jsonl", [{"answer": GOLD, "question": row["question"]} for row in rows], start="\ufeff"
            )
    said = grown(capsys, path, "--json")
    assert (said.code, said.json["data"]["judges"], said.json["trees"]) == (0, ["exact"], 2)
    assert shown_anywhere(tmp_path, tmp_path / "run", capsys) == []


def test_a_column_of_json_text_hides_its_gold_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gold answer inside a column of JSON text in an Arrow file is secret."""
    text = pa.array([json.dumps({"ground_truth": GOLD, "style": "rule"})] * 2).cast(pa.string())
    columns = {"question": ["a?", "b?"], "answer": ["x", "y"]}
    content = pa.table({**columns, "reward_model": pa.ExtensionArray.from_storage(pa.json_(), text)})
    path = stream(tmp_path / "q.arrow", content)
    assert grown(capsys, path, "--set", "data.answer=answer").code == 0
    assert shown_anywhere(tmp_path, tmp_path / "run", capsys) == []


def test_a_question_that_holds_the_answer_is_asked_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A question is public, also where it tells the answer."""
    path = jsonl(tmp_path / "q.jsonl", [{"question": f"Say {GOLD}.", "answer": GOLD}])
    assert grown(capsys, path).code == 0
    assert f"Say {GOLD}." in ramify(capsys, "show", tmp_path / "run", "0").out


def test_two_gold_answers_are_refused_and_nothing_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two columns with different gold answers are refused by name, without showing an answer."""
    path = jsonl(tmp_path / "q.jsonl", [{"question": "a?", "answer": GOLD, "gold": "other"}])
    said = grown(capsys, path)
    assert (said.code, said.out) == (2, "")
    assert "'answer' and 'gold'" in said.err and "data.answer=gold" in said.err and GOLD not in said.err
    assert not (tmp_path / "run").exists()


def test_two_rows_of_one_uid_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rows with one id are refused by their lines."""
    path = jsonl(tmp_path / "q.jsonl", [{"id": "1", "question": "a?"}, {"id": 1, "question": "b?"}])
    said = grown(capsys, path, "--set", "data.uid=id")
    assert said.code == 2 and "q.jsonl:2: line 1 has the uid '1' too" in said.err


@pytest.mark.parametrize("command", ["rollout", "search"])
def test_every_question_is_asked(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every row of a data file gets a tree, unless a number is asked for."""
    path = jsonl(tmp_path / "q.jsonl", [{"question": f"what is {n} + 1?", "answer": n + 1} for n in range(20)])
    flags = [*SCRIPTED, "--data", path, "--set", "strategy.options.n=1", "--json"]
    said = ramify(capsys, command, *flags, "--out", tmp_path / "all")
    assert (said.code, said.json["trees"], said.json["is_oracle"]) == (0, 20, True)
    assert said.err.count("question: 'question'; gold answer: 'answer' (secret); judge: exact") == 1
    assert ramify(capsys, command, *flags, "--prompts", 3, "--out", tmp_path / "some").json["trees"] == 3


def test_every_question_is_asked_from_python(tmp_path: Path) -> None:
    """`rollout_sync(data=FILE)` grows a tree for each row, judged by the gold answers, which no row holds."""
    path = jsonl(tmp_path / "q.jsonl", [{"question": f"{n}?", "answer": GOLD} for n in range(20)])
    for given in (path, str(path), {"path": str(path)}):
        engine = Scripted(table({"": [f"<answer>{GOLD}</answer>"]}))
        done = library.rollout_sync(data=given, engine=engine, strategy__options={"n": 1})
        assert (len(done.trees), done.report.mean_reward, done.report.is_oracle) == (20, 1.0, True)
        assert not any(GOLD in json.dumps(dict(row.public)) for row in done.rows())


def test_a_call_from_python_logs_what_it_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A call from Python logs the columns and the judge that were chosen, once, and its result holds them."""
    path = jsonl(tmp_path / "q.jsonl", [{"prompt": "a?", "gold": GOLD, "copy\n": GOLD}])
    settings: dict[str, Any] = {"engine": Scripted(), "strategy__options": {"n": 1}}
    with caplog.at_level("INFO", logger="ramify"):
        done = library.rollout_sync(data=path, **settings)
        library.rollout_sync(task="hops", prompts=1, **settings)
        library.rollout_sync(["a?"], data=path, **settings)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "ramify"]
    assert said == (
        f"data: 1 problems of {path}; question: 'prompt'; gold answer: 'gold' (secret); judge: exact; "
        "kept secret too: 'copy\\n'"
    )
    data = done.config.data
    assert (data.question, data.answer, data.judge, data.secret) == ("prompt", "gold", "exact", ("copy\n",))


def test_a_task_without_a_judge_says_so_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Questions without gold answers are grown with a warning that nothing judges them."""
    path = jsonl(tmp_path / "q.jsonl", [{"question": "a?", "kind": "x"}])
    said = grown(capsys, path)
    assert said.code == 0
    warned, grew = said.err.index("warning: the task 'data' has no judge"), said.err.index("run: ")
    assert warned < grew and "rows have no reward" in said.err and "data.answer=COLUMN" in said.err
    said = ramify(capsys, "search", *SCRIPTED, "--data", path, "--out", tmp_path / "search")
    assert said.code == 0 and "warning: the task 'data' has no judge" in said.err


def search_r1_scores(batch: Mapping[str, Any], columns: list[dict[str, Any]]) -> list[float]:
    """What Search-R1's reward manager gives to each row, restated (interfaces: `qa_em` of its `RewardManager`).

    It decodes what the attention mask keeps, picks the rule by `data_source`, takes the last pair of answer tags (one
    pair alone is the example in its prompt), and compares with `reward_model.ground_truth.target`."""
    known = {"nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"}
    codec = Builtin().codec
    scores: list[float] = []
    for ids, mask, row in zip(batch["input_ids"], batch["attention_mask"], columns, strict=True):
        assert row["data_source"] in known
        target = row["reward_model"]["ground_truth"]["target"]
        text = codec.decode(np.asarray(ids)[np.asarray(mask) == 1])
        answers = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
        golds = [target] if isinstance(target, str) else target
        said = answers[-1].strip().lower() if answers else None
        scores.append(float(said in [gold.strip().lower() for gold in golds]))
    return scores


def test_a_trainer_that_scores_rows_gets_the_gold_answers_it_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`export --to search_r1 --set gold=answer` writes the gold answers where Search-R1 reads them, and only then."""
    run = ["rollout", "--preset", "search_r1", "--task", "hops", "--prompts", 6, "--out", tmp_path / "run"]
    assert ramify(capsys, *run).code == 0
    out = tmp_path / "batch.npz"
    export = ("export", tmp_path / "run", "--to", "search_r1", "--out", out)
    assert ramify(capsys, *export).code == 0
    assert "reward_model" not in (tmp_path / "batch.jsonl").read_text("utf-8")
    assert ramify(capsys, *export, "--force", "--set", "gold=answer").code == 0
    columns = [json.loads(line) for line in (tmp_path / "batch.jsonl").read_text("utf-8").splitlines()]
    with np.load(out) as batch:
        scores = search_r1_scores(batch, columns)
    assert scores == [row["ramify"]["reward"] for row in columns]
    assert 0 < sum(scores) < len(scores)


def test_gold_answers_of_another_file_are_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gold answers are read again from the data file, and a file with other questions is refused."""
    path = jsonl(tmp_path / "q.jsonl", [{"question": "a?", "answer": GOLD}, {"question": "b?", "answer": GOLD}])
    assert grown(capsys, path).code == 0
    export = ("export", tmp_path / "run", "--to", "jsonl", "--out", tmp_path / "rows.jsonl", "--set", "gold=answer")
    assert ramify(capsys, *export).code == 0
    assert GOLD in (tmp_path / "rows.jsonl").read_text("utf-8")
    jsonl(path, [{"question": "b?", "answer": GOLD}, {"question": "a?", "answer": GOLD}])
    said = ramify(capsys, *export, "--force")
    assert said.code != 0 and "has changed since the run began" in said.err
    jsonl(path, [{"question": "a?", "answer": GOLD}, {"question": "b?", "answer": "another"}])
    said = ramify(capsys, *export, "--force")
    assert said.code != 0 and "the gold answers" in said.err and "--accept data" in said.err
    assert ramify(capsys, *export, "--force", "--accept", "data").code == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text("utf-8").splitlines()]
    assert {row["public"]["answer"] for row in rows} == {GOLD, "another"}
    assert all("data that had changed" in " ".join(row["reasons"]) for row in rows)
    said = ramify(capsys, *export[:-2], "--force", "--accept", "data")
    assert said.code == 2 and "--accept data" in said.err and "gold" in said.err
    path.unlink()
    said = ramify(capsys, *export, "--force")
    assert said.code == 2 and f"{path} cannot be read" in said.err
