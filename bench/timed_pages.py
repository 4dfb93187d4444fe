"""Pages in a headless Chromium, timed: how long they take to show something, and the frames while the mouse acts.

`make test-web` installs Playwright and Chromium. Conditions are JavaScript expressions, asked once a frame.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import which
from typing import Final

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

RUNS: Final = 5
NUM_FRAMES: Final = 120
Act = Callable[[Page, int], None]

NOTE_PAINT: Final = """
for (const name of ["fillRect", "fill"]) {
  const own = CanvasRenderingContext2D.prototype[name];
  CanvasRenderingContext2D.prototype[name] = function (...given) {
    if (this.canvas.classList.contains("drawing")) {
      CanvasRenderingContext2D.prototype[name] = own;
      requestAnimationFrame(() => { window.painted ??= performance.now(); });
    }
    return own.apply(this, given);
  };
}"""
NOTE_FRAMES: Final = """() => {
  Object.assign(window, { taken: [], began: null, isMoved: false });
  for (const kind of ["wheel", "pointermove"]) addEventListener(kind, () => { window.isMoved = true; }, true);
  const tick = (now) => {
    if (window.began !== null) window.taken.push(now - window.began);
    window.began = window.isMoved ? now : null;
    window.isMoved = false;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser that `RAMIFY_CHROMIUM` names, or the one on the path."""
    path = os.environ.get("RAMIFY_CHROMIUM") or which("chromium")
    if path is None:
        raise SystemExit("there is no Chromium; `make test-web` installs it, or name one by RAMIFY_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, url: str) -> Iterator[Page]:
    """A new page of 1280x800. `window.painted` will be when its canvas was in a frame."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.add_init_script(NOTE_PAINT)
    try:
        page.goto(url)
        yield page
    finally:
        context.close()


def when(page: Page, condition: str) -> float:
    """Seconds from navigation until the condition holds."""
    look = f"const look = () => ({condition}) ? done(performance.now()) : requestAnimationFrame(look);"
    return page.evaluate(f"() => new Promise((done) => {{ {look} look(); }})") / 1000


def opens(browser: Browser, url: str, condition: str = "window.painted") -> list[float]:
    """Seconds from navigation until the condition holds, in new pages."""
    found = list[float]()
    for _ in range(RUNS):
        with opened(browser, url) as page:
            found.append(when(page, condition))
    return found


def middle_of(page: Page, selector: str) -> tuple[float, float]:
    """A place in the upper half of a drawing, where every tree has nodes."""
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 4


def wheel(page: Page, number: int) -> None:
    """Twenty turns in, twenty turns out."""
    page.mouse.wheel(0, -120 if number // 20 % 2 == 0 else 120)


def drag(page: Page, number: int) -> None:
    """Eight turns in, then the drawing is dragged round."""
    if number == 0:
        for _ in range(8):
            page.mouse.wheel(0, -120)
        page.mouse.down()
    page.mouse.move(400 + 200 * np.sin(number / 12), 400 + 100 * np.sin(number / 9))


def percentiles(browser: Browser, url: str, selector: str, act: Act) -> dict[int, list[float]]:
    """Percentile -> that of the milliseconds that a frame took, in each of some new pages."""
    runs = [_frames(browser, url, selector, act) for _ in range(RUNS)]
    return {percent: [float(np.percentile(taken, percent)) for taken in runs] for percent in (50, 95)}


def _frames(browser: Browser, url: str, selector: str, act: Act) -> list[float]:
    """Milliseconds from each frame that the mouse changed to the next frame."""
    with opened(browser, url) as page:
        page.wait_for_selector(selector)
        page.mouse.move(*middle_of(page, selector))
        page.wait_for_timeout(500)
        page.evaluate(NOTE_FRAMES)
        number = 0
        while number % 10 or page.evaluate("taken.length") < NUM_FRAMES:
            act(page, number)
            number += 1
        return page.evaluate("taken")
