"""What the page computes itself comes to the same as in Python: the condition of `--where`, and a paired interval."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.web.browser import file_url, opened

from ramify.cli.where import condition
from ramify.experiments.paired import paired_difference
from ramify.view.documents import Documents
from ramify.view.tree_values import COLUMNS, Value

pytestmark = pytest.mark.web
CONDITIONS = (
    'reward<0.5 and tool=="calculator" and leaves>2',
    "best == 1 or not (tokens > 80)",
    "reward == None",
    "reward != None and -1 < 0",
    '"from 11" in question',
    'tool != "python" and stop == "answer"',
    "tokens >= 60 and tokens <= 90 and (depth > 3 or forks == 0)",
    "best > worst",
    'uid < "5"',
)


def table(runs: Path, name: str) -> Mapping[str, list[Value]]:
    documents = Documents.open([runs / name])
    list(documents.look())
    while documents.fill(60.0):
        pass
    return documents.get("run/0")["trees"]


def test_a_condition_keeps_the_same_trees_as_in_the_terminal(browser: Browser, runs: Path, page_file: Path) -> None:
    columns = table(runs, "rollout")
    rows = [{name: columns[name][place] for name in COLUMNS} for place in range(len(columns["tree"]))]
    with opened(browser, file_url(page_file, "#r=1")) as shown:
        for text in CONDITIONS:
            expected = sum(map(condition(text, COLUMNS).holds, rows))
            shown.page.fill(".filter", text)
            shown.wait(f"document.querySelector('.filter-line [role=status]').innerText === '{expected} of 12 trees'")


def test_the_interval_of_two_runs_is_that_of_compare(browser: Browser, runs: Path, page_file: Path) -> None:
    solved = [[float(best >= 1) for best in table(runs, name)["best"]] for name in ("rollout", "chains")]
    expected = paired_difference(solved[0], solved[1])
    with opened(browser, file_url(page_file, "#r=0&v=compare&o=run.1")) as shown:
        shown.page.wait_for_selector(".figure dl")
        said = shown.text("dt:has-text('difference') + dd")
    numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", said)]
    assert numbers == pytest.approx([expected.value, expected.low, expected.high], abs=1e-3)
