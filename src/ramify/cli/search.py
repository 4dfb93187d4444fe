"""`ramify search`: answer each question by a search within a budget, and show the support for the answer.

A search is a run like any other: its folder holds every tree, and an interrupted one goes on with `ramify resume`.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import OUTPUT, flag_group
from ramify.cli.options import (
    add_budget_flag,
    add_config_flags,
    add_json_flag,
    add_out_flag,
    add_track_flag,
    budgets,
    resolved,
)
from ramify.cli.terminal import Terminal, visible
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.config.run_config import RunConfig
    from ramify.core.tree import Tree
    from ramify.runner.answers import Answers
    from ramify.runner.report import RunReport

SCHEMA = "ramify.search/1"
MAX_SHOWN = 5
"""Different answers shown for each question."""
SUBJECTS = {"data.questions", "data.path", "task.name"}
"""Settings of which the user gives at least one: what to answer. A preset's task is an example, not a question."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "question", nargs="*", metavar="QUESTION", help="questions to answer instead of those of --data or the task"
    )
    add_config_flags(parser)
    add_budget_flag(parser)
    add_out_flag(parser)
    add_track_flag(parser)
    add_json_flag(parser)
    flag_group(parser, OUTPUT).add_argument(
        "--trees", action="store_true", help="with --json: add every node of every tree, with its q value"
    )


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.cli.data_read import DataRead
    from ramify.cli.rollout import run_folder
    from ramify.cli.running import grown_shown
    from ramify.cli.track import TrackedRun, tracked, tracked_kinds
    from ramify.runner import folder, saved

    if options.trees and not options.json:
        raise ConfigError("--trees: the trees are part of the JSON; add --json, or see `ramify show RUN 0`")
    kinds = tracked_kinds(options)
    config = configured(options)
    read = DataRead.of(config)
    for line in (*not_understood(config), *read.lines(unjudged="no answer is compared with a right one")):
        terminal.say(line)
    with (
        run_folder(options.out, config) as out,
        tracked(kinds, lambda: TrackedRun.of_folder(out), terminal) as tracker,
    ):
        shown = grown_shown(
            lambda progress: folder.begin(config, out, observers=[progress.observe, tracker.observe]),
            out,
            terminal,
            title=config.preset or config.strategy.name,
            num_trees=config.prompts,
            is_json=options.json,
        )
    if isinstance(shown, ExitCode):
        return shown
    report, code = shown
    saved = saved.Saved.trusted(out)
    found = list(saved.answers())
    if options.json:
        traces = map(tracer(config, has_trees=options.trees), saved.trees())
        answers = [{**each.as_dict(), **trace} for each, trace in zip(found, traces, strict=True)]
        data = {} if (told := read.as_dict()) is None else {"data": told}
        terminal.result(SCHEMA, {"run": str(out), **data, "answers": answers, **report.as_dict()})
    else:
        terminal.lines(lines(found, report))
    terminal.say(f"run: {out} | trees: ramify view {out}")
    return code


def configured(options: argparse.Namespace) -> "RunConfig":
    """The configuration of the command line.

    Raises `ConfigError`, also if nothing says what to answer.
    """
    flags: dict[str, Any] = {**budgets(options)}
    if options.question:
        flags |= {"data.questions": options.question, "prompts": len(options.question)}
    found = resolved(options, flags)
    if not any(name in SUBJECTS and not source.startswith("preset ") for name, source in found.sources.items()):
        raise ConfigError(
            "search: no question; give one (ramify search 'make 24 from 4 6 8 2'), --data FILE or --task NAME"
        )
    return found.config


def not_understood(config: "RunConfig") -> Iterator[str]:
    """A warning for each question that the shipped model was not trained to read."""
    if config.engine.name != "builtin" or config.engine.model is not None:
        return
    from ramify.engines.shipped import unknown_words

    for question in config.data.questions:
        if (words := unknown_words(question)) is not None:
            named = (
                f"it has never seen {', '.join(map(repr, words[:MAX_SHOWN]))}" if words else "there is no word in it"
            )
            yield (
                f"warning: {visible(question)!r}: the built-in model only plays countdown (make 24 from 4 6 8 2) and "
                f"answers hops; {named}, so its answer means nothing. Name a model: --engine openai --model NAME"
            )


def tracer(config: "RunConfig", *, has_trees: bool) -> "Callable[[Tree], dict[str, Any]]":
    """What else is told of each tree: the lists of its source, where the search is MCTSr, and its nodes if wanted."""
    from ramify.config.strategy_options import read_options
    from ramify.strategies.mctsr.config import MCTSrConfig
    from ramify.view import mctsr_trace, valued

    tellers: list[Callable[[Tree], dict[str, Any]]] = []
    if config.strategy.name == "mctsr":
        options, *_ = read_options(MCTSrConfig, config.strategy.options)
        assert options is not None
        tellers.append(lambda tree: mctsr_trace(tree, options).as_dict())
    if has_trees:
        tellers.append(lambda tree: {"tree": valued(tree, config.strategy).as_dict()})
    return lambda tree: {name: told for tell in tellers for name, told in tell(tree).items()}


def lines(found: "Sequence[Answers]", report: "RunReport") -> Iterator[str]:
    """The answer to each question with its support, then the cost of all."""
    for answers in found:
        given = "no answer" if answers.answer is None else visible(answers.answer)
        given += "  (unread: the format finds no answer in it)" if answers.is_unread else ""
        yield given if len(found) == 1 else f"{visible(answers.uid)}: {given}"
        for solution in answers.ranked[:MAX_SHOWN]:
            votes = f"{solution.num_votes} of {answers.num_candidates}"
            yield f"  {visible(solution.text):<24.60} score {solution.score:.3g}, {votes} candidates"
        if len(answers.ranked) > MAX_SHOWN:
            yield f"  … and {len(answers.ranked) - MAX_SHOWN} more different answers"
    cost = "" if report.dollars is None else f"{report.dollars:.4g} dollars, "
    yield (
        f"{report.decode_tokens} tokens sampled in {report.engine_calls} requests, context {report.prefill_uncached} "
        f"new, {report.prefill_cached} cached; {report.judge_calls} judgements, {report.tool_calls} tool calls, "
        f"{cost}{report.seconds:.1f} s"
    )
    if report.is_oracle:
        yield "a judge that knows the answers was used"
    for uid, reason in list(report.unfinished.items())[:MAX_SHOWN]:
        yield f"{visible(uid)}: {visible(reason)}"
