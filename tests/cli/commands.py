"""Runs the command line, in this process or in one of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from ramify.cli.main import main

SCRIPTED = ("--engine", "scripted")


@dataclass(frozen=True, slots=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        (line,) = self.out.splitlines()
        return msgspec.json.decode(line)


def ramify(capsys: pytest.CaptureFixture[str], *arguments: object) -> Said:
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Said(code, captured.out, captured.err)


@contextmanager
def process(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """A command in a process of its own, which is killed at the end."""
    command = [sys.executable, "-W", "error", "-m", "ramify.cli.main", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()
