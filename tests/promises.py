"""Promises: what holds against hostile input, and which test shows it.

`python -m tests.promises` runs the tests of `make test-hostile` and of the sandbox, and writes the table of SECURITY.md
from what they said: a row a test function, with the number of its passed cases. A promise is the first sentence of the
test's docstring, or else the test's name. Exits 1, without writing, if anything failed.
"""

import contextlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parent / "SECURITY.md"
BEGIN, END = "<!-- promises: python -m tests.promises -->\n", "<!-- end of promises -->\n"
SUITES = (
    "tests/hostile",
    "tests/view/test_server.py",
    *(f"tests/sandbox/test_{topic}.py" for topic in ("hostile", "siblings", "seccomp")),
)
CHOSEN = "(hostile or not slow) and not (hf or ray or engines)"


@dataclass(slots=True)
class Kept:
    """One promise: its words, and how many cases showed it."""

    words: str
    num_passed: int = 0
    num_failed: int = 0


@dataclass(slots=True)
class Promises:
    """Pytest plugin that counts the cases of each test function."""

    kept: dict[tuple[str, str], Kept] = field(default_factory=dict[tuple[str, str], Kept])
    """(file, function) -> its promise, in order of collection."""

    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            assert isinstance(item, pytest.Function)
            self.kept.setdefault(_key(item.nodeid), Kept(words(item.originalname, item.obj.__doc__)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.kept[_key(report.nodeid)].num_failed += 1
        elif report.when == "call" and report.passed:
            self.kept[_key(report.nodeid)].num_passed += 1

    def table(self) -> str:
        """The table of SECURITY.md: a row a promise."""
        lines = ["| what holds | shown by | cases |", "|---|---|---|"]
        for (file, function), kept in self.kept.items():
            if kept.num_passed:
                lines.append(f"| {kept.words} | `{file}::{function}` | {kept.num_passed} |")
        return "\n".join(lines) + "\n"


def words(name: str, doc: str | None) -> str:
    """The promise of a test: the first sentence of its docstring, else its name as a sentence."""
    if doc:
        return re.split(r"(?<=\.)\s", " ".join(doc.split()), maxsplit=1)[0].replace("|", "\\|")
    return name.removeprefix("test_").replace("_", " ").capitalize() + "."


def _key(nodeid: str) -> tuple[str, str]:
    file, _, test = nodeid.partition("::")
    return file, test.partition("[")[0]


def written(page: str, table: str) -> str:
    """The page with `table` between its two marks. Raises `ValueError` if it has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def main() -> int:
    """Run the suites, their own output on stderr, and write the page."""
    plugin = Promises()
    with contextlib.redirect_stdout(sys.stderr):
        status = pytest.main(["-q", "-m", CHOSEN, *SUITES], plugins=[plugin])
    if status != pytest.ExitCode.OK:
        return 1
    PAGE.write_text(written(PAGE.read_text("utf-8"), plugin.table()), "utf-8")
    print(f"{PAGE.name}: {len(plugin.kept)} promises, {sum(k.num_passed for k in plugin.kept.values())} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
