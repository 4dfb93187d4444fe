"""Steps: the text of an rStar policy, cut at its stop tags, and parsers that read one step.

A parser is a function of one step and nothing else. A configuration can name it by path. It returns an action of the
core: `ToolAction` = code (run only if the step closes its block, unless the format runs every step), `AnswerAction` =
the final answer, `InvalidAction` = not a valid step, None = words, after which the model continues.

Source: microsoft/rStar, branch rStar-math (arXiv 2501.04519).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from ramify.core.errors import ConfigError
from ramify.core.format import Action, AnswerAction, InvalidAction, ToolAction
from ramify.formats.boxed import BOX, boxed

StepEnd = Literal["step", "code", "answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTags:
    """The tags that an rStar policy writes around its steps. The end tags are stop words. Raises `ConfigError`."""

    code: str = "<code>"
    step_end: str = "<end_of_step>"
    """The delimiter of steps, inside and outside code. Use a blank line for models that know no tags."""
    code_end: str = "<end_of_code>"
    answer_end: str = "<end_of_answer>"

    def __post_init__(self) -> None:
        words = (self.code, self.step_end, self.code_end, self.answer_end)
        if not all(words):
            raise ConfigError(f"the tags of steps are {words!r}: none of them may be empty")
        for one in words:
            if sum(one in other for other in words) > 1:
                raise ConfigError(f"the tag {one!r} is part of another one of {words!r}: a step must end in one way")

    @property
    def ends(self) -> dict[str, StepEnd]:
        return {self.step_end: "step", self.code_end: "code", self.answer_end: "answer"}


TAGS: Final = StepTags()
"""As published."""


@dataclass(frozen=True, slots=True)
class RStarStep:
    """One step."""

    text: str
    """The text of the step, without the tag that ends it."""
    end: StepEnd
    """What ended it. The end of a sequence counts as the end of an answer."""
    block: str
    """The code that the step belongs to, from the start of its block to the end of the step, without any tag."""
    is_code: bool
    """Whether a tag opened its block, or this step closes the block."""


StepParser = Callable[[RStarStep], Action | None]


def last_step(run: str, tags: StepTags) -> RStarStep:
    """The step ended by the last tag of `run`, where `run` is the text sampled since the last observation; all of `run`
    if there is no tag. Text after the last tag is ignored: it came with the tag's token."""
    places = list(_pattern(tags).finditer(run))
    if not places:
        return unended_step(run, tags)
    last = places.pop()
    return _step(run[: last.start()], tags.ends[last[0]], [place.end() for place in places], tags)


def unended_step(run: str, tags: StepTags) -> RStarStep:
    """The text after the last tag of `run`: a step that the end of the sequence ended."""
    return _step(run, "answer", [place.end() for place in _pattern(tags).finditer(run)], tags)


def _step(said: str, end: StepEnd, borders: Sequence[int], tags: StepTags) -> RStarStep:
    """The step at the end of `said`, after the last of `borders`, which are the ends of the earlier steps."""
    closed = max((border for border in borders if said.endswith(tags.code_end, 0, border)), default=0)
    _, tag, code = said[closed:].rpartition(tags.code)
    block = _pattern(tags).sub("", code).strip()
    return RStarStep(said[borders[-1] if borders else 0 :], end, block, is_code=bool(tag) or end == "code")


def tagged(step: RStarStep) -> Action | None:
    r"""Code is between its tags; an answer is outside them, in a `\boxed{…}`. An empty step is invalid."""
    if step.is_code and step.end == "answer":
        return InvalidAction("the code block is not closed")
    if step.is_code:
        return ToolAction("", step.block) if step.block else InvalidAction("the code block is empty")
    answer = boxed(step.text)
    if answer is not None:
        return AnswerAction(answer)
    if step.end == "answer":
        return InvalidAction("the answer holds no \\boxed{...} with something in it")
    return None if step.text.strip() else InvalidAction("the step is empty")


def published(step: RStarStep) -> Action | None:
    """As published: a step that contains "boxed" anywhere is the final answer; any other step is code."""
    if BOX in step.text:
        return AnswerAction(boxed(step.text) or "")
    return ToolAction("", step.block) if step.block else InvalidAction("the step is empty")


PARSERS: Final[Mapping[str, StepParser]] = MappingProxyType({"published": published, "tags": tagged})
"""Parsers by the names that a configuration may give."""


def _pattern(tags: StepTags) -> re.Pattern[str]:
    """Matches any tag that ends a step."""
    return re.compile("|".join(map(re.escape, tags.ends)))
