"""Notebook: notes that an agent keeps on its branch, because its context is short or is summarised.

Three calls: `write TEXT` adds a note, `read` shows all with their numbers, `find TEXT` shows those that contain a text,
ignoring case. The state is the list of notes, which depends only on the calls, so a fork replays them (`branching` =
`replay`). Nothing is copied, and a branch restored from a store has its notes again.
"""

from dataclasses import dataclass, field
from typing import Final

from ramify.core.problem import Problem
from ramify.core.tool import Branching, ToolResult

MAX_NOTES: Final = 256
USAGE: Final = "error: use `write TEXT`, `read` or `find TEXT`"


@dataclass(frozen=True, slots=True)
class Notebook:
    """Opens an empty notebook for each branch."""

    name: str = "notebook"
    branching: Branching = "replay"

    async def open(self, problem: Problem) -> "NotebookSession":
        return NotebookSession()


@dataclass(slots=True)
class NotebookSession:
    """The notes of one branch."""

    notes: list[str] = field(default_factory=list[str])

    async def call(self, arguments: str) -> ToolResult:
        """Carry out `write`, `read` or `find`."""
        verb, _, text = arguments.strip().partition(" ")
        text = text.strip()
        match verb.lower():
            case "write" if text:
                return self._write(text)
            case "read" if not text:
                return self._shown("")
            case "find" if text:
                return self._shown(text.lower())
            case _:
                return ToolResult(USAGE, "error")

    async def fork(self) -> "NotebookSession":
        """A copy."""
        return NotebookSession(list(self.notes))

    async def close(self) -> None:
        self.notes.clear()

    def _write(self, text: str) -> ToolResult:
        if len(self.notes) >= MAX_NOTES:
            return ToolResult(f"error: the notebook is full ({MAX_NOTES} notes)", "error")
        self.notes.append(text)
        return ToolResult(f"note {len(self.notes)} written")

    def _shown(self, part: str) -> ToolResult:
        lines = [f"{number}. {note}" for number, note in enumerate(self.notes, 1) if part in note.lower()]
        return ToolResult("\n".join(lines) or "no notes")
