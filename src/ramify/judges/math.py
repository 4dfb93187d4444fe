"""Math: whether an answer equals the gold answer, by math-verify. An oracle. Needs the extra `math`.

math-verify sets alarms, which only a main thread may do, and its computations may never end. So it runs in worker
processes (`math_worker.py`), which are killed at the deadline and replaced. A hang, a crash or an exception in a worker
is a `JudgeError`, never a 0. Equal texts are equal without math-verify. Words are compared as text, because symbolic
algebra reads `Paris` as a product of five letters.
"""

import asyncio
import importlib.util
import json
import math
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, JudgeError
from ramify.core.format import Format
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.judges.exact import ANSWER, gold_answers, is_same_answer
from ramify.judges.function import side_by_side

INSTALL: Final = "pip install 'ramify[math]'"
WORKER: Final = Path(__file__).with_name("math_worker.py")
START_S: Final = 60.0
"""Seconds a worker has to start and import math-verify."""
MAX_CHARS: Final = 4096
"""Characters of an answer that are compared, counted from its end: final answers are short and come last."""

_WORDS = re.compile(r"[^\W\d_]{2,}")
_COMMAND = re.compile(r"\\[A-Za-z]+")


class MathJudge:
    """1.0 for an answer equal to the gold answer, 0.0 for another answer or none; parts `answered` and `correct`."""

    def __init__(self, format: Format, *, name: str = "math", deadline_s: float = 10.0, max_workers: int = 2) -> None:
        """Raises `ConfigError`, also without the extra.

        - `deadline_s`: timeout of one comparison, from when a worker takes it.
        - `max_workers`: most comparisons at one time, each in a process of its own.
        """
        if not 0 < deadline_s < math.inf or max_workers < 1:
            raise ConfigError(f"judge {name!r}: {deadline_s=!r}, {max_workers=!r}: both must be above 0")
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(f"judge {name!r} needs math-verify: {INSTALL}")
        self.name: Final = name
        self.is_oracle: Final = True
        self.deadline_s: Final = deadline_s
        self.num_killed: int = 0
        """Workers that did not answer in time."""
        self._format = format
        self._max_workers: Final = max_workers
        self._idle: list[Process] = []
        self._places: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def reading(self, format: Format) -> "MathJudge":
        """The same judge for answers in another format."""
        return MathJudge(format, name=self.name, deadline_s=self.deadline_s, max_workers=self._max_workers)

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """One verdict per branch, computed concurrently. Raises `JudgeError`."""
        if ANSWER not in problem.secret:
            raise JudgeError(f"problem {problem.uid!r} has no secret {ANSWER!r}; map its column: data.answer = ...")
        gold = gold_answers(problem.secret[ANSWER])
        return await side_by_side(self._verdict(branch, gold) for branch in branches)

    async def close(self) -> None:
        """Kill the idle workers."""
        workers, self._idle = self._idle, []
        for worker in workers:
            await _ended(worker)

    async def _verdict(self, branch: Branch, gold: Sequence[str]) -> Verdict:
        answer = self._format.answer(branch.said)
        is_correct = answer is not None and await self._is_same(answer, gold)
        return Verdict(float(is_correct), {"answered": float(answer is not None), "correct": float(is_correct)})

    async def _is_same(self, answer: str, gold: Sequence[str]) -> bool:
        if any(is_same_answer(answer, one) for one in gold):
            return True
        formulas = [one for one in gold if not _is_words(one)]
        if not formulas:
            return False
        said = await self._asked({"gold": formulas, "answer": answer[-MAX_CHARS:]})
        if "fault" in said:
            raise JudgeError(f"judge {self.name!r}: math-verify raised {said['fault']}")
        return bool(said["is_same"])

    async def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ask a worker one question; no other question shares it meanwhile. A worker that does not answer is killed."""
        async with self._free():
            alive = [each for each in self._idle if each.returncode is None]
            worker = alive.pop() if alive else await self._started()
            self._idle = alive
            is_fine = False
            try:
                answer = await self._answer(worker, question)
                is_fine = True
            finally:
                if is_fine:
                    self._idle.append(worker)
                else:
                    await _ended(worker)
            return answer

    async def _answer(self, worker: Process, question: dict[str, Any]) -> dict[str, Any]:
        assert worker.stdin is not None and worker.stdout is not None
        try:
            async with asyncio.timeout(self.deadline_s):
                worker.stdin.write(json.dumps(question).encode() + b"\n")
                with suppress(ConnectionError):
                    await worker.stdin.drain()
                line = await worker.stdout.readline()
        except TimeoutError:
            self.num_killed += 1
            raise JudgeError(
                f"judge {self.name!r} gave nothing in {self.deadline_s:g} s; its worker is killed"
            ) from None
        return _read(line, self.name)

    async def _started(self) -> Process:
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-P", str(WORKER), stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        assert worker.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                _read(await worker.stdout.readline(), self.name)
        except BaseException as error:
            await _ended(worker)
            if isinstance(error, TimeoutError):
                raise JudgeError(f"judge {self.name!r}: its worker did not start in {START_S:g} s") from None
            raise
        return worker

    def _free(self) -> asyncio.Semaphore:
        """The semaphore for questions. Workers belong to the event loop that started them."""
        loop = asyncio.get_running_loop()
        if self._places is None or self._loop is not loop:
            self._places, self._loop, self._idle = asyncio.Semaphore(self._max_workers), loop, []
        return self._places


def _read(line: bytes, name: str) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise JudgeError(f"judge {name!r}: its worker died")
    return json.loads(line)


def _is_words(gold: str) -> bool:
    """Whether a gold answer is words, which must not be parsed as algebra."""
    return bool(_WORDS.search(_COMMAND.sub(" ", gold))) and not re.search(r"[\d\\=+*/^]", gold)


async def _ended(worker: Process) -> None:
    with suppress(ProcessLookupError):
        worker.kill()
    with suppress(ConnectionError):
        if worker.stdin is not None:
            worker.stdin.close()
    await worker.wait()
