"""Together: batch the questions of many callers into few requests.

One request is in flight at a time. Questions that arrive within a short window after the first one, or during a
request, go into the next request in order, and each caller gets the answer to its own question. The question of a
cancelled caller is removed. A request that nobody waits for is cancelled. Nothing is retried here.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(slots=True)
class _Asked(Generic[Q, A]):
    """A question and the future of its answer. The future is already done if the caller has gone."""

    question: Q
    answer: asyncio.Future[A]


class Together(Generic[Q, A]):
    """Calls `ask` with many questions at once. `ask` returns one answer or error per question, in order, or raises for
    all."""

    def __init__(
        self,
        ask: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]],
        *,
        window_s: float,
        max_questions: int,
    ) -> None:
        self._ask = ask
        self._window_s: Final = window_s
        self._max_questions: Final = max_questions
        self._waiting: deque[_Asked[Q, A]] = deque()
        self._under_way: list[_Asked[Q, A]] = []
        self._request: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None

    async def answer(self, question: Q) -> A:
        """The answer to `question`. Raises the error that `ask` returns or raises for it."""
        asked = _Asked[Q, A](question, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        try:
            return await asked.answer
        finally:
            _forget(asked.answer)
            self._cancel_if_nobody_waits()

    async def close(self) -> None:
        """Cancel the request and all waiting questions, and wait until that is done."""
        tasks = [task for task in (self._sending, self._request) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _send(self) -> None:
        """Send requests until nobody waits."""
        try:
            await asyncio.sleep(self._window_s)
            while batch := self._taken():
                self._under_way = batch
                self._request = asyncio.create_task(self._settle(batch))
                await asyncio.wait({self._request})
        finally:
            self._sending = None
            if self._request is not None:
                self._request.cancel()
            self._request = None
            for asked in (*self._under_way, *self._waiting):
                asked.answer.cancel()
            self._waiting.clear()
            self._under_way = []

    def _cancel_if_nobody_waits(self) -> None:
        request = self._request
        if request is not None and not request.done() and all(asked.answer.done() for asked in self._under_way):
            request.cancel()

    def _taken(self) -> list[_Asked[Q, A]]:
        """The first questions whose callers still wait, as many as fit into one request."""
        batch: list[_Asked[Q, A]] = []
        while self._waiting and len(batch) < self._max_questions:
            asked = self._waiting.popleft()
            if not asked.answer.done():
                batch.append(asked)
        return batch

    async def _settle(self, batch: Sequence[_Asked[Q, A]]) -> None:
        """Ask a batch and deliver the answers. If `ask` raises, every waiting caller gets that error."""
        try:
            answers = await self._ask([asked.question for asked in batch])
        except Exception as error:  # noqa: BLE001 - boundary between one request and its many callers
            answers = [error] * len(batch)
        for asked, answer in zip(batch, answers, strict=True):
            if asked.answer.done():
                continue
            if isinstance(answer, Exception):
                asked.answer.set_exception(answer)
            else:
                asked.answer.set_result(answer)


def _forget(answer: "asyncio.Future[A]") -> None:
    """Cancel a question. If an error arrived at the same moment, mark it as seen so that asyncio does not report it."""
    if not answer.cancel() and not answer.cancelled():
        answer.exception()
