"""The reference pages, made from the code. Needs no Sphinx, so that tests can look at them.

Settings come from the dataclasses of the configuration and the docstrings of their fields, commands from their parsers,
parts from the plug-in table, Python pages from what a module exports. A field or a flag without a sentence of its own
is a `MissingSentence`, which fails the build.
"""

import argparse
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

from code_docs import (
    Option,
    dataclass_options,
    default_text,
    field_docs,
    inner_class,
    named_class,
    named_doc,
    one_line,
    parameter_options,
    type_text,
    unit_of,
)
from public_names import PUBLIC_MODULES

from ramify import plugins
from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import has_default
from ramify.cli.main import COMMANDS, parsers
from ramify.config.format_options import options_class
from ramify.config.presets import KINDS, preset, preset_names
from ramify.config.run_config import RunConfig
from ramify.config.toml import toml_text
from ramify.core.stop import STOP_WORDS
from ramify.credit import CREDITS
from ramify.telemetry.metrics import ATTRIBUTES, METRICS


class MissingSentence(Exception):
    """Something public that no sentence explains."""


def pages() -> dict[str, str]:
    """Name of a page -> its Markdown."""
    made = {
        "settings": settings_page(),
        "commands": commands_page(),
        "presets": presets_page(),
        "parts": parts_page(),
        "words": words_page(),
        "metrics": metrics_page(),
    }
    made["python"] = python_index()
    return made | {f"python-{module.replace('.', '-')}": python_page(module) for module in PUBLIC_MODULES}


# --- settings -------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    text = ["# Settings", "", *SETTINGS_HEAD]
    for head, cls, lines in settings_tables():
        title = f"## {code(head)}" if head else "## Top level"
        about = [first_paragraph(cls), ""] if head else []
        text += ["", title, "", *about, *table("setting", "type", "default", "means"), *lines]
    return "\n".join(text) + "\n"


SETTINGS_HEAD = (
    "Every key of a configuration file, of `-c FILE` and of `--set PATH=VALUE`. *none* stands for a value that is not",
    "set; `--set KEY=none` unsets one. `NAME` is a name that you choose.",
    "[Configure a run](../../guides/configure.md) says which layer wins.",
)


def settings_tables() -> Iterator[tuple[str, type, list[str]]]:
    """(path of a table, its class, a line for each key), each class once: another table of it refers to the first."""
    shown: dict[type, str] = {}
    waiting: list[tuple[str, type, object]] = [("", RunConfig, RunConfig())]
    while waiting:
        path, cls, value = waiting.pop(0)
        shown[cls] = path
        lines, inner = [], []
        for option in options_at(path, cls, value):
            below = inner_class(option.hint) or named_class(option.hint)
            if below is None:
                lines.append(option_line(replace(option, text=option.text and option.text + where_listed(option.name))))
            elif below in shown:
                lines.append(option_line(option, keys_of=shown[below]))
            else:
                name = f"{option.name}.NAME" if named_class(option.hint) else option.name
                shown[below] = name
                lines += [option_line(option, keys_of=name)]
                inner.append((name, below, None if named_class(option.hint) else option.default))
        waiting = inner + waiting
        yield path, cls, lines


LISTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "task.name": "task",
        "task.options": "task",
        "strategy.name": "strategy",
        "strategy.options": "strategy",
        "engine.name": "engine",
        "engine.options": "engine",
        "format": "format",
        "format_options": "format",
        "credit": "credit",
        "growth.prune": "prune",
        "growth.prune_options": "prune",
        "rows.sample": "sample",
        "tools.use.NAME.kind": "tool",
        "tools.use.NAME.options": "tool",
        "environment.name": "environment",
        "environment.options": "environment",
        "judges.NAME.kind": "judge",
        "judges.NAME.options": "judge",
    }
)
"""Setting -> the section of the parts page that lists its values."""


def where_listed(path: str) -> str:
    return f" [Built-in ones](parts.md#{LISTED[path]})." if path in LISTED else ""


def options_at(path: str, cls: type, value: object) -> Iterator[Option]:
    """The options of a class at a path, with the defaults that they have there."""
    for each in dataclass_options(cls):
        default = each.default if value is None else getattr(value, each.name)
        name = f"{path}.{each.name}" if path else each.name
        if inner_class(each.hint) and not each.text:
            yield Option(name, each.hint, default, first_paragraph(inner_class(each.hint)))
        else:
            yield Option(name, each.hint, default, each.text)


def option_line(option: Option, *, keys_of: str = "") -> str:
    """The row of an option. Raises `MissingSentence` if nothing says what it means."""
    means = required(option.name, option.text)
    if keys_of:
        means = f"{sentence(means)} Keys: [`{keys_of}`](#{anchor(keys_of)})."
    unit = unit_of(option.name)
    kind = type_text(option.hint) + (f", {unit}" if unit else "")
    if option.default is MISSING:
        default = "required"
    else:
        default = "" if keys_of and option.default is not None else code(default_text(option.default))
    return row(code(option.name), kind, default, sentence(means))


def anchor(path: str) -> str:
    """The anchor of a heading that is this path."""
    return path.lower().replace(".", "")


def required(path: str, text: str) -> str:
    if not text:
        raise MissingSentence(f"{path} has no text in its docstring; the reference needs a sentence")
    return text


# --- commands -------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    text = ["# Commands", "", *table("command", "does")]
    text += [row(f"[`{name}`](#ramify-{name})", about) for name, about in COMMANDS.items()]
    for name, about in COMMANDS.items():
        text += ["", f"## `ramify {name}`", "", sentence(about), "", *table("argument", "default", "means")]
        text += [argument_line(name, each) for each in actions(parsers([name])[1])]
    return "\n".join(text) + "\n"


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Arguments of a parser and of its own commands."""
    for action in parser._actions:  # argparse has no public list
        if isinstance(action, argparse._HelpAction):
            continue
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from actions(inner)
        else:
            yield action


def flags(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else None
    if value is None and action.nargs != 0 and action.option_strings:
        value = "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
    names = ", ".join(action.option_strings) or action.metavar or action.dest
    return f"{names} {value}" if value and action.option_strings else str(names)


def argument_line(command: str, action: argparse.Action) -> str:
    default = "required" if action.required else code(default_text(action.default)) if has_default(action) else ""
    return row(code(flags(action)), default, help_of(command, action))


def help_of(command: str, action: argparse.Action) -> str:
    if not action.help:
        raise MissingSentence(f"ramify {command}: {flags(action)} has no help; the reference needs a sentence")
    return sentence(action.help % {**vars(action), "prog": "ramify"})


# --- presets and parts ----------------------------------------------------------------------------------------------


def presets_page() -> str:
    presets = [preset(name) for name in preset_names()]
    text = ["# Presets"]
    for kind, about in KINDS.items():
        text += ["", f"`{kind}`: {about}.", "", *table("preset", "leaves", "credit", "what it is")]
        for each in presets:
            if each.kind == kind:
                exact = "exact" if each.is_exact else "approximate"
                link = f"[`{each.name}`](#{each.name.replace('_', '-')})"
                text.append(row(link, f"≤ {each.leaves}", exact, each.summary))
    for each in presets:
        small = {"small": each.small} if each.small else {}
        text += ["", f"## `{each.name}`", "", sentence(each.summary), ""]
        text += [sentence(each.notes), ""] if each.notes else []
        text += [f"Assumes: {sentence(each.assumes)}", "", f"Source: {each.cites}.", ""]
        text += ["```toml", toml_text({**each.values, **small}).rstrip(), "```"]
    return "\n".join(text) + "\n"


GIVEN: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "task": frozenset({"data", "format", "tools", "judges"}),
        "engine": frozenset(
            {"model", "base_url", "patience", "script", "codec", "capabilities", "delay", "faults", "name"}
        )
        | {"function", "memory", "rules", "places", "ahead"},
        "environment": frozenset({"taskset", "dataset", "environment_class"}),
        "format": frozenset({"speaks"}),
        "tool": frozenset({"name", "listed", "template_sha256"}),
        "judge": frozenset({"name", "format", "is_same"}),
        "choose": frozenset({"tree", "candidates", "k", "rng"}),
        "prune": frozenset({"branch", "value"}),
        "sample": frozenset({"tree", "leaves", "n", "rng"}),
        "export": frozenset({"rows", "trees", "path", "force"}),
        "step_parser": frozenset({"step"}),
        "equivalence": frozenset({"one", "other"}),
    }
)
"""Kind -> parameters that the run gives, or that only Python can."""
KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "strategy": "Set `strategy.name`, and its options below `strategy.options`.",
        "task": "Set `task.name`, and its options below `task.options`.",
        "engine": "Set `engine.name`, and its options below `engine.options`. `engine.model`, `engine.base_url` and "
        "`engine.retry.patience` say the rest.",
        "environment": "Set `environment.name`, and options below `environment.options`; or pass `--env NAME`.",
        "format": "Set `format`, and its options below `format_options`.",
        "tool": "Set `tools.use.NAME.kind`, and its options below `tools.use.NAME.options`. `NAME` is what the model "
        "calls.",
        "judge": "Set `judges.NAME.kind`, and its options below `judges.NAME.options`.",
        "choose": "Set `strategy.options.choose` of the strategy `offline`: how it chooses the nodes to expand.",
        "prune": "Set `growth.prune`, and its options below `growth.prune_options`.",
        "sample": "Set `rows.sample`: which leaves of a tree become rows.",
        "export": "`ramify export RUN --to NAME` writes rows in this format, with options by `--set OPTION=VALUE`.",
        "step_parser": "Set `format_options.step_parser` of the format `rstar`: how it reads a step.",
        "equivalence": "Set `format_options.answer_equivalence` of the format `rstar`: which answers mean the same.",
    }
)
"""Kind -> where its names and options are set."""


def parts_page() -> str:
    text = ["# Built-in parts", "", "Every name that a configuration may use, by kind, with its options."]
    for kind in (each for each in plugins.KINDS if each != "credit"):
        text += ["", f"## {kind.replace('_', ' ').capitalize()}", "", KEYS[kind]]
        for name in plugins.known(kind):
            text += ["", f"### `{name}`", "", required(f"{kind} {name}", part_text(kind, name))]
            if lines := [option_line(each) for each in part_options(kind, name)]:
                text += ["", *table("option", "type", "default", "means"), *lines]
    text += ["", "## Credit", "", CREDIT_HEAD, "", *table("credit", "exact for", "what it is")]
    text += [
        row(code(name), credit.exact_for, required(f"credit {name}", credit_text(name)))
        for name, credit in CREDITS.items()
    ]
    return "\n".join(text) + "\n"


CREDIT_HEAD: Final = (
    "Set `credit`, the advantage estimator of the rows: a name of this list, or a function of your own, "
    "`path/to/file.py:function`. `auto` takes an exact one where the forks allow it. Each gives "
    "the tokens of a node c one coefficient. w_c is the share of the node, Q_c the mean return of the leaves below it, "
    "V the mean return of the tree or of a node, B_c a baseline. [Credit](../../concepts/credit.md) explains them."
)


def part_options(kind: plugins.Kind, name: str) -> Iterator[Option]:
    """The options of a part that a configuration may set; tables in them key by key."""
    part = plugins.find(kind, name)
    if kind == "strategy":
        yield from flat(dataclass_options(plugins.config_class(part)))
    elif kind == "format" and (config := options_class(part)):
        yield from flat(each for each in dataclass_options(config) if each.name not in GIVEN[kind])
    elif inspect.isclass(part) or inspect.isfunction(part):
        yield from parameter_options(part, GIVEN[kind])


def flat(options: Iterable[Option]) -> Iterator[Option]:
    """Options, with the keys of a table in place of the table."""
    for each in options:
        below = inner_class(each.hint)
        if below is None:
            yield each
        else:
            value = None if each.default is MISSING else each.default
            if value is None:
                yield each
            yield from flat(options_at(each.name, below, value))


MODULE_KINDS: Final = frozenset({"strategy", "task", "environment", "engine", "format", "tool", "judge", "export"})
"""Kinds whose parts have a module each, whose first paragraph says for users what the part is."""


def part_text(kind: plugins.Kind, name: str) -> str:
    """What a part is, in its own words."""
    module = plugins.TABLE[kind][name].partition(":")[0]
    places = [place.partition(":")[0] for place in plugins.TABLE[kind].values()]
    is_alone = kind in MODULE_KINDS and places.count(module) == 1
    return first_paragraph(importlib.import_module(module) if is_alone else plugins.find(kind, name))


def credit_text(name: str) -> str:
    """What a credit computes, and the switches that its name stands for."""
    function = CREDITS[name].coefficients
    switches: Mapping[str, object] = getattr(function, "keywords", {})
    text = sentence(first_paragraph(getattr(function, "func", function)).removeprefix("(N,) "))
    said = ", ".join(f"`{key} = {default_text(value)}`" for key, value in switches.items())
    return f"{text} With {said}." if said else text


def first_paragraph(part: Any) -> str:
    return sentence(one_line((inspect.getdoc(part) or "").split("\n\n")[0]))


# --- words ----------------------------------------------------------------------------------------------------------


def words_page() -> str:
    text = ["# Stop words and exit codes", "", "## How a path ends", "", *STOP_HEAD, ""]
    text += table("stop word", "when", "trained", "truncated", "failure")
    yes = {True: "yes", False: "no"}
    text += [
        row(code(word), sentence(stop.when), yes[stop.is_trainable], yes[stop.is_truncated], yes[stop.is_failure])
        for word, stop in STOP_WORDS.items()
    ]
    docs = field_docs(ExitCode)
    text += ["", "## Exit codes", "", *table("code", "name", "means")]
    text += [row(str(each.value), code(each.name), required(each.name, docs.get(each.name, ""))) for each in ExitCode]
    return "\n".join(text) + "\n"


STOP_HEAD = (
    "*Trained*: the tokens of the path may be trained with its reward. *Truncated*: the path counts as cut off.",
    "*Failure*: the path is no sample of the policy, and never a leaf.",
)


# --- metrics --------------------------------------------------------------------------------------------------------


def metrics_page() -> str:
    text = ["# Metrics", "", "[Watch a run](../../guides/metrics.md) says how to read them.", ""]
    text += table("name", "kind", "unit", "attributes", "means")
    for name, each in METRICS.items():
        attributes = ", ".join(code(ATTRIBUTES[key]) for key in each.attributes)
        text.append(row(code(name), each.kind, code(each.unit), attributes, sentence(each.description)))
    return "\n".join(text) + "\n"


# --- python ---------------------------------------------------------------------------------------------------------


def python_index() -> str:
    names = [f"python-{module.replace('.', '-')}" for module in PUBLIC_MODULES]
    return "\n".join(
        ["# Python", "", "What you may import.", "", "```{toctree}", ":maxdepth: 1", "", *names, "```", ""]
    )


def python_page(module: str) -> str:
    found = importlib.import_module(module)
    text = [f"# `{module}`", "", first_paragraph(found), "", "```{eval-rst}", f".. currentmodule:: {module}", ""]
    for name in public_names(found):
        text += directive(module, name, getattr(found, name))
    return "\n".join([*text, "```"]) + "\n"


def public_names(module: Any) -> list[str]:
    """Names that users may import from a module: its `__all__`, or what it defines itself."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    names: Iterable[str] = getattr(module, "__all__", own)
    return sorted(name for name in names if name != "__version__" and not isinstance(getattr(module, name), TypeVar))


def directive(module: str, name: str, value: object) -> list[str]:
    """Where Sphinx reads a name. Raises `MissingSentence` for a name without a docstring."""
    text = name_text(module, name, value)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return [f".. {kind}:: {module}.{name}", ""]
    if inspect.isroutine(value):
        return [f".. autofunction:: {module}.{name}", ""]
    is_plain = isinstance(value, (str, int, float, tuple)) and len(repr(value)) <= 80
    shown = [f"   :value: {value!r}"] if is_plain else []
    return [f".. py:data:: {module}.{name}", *shown, "", f"   {double_marks(text)}", ""]


def name_text(module: str, name: str, value: object) -> str:
    """What a public name is. Raises `MissingSentence` if nothing says it, or only what a dataclass says of itself."""
    if inspect.isclass(value) or inspect.isroutine(value):
        said = inspect.getdoc(value) if value.__doc__ else ""
        is_made = inspect.isclass(value) and (said or "").startswith(f"{value.__name__}(")
        return required(f"{module}.{name}", "" if is_made else said or "")
    return sentence(required(f"{module}.{name}", named_doc(module, name)))


def double_marks(text: str) -> str:
    """Text with the code marks of reStructuredText in place of Markdown's."""
    return re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text).replace("|", r"\|")


# --- markdown -------------------------------------------------------------------------------------------------------


def table(*heads: str) -> list[str]:
    return [row(*heads), "|" + "---|" * len(heads)]


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def sentence(text: str) -> str:
    """Text with a capital and a full stop. A name or a value in front (`uid: …`, `num_x …`) stays as it is."""
    text = text.strip()
    if re.match(r"[a-z][a-z'-]*[ ,;]", text):
        text = text[0].upper() + text[1:]
    return text if not text or text[-1] in ".!?" else f"{text}."
