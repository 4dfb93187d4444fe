"""A run of `make test-originals` ends with a table: of how many scenarios of each system the trees were identical."""

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    rows = [value for report in reports for key, value in report.user_properties if key == "original"]
    if rows:
        terminalreporter.write_line("| system | scenarios | identical |")
        terminalreporter.write_line("|---|---|---|")
        for name, scenarios, identical in rows:
            terminalreporter.write_line(f"| {name} | {scenarios} | {identical} |")
