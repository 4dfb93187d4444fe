"""Worlds that misbehave, and one that draws from global generators."""

import ctypes
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ramify.core.environment import AgentTurn, Observation
from ramify.core.errors import ConfigError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.environments.blocking import BlockingEnvironment


class Unreadable:
    """A thing that can be sent and not be read."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Moody:
    """Does what a turn says; `add N` and `draw` are the good moves."""

    def __init__(self) -> None:
        self.total = 0

    def step(self, turn: AgentTurn, seed: int) -> Observation:  # noqa: C901 - one case a mood
        word, _, rest = turn.text.partition(" ")
        match word:
            case "add":
                self.total += int(rest)
            case "draw":
                self.total += random.randrange(1000) + int(np.random.randint(1000))
            case "raise":
                raise ValueError("the dice fell off the table")
            case "hang":
                time.sleep(1000)
            case "segfault":
                ctypes.string_at(0)
            case "exit":
                sys.exit(3)
            case "quit":
                os._exit(7)
            case "print":
                print("noise " * 10_000)  # noqa: T201
                os.write(1, b"more noise")
                os.write(2, b"and more")
            case "nan":
                return Observation("a number?", reward=float("nan"))
            case "grow":
                self.hoard = bytearray(1 << 32)
            case "unpicklable":
                return Observation("a function", metadata={"function": lambda: None})
            case "unreadable":
                return Observation("a trap", metadata={"trap": Unreadable()})
            case "long":
                return Observation("x" * (100 << 20))
            case "write":
                with tempfile.TemporaryFile() as file:
                    file.write(bytes(8 << 20))
            case "spawn":
                child = subprocess.Popen(["sleep", "1000"])
                child.returncode = 0
                return Observation(str(child.pid))
            case "escape":
                child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
                child.returncode = 0
                return Observation(str(child.pid))
        return Observation(f"total {self.total}", reward=1.0, end="done" if self.total > 100_000 else None)

    def copy(self) -> "Moody":
        raise NotImplementedError

    def digest(self) -> str | None:
        return str(self.total)

    def score(self, said: str, problem: Problem) -> Verdict | None:
        return Verdict(float(self.total), {"said": float(len(said))})

    def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class MoodyEnvironment(BlockingEnvironment):
    name: ClassVar[str] = "moody"
    fault: str = ""
    """Where it fails: `prepare` or `world`."""

    def prepare(self) -> None:
        if self.fault == "prepare":
            raise ConfigError("moody needs the package mood: pip install mood")
        if self.fault == "exit":
            os._exit(9)

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        return [Problem(f"mood-{seed}-{i}", "say add N; the total is 0") for i in range(num_problems)]

    def world(self, problem: Problem, seed: int) -> Moody:
        if self.fault == "world":
            raise OSError("the world's file is missing")
        return Moody()
