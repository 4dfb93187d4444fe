"""The reference has a text for everything public: settings, options of parts, commands, flags, names and words.

The pages are made in this process, without Sphinx. What must be in them is read from the code by other means.
"""

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest
from tests.docs.test_examples import DOCS, generated_pages

import ramify
from ramify import plugins
from ramify.cli.exit_codes import ExitCode
from ramify.cli.main import COMMANDS
from ramify.config.format_options import options_class
from ramify.config.run_config import RunConfig
from ramify.core.budgets import BUDGETS
from ramify.core.stop import STOP_WORDS
from ramify.credit import CREDITS

PARTS = [(kind, name) for kind in plugins.KINDS for name in plugins.known(kind)]


@cache
def extension(name: str) -> ModuleType:
    """A module of `docs/_ext`."""
    generated_pages()
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS / "_ext"))


def rows(text: str) -> dict[str, list[str]]:
    """First cell of a table's row below the head, without its marks -> its other cells."""
    found: dict[str, list[str]] = {}
    for line, next_line in pairwise([*text.splitlines(), ""]):
        if line.startswith("| ") and not next_line.startswith("|---"):
            first, *rest = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found[re.sub(r"^\[?`([^`]*)`.*", r"\1", first)] = rest
    return found


def section(text: str, *headings: str) -> str:
    """The text below a heading, below the heading before it; up to the next heading."""
    for heading in headings:
        level = heading.partition(" ")[0]
        text = text.split(f"\n{heading}\n", 1)[1]
        text = re.split(rf"\n#{{1,{len(level)}}} ", text, maxsplit=1)[0]
    return text


def dataclasses_in(hint: Any) -> Iterator[type]:
    """Every dataclass that a type names, and those of its fields."""
    if inspect.isclass(hint) and is_dataclass(hint):
        yield hint
        for each in get_type_hints(hint).values():
            yield from dataclasses_in(each)
    for each in get_args(hint):
        yield from dataclasses_in(each)


def tables(name: str) -> dict[str, list[str]]:
    return rows(generated_pages()[name])


@pytest.mark.parametrize("cls", sorted(set(dataclasses_in(RunConfig)), key=lambda cls: cls.__name__))
def test_every_key_of_the_configuration_is_in_the_settings(cls: type) -> None:
    named: dict[str, set[str]] = {}
    for path in tables("settings"):
        table, _, key = path.rpartition(".")
        named.setdefault(table, set()).add(key)
    assert {each.name for each in fields(cls)} in named.values()


def test_every_setting_has_a_type_a_default_and_a_text() -> None:
    for path, (kind, default, means) in tables("settings").items():
        assert kind, path
        assert default or "Keys: [" in means, path
        assert len(means) > 3, path


def test_a_time_and_a_size_have_units() -> None:
    found = {path: kind for path, (kind, *_) in tables("settings").items()}
    assert found["tools.deadline_s"] == "`float`, seconds"
    assert found["tools.max_result_bytes"] == "`int`, bytes"
    assert found["growth.max_response_tokens"] == "`int`, tokens"
    assert found["engine.prices.output"] == "`float` or none, dollars per million tokens"
    assert all("seconds" in kind for path, kind in found.items() if path.endswith("_s"))


def options_in_code(kind: plugins.Kind, name: str) -> set[str]:
    part = plugins.find(kind, name)
    if kind == "strategy":
        return {each.name for each in fields(plugins.config_class(part)) if each.init}
    target = options_class(part) or part if kind == "format" else part
    if not inspect.isclass(target) and not inspect.isfunction(target):
        return set()
    return set(inspect.signature(target).parameters) - extension("code_pages").GIVEN.get(kind, set())


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_every_option_of_a_part_has_a_text(kind: plugins.Kind, name: str) -> None:
    text = section(generated_pages()["parts"], f"## {kind.replace('_', ' ').capitalize()}", f"### `{name}`")
    assert len(text.split("\n|")[0].strip()) > 20
    found = rows(text)
    assert {path.partition(".")[0] for path in found} == options_in_code(kind, name)
    for path, (type_, default, means) in found.items():
        assert type_ and default and len(means) > 3, path


def test_every_credit_has_a_text() -> None:
    found = rows(section(generated_pages()["parts"], "## Credit"))
    assert set(found) == set(CREDITS)
    assert all(len(text) > 20 for _, text in found.values())


def arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # argparse has no public list
        inner = action.choices if isinstance(action, argparse._SubParsersAction) else {}
        for each in inner.values():
            yield from arguments(each)
        if not inner and action.dest != "help":
            yield action


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_a_command_has_a_text(command: str) -> None:
    assert tables("commands")[command] != [""]
    parser = argparse.ArgumentParser()
    importlib.import_module(f"ramify.cli.{command}").add_arguments(parser)
    text = section(generated_pages()["commands"], f"## `ramify {command}`")
    found = {name.split()[0].rstrip(","): cells for name, cells in rows(text).items()}
    for action in arguments(parser):
        name = str((action.option_strings or [action.metavar or action.dest])[0])
        default, means = found[name]
        assert len(means) > 3, name
        assert not action.required or default == "required"


def test_every_budget_is_named_with_its_flag() -> None:
    (means,) = {cells[-1] for name, cells in tables("commands").items() if name == "--budget WHAT=N"}
    assert all(name in means for name in BUDGETS)


@pytest.mark.parametrize("module", extension("public_names").PUBLIC_MODULES)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    text = generated_pages()[f"python-{module.replace('.', '-')}"]
    for name in getattr(importlib.import_module(module), "__all__", ()):
        assert name == "__version__" or re.search(rf":: {re.escape(f'{module}.{name}')}$", text, re.MULTILINE), name


def test_all_names_of_ramify_are_in_the_reference() -> None:
    directives = re.findall(r":: ramify\.(\w+)$", generated_pages()["python-ramify"], re.MULTILINE)
    assert sorted(directives) == sorted(set(ramify.__all__) - {"__version__"})


def test_every_stop_word_and_exit_code_has_a_text() -> None:
    found = tables("words")
    assert {*STOP_WORDS, *(str(code.value) for code in ExitCode)} <= set(found)
    assert all(all(cells) for cells in found.values())


@dataclass(frozen=True)
class Documented:
    """Options of a part."""

    size: int = 1
    """How large it is."""


@dataclass(frozen=True)
class Lacking(Documented):
    """Options of which one has no text."""

    speed: int = 2


def count(branch: object, *, tokens: int = 3, turns: int = 4) -> None:
    """Count.

    - `tokens`: how many tokens there
      may be.
    """


def lines_of(options: Iterator[Any]) -> list[str]:
    return [extension("code_pages").option_line(each) for each in options]


def test_a_field_has_the_text_below_it_and_below_that_of_its_base() -> None:
    (line,) = lines_of(extension("code_docs").dataclass_options(Documented))
    assert line == "| `size` | `int` | `1` | How large it is. |"
    with pytest.raises(extension("code_pages").MissingSentence, match="speed has no text"):
        lines_of(extension("code_docs").dataclass_options(Lacking))


def test_a_parameter_has_the_text_of_its_line() -> None:
    options = list(extension("code_docs").parameter_options(count, frozenset({"branch"})))
    assert lines_of(iter(options[:1])) == ["| `tokens` | `int`, tokens | `3` | How many tokens there may be. |"]
    with pytest.raises(extension("code_pages").MissingSentence, match="turns has no text"):
        lines_of(iter(options[1:]))


def test_a_flag_without_help_and_a_name_without_docstring_are_refused() -> None:
    pages = extension("code_pages")
    flag = argparse.ArgumentParser().add_argument("--fast")
    with pytest.raises(pages.MissingSentence, match="--fast FAST has no help"):
        pages.argument_line("demo", flag)
    nameless: Mapping[str, object] = {"Plain": dataclass(type("Plain", (), {})), "silent": lambda: None}
    for name, value in nameless.items():
        with pytest.raises(pages.MissingSentence, match=f"tests.{name} has no text"):
            pages.directive("tests", name, value)
