"""Requirements: which numbered requirement is shown by passing tests, and on which engine.

`python -m tests.requirements` runs the tests marked `covers` and prints one line a requirement,
`S0.3 pass N engines=builtin,scripted`: N tests passed, on these engines and nowhere else. `fail` stands for `pass`
where a covering test failed, `none` where there is none. Exits 1 if anything failed. A test counts for the engine its
marker names (`engine="builtin"`), `scripted` where it names none; a skipped test does not count. Tests that need the
extras `hf`, `trackio` or `ray`, or real servers, run where those are: `make test-hf`, `test-ray`, `test-engines`.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

PARTS: Mapping[str, int] = {"S0": 11, "S1": 6, "S2": 7, "S3": 10, "S4": 7}
"""Number of requirements of each source document."""
REQUIREMENTS = tuple(f"{source}.{number}" for source, count in PARTS.items() for number in range(1, count + 1))
DEFAULT_ENGINE = "scripted"


@dataclass(slots=True)
class Shown:
    """What the tests of one requirement said."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    engines: set[str] = field(default_factory=set)
    """Those of the passing tests."""

    def line(self, requirement: str) -> str:
        word = "fail" if self.failed else "pass" if self.passed else "none"
        return f"{requirement} {word} {len(self.passed)} engines={','.join(sorted(self.engines))}"


class Requirements:
    """Pytest plugin that sums the outcomes of covering tests up."""

    def __init__(self) -> None:
        self.shown = {requirement: Shown() for requirement in REQUIREMENTS}
        self._covers: dict[str, list[tuple[str, str]]] = {}

    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("covers"):
                engine = mark.kwargs.get("engine", DEFAULT_ENGINE)
                self._covers.setdefault(item.nodeid, []).extend((known(name, item), engine) for name in mark.args)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for requirement, engine in self._covers.get(report.nodeid, ()):
            shown = self.shown[requirement]
            if report.failed:
                shown.failed.add(report.nodeid)
            elif report.when == "call" and report.passed:
                shown.passed.add(report.nodeid)
                shown.engines.add(engine)


def known(name: str, item: pytest.Item) -> str:
    """`name` if it is a requirement; else the run stops."""
    if name not in REQUIREMENTS:
        raise pytest.UsageError(f"{item.nodeid} covers {name!r}, which is no requirement: {REQUIREMENTS}")
    return name


def main(arguments: Sequence[str]) -> int:
    """Run the covering tests, their own output on stderr, and print the lines on stdout."""
    plugin = Requirements()
    with contextlib.redirect_stdout(sys.stderr):
        status = pytest.main(
            ["-q", "-m", "covers and not slow and not hf and not ray and not engines", *arguments], plugins=[plugin]
        )
    for requirement, shown in plugin.shown.items():
        print(shown.line(requirement))
    return int(status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
