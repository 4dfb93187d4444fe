"""The Python session of `ledgers`: it starts with the problem's ledger, and shows the current order after every call.

An order stays current until the ledger in the session changes; then the next order is shown. The order is chosen
outside the session, from the ledger's values, so no code in the session can know it earlier. The state of a branch is
its interpreter and its position in the book, and a fork copies both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.core.segment import ToolStatus
from ramify.core.tool import STATEFUL, Branching, ToolResult, ToolSession, text_schema
from ramify.tasks.ledgers_book import Ledger, LedgerBook
from ramify.tools.python import Python

READ: Final = 'print("\\n" + __import__("json").dumps(ledger))'
"""Prints the session's ledger in the last line."""


@dataclass(frozen=True, slots=True)
class LedgerPython:
    """`python` with the problem's ledger in every session. Branches as `python` does."""

    python: Python
    name: str = "python"

    def __post_init__(self) -> None:
        if not self.python.is_stateful:
            raise ConfigError("python.is_stateful = False: the ledger is kept in the session; leave it true")

    @property
    def branching(self) -> Branching:
        return self.python.branching

    @property
    def isolation(self) -> str:
        return self.python.isolation

    @property
    def timeout_s(self) -> float:
        return self.python.timeout_s

    @property
    def schema(self) -> Mapping[str, Any]:
        return text_schema(self.name, "Run Python in your session, where `ledger` is.", parameter="code")

    async def try_walls(self) -> None:
        """As `python` does."""
        await self.python.try_walls()

    async def open(self, problem: Problem) -> "LedgerSession":
        """Raises `ToolError` if the problem is not from `ledgers`, or the session cannot be started."""
        book = _book(problem)
        python = await self.python.open(problem)
        try:
            begun = await python.run(f"ledger = {book.ledger!r}")
            if not begun.ok:
                raise ToolError("not_begun", f"the session did not take its ledger: {begun.text[:200]}")
        except BaseException:
            await python.close()
            raise
        return LedgerSession(python, book, book.ledger)


@dataclass(slots=True)
class LedgerSession:
    """One branch's interpreter and its book: `num_done` orders are done, and `ledger` is the last known ledger."""

    python: ToolSession
    book: LedgerBook
    ledger: Ledger
    """The ledger for which the current order was shown."""
    num_done: int = 0

    async def call(self, arguments: str) -> ToolResult:
        """Run the code. The result is its output, followed by the order to carry out next."""
        result = await self.python.call(arguments)
        if result.status not in STATEFUL:
            return result
        shown = await self.python.call(READ)
        if shown.status not in STATEFUL:
            return shown
        ledger = _ledger(shown.text, self.book)
        if ledger is None:
            names = ", ".join(self.book.ledger)
            return _with(result, f"error: `ledger` must hold a whole number for each of {names}", status="error")
        if ledger != self.ledger and self.num_done < self.book.num_orders:
            self.num_done += 1
        self.ledger = ledger
        line = told(self.book, self.num_done, self.ledger)
        return _with(result, line, status="error" if result.status == "error" else "ok")

    async def fork(self) -> "LedgerSession":
        return replace(self, python=await self.python.fork())

    async def close(self) -> None:
        await self.python.close()


def told(book: LedgerBook, num_done: int, ledger: Ledger) -> str:
    """What to do with a ledger after `num_done` orders."""
    if num_done == book.num_orders:
        return f"the book is closed: answer {book.asked}"
    return f"order {num_done + 1} of {book.num_orders}: {book.order(num_done, ledger).text}"


def _with(result: ToolResult, line: str, *, status: ToolStatus) -> ToolResult:
    """The result with one more line."""
    text = result.text.rstrip("\n")
    return replace(result, text=f"{text}\n{line}" if text else line, status=status)


def _book(problem: Problem) -> LedgerBook:
    try:
        columns = msgspec.convert(dict(problem.public), _Columns)
        return LedgerBook(tuple(sorted(columns.ledger.items())), columns.num_orders)
    except msgspec.ValidationError as error:
        raise ToolError("tool_gave_up", f"problem {problem.uid!r} is none of `ledgers`: {error}") from error


class _Columns(msgspec.Struct):
    ledger: dict[str, int]
    num_orders: int


def _ledger(shown: str, book: LedgerBook) -> Ledger | None:
    """The ledger that a session printed; None = it does not have the accounts of this book."""
    try:
        ledger = msgspec.json.decode(shown.rstrip().rpartition("\n")[2], type=dict[str, int])
    except msgspec.DecodeError:
        return None
    return ledger if set(ledger) == set(book.ledger) else None
