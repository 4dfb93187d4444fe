"""Running: what `rollout` and `resume` show while a run grows and when it ends."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.cli.exit_codes import ExitCode, code_of_error, code_of_report, words_of
from ramify.cli.progress import RunProgress
from ramify.cli.terminal import Terminal, visible
from ramify.core.errors import EngineUnusable, RamifyError
from ramify.core.stop import stop_word
from ramify.engines.fleet.replica import ReplicaStats
from ramify.runner.report import EngineReport, RunReport
from ramify.runner.scheduler import NothingAnswered
from ramify.store.commit import GONE

if TYPE_CHECKING:
    from ramify.runner.build import Measured
    from ramify.runner.events import Observer

SCHEMA = "ramify.rollout/1"
ERROR_SCHEMA = "ramify.error/1"
MAX_FAULTS_SHOWN = 5


def run_shown(
    grow: Callable[[RunProgress], RunReport],
    out: Path,
    terminal: Terminal,
    *,
    title: str,
    num_trees: int,
    is_json: bool,
    data: Mapping[str, Any] | None = None,
) -> ExitCode:
    """Grow a run under a progress bar, then print its results and the next command. `data` is told in the JSON."""
    shown = grown_shown(grow, out, terminal, title=title, num_trees=num_trees, is_json=is_json)
    if isinstance(shown, ExitCode):
        return shown
    report, code = shown
    if is_json:
        terminal.result(SCHEMA, {"run": str(out), **({} if data is None else {"data": data}), **report.as_dict()})
    else:
        terminal.lines(summary(report))
    _say_next(report, out, terminal)
    return code


def grown_shown(
    grow: Callable[[RunProgress], RunReport],
    out: Path,
    terminal: Terminal,
    *,
    title: str,
    num_trees: int,
    is_json: bool,
) -> tuple[RunReport, ExitCode] | ExitCode:
    """Grow a run under a progress bar. Returns its report and exit code; no report if the run did not end."""
    progress = RunProgress(terminal, title=title, num_trees=num_trees)
    try:
        with progress:
            report = grow(progress)
    except RamifyError as error:
        code = code_of_error(error)
        is_unusable = isinstance(error, EngineUnusable | NothingAnswered)
        if code is not ExitCode.SAVED and not is_unusable:
            raise
        is_gone = isinstance(error.__cause__, OSError) and error.__cause__.errno == GONE
        then = _unusable(out) if is_unusable else "" if is_gone else _saved(out)
        said = words_of(error)
        terminal.fault(f"{said}\n{then}" if then else said)
        if is_json:
            terminal.result(ERROR_SCHEMA, {"error": said, "exit_code": int(code), "faults": progress.faults})
        return code
    except KeyboardInterrupt:
        terminal.fault(f"interrupted\n{_saved(out)}" if _has_begun(out) else "interrupted before the run began")
        return ExitCode.INTERRUPTED
    code = code_of_report(report)
    if code is ExitCode.ENVIRONMENT:
        terminal.fault(_why_nothing(report, out))
    return report, code


def _why_nothing(report: RunReport, out: Path) -> str:
    """Why a run sampled nothing, for the person who began it."""
    if report.faults or not report.stop_words:
        return f"nothing was sampled; {out / 'log.jsonl'} has every fault of an engine"
    ended = ", ".join(f"{word} ({stop_word(word).when})" for word in report.stop_words)
    return f"nothing was sampled: before the first token, every path ended by {ended}"


@contextmanager
def measured(port: int | None, terminal: Terminal, *, agent: str) -> "Iterator[tuple[list[Observer], Measured | None]]":
    """The observers and the engines' measuring of a run whose metrics are served; none without a port."""
    if port is None:
        yield [], None
        return
    from ramify.telemetry.telemetry import Telemetry, TelemetryConfig

    with closing(Telemetry(TelemetryConfig(agent=agent))) as telemetry:
        terminal.say(f"metrics: {telemetry.serve_metrics(port)}")
        yield [telemetry.observe], telemetry.in_front_of


def summary(report: RunReport) -> list[str]:
    """The results of a run, in a few lines."""
    first, *others = totals(report)
    lines = [f"{first} in {report.seconds:.1f} s", *others]
    for name, engine in report.engines.items():
        lines += _engine(name, engine)
    if report.failed_leaves:
        lines.append(f"failed paths: {report.failed_leaves}")
    if report.faults:
        lines.append(f"faults of engines: {', '.join(f'{kind} {number}' for kind, number in report.faults.items())}")
    faults = list(report.unfinished.items())
    lines += [f"tree {visible(uid)}: {visible(reason)}" for uid, reason in faults[:MAX_FAULTS_SHOWN]]
    if len(faults) > MAX_FAULTS_SHOWN:
        lines.append(f"… and {len(faults) - MAX_FAULTS_SHOWN} more unfinished trees")
    return lines


def totals(report: RunReport) -> list[str]:
    """What the trees of a run came to."""
    return [
        f"{report.trees} trees, {report.leaves} leaves, {report.turns} turns",
        f"tokens {report.decode_tokens} sampled; context {report.prefill_uncached} new, {report.prefill_cached} cached",
        f"tool calls: {report.tool_calls}",
        *(() if report.dollars is None else (f"cost: {report.dollars:.4g} dollars",)),
        f"reward: {_rewards(report)}",
        f"ended by: {', '.join(f'{word} {number}' for word, number in report.stop_words.items()) or 'nothing'}",
    ]


def _engine(name: str, engine: EngineReport) -> Iterator[str]:
    """One of several engines, or one of several replicas."""
    actions = f" ({', '.join(engine.actions)})" if engine.actions != (name,) else ""
    yield f"engine {name}{actions}: {engine.requests} requests, {engine.retries} retries, {engine.waits} waits"
    yield from map(_replica, engine.replicas)


def _replica(stats: ReplicaStats) -> str:
    why = f": {visible(stats.fault)}" if stats.fault and stats.state != "busy" else ""
    state = "" if stats.state == "ready" else f"; {stats.state}{why}"
    return (
        f"  {visible(stats.name)}: {stats.num_requests} requests, {stats.num_failed} failed, {stats.num_spills} "
        f"spilled; context {stats.prefill_uncached} new, {stats.prefill_cached} cached{state}"
    )


def _rewards(report: RunReport) -> str:
    if report.mean_reward is None:
        return "no leaf was judged"
    oracle = ", by an oracle" if report.is_oracle else ""
    return (
        f"mean {report.mean_reward:.3f}, solved {_percent(report.coverage)} of problems, "
        f"groups with both right and wrong answers {_percent(report.mixed_groups)}{oracle}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _has_begun(out: Path) -> bool:
    return out.is_dir() and any(out.iterdir())


def _saved(out: Path) -> str:
    return f"finished work is saved; continue with: ramify resume {out}"


def _unusable(out: Path) -> str:
    return f"{out} holds the log; begin again with other settings, or continue with these: ramify resume {out}"


def _say_next(report: RunReport, out: Path, terminal: Terminal) -> None:
    if report.failed_trees:
        terminal.say(f"{report.failed_trees} trees are unfinished; `ramify show {out}` says which")
    terminal.say(f"run: {out}")
    terminal.say(f"look: ramify view {out} | rows: ramify export {out} --to jsonl --out rows.jsonl")
