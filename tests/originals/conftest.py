"""A run of `make test-originals` ends with a table: of how many scenarios of each system the trees were identical.

`RAMIFY_ORIGINALS_PAGE=docs/methods/originals.md` writes it into that page, between its marks, if every system ran and
passed.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- originals -->", "<!-- /originals -->"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    stats = terminalreporter.stats
    reports = [report for kind in ("passed", "failed") for report in stats.get(kind, [])]
    rows = [value for report in reports for key, value in report.user_properties if key == "original"]
    if not rows:
        return
    lines = table(rows)
    for line in lines:
        terminalreporter.write_line(line)
    page = os.environ.get("RAMIFY_ORIGINALS_PAGE")
    if page and not any(stats.get(kind) for kind in ("failed", "error", "skipped")):
        written(Path(page), lines)


def table(rows: Sequence[tuple[str, int, int]]) -> list[str]:
    head = ["| system | scenarios | identical |", "|---|---|---|"]
    return head + [f"| {name} | {scenarios} | {identical} |" for name, scenarios, identical in rows]


def written(page: Path, lines: Sequence[str]) -> None:
    """Put a table between the marks of a page."""
    before, rest = page.read_text("utf-8").split(BEGIN, 1)
    page.write_text("\n".join([f"{before}{BEGIN}", *lines, f"{END}{rest.split(END, 1)[1]}"]), "utf-8")
