"""Gold: the names under which data sets keep questions and answers, and what of a row is secret because of them.

Names are compared without case and punctuation. A column is secret by its name at any depth, in lists and in a text of
JSON too, unless the user names it public. Sources of the names: the data cards of GSM8K, MATH, DeepScaleR, NuminaMath,
OpenMathReasoning, SQuAD, TriviaQA and ARC, and the Parquet files of verl and Search-R1.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, cast

from ramify.formats.boxed import boxed
from ramify.judges.exact import gold_answers, is_same_answer
from ramify.tasks.data_columns import Columns

QUESTIONS: Final = ("question", "prompt", "problem", "query", "instruction")
"""Names of the question's column, the first of them first."""
GOLD: Final = tuple(
    """groundtruth groundtruths answer answers gold golds goldanswer goldanswers goldenanswer goldenanswers finalanswer
    expectedanswer correctanswer correctanswers referenceanswer referenceanswers answerkey target targets label labels
    solution solutions""".split()
)
"""Names of the gold answer's column, the first of them first. A worked solution comes last."""
SOLUTIONS: Final = ("solution", "solutions")
WORKED: Final = frozenset(
    """rationale explanation reasoning chainofthought cot generatedsolution generatedanswer response responses output
    outputs completion completions""".split()
)
"""Names of columns that often hold the answer, but never become the gold answer by themselves."""
INSIDE: Final = ("target", "text", "value", "aliases", "normalizedaliases", "normalizedvalue")
"""Names inside a gold column that hold the answer itself (Search-R1, SQuAD, TriviaQA)."""
MAX_WORDS: Final = 8
"""Longer texts are worked solutions, not answers."""

_SECRET: Final = frozenset({*GOLD, *WORKED})
_SECRET_INSIDE: Final = _SECRET | {*INSIDE}
_PUNCTUATION = re.compile(r"[\W_]+")
_PARTS = re.compile(r"[./:]|__")
_KEY = re.compile(r"""["']([^"'\\]{1,60})["']\s*:""")
_MARK = re.compile(r"(?:^|\s)####[ \t]*(\S[^\n]*)")
_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+")
_LATEX = re.compile(r"[\\^$]|^\s*-?\d+\s*/\s*\d+\s*$")
_HIDDEN: Final = object()


def key_of(name: str) -> str:
    """A name without case and punctuation."""
    return _PUNCTUATION.sub("", name).casefold()


def is_gold(name: str, *, is_inside: bool = False) -> bool:
    """Whether a column of this name is secret. `is_inside`: it stands inside a gold column."""
    keys = {key_of(name), *map(key_of, _PARTS.split(name))}
    return not keys.isdisjoint(_SECRET_INSIDE if is_inside else _SECRET)


def open_part(row: Columns, *, named: Collection[str], answer: str | None, at: str = "") -> dict[str, Any]:
    """The row, or the value of its column `at`, without what is secret by its name. `named` columns stay whole. Of a
    gold column that holds the mapped answer, the rest stays."""
    return _open(row, at, named, answer, is_inside=False)


def _open(
    values: Mapping[str, Any], at: str, named: Collection[str], answer: str | None, *, is_inside: bool
) -> dict[str, Any]:
    rest: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{at}.{name}" if at else str(name)
        holds_answer = answer is not None and answer.startswith(f"{path}.") and isinstance(value, Mapping)
        if path in named:
            rest[name] = value
        elif not is_gold(str(name), is_inside=is_inside) or holds_answer:
            below = is_inside or (holds_answer and is_gold(str(name)))
            if (kept := _open_value(value, path, named, answer, is_inside=below)) is not _HIDDEN:
                rest[name] = kept
    return rest


def _open_value(value: Any, path: str, named: Collection[str], answer: str | None, *, is_inside: bool) -> Any:
    match value:
        case Mapping():
            return _open(cast(Columns, value), path, named, answer, is_inside=is_inside)
        case list() | tuple():
            parts = (_open_value(v, path, named, answer, is_inside=is_inside) for v in cast(list[Any], value))
            return [part for part in parts if part is not _HIDDEN]
        case str() if value.lstrip()[:1] in ("{", "[") and any(map(is_gold, _KEY.findall(value))):
            return _HIDDEN
        case _:
            return value


def question_columns(row: Columns) -> Iterator[str]:
    """Columns that are called like a question and hold a text or messages; nested ones by their dotted path."""
    for name, value in row.items():
        if key_of(name) in QUESTIONS and isinstance(value, str | list) and value:
            yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in question_columns(cast(Columns, value)))


def gold_columns(row: Columns, named: Collection[str], at: str = "") -> Iterator[str]:
    """Columns of a row that are called like a gold answer and hold one, but for `named` ones; nested ones by their
    dotted path."""
    for name, value in row.items():
        path = f"{at}.{name}" if at else name
        is_gold_name = key_of(name) in GOLD
        if path in named and is_gold_name:
            continue
        if is_gold_name and isinstance(value, Mapping):
            inner = cast(Columns, value)
            held = [
                one for wanted in (*INSIDE, *GOLD) for one in inner if key_of(one) == wanted and is_held(inner[one])
            ]
            yield from (f"{path}.{one}" for one in held[:1])
        elif isinstance(value, Mapping):
            yield from gold_columns(cast(Columns, value), named, path)
        elif is_gold_name and is_held(value):
            yield path


def rank(column: str, names: tuple[str, ...]) -> tuple[bool, int, int]:
    """Whether a column is a worked solution, its depth, and its place among the usual names; the least comes first."""
    keys = [key_of(part) for part in column.split(".")]
    place = min((names.index(key) for key in keys if key in names), default=len(names))
    return any(key in SOLUTIONS for key in keys), len(keys), place


def is_held(value: Any) -> bool:
    """Whether a column holds an answer."""
    return value is not None and value not in ("", [], ())


def final_answer(answer: Any) -> Any:
    r"""Of a worked solution the answer that it marks: behind its last `####`, or in its last `\boxed{}`; of a list, the
    same for each. Anything else as it stands."""
    if isinstance(answer, list):
        return [final_answer(one) for one in cast(list[Any], answer)]
    return (_marked(answer) or answer) if isinstance(answer, str) else answer


def disagree(one: Any, other: Any) -> bool:
    """Whether two gold columns hold different answers. A worked solution is compared only where both are numbers."""
    pairs = [(a, b) for a in gold_answers(one) for b in gold_answers(other)]
    finals = [(str(final_answer(a)), str(final_answer(b))) for a, b in pairs]
    if not pairs or any(is_same_answer(a, b) for a, b in finals):
        return False
    is_short = not any(_is_worked(text) for pair in pairs for text in pair)
    return is_short or all(_NUMBER.fullmatch(a.strip()) and _NUMBER.fullmatch(b.strip()) for a, b in finals)


def looks_mathematical(answer: Any) -> bool:
    r"""Whether a gold answer is written in LaTeX (a `\`, `^` or `$`), or is a fraction such as 3/4."""
    return any(_LATEX.search(one) for one in gold_answers(final_answer(answer)))


def _marked(text: str) -> str | None:
    marks = _MARK.findall(text)
    return marks[-1].strip() if marks else boxed(text)


def _is_worked(text: str) -> bool:
    return _marked(text) is not None or len(text.split()) > MAX_WORDS
