"""Files of other projects open as pages: each format that is read shows its leaves and their rewards."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.view.test_readers import (
    HEADER,
    archive,
    called,
    episode,
    inspect_sample,
    parquet,
    search,
    state,
    trace,
    verl_row,
    written,
)
from tests.web.browser import opened

from ramify.view.documents import Documents
from ramify.view.html_file import write_html
from ramify.view.readers import READERS

pytestmark = pytest.mark.web
HOSTILE = "</script><script>window.hacked=1</script>\u202e"
SHOWN = "</script><script>window.hacked=1</script><U+202E>"


def verifiers(folder: Path) -> Path:
    rows = [episode(trace(called("two"))), episode(trace(called(HOSTILE), stop_condition="max_turns"))]
    return written(folder / "traces.jsonl", rows)


def verifiers_results(folder: Path) -> Path:
    prompt = [{"role": "user", "content": "1+1?"}]
    row = {"example_id": 3, "prompt": prompt, "completion": "two", "reward": 1.0, "metrics": {"exact": 1.0}}
    return written(folder / "results.jsonl", [row, row | {"completion": HOSTILE, "reward": 0.5}])


def verl(folder: Path) -> Path:
    return written(folder / "7.jsonl", [verl_row(output="two"), verl_row(output=HOSTILE, score=0)])


def trl(folder: Path) -> Path:
    columns = {
        "step": [1, 1],
        "prompt": ["1+1?", "1+1?"],
        "completion": ["two", HOSTILE],
        "accuracy": [1.0, 0.0],
        "advantage": [1.0, -1.0],
    }
    return parquet(folder / "completions_00001.parquet", columns)


def inspect(folder: Path) -> Path:
    samples = {
        f"samples/s_epoch_{epoch}.json": inspect_sample(text, epoch) for epoch, text in ((1, "two"), (2, HOSTILE))
    }
    return archive(folder / "log.eval", {"header.json": HEADER, **samples})


def treequest(folder: Path) -> Path:
    path = folder / "search.json"
    nodes = [state(0, -1, 0.5), state(1, 0, 0.75, state_repr="two"), state(2, -1, 0.25, state_repr=HOSTILE)]
    path.write_text(json.dumps(search(nodes)), "utf-8")
    return path


FILES: dict[str, Callable[[Path], Path]] = {
    "verifiers": verifiers,
    "verifiers_results": verifiers_results,
    "verl": verl,
    "trl": trl,
    "inspect": inspect,
    "treequest": treequest,
}
"""Format -> writes a file of it, with one tree that has the leaves `two` and `HOSTILE`."""


def test_every_format_that_is_read_has_a_page_here() -> None:
    assert FILES.keys() == READERS.keys()


@pytest.mark.parametrize("name", FILES)
def test_a_file_opens_and_shows_its_leaves(browser: Browser, tmp_path: Path, name: str) -> None:
    write_html(Documents.open([FILES[name](tmp_path)]), tmp_path / "page.html")
    with opened(browser, (tmp_path / "page.html").as_uri() + "#r=0") as shown:
        shown.page.wait_for_selector(".tree-row")
        assert str(tmp_path) in shown.text("h1")
        assert shown.page.locator("ul.fault").count() == 0
        shown.page.click(".tree-row")
        shown.page.wait_for_selector(".step")
        shown.page.click("[role=tab]:has-text('leaves')")
        shown.page.wait_for_selector(".cards .card >> nth=1")
        texts = shown.page.locator(".cards .card .text").all_inner_texts()
        assert texts[0].endswith("two")
        assert texts[1].endswith(SHOWN)
        said = shown.page.locator(".cards .card p").all_inner_texts()
        assert all(re.match(r"reward \d", words) for words in said), said
        shown.page.click("[role=tab]:has-text('why this node')")
        shown.wait("document.querySelector('.panel-body').innerText.includes('Nothing is known of the decisions')")
        shown.page.click("[role=tab]:has-text('training')")
        shown.wait("document.querySelector('.panel-body').innerText === 'no training rows are known of this tree'")
        shown.page.click("[role=tab]:has-text('all fields')")
        shown.page.wait_for_selector(".panel-body details.fields")
        shown.press("p", "b", "k", "v", "v")
        shown.page.wait_for_selector("[role=treeitem]")
        assert shown.page.evaluate("window.hacked") is None
