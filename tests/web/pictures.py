"""Pictures of the viewer for README and the site, and the example page: `python -m tests.web.pictures` makes them anew.

They show runs of the built-in model: `examples/tree.html` is the page of `ramify demo`.
"""

import os
import tempfile
from pathlib import Path

from playwright.sync_api import Browser
from tests.web.browser import chromium, file_url, opened, ramify

from ramify.view.documents import Documents

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "tree.html"
SIZE = {"width": 1280, "height": 720}
MAX_BYTES = 200_000


def picture(browser: Browser, page: Path, fragment: str, *keys: str, name: str, colour: str = "") -> None:
    """Write `docs/NAME.png`: the page at a fragment, after some keys, with tokens by a value."""
    path = REPOSITORY / "docs" / f"{name}.png"
    with opened(browser, file_url(page, fragment)) as shown:
        shown.page.set_viewport_size(SIZE)
        shown.page.wait_for_selector(".tree-row, .panel-body *")
        shown.press(*keys)
        if colour:
            shown.page.wait_for_selector(".path-head select")
            shown.page.select_option(".path-head select", colour)
        shown.page.wait_for_timeout(500)
        shown.page.screenshot(path=path)
    assert path.stat().st_size < MAX_BYTES, path


def chosen(run: Path) -> int:
    """A node that a decision between several candidates made."""
    documents = Documents.open([run])
    list(documents.look())
    events = documents.get("run/0/tree/0")["events"]
    commands = {event["asked"] + i: c for event in events if "asked" in event for i, c in enumerate(event["commands"])}
    grown = (
        event["nodes"][0] for event in events if event.get("nodes") and commands.get(event.get("told"), {}).get("why")
    )
    return list(grown)[3]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        os.chdir(folder)
        ramify("demo")
        EXAMPLE.write_bytes(Path("runs/demo/tree.html").read_bytes())
        picture(browser, EXAMPLE, "", "b", name="view-tree", colour="entropy")
        ramify("rollout", "--preset", "offline", "--prompts", "100", "--seed", "1", "--out", "runs/a")
        ramify("view", "runs/a", "--html", "a.html", "--tree", "1")
        picture(browser, Path("a.html"), "#v=run", name="view-run")
        ramify("search", "make 24 from 4 6 8 2", "--preset", "mcts", "--seed", "1", "--out", "runs/s")
        ramify("view", "runs/s", "--html", "s.html")
        picture(browser, Path("s.html"), f"#v=tree&t=0&n={chosen(Path('runs/s'))}&b=why&d=graph", name="view-why")


if __name__ == "__main__":
    main()
