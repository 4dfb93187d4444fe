"""Steps: what a policy of rStar says, cut at its stop tags, and parsers that say what one step is.

A parser is a function of one step and nothing else, and can be named by path. Its word is an action of the core:
`ToolAction` = code (carried out only where it closes its block, unless the format runs every step), `AnswerAction` =
the final answer, `InvalidAction` = no step at all, None = words, after which the model goes on.

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
    """The words that a policy of rStar writes around its steps; the ends are stop words. Raises `ConfigError`."""

    code: str = "<code>"
    step_end: str = "<end_of_step>"
    """The delimiter of steps, in code and outside it; a blank line for models that know no tags."""
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
    """What was said in it, without the tag that ends it."""
    end: StepEnd
    """What ended it. The end of a sequence counts as that of an answer."""
    block: str
    """The code it belongs to, from the beginning of its block to the end of the step, without any tag."""
    is_code: bool
    """Whether its block was opened by a tag, or is closed by this step."""


StepParser = Callable[[RStarStep], Action | None]


def last_step(run: str, tags: StepTags) -> RStarStep:
    """The step that the last tag of `run` ends, the text sampled since the last observation; all of it if there is no
    tag. What the token of the tag carries behind it is ignored.
    """
    places = list(_pattern(tags).finditer(run))
    if not places:
        return unended_step(run, tags)
    last = places.pop()
    return _step(run[: last.start()], tags.ends[last[0]], [place.end() for place in places], tags)


def unended_step(run: str, tags: StepTags) -> RStarStep:
    """What stands behind the last tag of `run`: a step that the end of the sequence has ended."""
    return _step(run, "answer", [place.end() for place in _pattern(tags).finditer(run)], tags)


def _step(said: str, end: StepEnd, borders: Sequence[int], tags: StepTags) -> RStarStep:
    """The step at the end of `said`, behind the last of the borders of the steps before it."""
    closed = max((border for border in borders if said.endswith(tags.code_end, 0, border)), default=0)
    _, tag, code = said[closed:].rpartition(tags.code)
    block = _pattern(tags).sub("", code).strip()
    return RStarStep(said[borders[-1] if borders else 0 :], end, block, is_code=bool(tag) or end == "code")


def tagged(step: RStarStep) -> Action | None:
    r"""Code stands between its tags, an answer outside them and in a `\boxed{…}`; an empty step is none."""
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
    """As published: a step that says "boxed" anywhere is the final answer, and whatever does not is code."""
    if BOX in step.text:
        return AnswerAction(boxed(step.text) or "")
    return ToolAction("", step.block) if step.block else InvalidAction("the step is empty")


PARSERS: Final[Mapping[str, StepParser]] = MappingProxyType({"published": published, "tags": tagged})
"""By the names a configuration may give."""


def _pattern(tags: StepTags) -> re.Pattern[str]:
    """Any of the tags that end a step."""
    return re.compile("|".join(map(re.escape, tags.ends)))
