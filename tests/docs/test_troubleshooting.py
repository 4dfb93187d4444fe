"""Every error that ramify raises says its own remedy, or docs/troubleshooting.md has it.

An error is a `raise` of a class of `ramify.core.errors` with a message written in the code. A message that only hands
on another's words is not checked. An `EngineError` or `ToolError` is found by its reason, the word in front of the
colon.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramify.core import errors

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "troubleshooting.md"
SOURCE = REPOSITORY / "src" / "ramify"
CLASSES = {name for name, value in vars(errors).items() if isinstance(value, type) and name != "RamifyError"}
BY_REASON = {"EngineError", "ToolError"}
BY_CLASS = {"ContractError", "EngineUnusable", "EnginesDown", "JudgeError", "WorkersDown"}
"""Classes of which the page says what to do, whatever the message: it names a rule, a judge, or another's words."""
HOLE = "…"
"""What stands for a value in a message."""
REMEDY = re.compile(
    r"\b(add|allowed|ask|at least|at most|above|call|choose|continue|either|ends in|expected|finite numbers|give|"
    r"go together|grow|install|leave|left out|lower|make|may not|must|name|needed|needs?|one each|one for|one of|only|"
    r"or more|pass|place|probability|put|raise|remove|rename|restart|restore|run|save|see|set|start|takes?|try|trust|"
    r"use|wait|write)\b|\d to|[\d…] to […\d]|>=|--set|there is no|; "
)
"""What to do or what is allowed. `; ` stands before what to do."""


@dataclass(frozen=True, slots=True)
class Raised:
    """One `raise` with its message."""

    error: str
    place: str
    message: str
    """Text with `…` for values; of an `EngineError` or `ToolError` the reason alone."""

    @property
    def is_written_here(self) -> bool:
        return len(re.findall(r"[A-Za-z]{2,}", self.message)) >= (1 if self.error in BY_REASON else 3)


def text_of(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(text_of(value) for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
        case _:
            return HOLE


def raised() -> Iterator[Raised]:
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id=error), args=[first, *_])) if error in CLASSES:
                    yield Raised(error, f"{file.relative_to(REPOSITORY)}:{node.lineno}", text_of(first))
                case _:
                    pass


def listed() -> tuple[set[str], list[re.Pattern[str]]]:
    """Words and messages of the page: code in the first cell of its tables; `…` stands for anything."""
    cells = [line.split("|")[1] for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    words = {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}
    return words, [re.compile(".*".join(map(re.escape, word.split(HOLE)))) for word in words]


def is_explained(found: Raised, words: set[str], messages: list[re.Pattern[str]]) -> bool:
    if found.error in BY_CLASS or not found.is_written_here:
        return True
    if found.error in BY_REASON:
        return any(message.fullmatch(found.message) for message in messages)
    return bool(REMEDY.search(found.message)) or any(message.search(found.message) for message in messages)


def test_every_error_says_its_remedy_or_the_page_does() -> None:
    words, messages = listed()
    missing = [
        f"{found.place}: {found.error}: {found.message}"
        for found in raised()
        if not is_explained(found, words, messages)
    ]
    assert not missing, "say in the message what to do, or add it to docs/troubleshooting.md:\n" + "\n".join(missing)


def test_the_page_says_what_to_do_at_errors_of_these_classes() -> None:
    words, _ = listed()
    assert words >= BY_CLASS


def test_the_page_lists_no_reason_that_nothing_raises() -> None:
    words, _ = listed()
    text = "\n".join(file.read_text("utf-8") for file in SOURCE.rglob("*.py"))
    of_page = {word for word in words if re.fullmatch(r"[a-z]+(_[a-z]+)+", word)}
    gone = sorted(word for word in of_page if f'"{word}"' not in text)
    assert not gone, gone


@pytest.mark.parametrize(
    ("message", "is_remedied"),
    [("width = …: at least 1 is needed", True), ("… cannot be read: …", False), ("… needs torch: pip install", True)],
)
def test_a_remedy_is_what_to_do_or_what_is_allowed(message: str, is_remedied: bool) -> None:
    assert bool(REMEDY.search(message)) is is_remedied
