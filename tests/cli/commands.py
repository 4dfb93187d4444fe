"""Runs the command line in this process, on the scripted engine."""

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
