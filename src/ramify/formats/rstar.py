"""The `rstar` format: steps of words and code. The code is run and its output is shown (arXiv 2501.04519).

A step ends at one of three tags. If it closes a code block, the tool runs the code, and the output becomes the
observation; the tool keeps the interpreter's state per branch. If it has a `boxed` answer, it ends the path. The format
itself stops paths early, for three reasons: `tool_errors` (too many errors in a row), `depth_limit` (more steps than
allowed) and `no_valid_step` (the parser cannot read the step). Plug-ins decide how a step is read and which answers
mean the same.

Source: microsoft/rStar, branch rStar-math. Three things are corrected by default, each with an option to restore the
published behaviour: only closed blocks are run, the tool decides what an error is, and code that spells "boxed" is no
answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ramify.core.branch import Branch, turns_of
from ramify.core.errors import ConfigError, nearest
from ramify.core.format import Action, AnswerAction, IsSame, Span, ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import ToolCall, ToolStatus
from ramify.core.tool import ToolResult
from ramify.formats.steps import PARSERS, TAGS, StepParser, StepTags, last_step, unended_step
from ramify.formats.tags import OBSERVATIONS, placeholders, quoted, spans_of

ErrorMatch = Literal["status", "text"]
ErrorRun = Literal["calls", "steps"]
CodeContext = Literal["closed", "every_step"]

ERROR: Final = "error"
FAILED: Final[frozenset[ToolStatus]] = frozenset({"error", "timeout", "crashed", "refused"})


def _tail(observation: str) -> str:
    """The words after the code's output; '' = there are none."""
    last = spans_of(observation, {"text": ""})[-1]
    return last.text.strip() if last.is_trusted else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RStarOptions:
    """The configuration options of a format of steps."""

    template: str = "<|user|>:\n{question}\n<|assistant|>:"
    """Opening context. Control tokens may be spelt in it."""
    few_shot: str = ""
    """Solved examples before the opening, for models that were not trained to write this format."""
    tags: StepTags = TAGS
    """Tags around steps."""
    observation: str = "\n<output>{text}<end_of_output>\n"
    """Text around the code's output."""
    tool: str = "python"
    """Name of the tool that runs the code."""
    errors_threshold: int = 2
    """Number of errors in a row that end a path, as published for sampling. 0 and 1 both end it at the first error."""
    max_depth: int | None = 16
    """Most steps of a path (all published recipes: 16). One step more ends it. None = this format sets no limit."""
    error_match: ErrorMatch = "status"
    """What counts as an error. `status`: the tool says so. `text`, as published: the text contains the word "error" in
    any case."""
    error_run: ErrorRun = "calls"
    """What the errors in a row are counted in. `calls`: a step that calls nothing changes nothing. `steps`, as
    published: such a step sets the count to 0."""
    code_context: CodeContext = "closed"
    """When code is run. `closed`: once, when its block is closed. `every_step`, as published: the whole block again at
    every step of it; errors show early, and the output shows only at the end. Published runs use a fresh interpreter:
    the tool's option `is_stateful = false`."""
    step_parser: str = field(default="tags", metadata={"names": "step_parser"})
    """The parser that reads a step: `tags`, `published` or `path/to/file.py:function` (`ramify.formats.steps`)."""
    answer_equivalence: str | None = field(default=None, metadata={"names": "equivalence"})
    """Decides which answers mean the same, for votes and exact judges: `text` or `path/to/file.py:function`; None = the
    task decides."""

    def __post_init__(self) -> None:
        for name, template, wanted in (
            ("template", self.template, "question"),
            ("observation", self.observation, "text"),
        ):
            if set(placeholders(template)) != {wanted}:
                raise ConfigError(f"{name} = {template!r}: it must cite {{{wanted}}} and nothing else")
        if not _tail(self.observation):
            raise ConfigError(
                f"observation = {self.observation!r}: words must stand behind {{text}}, or what code prints would be "
                "read as an answer"
            )
        if self.errors_threshold < 0:
            raise ConfigError(f"errors_threshold = {self.errors_threshold!r}: 0 or more errors are allowed")
        if self.max_depth is not None and self.max_depth < 1:
            raise ConfigError(f"max_depth = {self.max_depth!r}: a path has at least one step")
        if not self.tool:
            raise ConfigError(f"tool = {self.tool!r}: code is run by a tool, which has a name")


@dataclass(frozen=True, slots=True)
class OpenBlock(ToolAction):
    """Code of a block that is not closed. It is run, but its output is not shown."""


class RStar:
    """Speaks in steps. `step_parser` reads a step; None = the parser that the options name. `answer_equivalence`
    decides which answers mean the same; None = the task decides."""

    Config = RStarOptions

    def __init__(
        self,
        options: RStarOptions = RStarOptions(),
        *,
        step_parser: StepParser | None = None,
        answer_equivalence: IsSame | None = None,
    ) -> None:
        self.options = options
        self.is_same_answer = answer_equivalence
        if step_parser is None and options.step_parser not in PARSERS:
            raise ConfigError(f"step_parser = {options.step_parser!r}: {nearest(options.step_parser, PARSERS)}")
        self._parse = step_parser or PARSERS[options.step_parser]

    @property
    def stops(self) -> tuple[str, ...]:
        """The ends of a step, of a code block and of an answer."""
        return tuple(self.options.tags.ends)

    def open(self, problem: Problem) -> Sequence[Span]:
        """The examples, then the template with the question, which is not trusted."""
        examples = [Span(self.options.few_shot, is_trusted=True)] if self.options.few_shot else []
        return [*examples, *quoted(self.options.template, (), problem.question, answer=self.answer)]

    def quote(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """Like `TagFormat.quote`."""
        return quoted(template, contexts, problem.question, answer=self.answer)

    def read(self, run: str) -> Action | None:
        """The parser's action for the last step. Code of an open block is an action only if every step is run."""
        step = last_step(run, self.options.tags)
        action = self._parse(step)
        if not isinstance(action, ToolAction):
            return action
        if step.end == "code":
            return ToolAction(self.options.tool, action.arguments)
        return OpenBlock(self.options.tool, action.arguments) if self.options.code_context == "every_step" else None

    def observe(self, action: Action, result: ToolResult) -> Sequence[Span]:
        """The code's output, which is not trusted; nothing while its block is open."""
        if isinstance(action, OpenBlock):
            return ()
        tool = action.tool if isinstance(action, ToolAction) else "invalid"
        return spans_of(self.options.observation, {"text": _shown(tool, result.status, result.text).strip()})

    def answer(self, said: str) -> str | None:
        """The answer in the last step of the last turn; None = the step gives no answer."""
        last = turns_of(said)[-1].rpartition(_tail(self.options.observation))[2]
        for step in (last_step(last, self.options.tags), unended_step(last, self.options.tags)):
            action = self._parse(step)
            if isinstance(action, AnswerAction):
                return action.text or None
        return None

    def tools(self) -> Mapping[str, str]:
        return {self.options.tool: self.options.tags.code.strip("<>")}

    def give_up(self, branch: Branch) -> str | None:
        """Why a path ends after its last step: a stop word and what happened; None = it goes on."""
        calls = branch.tool_calls
        if calls and calls[-1].status == "invalid":
            return f"no_valid_step: {calls[-1].result}"
        num_errors = self.consecutive_errors(calls if self.options.error_run == "calls" else _calls_of_steps(branch))
        if num_errors and num_errors >= self.options.errors_threshold:
            return f"tool_errors: {num_errors} in a row"
        num_steps = len({piece.node for piece in branch.pieces if piece.segment.is_sampled})
        if self.options.max_depth is not None and num_steps > self.options.max_depth:
            return f"depth_limit: {num_steps} steps, {self.options.max_depth} are allowed"
        return None

    def consecutive_errors(self, calls: Sequence[ToolCall | None]) -> int:
        """Number of errors at the end of `calls`; None = a step without a call."""
        return consecutive_errors(calls, self.options.error_match)


def consecutive_errors(calls: Sequence[ToolCall | None], match: ErrorMatch = "status") -> int:
    """Number of errors at the end of `calls`, by the tool's status or by its text; None = a step without a call."""
    good = (number for number, call in enumerate(reversed(calls)) if call is None or not _is_error(call, match))
    return next(good, len(calls))


def _calls_of_steps(branch: Branch) -> list[ToolCall | None]:
    """The call of each step of `branch`."""
    calls: dict[int, ToolCall | None] = {piece.node: None for piece in branch.pieces if piece.segment.is_sampled}
    calls |= {piece.node: piece.segment.tool_call for piece in branch.pieces if piece.segment.tool_call is not None}
    return list(calls.values())


def _is_error(call: ToolCall, match: ErrorMatch) -> bool:
    if match == "status":
        return call.status in FAILED
    return ERROR in _shown(call.tool, call.status, call.result).lower()


def _shown(tool: str, status: ToolStatus, text: str) -> str:
    """What the model sees of a result. Code that prints nothing is no failure here: steps define what later steps
    use."""
    known = "ok" if status == "empty" else status
    return OBSERVATIONS[known].format(text=text, tag=tool)


AS_PUBLISHED: Final = RStarOptions(
    observation="\n<output>{text}<end_of_output>",
    error_match="text",
    error_run="steps",
    code_context="every_step",
    step_parser="published",
)
"""The behaviour of rStar's solver. The solver's own default threshold is 0; its recipes sample with 2 and evaluate with
1. One difference stays: a step that the model ends without a tag ends the path here. There the end token is cut off and
the path goes on; here sampled ids are kept."""
