"""A real Chromium, and pages that note everything that should not happen: errors, and requests to anywhere else."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

MISSING = "no chromium: apt-get install chromium, or name one by RAMIFY_CHROMIUM"


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser that `RAMIFY_CHROMIUM` names, or Debian's."""
    path = os.environ.get("RAMIFY_CHROMIUM") or shutil.which("chromium")
    assert path is not None, MISSING
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Shown:
    """A page, and what it did."""

    page: Page
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def state(self) -> dict[str, str]:
        """What the fragment of its address says."""
        fragment = self.page.evaluate("location.hash.slice(1)")
        return dict(part.split("=", 1) for part in fragment.split("&") if part)

    def wait(self, condition: str, *, timeout_s: float = 10.0) -> None:
        """Wait until a JavaScript expression is true. Playwright's own way asks for `eval`, which the page forbids."""
        ends = time.monotonic() + timeout_s
        while not self.page.evaluate(condition):
            assert time.monotonic() < ends, f"not within {timeout_s:g} s: {condition}"
            self.page.wait_for_timeout(30)

    def requests_elsewhere(self, own: str) -> list[str]:
        return [url for url in self.requests if not url.startswith((own, "data:", "blob:"))]


@contextmanager
def opened(browser: Browser, url: str, **context: Any) -> Iterator[Shown]:
    """A new page at `url`. It fails if the page reported an error."""
    given = browser.new_context(viewport={"width": 1280, "height": 800}, **context)
    page = given.new_page()
    page.set_default_timeout(10_000)
    shown = Shown(page)
    page.on("request", lambda request: shown.requests.append(request.url))
    page.on("pageerror", lambda error: shown.errors.append(str(error)))
    page.on("console", lambda said: said.type == "error" and shown.errors.append(said.text))
    try:
        page.goto(url)
        yield shown
    finally:
        given.close()
    assert not shown.errors, shown.errors


def ramify(*arguments: str) -> str:
    """Run a command in a process of its own: this one has the event loop of the browser. Returns what it printed."""
    command = [sys.executable, "-m", "ramify.cli.main", *arguments, "--quiet"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def file_url(path: Path, fragment: str = "") -> str:
    return f"{path.resolve().as_uri()}{fragment}"
