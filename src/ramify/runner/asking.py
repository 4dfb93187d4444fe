"""Asking: carries out the questions that judges, and environments, ask the models of the run.

A judge's questions are steps of its command, like any growth: the run's engines sample them within the run's limits,
they are recorded when complete and billed under the action's role. After a resume, a judge first gets its recorded
replies, in order, without asking an engine. A model that gives no reply is a `JudgeError`, a fault of this one
judgement. That also holds if its engine is down, unless the run grows trees with that engine: then the run stops.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ramify.core.action import ActionConfig
from ramify.core.branch import Branch
from ramify.core.command import BESIDE
from ramify.core.errors import EngineError, EnginesDown, EngineUnusable, JudgeError
from ramify.core.format import InvalidAction, MessageFormat, span_ids
from ramify.core.growth import Failure
from ramify.core.judge import Reply
from ramify.core.problem import Problem
from ramify.core.segment import Finish, Segment, ToolCall, token_array
from ramify.core.stop import stop_word
from ramify.core.tool import ToolResult
from ramify.core.tree import Place, Step
from ramify.formats.messages import text_of
from ramify.runner.judge_formats import JudgeFormat
from ramify.runner.sampler import CONTEXT_FULL, DEADLINE
from ramify.runner.work import Path, Turn, Work, behind_end, message_segments, prompt_segments

SPENT: Final = frozenset({"budget", DEADLINE})
"""Stop words of a reply that mean that the tree has no budget or time left."""
BUDGET: Final = Failure("budget")

_THOUGHT = re.compile(r"\A.*</think>|<think>.*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Asking:
    """How the judges of a run ask."""

    formats: Mapping[str, JudgeFormat]
    """By action."""
    actions: Mapping[str, ActionConfig]

    def begin(self, work: Work, problem: Problem, *, places: Callable[[int], Place]) -> "Questions":
        """The questions of one Judge command. `places` maps the number of a fresh context to its place."""
        return Questions(work, problem, asking=self, places=places)

    def is_grown_by(self, action: str) -> bool:
        """Whether the run also grows trees with the engine of `action`."""
        own = self.actions[action].engine
        return any(each.engine == own for each in self.actions.values() if each.role not in BESIDE)


class Questions:
    """The questions of one Judge command. Implements `Dialogue`."""

    def __init__(self, work: Work, problem: Problem, *, asking: Asking, places: Callable[[int], Place]) -> None:
        self._work = work
        self.problem = problem
        self._asking = asking
        self._places = places
        self._name = work.command.action
        self._action = asking.actions[self._name]
        self._judge_format = asking.formats[self._name]
        self._recorded = deque(work.done)
        self._path = Path(work, work.branch, work.place.seed)
        self._num_opened = 0
        self._is_fresh = True
        """Whether the current reply is the first of its context."""
        self._has_ended = False
        """Whether the last reply ended its context."""
        self._is_spent = False

    @property
    def had_failed(self) -> Failure | None:
        """How the command failed before the run was resumed, if only its outcome was not yet delivered."""
        last = self._work.done[-1] if self._work.done else None
        is_failed = last is not None and last.stop is not None and stop_word(last.stop).is_failure
        return Failure(str(last.notes["reason"])) if last is not None and is_failed else None

    def failure(self, error: JudgeError) -> Failure:
        """How the command ends for this fault. An exhausted budget is not a fault of the judge."""
        return BUDGET if self._is_spent else Failure(f"judge: {error}")

    async def open(self, contexts: Sequence[Branch]) -> Reply:
        """See `Dialogue`."""
        self.close()
        place, codec = self._places(self._num_opened), self._judge_format.codec
        self._num_opened += 1
        self._is_fresh, self._has_ended = True, False
        self._path.seed, self._path.branch = place.seed, Branch(codec, place.parent, ())
        if self._recorded:
            return self._again()
        turn = Turn(self._path.branch, place.seed, self._path.next_node)
        spans = self._judge_format.open(self._action.template, contexts, self.problem.for_agents())
        turn.take(*prompt_segments(codec, spans))
        return await self._heard(turn)

    async def ask(self, prompt: str) -> Reply:
        """The reply to a prompt in a fresh context. Raises `JudgeError` if the model gives no reply."""
        self.close()
        place, codec = self._places(self._num_opened), self._judge_format.codec
        self._num_opened += 1
        self._path.seed, self._path.branch = place.seed, Branch(codec, place.parent, ())
        turn = Turn(self._path.branch, place.seed, self._path.next_node)
        spans = self._judge_format.format.open(replace(self.problem.for_agents(), question=prompt, public={}))
        turn.take(*prompt_segments(codec, spans))
        return await self._heard(turn)

    async def correct(self, fault: str) -> Reply:
        """See `Dialogue`."""
        turn = self._path.turn
        if turn is not None and turn.stop is None:
            self._observe(turn, fault)
            self._report(turn, None)
        elif turn is not None or self._has_ended:
            self._is_spent = self._is_spent or (turn is not None and turn.stop in SPENT)
            raise JudgeError(f"{fault}; and there is no room to ask again")
        self._is_fresh = False
        if self._recorded:
            return self._again()
        return await self._heard(Turn(self._path.branch, self._path.seed, self._path.next_node))

    def close(self) -> None:
        """Record the last reply of a context unchanged. A second call does nothing."""
        if self._path.turn is not None:
            self._report(self._path.turn, self._ending(self._path.turn))

    def give_up(self, stop: str, reason: str, fault: str = "") -> None:
        """Record what was sampled of an unfinished reply, and why it was given up."""
        turn = self._path.turn or Turn(self._path.branch, self._path.seed, self._path.next_node)
        turn.notes |= {"reason": reason, "fault": fault}
        self._report(turn, stop)

    async def _heard(self, turn: Turn) -> Reply:
        self._path.turn = turn
        try:
            await self._judge_format.sampler.sample(turn, self._path)
        except EnginesDown as error:
            if isinstance(error, EngineUnusable) or self._asking.is_grown_by(self._name):
                raise
            raise self._unanswered(error) from error
        except EngineError as error:
            raise self._unanswered(error) from error
        if not any(segment.is_sampled for segment in turn.segments):
            self._path.turn = None
            self._is_spent = turn.stop in SPENT
            what = "its context is too long" if turn.stop == CONTEXT_FULL else f"there was no room ({turn.stop})"
            raise JudgeError(f"action {self._name!r} gave no reply: {what}")
        return self._read(turn.segments)

    def _unanswered(self, error: EngineError) -> JudgeError:
        fault = JudgeError(f"action {self._name!r} gave no reply: {error}")
        self.give_up("engine_error", f"judge: {fault}", str(error))
        return fault

    def _again(self) -> Reply:
        """The reply that was recorded before the run was resumed."""
        step = self._recorded.popleft()
        self._path.add(step)
        self._has_ended = step.stop is not None
        return self._read(step.segments)

    def _read(self, segments: Sequence[Segment]) -> Reply:
        sampled = [segment for segment in segments if segment.is_sampled]
        last, codec = sampled[-1], self._judge_format.codec
        finish = last.finish or Finish("length")
        if last.message is not None:
            text = text_of(last.message)
        else:
            ids = [i for segment in sampled for i in segment.ids.tolist()]
            text = codec.decode(ids[:-1] if ids[-1:] == [codec.eos_id] else ids)
        text = _THOUGHT.sub("", text)  # A thought may quote an answer of the text that is judged.
        answer = self._judge_format.format.answer(text)
        said = _without_end(text, finish) if answer is None else answer
        return Reply(said, is_cut=finish.kind not in ("stop", "end_of_sequence"))

    def _observe(self, turn: Turn, fault: str) -> None:
        """Tell the model what was wrong, as the format answers an invalid action."""
        format, codec, message = self._judge_format.format, turn.branch.codec, turn.message
        action, result = InvalidAction(fault), ToolResult(fault, "invalid")
        if message is not None and isinstance(format, MessageFormat):
            spans = format.reply(message, action, result)
        else:
            spans = format.observe(action, result)
        call = ToolCall("", self._read(turn.segments).text, "invalid", fault)
        if messages := message_segments("given", codec, spans):
            turn.take(replace(messages[0], tool_call=call), *messages[1:])
            return
        ids = token_array(span_ids(codec, spans))
        if turn.finish is not None and turn.finish.kind == "end_of_sequence":
            ids = behind_end(ids, int(turn.branch.run[-1]), codec)
        turn.take(Segment("given", ids, tool_call=call))

    def _ending(self, turn: Turn) -> str:
        if turn.stop is not None:
            return turn.stop
        kind = turn.finish.kind if turn.finish is not None else "length"
        return {"stop": "answer", "end_of_sequence": "end_of_sequence"}.get(kind, "length")

    def _report(self, turn: Turn, stop: str | None) -> None:
        step = Step(
            tuple(turn.segments),
            stop,
            action=self._name,
            edge="quotes" if self._is_fresh else "continues",
            role=self._action.role,
            notes=dict(turn.notes),
        )
        self._path.turn = turn
        self._path.add(step)
        self._work.report(step)


def _without_end(text: str, finish: Finish) -> str:
    """A reply without the stop word that ended it."""
    place = text.rfind(finish.matched) if finish.matched else -1
    return text if place < 0 else text[:place]
