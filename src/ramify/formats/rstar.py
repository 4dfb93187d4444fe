"""The `rstar` format: steps of words and code, whose code is run and its output shown (arXiv 2501.04519).

A step ends at one of three tags. One that closes a code block is carried out by the tool, which keeps the interpreter's
state by branch, and its output becomes the observation; one with a `boxed` answer ends the path. The format gives paths
up itself, by named reasons: `tool_errors` (so many errors in a row), `depth_limit` (more steps than allowed) and
`no_valid_step` (what the parser cannot read). How a step is read is a plug-in, and so is which answers mean the same.

Source: microsoft/rStar, branch rStar-math. What is corrected by default, each behind a switch: only closed blocks are
run, an error is what the tool calls one, and code that spells "boxed" is no answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, nearest
from ramify.core.format import Action, AnswerAction, IsSame, Span, ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import ToolCall, ToolStatus
from ramify.core.tool import ToolResult
from ramify.formats.steps import PARSERS, TAGS, StepParser, StepTags, last_step, unended_step
from ramify.formats.tags import OBSERVATIONS, placeholders, quoted, spans_of

ErrorMatch = Literal["status", "text"]
CodeContext = Literal["closed", "every_step"]

ERROR: Final = "error"
FAILED: Final[frozenset[ToolStatus]] = frozenset({"error", "timeout", "crashed", "refused"})


def _tail(observation: str) -> str:
    """The words behind what the code printed; '' = there are none."""
    last = spans_of(observation, {"text": ""})[-1]
    return last.text.strip() if last.is_trusted else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RStarOptions:
    """What a configuration says of a format of steps."""

    template: str = "<|user|>:\n{question}\n<|assistant|>:"
    """Opening context; control tokens may be spelt in it."""
    few_shot: str = ""
    """Solved examples in front of the opening, for models that were not trained to speak so."""
    tags: StepTags = TAGS
    observation: str = "\n<output>{text}<end_of_output>\n"
    """Around what the code printed."""
    tool: str = "python"
    """Name of the tool that runs the code."""
    errors_threshold: int = 2
    """Errors in a row that end a path, as published for sampling; 0 and 1 both end it at the first."""
    max_depth: int | None = 16
    """Most steps of a path (all published recipes: 16); a step more ends it. None = no limit of its own."""
    error_match: ErrorMatch = "status"
    """What an error is: the tool says so, or, as published, its text has the word "error" in any case."""
    code_context: CodeContext = "closed"
    """When code is run: once its block is closed, or, as published, the whole block again at every step of it, which
    shows errors early and the output only in the end. Published runs have a fresh interpreter: the tool's option
    `is_stateful = false`."""
    step_parser: str = field(default="tags", metadata={"names": "step_parser"})
    """Which parser reads a step: `tags`, `published` or `path/to/file.py:function` (`ramify.formats.steps`)."""
    answer_equivalence: str | None = field(default=None, metadata={"names": "equivalence"})
    """Which answers mean the same, for votes and exact judges: `text` or `path/to/file.py:function`; None = the task
    says it."""

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
    """Code of a block that is not closed: it is run, and nothing is shown of it."""


class RStar:
    """Speaks in steps. `step_parser` reads one, None = the parser the options name; `answer_equivalence` says which
    answers mean the same, None = the task does."""

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
        """The examples, then the template around the question, which is not trusted."""
        examples = [Span(self.options.few_shot, is_trusted=True)] if self.options.few_shot else []
        return [*examples, *quoted(self.options.template, (), problem.question, answer=self.answer)]

    def quote(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """As `TagFormat.quote`."""
        return quoted(template, contexts, problem.question, answer=self.answer)

    def read(self, run: str) -> Action | None:
        """What the parser makes of the last step; code of an open block is an action only if every step is run."""
        step = last_step(run, self.options.tags)
        action = self._parse(step)
        if not isinstance(action, ToolAction):
            return action
        if step.end == "code":
            return ToolAction(self.options.tool, action.arguments)
        return OpenBlock(self.options.tool, action.arguments) if self.options.code_context == "every_step" else None

    def observe(self, action: Action, result: ToolResult) -> Sequence[Span]:
        """What the code printed, which is not trusted; nothing while its block is open."""
        if isinstance(action, OpenBlock):
            return ()
        tool = action.tool if isinstance(action, ToolAction) else "invalid"
        return spans_of(self.options.observation, {"text": _shown(tool, result.status, result.text).strip()})

    def answer(self, response: str) -> str | None:
        """The answer in the last step; None = that is none, or holds none."""
        said = response.rpartition(_tail(self.options.observation))[2]
        for step in (last_step(said, self.options.tags), unended_step(said, self.options.tags)):
            action = self._parse(step)
            if isinstance(action, AnswerAction):
                return action.text or None
        return None

    def tools(self) -> Mapping[str, str]:
        return {self.options.tool: self.options.tags.code.strip("<>")}

    def give_up(self, branch: Branch) -> str | None:
        """Why a path ends behind its last step: a stop word and what happened; None = it goes on."""
        calls = branch.tool_calls
        if calls and calls[-1].status == "invalid":
            return f"no_valid_step: {calls[-1].result}"
        num_errors = self.consecutive_errors(calls)
        if num_errors and num_errors >= self.options.errors_threshold:
            return f"tool_errors: {num_errors} in a row"
        num_steps = len({piece.node for piece in branch.pieces if piece.segment.is_sampled})
        if self.options.max_depth is not None and num_steps > self.options.max_depth:
            return f"depth_limit: {num_steps} steps, {self.options.max_depth} are allowed"
        return None

    def consecutive_errors(self, calls: Sequence[ToolCall]) -> int:
        """Number of calls at the end of `calls` that were errors."""
        return consecutive_errors(calls, self.options.error_match)


def consecutive_errors(calls: Sequence[ToolCall], match: ErrorMatch = "status") -> int:
    """Number of calls at the end of `calls` that were errors, by the tool's word or by what its text says."""
    good = (number for number, call in enumerate(reversed(calls)) if not _is_error(call, match))
    return next(good, len(calls))


def _is_error(call: ToolCall, match: ErrorMatch) -> bool:
    if match == "status":
        return call.status in FAILED
    return ERROR in _shown(call.tool, call.status, call.result).lower()


def _shown(tool: str, status: ToolStatus, text: str) -> str:
    """What the model sees of a result. Silent code is no failure here: steps define what later ones use."""
    known = "ok" if status == "empty" else status
    return OBSERVATIONS[known].format(text=text, tag=tool)


AS_PUBLISHED: Final = RStarOptions(error_match="text", code_context="every_step", step_parser="published")
"""What rStar's solver does; its own default threshold is 0, its recipes sample with 2 and evaluate with 1."""
