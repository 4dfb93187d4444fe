"""Rows are exported to Parquet, questions are read from Parquet, and so is the corpus of an index."""

from console import ramify

ramify("rollout", "--preset", "chains", "--prompts", 2, "--out", "run")
ramify("export", "run", "--to", "parquet", "--out", "rows.parquet")

import pyarrow.parquet  # noqa: E402 - without the extra, ramify's own refusal comes first

rows = pyarrow.parquet.read_table("rows.parquet").to_pylist()
assert len({row["uid"] for row in rows}) == 2, rows

questions = pyarrow.table({"question": ["1 + 1?", "2 + 2?"], "answer": ["2", "4"], "text": ["one", "two"]})
pyarrow.parquet.write_table(questions, "questions.parquet")
ramify("rollout", "--data", "questions.parquet", "--engine", "scripted", "--preset", "chains", "--out", "asked")
assert "1 + 1?" in ramify("show", "asked")
ramify("index", "questions.parquet", "--out", "questions.index")
