"""A frame of a notebook is the whole page, and nothing in it can reach the notebook."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Frame
from tests.web.browser import Shown, file_url, opened

from ramify.runner.saved import Saved
from ramify.view.notebook import frame_of

pytestmark = pytest.mark.web


@pytest.fixture(scope="module")
def host(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that shows a tree and a run, as a notebook does."""
    tree, rollout = Saved.open(runs / "search").tree(0), Saved.open(runs / "rollout")
    assert tree is not None
    path = tmp_path_factory.mktemp("notebook") / "host.html"
    script = "<script>window.secret = 'of the notebook';</script>"
    path.write_text(f"<!doctype html><meta charset=utf-8>{script}{frame_of(tree)}{frame_of(rollout)}", "utf-8")
    return path


def frame(shown: Shown, number: int) -> Frame:
    """One of the frames, when it shows something."""
    found = shown.page.frames[1 + number]
    found.wait_for_selector(".step, .tree-row")
    return found


def test_keys_and_clicks_work_in_a_frame(browser: Browser, host: Path) -> None:
    with opened(browser, file_url(host)) as shown:
        inner = frame(shown, 0)
        assert "make 24 from 4 6 8 2" in inner.locator("h1").inner_text()
        inner.locator(".panel-body").click()
        shown.press("l")
        inner.wait_for_selector(".step.selected:not([data-node='0'])")
        inner.click("[role=tab]:has-text('why this node')")
        inner.wait_for_selector("[role=tab][aria-selected=true]:has-text('why this node')")
        shown.press("v", "v")
        inner.wait_for_selector(".stage [role=treeitem]")
        shown.press("p", "b")
        inner.wait_for_selector(".step.selected .ending")
        with shown.page.expect_download() as download:
            shown.press("e")
        assert download.value.suggested_filename.startswith("tree-0-node-")


def test_a_run_folder_is_a_table_in_its_frame(browser: Browser, host: Path) -> None:
    with opened(browser, file_url(host)) as shown:
        inner = frame(shown, 1)
        inner.click(".tree-row")
        inner.wait_for_selector(".step")
        inner.click("text=all trees")
        inner.wait_for_selector(".tree-row")
        inner.fill(".search input", "calc")
        shown.press("Enter")
        inner.wait_for_selector(".hits li")


def test_a_frame_cannot_reach_the_page_around_it(browser: Browser, host: Path) -> None:
    tries = ["parent.document.title", "parent.secret", "top.location.href", "localStorage.length", "document.cookie"]
    script = """(tries) => tries.map((code) => {
        try { return String(code.split('.').reduce((value, name) => value[name], window)); }
        catch (error) { return error.name; }
    })"""
    with opened(browser, file_url(host)) as shown:
        inner = frame(shown, 0)
        assert inner.evaluate(script, tries) == ["SecurityError"] * len(tries), json.dumps(tries)
        assert inner.evaluate("origin") == "null"
        assert shown.page.evaluate("secret") == "of the notebook"
        assert shown.requests_elsewhere("file://") == ["about:srcdoc"] * shown.requests.count("about:srcdoc")
