"""Search: a search over states that a user's functions make, `generate(parent) -> (state, score)`.

`search` waits for the result, `search_async` is for an event loop, and `search_steps` yields every new state. What a
search is, and how it runs, is in `search_plan.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Unpack

from ramify.core.command import Grow
from ramify.engines.state_memory import BrokenFunction, ScoredState
from ramify.runner import loop
from ramify.runner.events import CommandsAsked, Event, OutcomeTold, StepGrown, TreeOpened
from ramify.runner.found import Found, FoundStep
from ramify.runner.search_plan import Functions, SearchPlan, SearchSettings

__all__ = ["Found", "FoundStep", "ScoredState", "SearchSettings", "search", "search_async", "search_steps"]


def search(generate: Functions, **settings: Unpack[SearchSettings]) -> Found:
    """Search with `generate(parent) -> (state, score)`, or with a dict of several such functions, and wait for the
    result. The parent is None where the search begins.

    Raises `ConfigError` before anything starts, `ContractError` for what a function must not return, and `EngineError`
    if no call gave a state.
    """
    loop.refuse_running("search", "found = await ramify.search_async(…)")
    return loop.run(search_async(generate, **settings))


async def search_async(generate: Functions, **settings: Unpack[SearchSettings]) -> Found:
    """`search` for code in an event loop."""
    plan = SearchPlan.of(generate, settings)
    with _exits():
        await plan.grow()
    return plan.found


def search_steps(generate: Functions, **settings: Unpack[SearchSettings]) -> Iterator[FoundStep]:
    """Search as `search` does, and yield every new state. Between two of them the search stands still, except for calls
    in threads. Leaving the loop ends it, and a search with a folder can be resumed."""
    loop.refuse_running("search_steps", "ramify.search_async(…, observers=[…])")
    plan = SearchPlan.of(generate, settings, is_read_along=True)
    return loop.each(lambda: _steps(plan))


async def _steps(plan: SearchPlan) -> AsyncGenerator[FoundStep, None]:
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    found, calls, num_told = plan.found, ReadCalls(), 0

    def hear(event: Event) -> None:
        nonlocal num_told
        if isinstance(event, TreeOpened):
            num_told = len(found.nodes)  # Those of a resumed search were told before.
        events.put_nowait(event)

    growing = asyncio.create_task(plan.grow(hear))
    growing.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            if isinstance(event, OutcomeTold):
                for node in found.nodes[num_told:]:
                    num_told += 1
                    made = found.at(node)
                    yield FoundStep(node, made.state, made.score, found)
            if calls.is_past(event) and plan.ahead is not None:
                plan.ahead.leave()
        with _exits():
            await growing
    finally:
        growing.cancel()
        await asyncio.gather(growing, return_exceptions=True)


class ReadCalls:
    """Follows a reader of the events of a search. Mutable."""

    def __init__(self) -> None:
        self._of_steps: set[int] = set()
        """Commands that grow one state."""
        self._unread: set[int] = set()
        """Commands whose last call has ended, and whose outcome was not read."""

    def is_past(self, event: Event) -> bool:
        """Whether the reader has come past one more call: with the outcome that tells its state, or at once if its
        command grows on behind it, because that call would wait for itself."""
        match event:
            case CommandsAsked(_, asked):
                numbered = enumerate(asked.commands, asked.first_id)
                self._of_steps |= {number for number, c in numbered if isinstance(c, Grow) and c.until == "step"}
            case StepGrown(_, command_id, _, step):
                if step.stop is None and command_id not in self._of_steps:
                    return True
                self._unread.add(command_id)
            case OutcomeTold(_, delivered) if delivered.command_id in self._unread:
                self._unread.remove(delivered.command_id)
                return True
            case _:
                pass
        return False


@contextmanager
def _exits() -> Iterator[None]:
    """Raise the `KeyboardInterrupt` or `SystemExit` of a function, now that its search is closed."""
    try:
        yield
    except BrokenFunction as error:
        raise error.__cause__ or error from None
