import errno

import pytest

from ramify.cli.exit_codes import ExitCode, code_of_error, code_of_report
from ramify.core.errors import (
    ConfigError,
    ContractError,
    EngineError,
    EnginesDown,
    ExportError,
    JudgeError,
    RamifyError,
    StoreError,
    ToolError,
    Unavailable,
)
from ramify.runner.report import RunReport
from ramify.runner.scheduler import TooManyFailures


def caused(error: RamifyError, cause: Exception) -> RamifyError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), ExitCode.CONFIG),
        (ContractError("x"), ExitCode.CONFIG),
        (ExportError("x"), ExitCode.CONFIG),
        (EngineError("x"), ExitCode.ENVIRONMENT),
        (EnginesDown("x"), ExitCode.SAVED),
        (ToolError("x"), ExitCode.ENVIRONMENT),
        (JudgeError("x"), ExitCode.ENVIRONMENT),
        (Unavailable("x"), ExitCode.ENVIRONMENT),
        (StoreError("x"), ExitCode.ENVIRONMENT),
        (caused(StoreError("x"), OSError(errno.ENOSPC, "full")), ExitCode.SAVED),
        (caused(StoreError("x"), OSError(errno.EACCES, "no")), ExitCode.ENVIRONMENT),
        (TooManyFailures("x"), ExitCode.SAVED),
    ],
)
def test_every_error_has_its_exit_code(error: RamifyError, code: ExitCode):
    assert code_of_error(error) is code


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (RunReport(trees=2, leaves=2, stop_words={"answer": 2}), ExitCode.DONE),
        (RunReport(trees=2, leaves=2, failed_trees=1, stop_words={"answer": 2}), ExitCode.PARTIAL),
        (RunReport(trees=1, leaves=2, stop_words={"budget": 1, "deadline": 1}), ExitCode.BUDGET),
        (RunReport(trees=1, leaves=3, stop_words={"budget": 1, "answer": 2}), ExitCode.DONE),
        (RunReport(trees=1, leaves=0), ExitCode.BUDGET),
    ],
)
def test_every_report_has_its_exit_code(report: RunReport, code: ExitCode):
    assert code_of_report(report) is code


def test_the_numbers_are_those_that_are_documented():
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0,
        "PARTIAL": 1,
        "CONFIG": 2,
        "ENVIRONMENT": 3,
        "BUDGET": 4,
        "CHECK": 5,
        "SAVED": 75,
        "INTERRUPTED": 130,
    }
