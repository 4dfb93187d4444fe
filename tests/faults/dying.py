"""A child process that kills itself at a record of its journal."""

import os
import signal
from collections.abc import Callable


def died(work: Callable[[], object], *, after: int) -> bool:
    """Do `work` in a child process that kills itself after so many records; whether it was killed."""
    child = os.fork()
    if not child:
        os.environ["RAMIFY_KILL_AFTER"] = str(after)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
