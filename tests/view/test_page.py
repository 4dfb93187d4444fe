"""The page as a text: its policy allows one script and one style by their hashes, and documents are no markup."""

import base64
import gzip
import hashlib
import json
import re

import pytest

from ramify.view import page
from ramify.view.page import blocks, live_page, modules, packed, page_of, policy, script, style

MAX_BASE_BYTES = 250_000


def test_the_policy_allows_the_script_and_the_style_that_are_there_and_nothing_else():
    text = page_of(blocks([("index", {"runs": []})]))
    (found,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    (code,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (rules,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (code, rules)]
    assert found == policy(connect="'none'")
    assert found.split("; ") == [
        "default-src 'none'",
        f"script-src 'sha256-{hashes[0]}'",
        f"style-src 'sha256-{hashes[1]}'",
        "connect-src 'none'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_only_a_page_of_a_server_may_ask_it():
    text, said = live_page()
    assert "connect-src 'self'" in said
    assert said in text
    assert "application/gzip" not in text


def test_the_base_page_is_small():
    assert len(live_page()[0].encode()) <= MAX_BASE_BYTES


def test_documents_are_packed_the_same_every_time_and_read_back():
    document = {"text": "</script><script>alert(1)</script>\u202e", "numbers": [1, 0.5, None]}
    text = packed(document)
    assert text == packed(document)
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", text)
    assert json.loads(gzip.decompress(base64.b64decode(text))) == document


def test_every_module_is_in_the_page_behind_what_it_imports():
    order = modules()
    assert set(order) == {path.name for path in page.STATIC.iterdir() if path.name.endswith(".js")}
    for name in order:
        imported = re.findall(r'from "\./(\w+\.js)"', (page.STATIC / name).read_text("utf-8"))
        assert all(order.index(each) < order.index(name) for each in imported)


def test_nothing_in_the_page_comes_from_elsewhere_or_makes_markup_of_text():
    text = live_page()[0]
    assert set(re.findall(r"https?://[^\s\"'<>)]+", text)) <= {"http://www.w3.org/2000/svg"}
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in script(), word
    assert not re.search(r"(?<!\{)\bimport\(", script())
    assert not re.search(r"url\(|@import", style())


@pytest.mark.parametrize("line", ['import x from "./dom.js";', "export default 1;", 'export * from "./dom.js";'])
def test_a_line_that_cannot_be_joined_is_refused(monkeypatch: pytest.MonkeyPatch, line: str):
    monkeypatch.setattr(page, "_source", lambda name: line)
    with pytest.raises(ValueError, match="no import or export that can be joined"):
        page._as_function("main.js")
