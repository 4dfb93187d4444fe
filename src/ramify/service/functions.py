"""Functions: the user's functions, named by a dotted path, checked before the start and called safely.

A coroutine function runs in the event loop. Any other function runs in a thread, so that a slow one blocks nobody. An
exception, a wrong result or a timeout becomes a `ContractError` that names the function. A thread cannot be killed: one
that hangs is abandoned at its deadline. It is a daemon thread and does not keep the process alive.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ramify import plugins
from ramify.config.service_config import MIXED, SLIMES_SFT, ServiceConfig
from ramify.core.errors import ConfigError, ContractError, RamifyError
from ramify.edge.daemon_threads import DaemonThreads
from ramify.edge.error_text import error_text
from ramify.edge.user_calls import returned

MAX_THREADS: Final = 16
OURS: Final[Mapping[str, str | None]] = {
    SLIMES_SFT: "ramify.service.sft.slime_rollout",
    "slime.rollout.sglang_rollout.generate_rollout": None,
}
"""slime's own rollout functions -> the function here that does the same, so that slime is not imported. None = what a
service does without a function: trees are grown, and data sets are answered."""


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """One of the user's functions. `setting` and `name` are its key and value in the configuration."""

    setting: str
    name: str
    function: Callable[..., Any]
    threads: DaemonThreads

    async def __call__(self, *args: Any, deadline_s: float | None = None, **keywords: Any) -> Any:
        """Call it and return its result. Raises `ContractError` if it fails or takes longer than `deadline_s`; other
        `RamifyError`s of the function pass through."""
        limit = asyncio.timeout(deadline_s)
        try:
            async with limit:
                return await self._said(*args, **keywords)
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                raise self.fault(f"did not return within {deadline_s:g} s") from None
            if isinstance(error, RamifyError):
                raise
            raise self.fault(f"raised {error_text(error)}") from error

    @property
    def called(self) -> str:
        """Its name in messages."""
        return f"{self.setting} = {self.name!r}"

    def fault(self, what: str) -> ContractError:
        """An error that says what is wrong with it."""
        return ContractError(f"{self.called} {what}")

    async def _said(self, *args: Any, **keywords: Any) -> Any:
        return await returned(partial(self.function, *args, **keywords), self.threads)


def load(setting: str, name: str | None, *takes: str, threads: DaemonThreads, **keywords: Any) -> Function | None:
    """The function called `name`, or the one that stands for it; None = no name given, or none is needed. It must
    accept the positional arguments `takes` and these keywords.

    Raises `ConfigError` if there is no such function, or if it has another signature.
    """
    if name is None or (located := OURS.get(name, name)) is None:
        return None
    function = plugins.located(setting, located)
    if not callable(function):
        raise ConfigError(f"{setting} = {name!r}: {function!r} is not a function")
    try:
        inspect.signature(function).bind(*takes, **keywords)
    except TypeError as error:
        wanted = ", ".join([*takes, *(f"{key}={value!r}" for key, value in keywords.items())])
        raise ConfigError(f"{setting} = {name!r} must take ({wanted}): {error}") from None
    except ValueError:  # A C function without a signature.
        pass
    return Function(setting, name, function, threads)


@dataclass(frozen=True, slots=True)
class Functions:
    """All of a service's functions, checked; None = the built-in one."""

    rollout: Function | None
    eval: Function | None
    reward: Function | None
    convert: Function | None
    filters: Mapping[str, Function]
    """By the name of their setting."""

    @classmethod
    def of(cls, service: ServiceConfig) -> "Functions":
        """Find and check the functions that a configuration names. Raises one `ConfigError` with all faults."""
        threads = DaemonThreads(MAX_THREADS)
        faults: list[str] = []

        def found(field: str, *takes: str, **keywords: Any) -> Function | None:
            try:
                return load(f"service.{field}", getattr(service, field), *takes, threads=threads, **keywords)
            except ConfigError as error:
                faults.append(str(error))
                return None

        filters = {
            "group_filter": None if service.group_filter == MIXED else found("group_filter", "args", "samples"),
            "buffer_filter": found("buffer_filter", "args", "rollout_id", "buffer", "num_samples"),
            "sample_filter": found("sample_filter", "args", "groups"),
        }
        functions = cls(
            rollout=found("rollout_function", "args", "rollout_id", "data_source", evaluation=False),
            eval=found("eval_function", "args", "rollout_id", "data_source", evaluation=True),
            reward=found("reward_function", "args", "sample"),
            convert=found("convert_function", "args", "samples"),
            filters={name: function for name, function in filters.items() if function is not None},
        )
        if faults:
            raise ConfigError("\n".join(faults))
        return functions
