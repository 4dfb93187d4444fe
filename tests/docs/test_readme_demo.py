from pathlib import Path

import pytest
from tests.readme_demo import COMMANDS, PAGE, PICTURE, block, printed


def shown(command: str) -> str:
    return block(PAGE.read_text("utf-8"), command)


def test_the_readme_shows_what_the_demo_prints_and_draws(tmp_path: Path):
    assert printed(COMMANDS[0], tmp_path) == shown(COMMANDS[0]), "run: python -m tests.readme_demo"
    assert (tmp_path / "runs" / "demo" / "tree.svg").read_bytes() == PICTURE.read_bytes()


@pytest.mark.slow
def test_the_readme_shows_what_the_comparison_prints(tmp_path: Path):
    assert printed(COMMANDS[1], tmp_path) == shown(COMMANDS[1]), "run: python -m tests.readme_demo"
