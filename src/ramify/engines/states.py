"""The engine `states`: a generation is one call of a user's function, `generate(parent) -> (state, score)`.

States are Python objects. They are kept as they are in a `StateMemory` and reach the tree as messages
(`formats/states.py`) with an id, the score and a short text for people; one message counts as one token. In a search
with a folder, the message also holds the state as text, so that a resumed search has it again.

What a function raises fails its call. What it must not return stops the search (`BrokenFunction`), which can be resumed
when the function is mended.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Final, TypeVar, cast

import numpy as np

from ramify.core.codec import ByteCodec, Codec
from ramify.core.engine import MAX_COUNT, Capabilities, Generation, Request
from ramify.core.errors import ConfigError, EngineError
from ramify.core.prices import PICODOLLARS
from ramify.core.segment import Finish
from ramify.edge.daemon_threads import DaemonThreads
from ramify.edge.error_text import error_text
from ramify.edge.user_calls import returned
from ramify.engines.state_memory import BrokenFunction, ScoredState, StateMemory, place_of, shown
from ramify.formats.states import state_id

State = TypeVar("State")
Generate = Callable[[State | None], Any]
"""`generate(parent) -> (state, score)` or a `ScoredState`; a coroutine function may be one too. `parent` is None where
the search begins."""
MAX_ABANDONED: Final = 1000
"""Threads of calls that were given up and still run."""
DEADLINE_S: Final = 600.0
CODEC: Final = ByteCodec()


@dataclass(frozen=True, slots=True)
class CallRules:
    """How the functions of one search are called. Raises `ConfigError`."""

    is_whole: bool
    """Whether every state ends its path."""
    max_in_flight: int = 1
    deadline_s: float | None = None
    """A call that takes longer is given up, and fails. None = `DEADLINE_S`, but for a plain function that is called one
    call after the other: nothing can end it in the thread of the search."""
    dollars_per_call: float | None = None
    """The most that a call may cost; None = unknown."""

    def __post_init__(self) -> None:
        if isinstance(self.max_in_flight, bool) or not isinstance(self.max_in_flight, int) or self.max_in_flight < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"max_in_flight = {self.max_in_flight!r}: a whole number of calls at once, at least 1")
        for name in ("deadline_s", "dollars_per_call"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ConfigError(f"{name} = {value!r}: it must be a finite number above 0")


class CallPlaces:
    """Places for calls in flight. After a `BrokenFunction` no call begins any more. Mutable."""

    def __init__(self, number: int) -> None:
        self._free = asyncio.Semaphore(number)
        self._fault: BrokenFunction | None = None

    async def __aenter__(self) -> None:
        await self._free.acquire()
        if self._fault is not None:
            self._free.release()
            raise self._fault

    async def __aexit__(self, kind: object, fault: object, trace: object) -> None:
        if isinstance(fault, BrokenFunction):
            self._fault = fault
        self._free.release()


class ReadAhead:
    """Lets calls be ahead of a reader by at most `number`. Mutable."""

    def __init__(self, number: int) -> None:
        self._free = asyncio.Semaphore(number)
        self._entered: set[int] = set()

    async def enter(self, seed: int) -> None:
        """Wait until the call for the request with this seed may start. Another try of it waits for nothing."""
        if seed not in self._entered:
            await self._free.acquire()
            self._entered.add(seed)

    def leave(self) -> None:
        """The reader has come past one call."""
        self._free.release()


class StateEngine:
    """Calls one function of a search. The functions of a search share its memory and its places in flight."""

    def __init__(
        self,
        name: str = "",
        function: Generate[Any] | None = None,
        *,
        memory: StateMemory | None = None,
        rules: CallRules = CallRules(is_whole=True),
        places: CallPlaces | None = None,
        ahead: ReadAhead | None = None,
    ) -> None:
        """`places`: for calls in flight. `ahead`: how far calls may be ahead of a reader; None = nobody reads along."""
        if function is None:
            raise ConfigError(
                "the engine 'states' calls functions of a program, which no configuration can name: begin and resume "
                "such a search by ramify.search(generate, out=…, resume=True)"
            )
        self._name = name
        self._function = function
        self._memory = memory or StateMemory()
        self._rules = rules
        self._places = places or CallPlaces(rules.max_in_flight)
        self._ahead = ahead
        self._threads = DaemonThreads(rules.max_in_flight + MAX_ABANDONED)
        is_alone = rules.max_in_flight == 1 and rules.deadline_s is None
        self._is_direct = is_alone and not inspect.iscoroutinefunction(function)
        self._capabilities = Capabilities(
            name="states", context_length=MAX_COUNT, has_token_ids=False, keeps_deadlines=True
        )

    @property
    def codec(self) -> Codec:
        return CODEC

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def generate(self, request: Request) -> Generation:
        """One call. Raises `EngineError` if it fails, `BrokenFunction` for what it must not return."""
        if self._ahead is not None:
            await self._ahead.enter(request.seed)
        async with self._places:
            parent = state_id(request.messages)
            state = None if parent is None else self._memory.state(parent)
            made = self._checked(await self._called(state))
            message = self._memory.add(f"{request.seed:016x}", made, self._name)
        is_end = self._rules.is_whole or made.is_final
        text = f"{message['content']}\n".encode()
        return Generation(
            ids=np.frombuffer(text, np.uint8).astype(np.int32),
            finish=Finish("stop" if is_end else "length"),
            num_billed=1,
            num_cached=len(request.messages),
            message=message,
            picodollars=None if made.dollars is None else round(made.dollars * PICODOLLARS),
        )

    async def close(self) -> None: ...

    async def _called(self, state: Any) -> object:
        """Boundary to a user's function: whatever it raises fails this call. `ConnectionError`, `TimeoutError` and an
        `EngineError` that says so are tried again."""
        deadline_s = self._rules.deadline_s or DEADLINE_S
        scope = asyncio.timeout(deadline_s)
        try:
            async with scope:
                return await self._returned(state)
        except EngineError:
            raise
        except (KeyboardInterrupt, SystemExit) as error:
            raise BrokenFunction(f"{self._name} raised {type(error).__name__}") from error
        except Exception as error:
            if scope.expired():
                raise EngineError("timeout", f"{self._name} gave nothing in {deadline_s:g} s") from None
            raise EngineError(
                "function_raised",
                f"{self._name} raised {error_text(error)}{place_of(error)}",
                is_retryable=isinstance(error, ConnectionError | TimeoutError),
            ) from error

    async def _returned(self, state: Any) -> object:
        """What the function returns, called here or in a thread."""
        if not self._is_direct:
            return await cast(Awaitable[object], returned(partial(self._function, state), self._threads))
        said = self._function(state)
        return await said if inspect.isawaitable(said) else said

    def _checked(self, said: object) -> ScoredState:
        """What the function returned. Raises `BrokenFunction`."""
        match said:
            case ScoredState():
                made = said
            case (state, score) if isinstance(said, tuple):
                made = ScoredState(state, cast(float, score))
            case _:
                raise BrokenFunction(
                    f"{self._name} returned {shown(said):.200}; it must return (state, score), a tuple of two, or a "
                    "ramify.ScoredState"
                )
        if made.state is None:
            raise BrokenFunction(f"{self._name} returned the state None, which stands for the start of the search")
        score = self._number("score", made.score, "a number from 0 to 1")
        if not 0 <= score <= 1:
            raise BrokenFunction(f"{self._name} returned the score {made.score!r}; it must be a number from 0 to 1")
        dollars = None if made.dollars is None else self._number("dollars", made.dollars, "a number or None")
        self._check_dollars(dollars)
        return ScoredState(made.state, score, made.is_final, dollars)

    def _number(self, what: str, value: object, wanted: str) -> float:
        """A number of any real type as a float. Raises `BrokenFunction`."""
        if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
            said = f"{what} = {shown(value):.200}, of type {type(value).__name__}"
            raise BrokenFunction(f"{self._name} returned {said}; it must be {wanted}")
        return float(value)

    def _check_dollars(self, dollars: float | None) -> None:
        if dollars is None:
            return
        if not 0 <= dollars < math.inf:
            raise BrokenFunction(f"{self._name} returned dollars = {dollars!r}; it must be finite and at least 0")
        most = self._rules.dollars_per_call
        if most is not None and dollars > most:
            raise BrokenFunction(
                f"{self._name} returned dollars = {dollars!r}, more than dollars_per_call = {most!r}, which the budget "
                "reserves for a call; raise it"
            )
