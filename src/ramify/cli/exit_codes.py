"""Exit codes of the command line, and what leads to each. Scripts may rely on them."""

import errno
from enum import IntEnum
from typing import TYPE_CHECKING

from ramify.core.errors import (
    EngineError,
    EnginesDown,
    EngineUnusable,
    JudgeError,
    RamifyError,
    StoreError,
    ToolError,
    Unavailable,
    WorkersDown,
)
from ramify.core.stop import ANSWERED
from ramify.edge.open_files import out_of_files
from ramify.edge.url_keys import without_url_keys

if TYPE_CHECKING:
    from ramify.runner.report import RunReport


class ExitCode(IntEnum):
    """How a command ended."""

    DONE = 0
    """Everything that was asked for is done."""
    PARTIAL = 1
    """The run finished, but some of its trees did not."""
    CONFIG = 2
    """The command line, the configuration or a plug-in is wrong; nothing was started."""
    ENVIRONMENT = 3
    """An engine, a Ray cluster, a sandbox, an extra or a run folder cannot be used; `ramify doctor COMMAND` says
    what is missing."""
    BUDGET = 4
    """The budget ran out before any path ended by itself."""
    CHECK = 5
    """`ramify check` found a broken invariant, or `ramify certify` another verdict than `--expect` asks for."""
    SAVED = 75
    """Stopped by a fault outside (engines down, workers dying, disk full); all is saved and the run can be resumed.
    Also if something deleted or changed the journal under the run; the message says what is lost."""
    INTERRUPTED = 130
    """Stopped by the user; all is saved and the run can be resumed."""


OUTSIDE_STOPS = frozenset({"budget", "deadline"})
"""Stop words of paths that a limit of the run ended."""
DISK_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE})


def code_of_error(error: RamifyError) -> ExitCode:
    """The exit code of a command that an error ended."""
    from ramify.runner.scheduler import NothingAnswered, TooManyFailures

    match error:
        case EngineUnusable() | NothingAnswered():
            return ExitCode.ENVIRONMENT
        case TooManyFailures() | EnginesDown() | WorkersDown():
            return ExitCode.SAVED
        case StoreError():
            is_disk = isinstance(error.__cause__, OSError) and error.__cause__.errno in DISK_FAULTS
            return ExitCode.SAVED if is_disk else ExitCode.ENVIRONMENT
        case Unavailable() | EngineError() | ToolError() | JudgeError():
            return ExitCode.ENVIRONMENT
        case _:
            return ExitCode.CONFIG if out_of_files(error) is None else ExitCode.ENVIRONMENT


def words_of(error: BaseException) -> str:
    """What a person and `--json` are told of an error: its message without keys, and what to do where files ran out."""
    said, told = str(error), out_of_files(error)
    return without_url_keys(f"{said}\n{told}" if told is not None and told not in said else said)


def code_of_report(report: "RunReport") -> ExitCode:
    """The exit code of a run that came to its end."""
    if report.failed_trees:
        return ExitCode.PARTIAL
    if sampled_nothing(report) and (report.faults or not set(report.stop_words) <= OUTSIDE_STOPS):
        return ExitCode.ENVIRONMENT
    if report.trees and set(report.stop_words) <= OUTSIDE_STOPS:
        return ExitCode.BUDGET
    return ExitCode.DONE


def sampled_nothing(report: "RunReport") -> bool:
    """Whether a run has trees, and no model said anything in them."""
    return bool(report.trees) and not report.turns and not report.stop_words.keys() & ANSWERED
