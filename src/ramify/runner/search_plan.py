"""SearchPlan: a search over states that a user's functions make, configured, checked and ready to run.

It is a run like any other: the same strategies, scheduler, ledger and journal. The functions are its engines
(`engines/states.py`), `config/state_search.py` makes its configuration. In a folder it is resumed with the states in
its journal, if it is asked for the same.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict, cast

from ramify.config.configure import to_toml
from ramify.config.state_search import StateSearch
from ramify.core.errors import ConfigError, ContractError, EngineError, nearest
from ramify.engines.state_memory import BrokenFunction, StateMemory
from ramify.engines.states import CallPlaces, CallRules, Generate, ReadAhead, StateEngine
from ramify.runner.build import prepared_run
from ramify.runner.deadline import finished
from ramify.runner.events import Observer
from ramify.runner.folder import grow_new, grow_on
from ramify.runner.found import Found
from ramify.runner.prepared import Prepared
from ramify.runner.report import RunReport
from ramify.runner.run import Run
from ramify.runner.scheduler import TooManyFailures
from ramify.store.journal import is_begun
from ramify.store.layout import JOURNAL
from ramify.store.records import GrownRecord
from ramify.store.rewind import finish_rewind
from ramify.store.store import SavedRun, header_and_config

ENDED_WELL: Final = ("done", "stopped")
Functions = Generate[Any] | Mapping[str, Generate[Any]]
"""One function, or several by name, among which the strategy chooses."""


class SearchSettings(TypedDict, total=False):
    """Keyword arguments of a search."""

    preset: str
    """Default `ab_mcts`."""
    budget: Mapping[str, float]
    """At most so many `calls`, `seconds` or `dollars`; default 100 calls."""
    options: Mapping[str, Any]
    """Options of the strategy that replace those of the preset."""
    max_in_flight: int
    """Calls at one time; default 1. Coroutine functions run in the event loop, others in threads."""
    deadline_s: float
    """A call that takes longer is given up, and fails; default 600."""
    dollars_per_call: float
    """The most that one call may cost; a budget in dollars needs it."""
    seed: int
    question: str
    """How the search is called in reports and drawings."""
    out: str | Path
    """Folder to write the search to; without one nothing is written."""
    resume: bool
    """Go on with the search in `out`, if there is one."""
    encode: Callable[[Any], str]
    """State -> text, for states that are no plain JSON values, in a search with a folder."""
    decode: Callable[[str], Any]
    """Text -> state."""
    observers: Iterable[Observer]
    """Functions that are told every event of the search."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A search that is configured and checked, and has not begun."""

    prepared: Prepared
    memory: StateMemory
    ahead: ReadAhead | None
    """How far calls may be ahead of a reader; None = nobody reads along."""
    found: Found
    out: Path | None
    is_to_resume: bool
    observers: tuple[Observer, ...]

    @classmethod
    def of(cls, generate: Functions, settings: SearchSettings, *, is_read_along: bool = False) -> "SearchPlan":
        """`is_read_along`: a call starts only when the states before it are read. Raises `ConfigError`."""
        unknown = [name for name in settings if name not in SearchSettings.__annotations__]
        if unknown:
            raise ConfigError(
                f"search has no setting {unknown[0]!r}; {nearest(unknown[0], SearchSettings.__annotations__)}"
            )
        out, is_to_resume = settings.get("out"), settings.get("resume", False)
        if is_to_resume and out is None:
            raise ConfigError("resume = True goes on with the search in a folder; say which by out=…")
        if (settings.get("encode") is None) != (settings.get("decode") is None):
            lacking = "decode" if settings.get("decode") is None else "encode"
            raise ConfigError(f"{lacking} is missing: encode and decode go together, one reads what the other writes")
        given = {name: value for name, value in settings.items() if value is not None}
        memory = StateMemory(**_of(StateMemory, given), is_recorded=out is not None)
        functions = _functions(generate)
        wanted = StateSearch(functions=tuple(functions), **_of(StateSearch, given))
        rules = CallRules(is_whole=wanted.is_whole, **_of(CallRules, given))
        places = CallPlaces(rules.max_in_flight)
        ahead = ReadAhead(rules.max_in_flight) if is_read_along else None
        engines = {
            name: StateEngine(name, function, memory=memory, rules=rules, places=places, ahead=ahead)
            for name, function in functions.items()
        }
        return cls(
            prepared_run(wanted.config(), engine=engines.pop(wanted.functions[0]), engines=engines),
            memory,
            ahead,
            Found(memory),
            None if out is None else Path(out),
            is_to_resume,
            tuple(settings.get("observers", ())),
        )

    async def grow(self, *observers: Observer) -> None:
        """Search to the end. Raises `ContractError` for what a function must not return, and `EngineError` if nothing
        was found."""
        try:
            self.found.report = await self._run([self.found.observe, *self.observers, *observers])
        except BrokenFunction as error:
            if isinstance(error.__cause__, KeyboardInterrupt | SystemExit):
                raise
            raise ContractError(error.detail) from error.__cause__
        except TooManyFailures:
            raise self._nothing_found() from None
        if self.found.reason == "" and self.out is not None:
            self.found.read(self.out)
        if self.found.reason not in ENDED_WELL:
            raise ContractError(f"the search broke off: {self.found.reason}")
        if self.found.node is None:
            raise self._nothing_found()

    async def _run(self, observers: list[Observer]) -> RunReport:
        if self.out is None:
            run = Run(self.prepared)
            try:
                return await run.grow(observers)
            finally:
                await finished(run.close())
        if not is_begun(self.out / JOURNAL):
            return await grow_new(Run(self.prepared), self.out, observers)
        self._check_resume(self.out)
        finish_rewind(self.out)
        return await grow_on(self.out, observers, config=self.prepared.config, prepared=self._remembered)

    def _check_resume(self, out: Path) -> None:
        """Refuse to go on with another search than the one in the folder. Loads nothing of it."""
        if not self.is_to_resume:
            raise ConfigError(f"{out} holds a run already; resume=True goes on with it, another out=… begins another")
        before, now = header_and_config(out)[1].splitlines(), to_toml(self.prepared.config).splitlines()
        if before == now:
            return
        lost = [line for line in before if line not in now]
        new = [line for line in now if line not in before]
        raise ConfigError(
            f"{out} holds another search, and a resume asks for the same: it has {'; '.join(lost[:5]) or 'less'}, and "
            f"this one {'; '.join(new[:5]) or 'less'}. Give the settings that began it, or another out=…"
        )

    def _remembered(self, saved: SavedRun) -> Prepared:
        """The parts of the search; its memory has the recorded states again."""
        for record in saved.records:
            if isinstance(record, GrownRecord):
                messages = (segment.message for segment in record.step.segments)
                self.memory.learn(message for message in messages if message is not None)
        return self.prepared

    def _nothing_found(self) -> EngineError:
        last = self.found.last_fault
        return EngineError("nothing_found", f"no call gave a state{f'; the last one failed: {last}' if last else ''}")


def _functions(generate: Functions) -> dict[str, Generate[Any]]:
    """Name -> function."""
    functions = cast(
        "Mapping[str, Generate[Any]]", generate if isinstance(generate, Mapping) else {"generate": generate}
    )
    for name, function in functions.items():
        if not callable(function):
            raise ConfigError(f"{name} is {function!r:.100}; a function generate(parent) -> (state, score) is needed")
    return dict(functions)


def _of(kind: type[Any], given: Mapping[str, object]) -> dict[str, Any]:
    """The settings that the constructor of `kind` takes."""
    names = inspect.signature(kind).parameters
    return {name: value for name, value in given.items() if name in names}
