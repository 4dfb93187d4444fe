"""Runs to look at, and one browser for all tests. They need Playwright, which `make test-web` installs."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("playwright") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    from tests.web.browser import chromium

    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: `rollout` has 12 trees of countdown, `chains` the same problems, `search` one tree of MCTS."""
    from tests.web.browser import ramify

    root = tmp_path_factory.mktemp("runs")
    for name, preset in (("rollout", "offline"), ("chains", "chains")):
        ramify("rollout", "--preset", preset, "--prompts", "12", "--seed", "1", "--out", str(root / name))
    ramify("search", "make 24 from 4 6 8 2", "--preset", "mcts", "--seed", "1", "--out", str(root / "search"))
    return root


@pytest.fixture(scope="session")
def page_file(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs as one page."""
    from tests.web.browser import ramify

    path = tmp_path_factory.mktemp("page") / "runs.html"
    ramify("view", str(runs), "--html", str(path))
    return path
