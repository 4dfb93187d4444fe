"""Pytest plugin: which numbered requirement is shown by the tests that ran, and on which engine.

`pytest -p tests.covers` prints one line a requirement at its end, `S0.3 pass N engines=builtin,scripted`: N tests that
are marked `covers` passed, on these engines. `fail` stands for `pass` where a covering test failed, `none` where there
is none. A test counts for the engine that its marker names (`engine="builtin"`), `scripted` where it names none; a
skipped test does not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

PARTS: Mapping[str, int] = {"S0": 11, "S1": 6, "S2": 7, "S3": 10, "S4": 7}
"""Number of requirements of each source document."""
REQUIREMENTS = tuple(f"{source}.{number}" for source, count in PARTS.items() for number in range(1, count + 1))
DEFAULT_ENGINE = "scripted"
COVERS = "covers"
"""A test's property: a requirement and an engine. Properties come back from the processes that ran the tests."""
PLUGIN = "requirements"


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
    """Sums the outcomes of covering tests up."""

    def __init__(self) -> None:
        self._shown = {requirement: Shown() for requirement in REQUIREMENTS}

    def lines(self) -> list[str]:
        return [shown.line(requirement) for requirement, shown in self._shown.items()]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == COVERS:
                requirement, engine = str(value).split(" ")
                self._note(self._shown[requirement], engine, report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("requirements")
        for line in self.lines():
            terminalreporter.line(line)

    def _note(self, shown: Shown, engine: str, report: pytest.TestReport) -> None:
        if report.failed:
            shown.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            shown.passed.add(report.nodeid)
            shown.engines.add(engine)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Requirements(), PLUGIN)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("covers"):
            engine = mark.kwargs.get("engine", DEFAULT_ENGINE)
            item.user_properties += [(COVERS, f"{known(name, item)} {engine}") for name in mark.args]


def known(name: str, item: pytest.Item) -> str:
    """`name` if it is a requirement; else the run stops."""
    if name not in REQUIREMENTS:
        raise pytest.UsageError(f"{item.nodeid} covers {name!r}, which is no requirement: {REQUIREMENTS}")
    return name
