"""World model: the model that an environment asks within a step, such as a simulated user.

Its replies are steps of the role `user`, which quote the step that they belong to. They are billed to the command that
grows the path, and recorded with that step. A replay of the step reads the replies from the record of its call.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ramify.core.command import Grow
from ramify.core.environment import REPLIES
from ramify.core.errors import EnginesDown, JudgeError, ToolError
from ramify.core.judge import Reply
from ramify.core.ledger import Spend
from ramify.core.problem import Problem
from ramify.core.seeds import aside_seed
from ramify.core.segment import ToolCall
from ramify.core.tree import ASIDE, QUOTED, Place, Step
from ramify.runner.asking import Asking
from ramify.runner.work import Path, Turn, Work

MAX_REPLIES: Final = 8
"""Most replies in one step: a user needs one, and some correct themselves."""


class WorldModel:
    """Answers what an environment asks in one step."""

    def __init__(self, turn: Turn, path: Path, problem: Problem, *, asking: Asking, action: str) -> None:
        self.steps: list[Step] = []
        """The replies so far, as steps."""
        self.replies: list[Mapping[str, Any]] = []
        """The replies so far, for the record of the call."""
        self.down: EnginesDown | None = None
        """The run must stop: no engine answers."""
        seed, parent = path.seed, path.work.place.parent
        work = Work(
            tree=path.work.tree,
            command=Grow(parent, until="step", action=action),
            place=Place(parent, QUOTED, ASIDE, aside_seed(seed, 0), -1),
            branch=path.branch,
            contexts=(),
            allotment=_left(path, turn),
            limited=path.work.limited,
            report=self.steps.append,
            deadline=path.work.deadline,
        )
        self._questions = asking.begin(
            work,
            problem,
            places=lambda number: Place(parent, QUOTED, ASIDE + number, aside_seed(seed, number), -1),
        )

    async def ask(self, prompt: str) -> Reply:
        """See `AskModel`."""
        _check(prompt, len(self.replies))
        try:
            reply = await self._questions.ask(prompt)
        except EnginesDown as error:
            self.down = error
            raise ToolError("tool_gave_up", f"its model is down: {error}") from error
        except JudgeError as error:
            raise ToolError("tool_gave_up", f"its model gave no reply: {error}") from error
        self.replies.append({"text": reply.text, "is_cut": reply.is_cut, "prompt": _digest(prompt)})
        return reply

    def close(self) -> Sequence[Step]:
        """The steps of all replies."""
        self._questions.close()
        return self.steps


class RecordedModel:
    """Gives the replies that the record of a call holds."""

    def __init__(self, call: ToolCall) -> None:
        self._call = call
        self.replies: list[Mapping[str, Any]] = []

    async def ask(self, prompt: str) -> Reply:
        """See `AskModel`. Raises `ToolError("replay_diverged")` for a prompt that was not asked then."""
        known: Sequence[Mapping[str, Any]] = self._call.metadata.get(REPLIES, ())
        number = len(self.replies)
        if number >= len(known) or known[number]["prompt"] != _digest(prompt):
            raise ToolError("replay_diverged", f"the environment asks its model something else now: {prompt[:80]!r}")
        self.replies.append(known[number])
        return Reply(known[number]["text"], known[number]["is_cut"])


def _check(prompt: object, num_replies: int) -> None:
    if not isinstance(prompt, str) or not prompt.strip():
        raise ToolError("tool_gave_up", f"it asked its model {prompt!r:.80}; a prompt is a text")
    if num_replies >= MAX_REPLIES:
        raise ToolError("tool_gave_up", f"it asked its model more than {MAX_REPLIES} times in one step")


def _digest(prompt: str) -> str:
    return hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:16]


def _left(path: Path, turn: Turn) -> Spend:
    """What the command has left, besides its unfinished turn."""
    left = Spend().add(path.work.allotment)
    left.subtract(path.spent).subtract(turn.billed)
    return left
