"""Template budget: counts what a Jinja template does, and stops it at a fixed number. Needs jinja2, an extra.

A template is a program of somebody else. It is counted in steps and characters, never in seconds, so that the same
template and messages always end the same way. A step is a part of the template that is evaluated, or an item that is
read; the characters are those of the texts that it reads or makes. What could make a large value (`*`, `**`, `%`,
`center`, `join`, `replace` and their like) is counted before it is made.

The invariant: an operation costs no more time and memory than the count grows by, up to a small factor. So no part is
left uncounted: loops and macros count their bodies at each turn, operators and calls go through the environment's
hooks, filters and tests through functions of ours, and what Jinja compiles to plain Python (comparisons, slices,
literals, `~` and output) is wrapped in a filter of ours by `CountingVisitor`.
"""

import re
import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from types import BuiltinMethodType, GeneratorType, MethodType
from typing import Any, Final

from jinja2 import nodes, pass_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, _PassArg  # _PassArg: which argument of Jinja's own a filter takes first
from jinja2.visitor import NodeTransformer

MAX_STEPS: Final = 4_000_000
MAX_CHARACTERS: Final = 64_000_000
"""200 messages of 2,000 characters with 20 tools spend at most 2% of the steps and 5% of the characters, in the
templates of the tests."""
MAX_SOURCE: Final = 1 << 18
"""Most characters of a template. The longest published ones have about 20,000."""
REFUSED: Final = frozenset({"pprint", "urlize"})
"""Filters of Jinja that take more than linear time, and that no chat template needs."""
GROWING: Final = frozenset(
    """batch center decode encode expandtabs indent join ljust replace rjust round slice sum to_bytes tojson translate
    truncate wordwrap zfill""".split()
)
"""Filters and methods whose result grows with their arguments, by the number or by the length of the text."""
FORMATTING: Final = frozenset({"format", "format_map"})
AT_ONCE: Final = frozenset({"count", "d", "default", "first", "last", "length", "safe"})
"""Filters that look at no item."""
BY_ITEM: Final = frozenset({"items", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr"})
"""Filters that look at the items of a list, and not into them."""
GATHERING: Final = frozenset("batch groupby join max min slice sort sum unique".split())
"""Filters that read what another filter makes item by item."""
LOOKING_UP: Final = frozenset({"get", "items", "keys", "values"})
"""Methods of a dictionary that look at one of its items, or at none yet."""
COMPARING: Final = frozenset("!= < <= == > >= eq equalto ge greaterthan gt in le lessthan lt lower lt ne upper".split())
"""Tests that read the whole of what they compare."""
TURN: Final = "count a turn"
READ: Final = "count what is read"
SEARCHED: Final = "count what is searched"

_COLLECTIONS: Final = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)
_NUMBERS: Final = re.compile(r"[0-9]+")
_INNER_FIELD: Final = re.compile(r"\{[^{}]*\{")
_WORD_BITS: Final = 64
_DIGITS_OF_MOST: Final = 9


class OverBudget(Exception):
    """A template did more than it may."""


class TemplateMeter:
    """What a rendering has spent."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.steps = self.characters = 0

    def spend(self, steps: int, characters: int = 0) -> None:
        self.steps += steps
        self.characters += characters
        if self.steps > MAX_STEPS:
            raise OverBudget(_over("steps", self.steps, MAX_STEPS))
        if self.characters > MAX_CHARACTERS:
            raise OverBudget(_over("characters", self.characters, MAX_CHARACTERS))

    def read(self, value: Any) -> int:
        """Spend what it takes to read the whole of a value. Returns its size."""
        if isinstance(value, str):
            self.spend(0, len(value))
            return 1 + len(value)
        if isinstance(value, int):
            size = value.bit_length() >> 3
            self.spend(1, size)
            return 1 + size
        if isinstance(value, range):
            self.spend(1 + len(value))
            return 1 + len(value)
        if isinstance(value, bytes):
            self.spend(0, len(value))
            return 1 + len(value)
        return self._read_items(value) if isinstance(value, _COLLECTIONS) else 1

    def _read_items(self, value: Any) -> int:
        left, size = [value], 0
        while left:
            top = left.pop()
            if not isinstance(top, _COLLECTIONS):
                size += self.read(top)
                continue
            self.spend(1 + len(top))
            size += 1 + len(top)
            characters = 0
            for items in (top, top.values()) if isinstance(top, dict) else (top,):
                for item in items:
                    if type(item) is str:
                        characters += len(item)
                    else:
                        left.append(item)
            self.spend(0, characters)
            size += characters
        return size

    def multiplied(self, size: int, factors: Iterable[Any]) -> None:
        """Spend for a result that may be as large as `size` times the numbers and texts among the factors."""
        self.spend(1, size * (1 + sum(map(_reach, factors))))

    def formatted(self, text: str | bytes, values: Any) -> None:
        """Spend for the values in the fields of a text, each as wide as a number in the text says."""
        shown = text.decode("latin-1") if isinstance(text, bytes) else str(text)
        width = sum(
            int(digits) if len(digits) <= _DIGITS_OF_MOST else sys.maxsize for digits in _NUMBERS.findall(shown)
        )
        if "*" in shown or _INNER_FIELD.search(shown):  # A value says how wide another one is.
            width += sum(map(_reach, _leaves(values)))
        num_fields = 1 + shown.count("%") + shown.count("{")
        self.spend(1, len(shown) + num_fields * (self.read(values) + width))

    def turns(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, each of which is read."""
        for item in items:
            self.spend(1)
            self.read(item)
            yield item


def _over(unit: str, spent: int, most: int) -> str:
    return (
        f"it has spent {spent:,} {unit} of the {most:,} that a template may spend; real templates need a "
        "hundredth: name another one by format_options.template"
    )


def _reach(value: Any) -> int:
    """By how much an argument can make a result grow: a number by itself, a text by its length."""
    match value:
        case bool():
            return 0
        case int():
            return abs(value)
        case str() | bytes():
            return len(value)
        case list() | tuple():
            return sum(map(_reach, value))
        case dict():
            return sum(map(_reach, value.values()))
        case _:
            return 1


def _leaves(values: Any) -> Iterable[Any]:
    return values.values() if isinstance(values, Mapping) else values if isinstance(values, list | tuple) else (values,)


class _Namespace(Namespace):
    """A namespace that is not shown: its values may hold each other without end."""

    def __repr__(self) -> str:
        return "<Namespace>"


class CountedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox of Jinja, whose templates spend from `meter`."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)
    intercepted_unops = frozenset(ImmutableSandboxedEnvironment.default_unop_table)

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, **options)  # What is computed while it compiles is not counted.
        self.meter = TemplateMeter()
        self.globals["namespace"] = _Namespace
        del self.globals["lipsum"]  # Random text.
        self.filters = {name: self.counted(name, filter) for name, filter in FILTERS.items()}
        for name in REFUSED:
            del self.filters[name]
        self.filters |= {TURN: self._turn, READ: self._read, SEARCHED: self._searched}
        self.tests |= {name: self._compared(name, self.tests[name]) for name in COMPARING}
        self.tests["divisibleby"] = lambda value, by: self.call_binop(None, "%", value, by) == 0

    def counted(self, name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that spends. Jinja does not compute it while it compiles: it takes the context."""
        meter, takes = self.meter, _PassArg.from_obj(filter)
        is_at_once, is_gathering, is_in_context = name in AT_ONCE, name in GATHERING, takes is _PassArg.context

        @pass_context
        def counted(context: Context, value: Any, /, *args: Any, **kwargs: Any) -> Any:
            if type(value) is str and not args and not kwargs:
                meter.spend(1, len(value))
            elif not is_at_once:
                if is_gathering and isinstance(value, GeneratorType):
                    value = list(value)
                self._spend_on(name, value, args, kwargs)
            if takes is not None:
                first = context if is_in_context else self if takes is _PassArg.environment else context.eval_ctx
                args = (value, *args)
                value = first
            return self._handed(filter(value, *args, **kwargs))

        return counted

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self, called = __self, __obj
        if not isinstance(called, Macro):
            if any(isinstance(value, GeneratorType) for value in args):
                args = tuple(list(value) if isinstance(value, GeneratorType) else value for value in args)
            method = getattr(called, "__wrapped__", called)
            if isinstance(method, MethodType | BuiltinMethodType):
                self._spend_on(method.__name__, method.__self__, args, kwargs)
            else:
                self.meter.read([*args, *kwargs.values()])
        result = super(CountedEnvironment, self).call(__context, called, *args, **kwargs)
        if isinstance(result, str):
            self.meter.spend(1, len(result))
        return self._handed(result)

    def call_binop(self, context: Context | None, operator: str, left: Any, right: Any) -> Any:
        meter = self.meter
        if type(left) is str and type(right) is str and operator == "+":
            meter.characters += len(left) + len(right)
            if meter.characters > MAX_CHARACTERS:
                meter.spend(0)
            return left + right
        if operator == "%" and isinstance(left, str | bytes):
            meter.formatted(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            meter.spend(1 + (left.bit_length() * max(right, 0)) ** 2 // 4096)
        elif isinstance(left, int) and isinstance(right, int):
            meter.spend(1 + left.bit_length() * right.bit_length() // 4096)
        elif operator == "*":
            number, value = (left, right) if isinstance(left, int) else (right, left)
            size = meter.read(value)
            if isinstance(number, int):
                meter.spend(1, size * max(number, 0))
        else:
            meter.read(left)
            meter.read(right)
        return self.binop_table[operator](left, right)

    def call_unop(self, context: Context, operator: str, arg: Any) -> Any:
        self.meter.read(arg)
        return self.unop_table[operator](arg)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(CountingVisitor().visit(source), *args, **kwargs)

    def _spend_on(self, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Spend for a filter or method on a value, before it is called."""
        self.meter.spend(1)
        for given in args:
            self.meter.read(given)
        for given in kwargs.values():
            self.meter.read(given)
        if name in FORMATTING and isinstance(value, str | bytes):
            self.meter.formatted(value, [*args, *kwargs.values()])
        elif name in BY_ITEM and hasattr(value, "__len__"):
            self.meter.spend(len(value))
        elif name not in BY_ITEM and not (isinstance(value, dict) and name in LOOKING_UP):
            size = self.meter.read(value)
            if name in GROWING:
                self.meter.multiplied(size, self._factors(name, value, args, kwargs))

    def _factors(self, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterable[Any]:
        """By what the result of a filter or method may be larger than its input."""
        if name == "join" and isinstance(value, str | bytes):  # The method: its separator stands between the items.
            return [self.meter.read(args)]
        if name == "sum":  # A sum of lists copies what it has, for each.
            is_of_lists = any(isinstance(start, list | tuple) for start in [*args, *kwargs.values()])
            return [len(value)] if is_of_lists and hasattr(value, "__len__") else []
        if name in {"decode", "encode"} and (args or kwargs):  # Some encodings take quadratic time.
            return [value]
        return [*args, *kwargs.values()]

    def _handed(self, result: Any) -> Any:
        return self.meter.turns(result) if isinstance(result, GeneratorType) else result

    def _compared(self, name: str, test: Callable[..., bool]) -> Callable[..., bool]:
        def compared(value: Any, *args: Any) -> bool:
            self._read(value)
            if name == "in":
                self._searched(*args)
            return test(value, *args)

        return compared

    def _turn(self, steps: int, characters: int = 0) -> bool:
        self.meter.spend(max(steps, 1), max(characters, 0))
        return True

    def _read(self, value: Any) -> Any:
        meter, kind = self.meter, type(value)
        if kind is str:
            meter.characters += len(value)
            if meter.characters > MAX_CHARACTERS:
                meter.spend(0)
        elif kind is not int or value.bit_length() > _WORD_BITS:
            meter.read(value)
        return value

    def _searched(self, value: Any) -> Any:
        if isinstance(value, range):
            self.meter.spend(len(value))
        elif not isinstance(value, dict):
            self._read(value)
        return value


class CountingVisitor(NodeTransformer):
    """Has a template count what Jinja compiles to plain Python."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        turn = _turn(node)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(turn, lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(turn, node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        turn = _turn(node)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(turn, lineno=node.lineno))
        return node

    visit_CallBlock = visit_Macro

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_wrapped(READ, child) for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _wrapped(READ, node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return node if _is_constant(node) else _wrapped(READ, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _wrapped(READ, pair.key)
        return _wrapped(READ, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx != "load" or _is_constant(node) else _wrapped(READ, node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _wrapped(READ, node)
        node.arg = _wrapped(READ, node.arg)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if len(node.ops) == 1 and _is_short(node.expr, node.ops[0]):
            return node
        node.expr = _wrapped(READ, node.expr)
        for operand in node.ops:
            operand.expr = _wrapped(SEARCHED if operand.op in {"in", "notin"} else READ, operand.expr)
        return node


def _is_short(left: nodes.Expr, operand: nodes.Operand) -> bool:
    """Whether a comparison reads no more than what is written in the template."""
    if operand.op in {"in", "notin"}:
        return _is_constant(operand.expr)
    return _is_constant(left) or _is_constant(operand.expr)


def _is_constant(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) or (
        isinstance(node, nodes.List | nodes.Tuple) and all(isinstance(item, nodes.Const) for item in node.items)
    )


def _wrapped(name: str, node: nodes.Expr, *args: nodes.Expr) -> nodes.Expr:
    """A node behind a filter of ours."""
    if isinstance(node, nodes.TemplateData | nodes.Const):
        return node
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _turn(body: nodes.Node) -> nodes.Expr:
    """Counts the nodes and the texts that stand in a loop or macro, at each of its turns."""
    steps = characters = 0
    for node in body.find_all(nodes.Node):
        steps += 1
        match node:
            case nodes.TemplateData():
                characters += len(node.data)
            case nodes.Const(value=str()):
                characters += len(node.value)
            case _:
                pass
    numbers = [nodes.Const(number, lineno=body.lineno) for number in (steps, characters)]
    return nodes.Filter(numbers[0], TURN, numbers[1:], [], None, None, lineno=body.lineno)
