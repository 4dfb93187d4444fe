"""Whatever a run folder holds, the page says what is wrong, shows the rest, and stays usable: live, and as a file."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser
from tests.store.growths import answer, observed, sampled, turn
from tests.web.browser import opened, ramify
from tests.web.forged import path_of, written
from tests.web.test_live import served

from ramify.core.segment import ToolCall, token_array
from ramify.core.tree import Step
from ramify.view.documents import Documents
from ramify.view.html_file import write_html

pytestmark = pytest.mark.web
JOURNAL = Path("journal") / "000000.jsonl"
NAMES = ("damaged", "large", "no_trees", "odd", "split", "torn", "unread", "version")
LARGE = 1 << 20
Kind = Literal["live", "file"]
KINDS: tuple[Kind, ...] = ("live", "file")


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Kind, str]]:
    """All bad runs together: as they are served, and as one file."""
    root = tmp_path_factory.mktemp("bad")
    like = tmp_path_factory.mktemp("scripted") / "run"
    ramify("rollout", "--preset", "offline", "--engine", "scripted", "--prompts", "1", "--out", str(like))
    trees = [path_of(number, turn(f"{number}+1"), answer()) for number in range(3)]
    written(root / "no_trees", like)
    torn(written(root / "torn", like, *trees) / JOURNAL)
    damaged(written(root / "damaged", like, *trees) / JOURNAL)
    written(root / "version", like, *trees, format=9)
    (root / "odd" / "journal").mkdir(parents=True)
    (root / "odd" / "journal" / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    text = "0123456789abcde\n" * (LARGE // 16)
    called = replace(observed(text), tool_call=ToolCall("calc", "1+1", result=text))
    told = replace(observed(text), tool_call=None)
    written(root / "large", like, path_of(0, Step((sampled(text), called)), Step((told,)), answer("4")))
    written(
        root / "split", like, path_of(0, Step((sampled("\ufeffn\u00e9\U0001f600"),)), *in_two_nodes("\u20ac"), answer())
    )
    unread = replace(sampled("ab"), ids=token_array([17, 70001]))
    written(root / "unread", like, path_of(0, Step((unread,)), answer()), codec_sha256="e" * 64)
    assert sorted(path.name for path in root.iterdir()) == list(NAMES)
    write_html(Documents.open([root]), root / "page.html")
    with served(root) as url:
        yield {"live": url, "file": (root / "page.html").as_uri()}


def torn(file: Path) -> None:
    """Cut the last line in two, as a machine does that loses its power."""
    data = file.read_bytes().rstrip(b"\n")
    lines = [line for line in data.split(b"\n") if b'"sealed"' not in line]
    file.write_bytes(b"\n".join(lines)[: -len(lines[-1]) // 2])


def damaged(file: Path) -> None:
    """Change a byte of a step of tree 1."""
    lines = file.read_bytes().split(b"\n")
    place = next(i for i, line in enumerate(lines) if b'"grown"' in line and b'"tree":1' in line)
    lines[place] = lines[place].replace(b'"number":0', b'"number":7')
    file.write_bytes(b"\n".join(lines))


def in_two_nodes(character: str) -> tuple[Step, Step]:
    """Two steps that the bytes of one character are spread over."""
    ids = character.encode()
    return tuple(Step((replace(sampled("x" * len(part)), ids=token_array(list(part))),)) for part in (ids[:1], ids[1:]))


def page(addresses: dict[Kind, str], kind: Kind, name: str, fragment: str = "") -> str:
    return f"{addresses[kind]}#r={NAMES.index(name)}{fragment}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "words", "num_trees"),
    [
        ("no_trees", "0 trees were begun of the 1 asked for", 0),
        ("torn", "the journal ends with a torn record, which is not read", 3),
        ("damaged", "tree 1", 3),
        ("version", "format 9", 0),
        ("odd", "odd", 0),
        ("unread", "the tokenizer 'bytes' was not found: texts are shown as the numbers of their tokens", 1),
    ],
)
def test_the_page_of_a_run_says_what_is_wrong(
    browser: Browser, addresses: dict[Kind, str], kind: Kind, name: str, words: str, num_trees: int
) -> None:
    with opened(browser, page(addresses, kind, name)) as shown:
        shown.page.wait_for_selector("ul.fault li")
        shown.wait(f"document.querySelector('ul.fault').innerText.includes({words!r})")
        assert shown.page.locator(".tree-row").count() == num_trees
        assert name in shown.text("h1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_tree_says_why_and_the_others_open(browser: Browser, addresses: dict[Kind, str], kind: Kind) -> None:
    with opened(browser, page(addresses, kind, "damaged")) as shown:
        shown.page.click(".tree-row >> nth=1")
        shown.page.wait_for_selector("main .fault[role=alert]")
        assert "tree 1" in shown.text("main .fault")
        shown.press("t", "j", "v")
        shown.page.wait_for_selector("main .fault[role=alert]")
        shown.press("u")
        shown.page.click(".tree-row >> nth=2")
        shown.page.wait_for_selector(".step")
        shown.press("u")
        shown.page.wait_for_selector(".tree-row")
        shown.page.fill(".search input", "<calc>")
        shown.press("Enter")
        shown.page.wait_for_selector(".hits li >> nth=1")
        shown.wait("document.querySelector('.search').innerText.includes('1 trees were not searched: tree 1')")
        assert shown.page.locator(".hits li").count() == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_that_is_not_there_is_told(browser: Browser, addresses: dict[Kind, str], kind: Kind) -> None:
    with opened(browser, page(addresses, kind, "no_trees")) as shown:
        shown.page.wait_for_selector("h1")
        assert "0 of 0 trees" in shown.text(".filter-line")
        shown.press("j", "b", "v", "x", "e", ".", "n")
        shown.page.wait_for_selector("h1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_of_a_megabyte_opens_and_stays_usable(browser: Browser, addresses: dict[Kind, str], kind: Kind) -> None:
    with opened(browser, page(addresses, kind, "large", "&v=tree&t=0")) as shown:
        shown.page.wait_for_selector(".step")
        shown.press("b")
        shown.page.wait_for_selector(".step.selected .ending")
        assert shown.page.locator(".panel-body .token").count() < 10_000
        before = shown.page.locator(".panel-body .token").count()
        shown.page.click(".step[data-node='1'] button:has-text('more tokens')")
        shown.wait(f"document.querySelectorAll('.panel-body .token').length > {before}")
        shown.page.click(".step[data-node='2'] button:has-text('more characters')")
        shown.wait(f"document.querySelector('.step[data-node=\"2\"]').textContent.length > {LARGE}")
        shown.page.click("text=open all tool calls")
        shown.page.wait_for_selector("details.call[open]")
        shown.press("k")
        shown.page.wait_for_selector(".step.selected[data-node='2']")
        for tab in ("leaves", "all fields", "training"):
            shown.page.click(f"[role=tab]:has-text('{tab}')")
            shown.page.wait_for_selector(f"[role=tab][aria-selected=true]:has-text('{tab}')")
        shown.press("v", "v", "u")
        shown.page.wait_for_selector(".tree-row")


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_split_a_character_are_shown(browser: Browser, addresses: dict[Kind, str], kind: Kind) -> None:
    with opened(browser, page(addresses, kind, "split", "&v=tree&t=0&n=4")) as shown:
        shown.page.wait_for_selector(".step.selected .token")
        texts = shown.page.locator(".step[data-node='1'] .token").all_inner_texts()
        assert texts == [
            "\u00b7",
            "\u00b7",
            "<U+FEFF>",
            "n",
            "\u00b7",
            "\u00e9",
            "\u00b7",
            "\u00b7",
            "\u00b7",
            "\U0001f600",
        ]
        shown.page.select_option("select[aria-label='colour tokens by']", "")
        shown.wait("!document.querySelector('.token')")
        assert shown.text(".step[data-node='1'] .text") == "<U+FEFF>n\u00e9\U0001f600"
        assert shown.text(".step[data-node='2'] .text") == "<U+FFFD>"


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_tokenizer_a_tree_shows_numbers(browser: Browser, addresses: dict[Kind, str], kind: Kind) -> None:
    with opened(browser, page(addresses, kind, "unread", "&v=tree&t=0&n=1&d=outline")) as shown:
        shown.page.wait_for_selector(".step.selected .token")
        assert shown.page.locator(".step[data-node='1'] .token").all_inner_texts() == [
            "\u27e817\u27e9",
            "\u27e870001\u27e9",
        ]
        assert "\u27e817\u27e9\u27e870001\u27e9" in shown.text("[role=treeitem][data-node='1']")
        shown.press("u")
        shown.page.fill(".search input", "\u27e870001\u27e9")
        shown.press("Enter")
        shown.page.wait_for_selector(".hits li")


def test_a_page_without_tokens_says_so(browser: Browser, runs: Path, tmp_path: Path) -> None:
    write_html(Documents.open([runs / "search"]), tmp_path / "page.html", has_tokens=False)
    with opened(browser, (tmp_path / "page.html").as_uri()) as shown:
        shown.page.wait_for_selector(".panel-body .fault")
        assert "this file holds no tokens" in shown.text(".panel-body .fault")
        shown.press("v", "v", "j")
        shown.page.wait_for_selector("[role=treeitem].is-selected")
