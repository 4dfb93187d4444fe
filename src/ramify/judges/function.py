"""Function: any Python function as a judge, `path/to/file.py:name`.

The function takes what the model said and the problem, and returns a number, None for no score, or a `Verdict` with
parts. The first parameter is the model's own words (`Branch.said`), or the `Branch` if it is annotated as one; a branch
has the calls of tools and the whole transcript. A coroutine function runs in the
event loop, any other function in a thread, so that a slow one delays nothing else. A thread cannot be killed: one that
hangs is abandoned at the deadline, as a daemon that does not keep the process alive. An exception is a `JudgeError`,
never a score.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from numbers import Real
from typing import Any, Final, get_type_hints

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, JudgeError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.edge.daemon_threads import DaemonThreads
from ramify.edge.error_text import error_text
from ramify.edge.user_calls import returned


class FunctionJudge:
    """A judge that calls `function` with (text or branch, problem)."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str = "function",
        is_oracle: bool = False,
        deadline_s: float = 60.0,
        max_threads: int = 16,
    ) -> None:
        """Raises `ConfigError`.

        - `function`: the function: `path/to/file.py:name`. It is called with the text or the branch, and the problem.
        - `is_oracle`: whether the function gets the problem's secret, the gold answer included.
        - `deadline_s`: timeout of one call.
        - `max_threads`: most calls at one time, for functions that are not async.
        """
        if inspect.isclass(function) or not callable(function):
            raise ConfigError(f"judge {name!r}: {function!r} is not a function; name a class as the judge's `kind`")
        if not 0 < deadline_s < math.inf or max_threads < 1:
            raise ConfigError(f"judge {name!r}: {deadline_s=!r}, {max_threads=!r}: both must be above 0")
        self.name: Final = name
        self.is_oracle: Final = is_oracle
        self.deadline_s: Final = deadline_s
        self._function = function
        self._takes_branch = _takes_branch(function, name)
        self._threads = DaemonThreads(max_threads)

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """One call per branch, concurrently. Raises `JudgeError`."""
        return await side_by_side(self._verdict(branch, problem) for branch in branches)

    async def _verdict(self, branch: Branch, problem: Problem) -> Verdict:
        """Boundary to a user's function: an exception or an invalid result is the judge's fault."""
        node = branch if self._takes_branch else branch.said
        limit = asyncio.timeout(self.deadline_s)
        try:
            async with limit:
                said = await returned(partial(self._function, node, problem), self._threads)
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                raise JudgeError(f"judge {self.name!r} gave nothing in {self.deadline_s:g} s") from None
            raise JudgeError(f"judge {self.name!r} raised {error_text(error)}") from error
        return self._read(said)

    def _read(self, said: Any) -> Verdict:
        if isinstance(said, Verdict):
            return said
        if said is None or isinstance(said, Real):
            return Verdict(None if said is None else float(said))
        raise JudgeError(f"judge {self.name!r} returned {said!r:.200}; it must return a number, None or a Verdict")


async def side_by_side(judgements: Iterable[Coroutine[Any, Any, Verdict]]) -> list[Verdict]:
    """All verdicts, in order. If one fails, waits until all have ended and raises the first fault."""
    found = await asyncio.gather(*judgements, return_exceptions=True)
    verdicts = [each for each in found if isinstance(each, Verdict)]
    fault = next((each for each in found if isinstance(each, BaseException)), None)
    if fault is not None:
        raise fault
    return verdicts


def _takes_branch(function: Callable[..., Any], name: str) -> bool:
    """Whether the first of its two parameters is a branch. Raises `ConfigError` if it does not take two arguments."""
    try:
        inspect.signature(function).bind(None, None)
        first = next(iter(inspect.signature(function).parameters.values()))
    except TypeError:
        raise ConfigError(f"judge {name!r}: {function!r} must take two arguments, a response and the problem") from None
    except ValueError:  # a C function without a signature
        return False
    return _hint(function, first) is Branch


def _hint(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Boundary to a user's annotations: annotations that cannot be evaluated are returned unchanged."""
    try:
        return get_type_hints(function).get(parameter.name)
    except Exception:  # noqa: BLE001 - the boundary
        return parameter.annotation
