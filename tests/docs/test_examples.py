"""Every example of the documentation runs, what it shows and links to exists, and its tables say what the code says.

The blocks of a page run in order in one temporary folder: `python` as a script of its own, `python FILE` after it was
written to that file, `toml FILE`, `jsonl FILE` and `csv FILE` are written, and a `console run` block runs its
`$ ramify …` lines. Of plain `console` blocks the commands and flags are looked up.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import pytest
from tests.requirements import REQUIREMENTS

from ramify import plugins
from ramify.cli.exit_codes import ExitCode
from ramify.cli.main import COMMANDS, main
from ramify.config.run_config import RunConfig
from ramify.core.action import ActionConfig
from ramify.core.limits import Limits
from ramify.core.stop import STOP_WORDS
from ramify.credit import NAMES

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
FOR_USERS = [page for page in PAGES if page.name not in ("CONTRIBUTING.md", "CHANGELOG.md")]
BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:\s]*)(#[^)\s]*)?\)")
TIMEOUT_S = 60.0


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
    """Run Python with `arguments` in `folder`; its own words are the failure's."""
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


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


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page)):
        run_block(block, number, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page):
        for command, *rest in commands(block.text) if block.language == "console" else ():
            assert command in COMMANDS
            with pytest.raises(SystemExit):
                main([command, "--help"])
            words = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out))
            flags = {word.partition("=")[0] for word in rest if word.startswith("-")}
            assert flags <= words, f"{page.name}: ramify {command} has no {sorted(flags - words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        file = (page.parent / target) if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor[1:] in anchors(file), f"{page.name} links to {target}{anchor}"


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
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
    rows = table("rollouts.md", "## Stop words")
    word = {True: "yes", False: "no"}
    assert {name: cells[1:] for name, cells in rows.items()} == {
        name: [word[stop.is_trainable], word[stop.is_truncated]] for name, stop in STOP_WORDS.items()
    }
    assert {name for name, cells in rows.items() if "(failure)" in cells[0]} == {
        name for name, stop in STOP_WORDS.items() if stop.is_failure
    }


def test_every_credit_and_every_rule_is_described() -> None:
    credits = [name for names in table("credit.md", "## The credits") for name in names.split(", ")]
    assert sorted(credits) == sorted(NAMES)
    rules = set(table("rollouts.md", "## Offline: expand afterwards"))
    assert {name for name in rules if ":" not in name} == set(plugins.known("choose"))


def test_every_requirement_is_described() -> None:
    text = (REPOSITORY / "docs" / "requirements.md").read_text("utf-8")
    assert re.findall(r"^\| (S\d\.\d+) ", text, re.MULTILINE) == list(REQUIREMENTS)


def test_the_page_of_the_command_line_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text("utf-8")
    assert {int(code) for code in table("cli.md", "## Exit codes")} == {int(code) for code in ExitCode}
    for command in COMMANDS:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", capsys.readouterr().out)) - {"--help"}
        missing = sorted(flag for flag in flags if f"`{flag}" not in text)
        assert f"ramify {command}" in text and not missing, f"docs/cli.md says nothing of {command} {missing}"


def test_every_plug_in_is_named_on_its_page() -> None:
    text = (REPOSITORY / "docs" / "extend.md").read_text("utf-8")
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")]
    rows = {kind.strip(): line for line in lines for kind in line.split("|")[1].split(",")}
    missing = [
        f"docs/extend.md, first table, row `{rows[kind].split('|')[1].strip()}`, last cell: add `{name}`"
        for kind in plugins.KINDS
        for name in plugins.known(kind)
        if f"`{name}`" not in rows[kind]
    ]
    assert not missing, "a built-in name stands nowhere; write it where this says:\n" + "\n".join(missing)


def settings(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Dotted path and default of all settings below a part of the configuration."""
    for field in fields(value):  # type: ignore[arg-type]
        at, inner = f"{path}{field.name}", getattr(value, field.name)
        if isinstance(inner, Limits):
            yield f"{at}.NAME", None
        elif field.name == "actions":
            yield from settings(ActionConfig(), "actions.NAME.")
        elif is_dataclass(inner):
            yield from settings(inner, f"{at}.")
        else:
            yield at, inner


def shown(default: object) -> str:
    """A default as the page shows it."""
    match default:
        case None:
            return "none"
        case dict():
            return ""
        case float():
            return f"{default:g}"
        case _:
            return str(default)


def test_the_table_of_settings_is_the_configuration_s() -> None:
    rows = {path: cells[0] for path, cells in table("cli.md", "## Settings").items()}
    assert rows == {path: shown(default) for path, default in settings(RunConfig())}
