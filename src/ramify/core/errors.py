"""The error tree: every exception ramify raises on purpose.

    RamifyError
    ├── ConfigError     found before anything starts (exit code 2)
    ├── ContractError   a plug-in broke a rule of its interface
    ├── EngineError     recorded on the tree as a `Failed` outcome
    │   └── EnginesDown stops the run, which can be resumed (exit code 75)
    │       └── EngineUnusable  it refused everything from the first request on (exit code 3)
    ├── ToolError       recorded on the tree as an observation or a stop word
    ├── JudgeError      recorded on the tree as a `Failed` outcome
    ├── WorkersDown     the processes that share a run keep dying: it stops, and can be resumed (exit code 75)
    ├── Unavailable     something outside that the command needs cannot be had now (exit code 3)
    ├── StoreError      the run folder cannot be read, written or shared
    │   └── FolderBusy  another process writes it
    └── ExportError     a finished tree cannot become the rows asked for

A message says what was wrong, the value with `!r`, what was allowed and what to change.
"""

import difflib
from collections.abc import Iterable
from typing import Final

MAX_NAMED: Final = 50
"""The most names that a message lists; a server may offer thousands of tools."""


class RamifyError(Exception):
    """Root of all errors that ramify raises on purpose."""


class ConfigError(RamifyError):
    """The run cannot start as configured."""


class ContractError(RamifyError):
    """A strategy, engine, tool, judge or format broke a rule of its interface."""


class EngineError(RamifyError):
    """A generation failed. `reason` is a short word; `is_retryable` says whether a retry may help. `retry_after_s` is
    the wait that the engine asked for; such a retry does not count against the allowed attempts. None = the engine
    asked for no wait."""

    def __init__(
        self, reason: str, detail: str = "", *, is_retryable: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.is_retryable = is_retryable
        self.retry_after_s = retry_after_s


class EnginesDown(EngineError):
    """No engine has answered for as long as a run waits. The run stops; it can be resumed when the engines are back."""


class EngineUnusable(EnginesDown):
    """An engine answered none of its first requests and refused them. The run stops: the next would be refused too."""


class ToolError(RamifyError):
    """A tool failed, and the model did not cause it. `reason` is a short word."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class JudgeError(RamifyError):
    """A judge raised, hung or returned no number."""


class WorkersDown(RamifyError):
    """A process that grows a part of a run dies every time it is started and makes no progress."""


class Unavailable(RamifyError):
    """Something outside that the command needs cannot be had now: a cluster that does not answer, open files."""


class StoreError(RamifyError):
    """The run folder cannot be read, written or shared."""


class FolderBusy(StoreError):
    """Another process writes the journal."""


class ExportError(RamifyError):
    """A finished tree cannot become the rows that were asked for."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a phrase naming the closest of `known`, for the end of an error message."""
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    more = [f"… and {len(options) - MAX_NAMED} more"] if len(options) > MAX_NAMED else []
    return f"known: {', '.join([*options[:MAX_NAMED], *more]) or 'none'}"


def nearest_or_file(name: str, known: Iterable[str], part: str = "Name") -> str:
    """As `nearest`, where a user's own `part` of a file may be named instead."""
    near = nearest(name, known)
    return f"{near}{'' if near.endswith('?') else '.'} Or name a file: path/to/file.py:{part}"


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is Ctrl-C, or was raised because of one: Python 3.11 wraps what is raised in `__set_name__`."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__
    return cause is not None
