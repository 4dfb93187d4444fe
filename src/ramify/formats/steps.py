"""Steps: the text of an rStar policy, cut at its stop tags, and parsers that read one step.

A parser is a function of one step and nothing else. A configuration can name it by path. It returns an action of the
core: `ToolAction` = code (run only if the step closes its block, unless the format runs every step), `AnswerAction` =
the final answer, `InvalidAction` = not a valid step, None = words, after which the model continues.

Source: microsoft/rStar, branch rStar-math (arXiv 2501.04519).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final, Literal

from ramify.core.errors import ConfigError
from ramify.core.format import Action, AnswerAction, InvalidAction, ToolAction
from ramify.formats.boxed import BOX, boxed

StepEnd = Literal["step", "code", "answer"]

_BOX, _TEXT, _BLOCK = "\\boxed{", "\\text{", "\n# ========\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTags:
    """The tags that an rStar policy writes around its steps. The end tags are stop words. Raises `ConfigError`."""

    code: str = "<code>"
    """Tag that begins code."""
    step_end: str = "<end_of_step>"
    """The delimiter of steps, inside and outside code. Use a blank line for models that know no tags."""
    code_end: str = "<end_of_code>"
    """Tag that ends code; a stop word."""
    answer_end: str = "<end_of_answer>"
    """Tag that ends an answer; a stop word."""

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
    tag: str = ""
    """The tag that ended it; '' = none did."""
    since: str = ""
    """All text since the last closed block, up to the step's own tag, with all tags."""


StepParser = Callable[[RStarStep], Action | None]


def last_step(run: str, tags: StepTags) -> RStarStep:
    """The step ended by the last tag of `run`, where `run` is the text sampled since the last observation; all of `run`
    if there is no tag. Text after the last tag is ignored: it came with the tag's token."""
    places = list(_pattern(tags).finditer(run))
    if not places:
        return unended_step(run, tags)
    last = places.pop()
    return _step(run[: last.start()], tags.ends[last[0]], [place.end() for place in places], tags, tag=last[0])


def unended_step(run: str, tags: StepTags) -> RStarStep:
    """The text after the last tag of `run`: a step that the end of the sequence ended."""
    return _step(run, "answer", [place.end() for place in _pattern(tags).finditer(run)], tags)


def _step(said: str, end: StepEnd, borders: Sequence[int], tags: StepTags, *, tag: str = "") -> RStarStep:
    """The step at the end of `said`, after the last of `borders`, which are the ends of the earlier steps."""
    closed = max((border for border in borders if said.endswith(tags.code_end, 0, border)), default=0)
    _, opening, code = said[closed:].rpartition(tags.code)
    return RStarStep(
        said[borders[-1] if borders else 0 :],
        end,
        block=_pattern(tags).sub("", code).strip(),
        is_code=bool(opening) or end == "code",
        tag=tag,
        since=said[closed:] + tag,
    )


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
    """As published: a step that contains "boxed" anywhere is the final answer, if the answer read in it is not empty.
    Any other step is code: with nothing to run, or with an empty answer, the path goes on."""
    if BOX in step.text:
        answer = _published_answer(step.text + step.tag)
        return AnswerAction(answer) if answer else None
    program = _published_program(step.since)
    return ToolAction("", program) if program else None


def _published_answer(text: str) -> str:
    r"""What the published code reads as the answer. It looks only before the first full stop at a line's end, and takes
    all of that if no `\boxed{` is there. Of an open box it takes what stands behind its last brace that was closed, or
    behind a position counted from the wrong place."""
    said = text.partition(".\n")[0].strip().removesuffix(".").strip()
    start = said.rfind(_BOX)
    if start < 0:
        return _without_text(said)
    box, opened, begin, end = said[start:], list[int](), start, None
    for place, sign in enumerate(box):
        if sign == "{":
            opened.append(place)
        elif sign == "}":
            begin = opened.pop()
            if not opened:
                end = place
                break
    return _without_text(box[begin + 1 : end])


def _without_text(said: str) -> str:
    r"""`said` without the frame of its first `\text{…}`, whose word is dropped if it is "and". An open frame gives the
    published mark of an answer that cannot be read."""
    start = said.find(_TEXT)
    if start < 0:
        return said
    depth = 0
    for place in range(start + len(_TEXT) - 1, len(said)):
        depth += {"{": 1, "}": -1}.get(said[place], 0)
        if not depth:
            word = said[start + len(_TEXT) : place].strip()
            return (said[:start] + ("" if word == "and" else word) + said[place + 1 :]).strip()
    return "[invalid]"


def _published_program(since: str) -> str:
    """What the published code runs: the lines between one with the tag of code and one with the tag of its end, without
    these two; all of the text if no line has the tag of code. Each block begins with a comment. A step with an empty
    answer is no code."""
    text = "".join(step for step in _steps(since) if BOX not in step).replace(TAGS.step_end, "")
    program, is_open = "", False
    for line in text.split("\n"):
        if TAGS.code in line:
            program, is_open = program + _BLOCK, True
        elif TAGS.code_end in line:
            is_open = False
        elif is_open:
            program += line + "\n"
    return (program or text).strip()


def _steps(since: str) -> list[str]:
    """`since` cut behind its tags."""
    borders = [0, *(place.end() for place in _pattern(TAGS).finditer(since)), len(since)]
    return [since[start:end] for start, end in pairwise(borders)]


PARSERS: Final[Mapping[str, StepParser]] = MappingProxyType({"published": published, "tags": tagged})
"""Parsers by the names that a configuration may give."""


def _pattern(tags: StepTags) -> re.Pattern[str]:
    """Matches any tag that ends a step."""
    return re.compile("|".join(map(re.escape, tags.ends)))
