"""Gold: gold answers in rows, for a trainer that scores them itself. Nobody gets them without asking.

A gold answer is a secret of its problem. The export option `gold=NAME` copies it into the rows' public column NAME. The
exporters of `search_r1` and `verl` then move it to `reward_model.ground_truth`, where the reward managers of these
trainers read it, and `slime` moves it to `label`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from ramify.core.errors import ExportError
from ramify.rows.row import Row

REWARD_MODEL: Final = "reward_model"
DATA_SOURCE: Final = "data_source"
EXACT_SOURCE: Final = "nq"
"""A data source that Search-R1 scores by exact match."""
Columns = dict[str, list[Any]]


def with_gold(rows: Iterable[Row], name: str, answer: Any) -> Iterator[Row]:
    """The rows of one tree, with its gold answer in the public column `name`.

    Raises `ExportError` if there is a public column of that name."""
    for row in rows:
        if name in row.public:
            raise ExportError(f"gold = {name!r}: rows have a public column of that name; leave it out by data.public")
        yield replace(row, public={**row.public, name: answer})


def scored_by_rule(columns: Columns, gold: str | None, data_source: str | None, *, is_target: bool) -> Columns:
    """The columns with the gold answers in `reward_model.ground_truth`, and with the `data_source` by which the trainer
    chooses its rule. `is_target`: as Search-R1 reads them, `{"target": [...]}`. None = as they are.

    Raises `ExportError` if nothing says verl's data source; Search-R1 has one rule, under seven names."""
    if gold is None:
        if data_source is not None:
            raise ExportError(f"data_source = {data_source!r} goes with gold: name the secret too, gold=answer")
        return columns
    if gold not in columns:
        raise ExportError(f"gold = {gold!r}: the rows have no such column; make them with rows(gold={gold!r})")
    rest = dict(columns)
    answers = rest.pop(gold)
    before = rest.get(REWARD_MODEL, [None] * len(answers))
    rest[REWARD_MODEL] = [
        {**(_table(old)), "style": "rule", "ground_truth": {"target": alternatives(one)} if is_target else as_text(one)}
        for old, one in zip(before, answers, strict=True)
    ]
    if is_target and DATA_SOURCE not in rest:
        data_source = data_source or EXACT_SOURCE
    if data_source is not None:
        rest[DATA_SOURCE] = [data_source] * len(answers)
    if None in rest.get(DATA_SOURCE, [None]):
        raise ExportError(
            "the trainer chooses its rule by the column 'data_source', which these rows lack; name the data set: "
            "data_source=openai/gsm8k"
        )
    return rest


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def alternatives(gold: Any) -> list[str]:
    """The alternatives of a gold answer, as text."""
    return [str(one) for one in gold] if isinstance(gold, list | tuple) else [str(gold)]


def as_text(gold: Any) -> Any:
    """The gold answer as text; a list of alternatives as a list of texts."""
    return alternatives(gold) if isinstance(gold, list | tuple) else str(gold)
