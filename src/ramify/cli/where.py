"""Where: a condition over the columns of a table, such as `reward<0.3 and tool=="python"`.

It is parsed by `ast` and never run as Python: comparisons of columns and literals, `and`, `or`, `not` and parentheses.
Everything else is refused. A column of several words equals a text if the text is one of them. A column without a value
(None) fulfils no comparison but `== None` and `!= …`.
"""

import ast
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ramify.core.errors import ConfigError, nearest
from ramify.view.tree_values import Kind, Values

MAX_LENGTH: Final = 500
EXAMPLE: Final = 'reward<0.3 and tool=="python"'
ORDERS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition."""

    names: tuple[str, ...]
    """The columns that it names, in order."""
    holds: Callable[[Values], bool]


@dataclass(frozen=True, slots=True)
class _Operand:
    """One side of a comparison."""

    kind: Kind | Literal["none", "list"]
    of: Callable[[Values], Any]
    items: tuple["_Operand", ...] = ()
    """The literals of a list."""


def condition(text: str, columns: Mapping[str, Kind]) -> Condition:
    """Parse a condition over `columns`. Raises `ConfigError`, which says what is wrong and what is allowed."""
    return _Parsing(text, columns).condition()


def known_column(name: str, columns: Collection[str], *, flag: str) -> str:
    """`name`, if there is such a column. Raises `ConfigError`, which lists the columns."""
    if name not in columns:
        raise ConfigError(f"{flag}: there is no column {name!r}; {nearest(name, columns)}; {_all(columns)}")
    return name


class _Parsing:
    """Parses one text."""

    def __init__(self, text: str, columns: Mapping[str, Kind]) -> None:
        self._text = text
        self._columns = columns
        self._names: dict[str, None] = {}

    def condition(self) -> Condition:
        if len(self._text) > MAX_LENGTH:
            raise ConfigError(f"--where has {len(self._text)} characters; at most {MAX_LENGTH} are read")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                parsed = ast.parse(self._text.strip(), mode="eval").body
            holds = self._test(parsed)
        except (SyntaxError, ValueError) as error:
            said = error.msg if isinstance(error, SyntaxError) else str(error)
            raise self._wrong(f"{said}; write it as {EXAMPLE!r}") from None
        except (RecursionError, MemoryError):
            raise self._wrong(f"it is nested too deeply; write it as {EXAMPLE!r}") from None
        return Condition(tuple(self._names), holds)

    def _test(self, node: ast.expr) -> Callable[[Values], bool]:
        match node:
            case ast.BoolOp(op, parts):
                tests, is_all = [self._test(part) for part in parts], isinstance(op, ast.And)
                return lambda row: (all if is_all else any)(test(row) for test in tests)
            case ast.UnaryOp(ast.Not(), inner):
                test = self._test(inner)
                return lambda row: not test(row)
            case ast.Compare(left, signs, rights):
                sides = [self._operand(side) for side in (left, *rights)]
                tests = [self._comparison(*each) for each in zip(sides, signs, sides[1:], strict=False)]
                return lambda row: all(test(row) for test in tests)
            case _:
                raise self._wrong(
                    f"{ast.unparse(node)!r} is no comparison; allowed are comparisons (== != < <= > >= in) of columns "
                    "with numbers and texts, joined by and, or, not"
                )

    def _operand(self, node: ast.expr) -> _Operand:
        match node:
            case ast.Name(name):
                self._names[known_column(name, self._columns, flag=f"--where {self._text!r}")] = None
                return _Operand(self._columns[name], lambda row: row[name])
            case ast.Constant(None):
                return _Operand("none", lambda row: None)
            case ast.Constant(str() as text):
                return _Operand("text", lambda row: text)
            case ast.Constant(int() | float() as number) if not isinstance(number, bool):
                return _Operand("number", lambda row: number)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)) if not isinstance(number, bool):
                return _Operand("number", lambda row: -number)
            case ast.Tuple(parts) | ast.List(parts) | ast.Set(parts):
                items = tuple(self._operand(part) for part in parts)
                return _Operand("list", lambda row: None, items)
            case _:
                raise self._wrong(f"{ast.unparse(node)!r} is no column, number or text")

    def _comparison(self, left: _Operand, sign: ast.cmpop, right: _Operand) -> Callable[[Values], bool]:
        match sign:
            case ast.Eq():
                return self._equal(left, right)
            case ast.NotEq():
                equal = self._equal(left, right)
                return lambda row: not equal(row)
            case ast.In():
                return self._within(left, right)
            case ast.NotIn():
                within = self._within(left, right)
                return lambda row: not within(row)
            case _ if (order := ORDERS.get(type(sign))) is not None:
                return self._ordered(left, order, right)
            case _:
                raise self._wrong("`is` is not allowed; use == or !=")

    def _equal(self, left: _Operand, right: _Operand) -> Callable[[Values], bool]:
        if left.kind == "words" and right.kind == "text":
            left, right = right, left
        match left.kind, right.kind:
            case "text", "words":
                return lambda row: left.of(row) in right.of(row)
            case ("none", "words") | ("words", "none"):
                return lambda row: not (left.of(row) or right.of(row))
            case (one, other) if "list" not in (one, other) and (one == other or "none" in (one, other)):
                return lambda row: left.of(row) == right.of(row)
            case _:
                raise self._unlike(left, right)

    def _within(self, left: _Operand, right: _Operand) -> Callable[[Values], bool]:
        if right.kind == "list":
            tests = [self._equal(left, item) for item in right.items]
            return lambda row: any(test(row) for test in tests)
        if left.kind == "text" and right.kind in ("text", "words"):
            return lambda row: left.of(row) is not None and left.of(row) in (right.of(row) or ())
        raise self._unlike(left, right)

    def _ordered(self, left: _Operand, order: Callable[[Any, Any], bool], right: _Operand) -> Callable[[Values], bool]:
        if left.kind != right.kind or left.kind not in ("number", "text"):
            raise self._unlike(left, right)

        def holds(row: Values) -> bool:
            one, other = left.of(row), right.of(row)
            return one is not None and other is not None and order(one, other)

        return holds

    def _unlike(self, left: _Operand, right: _Operand) -> ConfigError:
        numbers = ", ".join(name for name, kind in self._columns.items() if kind == "number")
        texts = ", ".join(name for name, kind in self._columns.items() if kind != "number")
        return self._wrong(
            f"{left.kind} cannot be compared so with {right.kind}; numbers are {numbers}; texts, which are written "
            f"in quotes, are {texts}"
        )

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"--where {self._text!r}: {what}")


def _all(columns: Collection[str]) -> str:
    return f"columns: {', '.join(columns)}"
