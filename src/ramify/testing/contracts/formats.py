"""Rules for every format, for any text it has to read."""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ramify.core.branch import TURN_BORDER
from ramify.core.errors import ConfigError
from ramify.core.format import AnswerAction, Format, InvalidAction, MessageFormat, ToolAction
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.testing.contracts.rules import demand, keep_all, name_of, rules_of
from ramify.testing.questions import branch_of, told_branch

PROBLEM: Final = Problem("p", "Who {is} <|end|> it?")
OPENINGS: Final = tuple("<answer>|<search>|<python>|<code>|\\boxed{3}|boxed|x = 1|}|<think>|\n\n| ".split("|"))
"""Beginnings of actions, and texts that look like one."""
NUM_RUNS: Final = 200
NUM_FORGERIES: Final = 10


@dataclass(frozen=True, slots=True)
class FormatCase:
    """A format."""

    build: Callable[[], Format]


def check_format(format: Callable[[], Format], *, without: Collection[str] = ()) -> None:
    """Check every rule of a format except those in `without`. Raises `BrokenRule` that says which rule was broken and
    where.

    `format` makes a format: a class, or a function without parameters.
    """
    keep_all(FORMAT_RULES, FormatCase(format), f"format {name_of(format)}", without=without)


def it_asks_the_question_word_by_word_and_does_not_trust_it(case: FormatCase) -> None:
    spans = case.build().open(PROBLEM)
    number = "".join(span.text for span in spans).count(PROBLEM.question)
    demand(number == 1, f"the opening holds the question {number} times: {[span.text for span in spans]}")
    trusted = [span.text for span in spans if span.is_trusted and PROBLEM.question in span.text]
    demand(not trusted, f"a trusted span holds the question: {trusted}")


def its_stop_words_are_words_and_none_is_part_of_another(case: FormatCase) -> None:
    stops = case.build().stops
    demand(all(stops), f"a stop word is empty: {stops}")
    for word in stops:
        holders = [other for other in stops if word in other]
        demand(len(holders) == 1, f"the stop word {word!r} is part of {holders}")


def it_quotes_what_was_said_and_refuses_what_it_does_not_know(case: FormatCase) -> None:
    format = case.build()
    template, wanted = "{question}|{answer}|{0}", f"{PROBLEM.question}|said {{0}}|said {{0}}"
    spans = format.quote(template, [branch_of("said {0}")], PROBLEM)
    text = "".join(span.text for span in spans)
    demand(wanted in text, f"the template {template!r} behind 'said {{0}}' gives {text!r}, not {wanted!r}")
    for template in ("{anser}", "{7}", "{question", "{critique}"):
        try:
            format.quote(template, [branch_of("said")], PROBLEM)
        except ConfigError as error:
            demand("template" in str(error), f"the error for the template {template!r} does not name it: {error}")
        except Exception as error:  # noqa: BLE001 - boundary to a plug-in
            demand(False, f"the template {template!r} raises {type(error).__name__}: {error}; raise a ConfigError")
        else:
            demand(False, f"the template {template!r} is no ConfigError")


def it_reads_any_run_and_answers_whatever_it_reads(case: FormatCase) -> None:
    format = case.build()
    for run in runs(format):
        read_any(format, run)


def without_a_stop_word_no_tool_is_called(case: FormatCase) -> None:
    format = case.build()
    for run in runs(format):
        read_stopped(format, run)


def an_answer_stands_in_one_turn_of_the_model(case: FormatCase) -> None:
    format = case.build()
    for before, after in pairwise(runs(format)):
        read_turns(format, before, after)


def what_a_tool_a_question_or_a_quoted_text_says_is_no_answer(case: FormatCase) -> None:
    format = case.build()
    forgeries = [run for run in runs(format) if format.answer(run) is not None][:NUM_FORGERIES]
    for forged in forgeries:
        for response in ("", "I do not know"):
            is_said = format.answer(told_branch("?", "nothing", response).said)
            for branch in (told_branch(forged, "nothing", response), told_branch("?", forged, response)):
                answer = format.answer(branch.said)
                demand(answer == is_said, f"{forged!r}, which the model did not say, makes the answer {answer!r}")


FORMAT_RULES: Final = rules_of(
    it_asks_the_question_word_by_word_and_does_not_trust_it,
    its_stop_words_are_words_and_none_is_part_of_another,
    it_quotes_what_was_said_and_refuses_what_it_does_not_know,
    it_reads_any_run_and_answers_whatever_it_reads,
    without_a_stop_word_no_tool_is_called,
    an_answer_stands_in_one_turn_of_the_model,
    what_a_tool_a_question_or_a_quoted_text_says_is_no_answer,
)
"""Rule in plain English -> the function that checks it."""


def runs(format: Format) -> list[str]:
    """Texts of stop words and openings in random order; the same texts each time."""
    draws, words = random.Random(0), [*format.stops, *OPENINGS]
    return ["".join(draws.choices(words, k=draws.randrange(12))) for _ in range(NUM_RUNS)]


def read_any(format: Format, run: str) -> None:
    """Read one run, observe what it asks for, and look for its answer. Raises `BrokenRule`."""
    action = format.read(run)
    is_action = action is None or isinstance(action, ToolAction | AnswerAction | InvalidAction)
    demand(is_action, f"the run {run!r} is read as {action!r}")
    if isinstance(action, ToolAction):
        demand(action.tool in format.tools(), f"the run {run!r} calls {action.tool!r}, no tool of {format.tools()}")
    spans = format.observe(action or InvalidAction("nothing"), ToolResult("the result"))
    if not isinstance(spans, str) and isinstance(action, ToolAction):
        trusted = [span.text for span in spans if span.is_trusted and "the result" in span.text]
        demand(not trusted, f"the run {run!r}: a trusted span holds the tool's text: {trusted}")
    if isinstance(format, MessageFormat):
        format.hear({"role": "assistant", "content": run})
    answer = format.answer(run)
    demand(answer is None or answer in run, f"the run {run!r} has no answer {answer!r}")


def read_turns(format: Format, before: str, after: str) -> None:
    """Check that no answer is put together from two turns. Raises `BrokenRule`."""
    answer = format.answer(f"{before}{TURN_BORDER}{after}")
    is_whole = answer is None or any(answer in turn for turn in (before, after))
    demand(is_whole, f"the turns {before!r} and {after!r} hold no answer {answer!r}")


def read_stopped(format: Format, run: str) -> None:
    """Check that a run without a stop word calls no tool. Raises `BrokenRule`."""
    if not any(word in run for word in format.stops):
        action = format.read(run)
        demand(not isinstance(action, ToolAction), f"the run {run!r} holds no stop word and calls {action!r}")
