"""Every example of the documentation runs, what it shows and links to exists, and its tables say what the code says.

The blocks of a page run in order in one temporary folder: `python` as a script of its own, `python FILE` after it was
written to that file, `toml FILE`, `jsonl FILE` and `csv FILE` are written, and a `console run` block runs its
`$ ramify …` lines. Of plain `console` blocks the commands and flags are looked up. A `py` block is only shown: it
needs a library that is not installed here, and the suite that installs the library runs such code.
"""

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.covers import REQUIREMENTS

from ramify import plugins
from ramify.cli.main import COMMANDS, main
from ramify.core.stop import STOP_WORDS
from ramify.credit import NAMES

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
MADE = ("_build", "generated")
"""Folders whose pages are made from the code."""
PAGES = sorted([*REPOSITORY.glob("*.md"), *(p for p in DOCS.rglob("*.md") if not set(MADE) & set(p.parts))])
FOR_USERS = [page for page in PAGES if page.name not in ("CONTRIBUTING.md", "CHANGELOG.md")]
BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:\s]*)(#[^)\s]*)?\)")
TIMEOUT_S = 60.0


def name_of(page: Path) -> str:
    """Path of a page within the repository, or within `docs`."""
    return str(page.relative_to(DOCS if DOCS in page.parents else REPOSITORY))


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    argument: str
    """What follows the language: a file name, or `run`."""
    text: str


def blocks(page: Path) -> Iterator[Block]:
    for language, argument, text in BLOCK.findall(page.read_text("utf-8")):
        yield Block(language, argument.strip(), text)


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of every `$ ramify …` line, without comments; a backslash goes on in the next line."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("$ ramify"):
            yield shlex.split(line.removeprefix("$ ramify"), comments=True)


def run(arguments: list[str], folder: Path) -> None:
    """Run Python with `arguments` in `folder`; its own words are the failure's. Ends the servers that it leaves."""
    command = [sys.executable, "-W", "error", *arguments]
    said = folder / "said.txt"
    with said.open("wb") as out:
        script = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, process_group=0)
    try:
        code = script.wait(TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
    assert code == 0, f"{arguments}: exit code {code}\n{said.read_text('utf-8')}"


def run_block(block: Block, number: int, folder: Path) -> None:
    match block.language, block.argument:
        case "python", name:
            file = folder / (name or f"block_{number}.py")
            file.write_text(block.text, "utf-8")
            run([file.name], folder)
        case "toml" | "jsonl" | "csv", name if name:
            (folder / name).write_text(block.text, "utf-8")
        case "console", "run":
            for arguments in commands(block.text):
                run(["-m", "ramify.cli.main", *arguments], folder)
        case _:
            pass


@pytest.mark.parametrize("page", FOR_USERS, ids=name_of)
def test_what_the_examples_of_a_page_import_is_installed(page: Path) -> None:
    written = {Path(block.argument).stem for block in blocks(page) if block.argument.endswith(".py")}
    for block in blocks(page):
        missing = {name for name in imports(block) - written if find_spec(name) is None}
        assert not missing, f"a `python` block of {name_of(page)} imports {sorted(missing)}: show it as `py`"


def imports(block: Block) -> set[str]:
    """The packages that a `python` block imports."""
    nodes = [*ast.walk(ast.parse(block.text))] if block.language == "python" else []
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.partition(".")[0] for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("page", FOR_USERS, ids=name_of)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page)):
        run_block(block, number, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page):
        for command, *rest in commands(block.text) if block.language == "console" else ():
            assert command in COMMANDS
            with pytest.raises(SystemExit):
                main([command, "--help"])
            words = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out))
            flags = {word.partition("=")[0] for word in rest if word.startswith("-")}
            assert flags <= words, f"{page.name}: ramify {command} has no {sorted(flags - words)}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        text = text_of((page.parent / target).resolve() if target else page)
        assert text is not None, f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor[1:] in anchors(text), f"{name_of(page)} links to {target}{anchor}"


def text_of(file: Path) -> str | None:
    """The text of a page, also of one that is made from the code; '' = a folder or no text; None = there is none."""
    if file.parent == DOCS / "reference" / "generated":
        return generated_pages().get(file.stem)
    if not file.exists():
        return None
    return file.read_text("utf-8") if file.suffix == ".md" else ""


@cache
def generated_pages() -> Mapping[str, str]:
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        return import_module("code_pages").pages()
    finally:
        sys.path.remove(str(DOCS / "_ext"))


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table(page: str, heading: str) -> dict[str, list[str]]:
    """First cell -> the other cells of the first table below a heading; code marks left out."""
    section = (REPOSITORY / "docs" / page).read_text("utf-8").split(f"\n{heading}\n", 1)[1]
    rows: dict[str, list[str]] = {}
    for line in section.splitlines():
        if line.startswith("|"):
            first, *rest = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
            rows[first] = rest
        elif rows:
            break
    return dict(list(rows.items())[2:])


def test_the_table_of_stop_words_is_the_code_s() -> None:
    rows = table("concepts/growth.md", "## Know why a path ended")
    words = {name: cells[0] for names, cells in rows.items() for name in names.split(", ")}
    assert set(words) == set(STOP_WORDS)
    assert {name for name, when in words.items() if when.startswith("a failure")} == {
        name for name, stop in STOP_WORDS.items() if stop.is_failure
    }


def test_every_credit_and_every_rule_is_described() -> None:
    credits = [name for names in table("concepts/credit.md", "## Choose a credit") for name in names.split(", ")]
    assert sorted(credits) == sorted(NAMES)
    rules = set(table("methods/offline.md", "## Choose the nodes"))
    assert {name for name in rules if ":" not in name} == set(plugins.known("choose"))


def test_every_requirement_is_described() -> None:
    text = (REPOSITORY / "docs" / "project" / "requirements.md").read_text("utf-8")
    assert re.findall(r"^\| (S\d\.\d+) ", text, re.MULTILINE) == list(REQUIREMENTS)


def test_every_kind_of_plug_in_and_every_built_in_name_is_described() -> None:
    assert set(table("guides/extend.md", "## Name your part")) == set(plugins.KINDS)
    parts = generated_pages()["parts"]
    assert not [name for kind in plugins.KINDS for name in plugins.known(kind) if f"### `{name}`" not in parts]
