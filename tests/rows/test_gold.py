"""Gold answers in rows: only where they are asked for, and where each trainer reads them."""

from dataclasses import replace

import pytest
from tests.rows.batches import chains

from ramify.core.errors import ExportError
from ramify.rows import Row, rows_of, search_r1, slime, verl
from ramify.rows.gold import with_gold


def golden(answer: object, **public: object) -> list[Row]:
    rows = [replace(row, public=public) for row in rows_of(chains(1.0, 0.0))]
    return list(with_gold(rows, "answer", answer))


def test_search_r1_reads_a_list_of_targets_and_a_data_source() -> None:
    columns = search_r1.batch(golden(4), gold="answer").columns
    assert columns["reward_model"] == [{"style": "rule", "ground_truth": {"target": ["4"]}}] * 2
    assert columns["data_source"] == ["nq", "nq"] and "answer" not in columns
    columns = search_r1.batch(golden(["a", "b"], data_source="hotpotqa"), gold="answer").columns
    assert columns["reward_model"][0]["ground_truth"] == {"target": ["a", "b"]}
    assert columns["data_source"] == ["hotpotqa"] * 2


def test_verl_reads_a_text_and_keeps_what_else_the_reward_model_says() -> None:
    rows = golden("4", data_source="openai/gsm8k", reward_model={"style": "rule", "note": 1})
    columns = verl.batch(rows, gold="answer").non_tensors
    assert columns["reward_model"] == [{"style": "rule", "note": 1, "ground_truth": "4"}] * 2
    with pytest.raises(ExportError, match="data_source=openai/gsm8k"):
        verl.batch(golden("4"), gold="answer")
    assert verl.batch(golden("4"), gold="answer", data_source="math").non_tensors["data_source"] == ["math"] * 2


def test_slime_reads_a_label() -> None:
    for answer, label in ((4, "4"), (["a", "b"], '["a", "b"]')):
        sample = slime.samples(golden(answer), gold="answer")[0]
        assert sample.label == label and "answer" not in sample.metadata


def test_gold_answers_write_over_no_column_and_are_not_made_up() -> None:
    with pytest.raises(ExportError, match="a public column of that name"):
        list(with_gold(golden("4"), "answer", "5"))
    with pytest.raises(ExportError, match=r"rows\(gold='answer'\)"):
        search_r1.batch(rows_of(chains(1.0)), gold="answer")
    with pytest.raises(ExportError, match="goes with gold"):
        search_r1.batch(rows_of(chains(1.0)), data_source="nq")
