"""What the code says of its own fields, members, parameters and constants: the texts that the reference shows.

A field, a member and a constant have a string below them. A parameter has a line of its own, ``- `name`: text``, in the
docstring of its class, its `__init__` or its function.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_PARAMETER = re.compile(r"^- `(\w+)`: (.*(?:\n  +.*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that a user may set."""

    name: str
    hint: Any
    default: Any
    """`MISSING` = it must be given."""
    text: str


def field_docs(cls: type) -> dict[str, str]:
    """Field of a class, inherited ones included -> the string below it, on one line."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if not _is_of_python(each):
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
            found |= texts_below(body.body) if isinstance(body, ast.ClassDef) else {}
    return found


def alias_docs(cls: Any) -> dict[str, str]:
    """Field of a class, or parameter of a function -> the text of the type that its annotation names."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__) if inspect.isclass(cls) else (cls,):
        if not _is_of_python(each):
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
            for name, annotation in _annotations(node):
                if isinstance(annotation, ast.Name) and (text := named_doc(each.__module__, annotation.id)):
                    found[name] = text
    return found


def _is_of_python(thing: Any) -> bool:
    return thing.__module__.partition(".")[0] in sys.stdlib_module_names


def _annotations(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    match node:
        case ast.ClassDef(body=body):
            for each in body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield each.target.id, each.annotation
                elif isinstance(each, ast.FunctionDef) and each.name == "__init__":
                    yield from _annotations(each)
        case ast.FunctionDef(args=args):
            yield from ((each.arg, each.annotation) for each in (*args.args, *args.kwonlyargs))
        case _:
            pass


def named_doc(module: str, name: str) -> str:
    """The text of a constant where a module finds it: in itself, or where it imports it from; '' = there is none."""
    tree = _tree(module)
    for each in _imports(module):
        if name in [alias.name for alias in each.names]:
            return named_doc(each.module or "", name) if (each.module or "").startswith("ramify") else ""
    return texts_below(tree.body).get(name, "")


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


@cache
def _imports(module: str) -> tuple[ast.ImportFrom, ...]:
    return tuple(each for each in ast.walk(_tree(module)) if isinstance(each, ast.ImportFrom))


def texts_below(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Assigned name -> the string below it, on one line."""
    found: dict[str, str] = {}
    for above, below in pairwise(body):
        match above, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = one_line(text)
            case _:
                pass
    return found


def parameter_docs(target: Any) -> dict[str, str]:
    """Parameter of a class or function -> its line in the docstring."""
    texts = [inspect.getdoc(target) or ""]
    if inspect.isclass(target):
        texts.append(inspect.getdoc(target.__init__) or "")
    return {name: one_line(text) for each in texts for name, text in _PARAMETER.findall(each)}


def dataclass_options(cls: type) -> Iterator[Option]:
    """The fields of a dataclass that its constructor takes."""
    docs, hints = alias_docs(cls) | field_docs(cls), get_type_hints(cls)
    for each in fields(cls):
        if each.init:
            default = each.default if each.default_factory is MISSING else each.default_factory()
            yield Option(each.name, hints[each.name], default, docs.get(each.name, ""))


def parameter_options(target: Any, given: frozenset[str]) -> Iterator[Option]:
    """The parameters of a class or function, without those that are `given` to it."""
    if inspect.isclass(target) and is_dataclass(target):
        yield from (each for each in dataclass_options(target) if each.name not in given)
        return
    docs = alias_docs(target) | parameter_docs(target)
    hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
    for name, each in inspect.signature(target).parameters.items():
        if name not in given:
            default = MISSING if each.default is each.empty else each.default
            yield Option(name, hints[name], default, docs.get(name, ""))


def inner_class(hint: Any) -> type | None:
    """The dataclass that a hint allows, alone or besides None; None = there is none."""
    return next((each for each in (hint, *get_args(hint)) if inspect.isclass(each) and is_dataclass(each)), None)


def named_class(hint: Any) -> type | None:
    """The dataclass of a table's entries; None = the hint is no such table."""
    if not _is_table(get_origin(hint)):
        return None
    return inner_class(get_args(hint)[-1])


def type_text(hint: Any) -> str:
    """A type as readers of a configuration say it, in Markdown."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{default_text(each)}`" for each in args)
    if origin in (Union, UnionType):
        return " or ".join(type_text(each) for each in sorted(args, key=lambda each: each is NoneType))
    if hint is NoneType:
        return "none"
    if hint is Path:
        return "path"
    if _is_table(origin) or (inspect.isclass(hint) and is_dataclass(hint)):
        return "table"
    if origin is tuple and Ellipsis not in args:
        return f"list of {len(args)} {type_text(args[0])}"
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        return f"list of {type_text(args[0])}"
    return f"`{hint.__name__}`" if inspect.isclass(hint) else "function" if callable(hint) else str(hint)


def _is_table(origin: Any) -> bool:
    return inspect.isclass(origin) and issubclass(origin, Mapping)


def default_text(default: object) -> str:
    match default:
        case None:
            return "none"
        case True | False:
            return str(default).lower()
        case float():
            return f"{default:g}"
        case str():
            return '"' + default.replace("\\", "\\\\").replace("\n", "\\n") + '"'
        case Path():
            return f'"{default.name}"'
        case Mapping():
            return "{" + ", ".join(f"{key} = {default_text(value)}" for key, value in default.items()) + "}"
        case tuple() | list():
            return "[" + ", ".join(default_text(each) for each in default) + "]"
        case _:
            return str(default)


def unit_of(name: str) -> str:
    """The unit that a name of ours implies; '' = it is a count, a share or no number."""
    last = name.rpartition(".")[2]
    if last.endswith("_s") or last == "seconds":
        return "seconds"
    if last.endswith("_bytes"):
        return "bytes"
    if name.endswith(TOKENS):
        return "tokens"
    return "dollars" if last == "dollars" else "dollars per million tokens" if "prices." in name else ""


TOKENS = ("tokens", "limits.decode", "limits.prefill_uncached", "context_length", "max_model_len", "_window")


def one_line(text: str) -> str:
    return " ".join(text.split())
