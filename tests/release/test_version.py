"""The version is one: of the package, its command line, the newest section of the changelog and the citation."""

import re
from pathlib import Path

import pytest

from ramify import __version__
from ramify.cli.main import main

REPOSITORY = Path(__file__).parents[2]


def test_the_command_line_says_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"ramify {__version__}\n"


def test_the_changelog_s_newest_release_is_the_version() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert sections[:2] == ["Unreleased", __version__]


def test_the_citation_names_the_version() -> None:
    text = (REPOSITORY / "CITATION.cff").read_text("utf-8")
    assert re.findall(r"^(?:cff-version|version): (.+)$", text, re.MULTILINE) == ["1.2.0", __version__]
