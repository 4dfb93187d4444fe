"""A figure in the documents names the script that measured it."""

import re
from pathlib import Path

import pytest
from tests.docs.test_examples import BLOCK, PAGES, REPOSITORY, name_of

FIGURE = re.compile(r"(?<![\w.])\d*\.\d+\b|\b\d+ ?(?:ms|µs|%|MB)")
MANY = 5
"""Figures in the tables of a section; a table with fewer is one of settings."""
COMMANDS = ("compare", "demo", "eval", "noise", "plan")
SCRIPT = re.compile(
    rf"bench/\w+\.py|(?:`|: |\$ )make \w+|python -m \w+|ramify (?:{'|'.join(COMMANDS)})\b|no script is kept"
)
HEADING = re.compile(r"^(?=#+ )", re.MULTILINE)
MEASURED = [page for page in PAGES if page.name != "CHANGELOG.md"]


def num_figures(section: str) -> int:
    rows = [line for line in BLOCK.sub("", section).splitlines() if line.startswith("|")]
    return sum(len(FIGURE.findall(re.sub(r"`[^`]*`", "", row))) for row in rows)


@pytest.mark.parametrize("page", MEASURED, ids=name_of)
def test_a_table_of_figures_names_its_script(page: Path) -> None:
    opening, *sections = HEADING.split(page.read_text("utf-8"))[1:] or [""]
    if SCRIPT.search(BLOCK.sub("", opening)):
        return
    unnamed = [
        section.partition("\n")[0]
        for section in (opening, *sections)
        if num_figures(section) >= MANY and not SCRIPT.search(section)
    ]
    assert not unnamed, f"which script in bench measured the figures of {unnamed}?"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_scripts_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"\bbench/\w+\.py", page.read_text("utf-8"))
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
