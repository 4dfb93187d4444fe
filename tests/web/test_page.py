"""The page as one file, in a real browser: it opens from the disk, and every part of it can be used."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.web.browser import file_url, opened

pytestmark = pytest.mark.web


def test_a_file_opens_without_a_network_and_without_errors(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file)) as shown:
        shown.page.wait_for_selector(".tree-row")
        assert shown.requests_elsewhere("file://") == []
        assert [url for url in shown.requests if not url.startswith("data:")] == [file_url(page_file)]


def test_the_first_screen_answers_what_people_ask_of_a_run(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file, "#r=1")) as shown:
        shown.page.wait_for_selector(".figures .card")
        titles = shown.page.locator(".figures h2").all_inner_texts()
    wanted = {
        "Solved", "Rewards of leaves", "Solved within so many tokens", "Problems", "How paths ended", "Tokens", "Tools",
        "Commands in flight",
    }  # fmt: skip
    assert wanted <= set(titles)


def test_the_table_is_filtered_and_sorted(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file, "#r=1")) as shown:
        shown.page.wait_for_selector(".tree-row")
        everything = shown.page.locator(".tree-row").count()
        shown.page.fill(".filter", 'reward<0.5 and tool=="calculator" and leaves>2')
        shown.wait("location.hash.includes('f=')")
        shown.wait(f"document.querySelectorAll('.tree-row').length < {everything}")
        shown.page.click("th button:has-text('tokens')")
        shown.wait("document.querySelector('th[aria-sort=descending]')")
        place = shown.page.locator("th").all_inner_texts().index("tokens")
        cells = shown.page.locator(f".tree-row td:nth-child({place + 1})").all_inner_texts()
        assert cells == sorted(cells, key=int, reverse=True)
        shown.page.fill(".filter", "rewards<1")
        shown.page.wait_for_selector(".filter-line .fault")
        assert "there is no column rewards; columns: tree, question" in shown.text(".filter-line .fault")


def test_full_text_search_finds_nodes_and_steps_through_them(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file, "#r=2")) as shown:
        shown.page.wait_for_selector(".tree-row")
        shown.press("/")
        shown.page.wait_for_selector(".search input:focus")
        shown.page.keyboard.type("<answer>24</answer>")
        shown.press("Enter")
        shown.page.wait_for_selector(".hits li")
        shown.wait("document.querySelector('.search [role=status]').textContent.includes('found')")
        shown.page.click(".hits li button")
        shown.page.wait_for_selector(".step.selected")
        assert "<answer>24</answer>" in shown.text(".step.selected .text")
        before = shown.state()["n"]
        shown.press("n")
        shown.wait(f"new URLSearchParams(location.hash.slice(1)).get('n') !== '{before}'")


def test_every_key_moves_through_the_tree(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file, "#r=2&v=tree&t=0")) as shown:
        shown.page.wait_for_selector(".step")
        node = lambda: int(shown.state().get("n", 0))  # noqa: E731
        shown.press("l")
        first = node()
        assert first > 0
        shown.press("]")
        sibling = node()
        assert sibling not in (0, first)
        shown.press("[")
        assert node() == first
        shown.press("h")
        assert node() == 0
        shown.press("j", "j", "k")
        assert node() == first
        shown.press("b")
        shown.page.wait_for_selector(f".step.selected[data-node='{node()}'] .ending")
        shown.press("d")
        assert shown.state()["b"] == "why"
        shown.press("v")
        assert shown.state()["d"] == "graph"
        shown.press("c")
        assert shown.state()["c"] != "reward"
        shown.press("?")
        shown.page.wait_for_selector("dialog.help")
        shown.press("Escape")
        shown.press("u")
        shown.page.wait_for_selector(".tree-row")


def test_why_a_node_was_chosen_is_told_with_the_scores_of_then(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file, "#r=2&v=tree&t=0&b=why")) as shown:
        shown.page.wait_for_selector(".panel-body p")
        for _ in range(40):
            shown.press("j")
            shown.page.wait_for_timeout(20)
            if shown.page.locator("table.options").count():
                break
        head = shown.page.locator("table.options").first.locator("th").all_inner_texts()
        assert head == ["node", "score", "q", "visits"]
        scores = shown.page.locator("table.options").first.locator("tbody tr td:nth-child(2)").all_inner_texts()
        assert [float(score) for score in scores] == sorted(map(float, scores), reverse=True)
        assert shown.page.locator("table.options tr.chosen").count() >= 1


def test_the_slider_shows_the_tree_as_of_any_event(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file, "#r=2&v=tree&t=0&d=outline")) as shown:
        shown.page.wait_for_selector("[role=treeitem]")
        whole = shown.page.locator("[role=treeitem]").count()
        shown.page.locator(".slider input").fill("6")
        shown.wait(f"document.querySelectorAll('[role=treeitem]').length < {whole}")
        assert shown.state()["k"] == "6"
        assert "6 of" in shown.text(".slider .event")
        shown.press(".")
        shown.wait("location.hash.includes('k=7')")


def test_tool_calls_stay_as_the_reader_left_them(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file, "#r=2&v=tree&t=0")) as shown:
        shown.page.wait_for_selector(".step")
        shown.press("b")
        shown.page.wait_for_selector("details.call")
        assert shown.page.locator("details.call[open]").count() == 0
        shown.page.click("details.call >> nth=0 >> summary")
        shown.wait("document.querySelectorAll('details.call[open]').length === 1")
        shown.press("c")
        shown.page.wait_for_timeout(200)
        assert shown.page.locator("details.call[open]").count() == 1
        shown.page.click("text=open all tool calls")
        shown.wait("document.querySelectorAll('details.call:not([open])').length === 0")


@pytest.mark.parametrize("name", ["logprob", "entropy", "weight", "advantage", "version"])
def test_tokens_are_coloured_and_tell_their_exact_values(browser: Browser, page_file: Path, name: str) -> None:
    with opened(browser, file_url(page_file, "#r=1&v=tree&t=1")) as shown:
        shown.page.wait_for_selector(".step")
        shown.press("b")
        shown.page.wait_for_selector(".step.selected .segment")
        shown.page.select_option(".path-head select", name)
        shown.page.wait_for_selector(".path-head .legend")
        shown.page.hover(".step.selected .token")
        told = shown.text("#hint")
        assert re.search(rf"^{name}\n-?[\d.e+-]+$", told, re.MULTILINE), told
        assert "id" in told
        assert "probability" in told


def test_a_link_brings_back_the_whole_view(browser: Browser, page_file: Path) -> None:
    fragment = "#v=tree&c=entropy&w=tokens&d=graph&b=rows&r=1&t=3&n=4&k=9"
    with opened(browser, file_url(page_file, fragment)) as shown:
        shown.page.wait_for_selector(".panel-body table")
        assert shown.state() == dict(part.split("=") for part in fragment[1:].split("&"))
        shown.page.reload()
        shown.page.wait_for_selector(".panel-body table")
        assert shown.page.locator("select").all_inner_texts()
        assert shown.state()["c"] == "entropy"


def test_two_leaves_are_compared_where_they_parted(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file, "#r=1&v=tree&t=1")) as shown:
        shown.page.wait_for_selector(".step")
        shown.press("b", "x", "h", "h", "h")
        shown.page.click("[role=tab]:has-text('leaves')")
        shown.page.wait_for_selector(".cards .card")
        shown.page.locator(".cards .card button").last.click()
        shown.page.wait_for_selector(".step.selected")
        shown.press("x")
        shown.page.wait_for_selector(".two .side")
        assert shown.page.locator(".parted.first").count() == 2
        assert "They agree in" in shown.text("main > p")


def test_two_runs_are_compared_flips_first(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file, "#r=0&v=compare&o=run.1")) as shown:
        shown.page.wait_for_selector("tr")
        assert "12" in shown.text(".figure dl")
        assert "95% interval" in shown.text(".figure dl")
        rows = shown.page.locator("tbody tr").evaluate_all("rows => rows.map((row) => row.className === 'flip')")
        assert rows == sorted(rows, reverse=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_have_enough_contrast(browser: Browser, page_file: Path, scheme: str) -> None:
    with opened(browser, file_url(page_file), color_scheme=scheme) as shown:
        shown.page.wait_for_selector(".tree-row")
        assert shown.page.evaluate("document.documentElement.dataset.theme") == scheme
        ground, *others = (
            shown.page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
            for name in ("ground", "ink", "muted", "accent", "fault")
        )
        for colour in others:
            assert contrast(colour, ground) >= 4.5, (colour, ground)


def contrast(one: str, other: str) -> float:
    """The contrast of two colours `#rrggbb` (WCAG 2.2)."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_at_200_percent_zoom_nothing_is_cut_off(browser: Browser, page_file: Path) -> None:
    for fragment in ("#r=1", "#r=1&v=tree&t=1&n=3"):
        with opened(browser, file_url(page_file, fragment)) as shown:
            shown.page.set_viewport_size({"width": 640, "height": 400})
            shown.page.wait_for_selector(".tree-row, .step")
            assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_control_has_a_name_for_screen_readers(browser: Browser, page_file: Path) -> None:
    unnamed = """[...document.querySelectorAll('button, input, select, canvas, [role=tree], [role=img]')]
        .filter((each) => !each.closest('[aria-hidden=true]'))
        .filter((each) => !(each.getAttribute('aria-label') || each.textContent.trim() || each.closest('label')))
        .map((each) => each.outerHTML.slice(0, 200))"""
    for fragment in ("#r=1", "#r=1&v=tree&t=1", "#r=1&v=tree&t=1&d=outline", "#r=1&v=tree&t=1&d=graph&b=why"):
        with opened(browser, file_url(page_file, fragment)) as shown:
            shown.page.wait_for_selector(".tree-row, .panel-body *")
            assert shown.page.evaluate(unnamed) == []


def test_a_path_is_saved_as_json(browser: Browser, page_file: Path, tmp_path: Path) -> None:
    with opened(browser, file_url(page_file, "#r=2&v=tree&t=0")) as shown:
        shown.page.wait_for_selector(".step")
        shown.press("b")
        with shown.page.expect_download() as download:
            shown.press("e")
        download.value.save_as(tmp_path / "path.json")
    saved = json.loads((tmp_path / "path.json").read_text("utf-8"))
    assert saved["question"] == "make 24 from 4 6 8 2"
    assert saved["path"][0]["node"] == 0
    assert saved["path"][-1]["segments"][0]["origin"] == "sampled"


def test_a_control_keeps_the_focus_when_the_page_follows_it(browser: Browser, page_file: Path) -> None:
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    with opened(browser, file_url(page_file, "#r=2&v=tree&t=0&n=7")) as shown:
        shown.page.wait_for_selector(".step.selected")
        shown.page.focus(".path-head select")
        shown.press("ArrowDown")
        shown.page.wait_for_timeout(150)
        assert shown.page.evaluate(focused) == "colour tokens by"
        shown.page.focus(".branch-point [aria-label='next sibling']")
        shown.press("Enter")
        shown.wait("!location.hash.includes('n=7')")
        assert shown.page.evaluate(focused) == "next sibling"


def test_the_slider_can_be_dragged(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file, "#r=2&v=tree&t=0&k=3")) as shown:
        shown.page.wait_for_selector(".slider input")
        box = shown.page.locator(".slider input").bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        last = int(shown.page.locator(".slider input").get_attribute("max") or 0)
        shown.page.mouse.move(box["x"] + 8 + (box["width"] - 16) * 3 / last, middle)
        shown.page.mouse.down()
        for share in (0.2, 0.4, 0.6):
            shown.page.mouse.move(box["x"] + box["width"] * share, middle)
            shown.page.wait_for_timeout(60)
        shown.page.mouse.up()
        assert abs(int(shown.state()["k"]) - 0.6 * last) < 0.1 * last


def test_a_link_can_point_at_a_token(browser: Browser, page_file: Path) -> None:
    with opened(browser, file_url(page_file, "#r=2&v=tree&t=0&n=7")) as shown:
        shown.page.wait_for_selector(".step.selected")
        shown.page.select_option(".path-head select", "logprob")
        shown.page.click(".step.selected .token >> nth=2")
        text, place = shown.text(".token.pointed"), shown.state()["p"]
        shown.page.reload()
        shown.page.wait_for_selector(".token.pointed")
        assert (shown.text(".token.pointed"), shown.state()["p"]) == (text, place)
