"""Texts of a run are shown, never obeyed: markup stays text, and characters that nobody can see are spelt out."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.web.browser import file_url, opened, ramify
from tests.web.forged import HOSTILE, copied, with_hostile_texts

pytestmark = pytest.mark.web
TABS = ("path", "why", "leaves", "rows", "spent", "fields")
SHOWN = "<script>window.hacked=1</script></script><img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def hostile_page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    copied(folder / "run", runs / "search", with_hostile_texts)
    ramify("view", str(folder / "run"), "--html", str(folder / "page.html"))
    return folder / "page.html"


def test_nothing_of_a_run_is_markup_or_runs(browser: Browser, hostile_page: Path) -> None:
    for fragment in (
        "",
        *(f"#v=tree&t=0&n=4&d={drawing}&b={tab}" for drawing in ("icicle", "graph", "outline") for tab in TABS),
    ):
        with opened(browser, file_url(hostile_page, fragment)) as shown:
            shown.page.wait_for_selector(".tree-row, .panel-body *")
            shown.page.wait_for_timeout(100)
            assert shown.page.evaluate("window.hacked") is None
            assert shown.page.locator("main img, main script, main iframe").count() == 0
            assert shown.requests_elsewhere("file://") == []


def test_hostile_texts_stand_there_verbatim(browser: Browser, hostile_page: Path) -> None:
    with opened(browser, file_url(hostile_page, "#v=tree&t=0&n=4&b=path")) as shown:
        shown.page.wait_for_selector("details.call")
        shown.page.click("text=open all tool calls")
        shown.wait("document.querySelectorAll('details.call[open]').length > 0")
        text = shown.page.locator("details.call[open] .text").nth(1).inner_text()
        assert SHOWN in text
        for spelt in ("␀", "␇", "␛[31m", "<U+202E>evil<U+202C>", "<U+200B>", "<U+2066>", "<U+FEFF>"):
            assert spelt in text, spelt
        assert "&amp;\"'`${window.hacked=1}`{{policy}}\\u003cscript>" in text
        assert SHOWN[:20] in shown.text("h1")


def test_no_character_turns_the_direction_or_is_invisible(browser: Browser, hostile_page: Path) -> None:
    unseen = r"\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    for tab in TABS:
        with opened(browser, file_url(hostile_page, f"#v=tree&t=0&n=4&b={tab}")) as shown:
            shown.page.wait_for_selector(".panel-body *")
            shown.page.wait_for_timeout(150)
            assert shown.page.evaluate(f"/[{unseen}]/.test(document.body.innerText)") is False, tab


def test_the_policy_forbids_what_a_page_could_load(hostile_page: Path) -> None:
    text = hostile_page.read_text("utf-8")
    assert "default-src 'none'; script-src 'sha256-" in text
    assert "connect-src 'none'" in text
    assert HOSTILE[:30] not in text.split("<script>", 1)[0]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
