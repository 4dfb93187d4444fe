"""Ledgers: carry out orders on a ledger in a Python session. Each order is shown after the one before it is done.

This is a small version of a coding agent's problem: the answer takes three or more calls, and the next order depends on
the state of the session. So a branch is right only if it has its own interpreter: a branch that sees a sibling's
variables gets other orders and another answer. The gold answer is secret; only the judge, an oracle, sees it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError
from ramify.core.format import Format
from ramify.core.judge import BranchJudge
from ramify.core.problem import Problem
from ramify.core.tool import Tool
from ramify.formats.arpo import arpo
from ramify.judges.exact import ANSWER, Exact, is_same_answer
from ramify.tasks.ledgers_book import MAX_ORDERS, MIN_ORDERS, SPLITS, LedgerBook, generate
from ramify.tasks.ledgers_python import LedgerPython, told
from ramify.tools.python import Python

FORMAT: Final = replace(
    arpo({"python": "python"}),
    template=(
        "<|user|>Write Python between <python> and </python>: it runs in your session, whose variables stay, and you "
        "are shown what it prints. Write the answer between <answer> and </answer>.\n{question}<|end|><|assistant|>"
    ),
)
"""ARPO's format, with an opening that explains what to do."""


@dataclass(frozen=True, slots=True)
class Ledgers:
    """The task: books of three to five orders, a Python session, ARPO's tags."""

    num_orders: int | None = None
    """Orders of a book, 3 to 5; None = a mix."""
    python: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the tool `python`, such as `isolation`."""
    tools: Sequence[Tool] = ()
    """Tools that replace the tool `python`; empty = none do."""
    format: Format = FORMAT
    judges: Sequence[BranchJudge] = (Exact(FORMAT),)

    def __post_init__(self) -> None:
        if self.num_orders is not None and not MIN_ORDERS <= self.num_orders <= MAX_ORDERS:
            raise ConfigError(f"num_orders = {self.num_orders!r}: a book has {MIN_ORDERS} to {MAX_ORDERS} orders")
        object.__setattr__(self, "tools", self.tools or (LedgerPython(Python(**self.python)),))

    def problems(self, split: str, num_problems: int, seed: int) -> list[Problem]:
        """Distinct problems of one split. A seed always gives the same problems."""
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: ledgers has {' and '.join(map(repr, SPLITS))}")
        return [
            Problem(
                book.key,
                question(book),
                {"ledger": book.ledger, "num_orders": book.num_orders},
                {ANSWER: str(book.answer)},
                split,
            )
            for book in generate(split, num_problems, seed, num_orders=self.num_orders)
        ]

    def prune(self, branch: Branch) -> str | None:
        """Never prunes: no output proves that a path must fail."""
        return None

    def is_same_answer(self, one: str, other: str) -> bool:
        return is_same_answer(one, other)


def question(book: LedgerBook) -> str:
    """The user's turn."""
    return (
        f"Your Python session holds ledger = {book.ledger!r}. Carry out {book.num_orders} orders on it, one a call: "
        "each is told when the one before it is done, and depends on what the ledger then holds. At the end the book "
        f"is closed and you are told what to answer.\n{told(book, 0, book.ledger)}"
    )
