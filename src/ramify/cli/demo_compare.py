"""`ramify demo --compare`: whether to fork, asked of a pilot, and strategies compared at equal tokens.

Every strategy gets the same held-out problems and the same number of tokens to sample on each. The sentences below the
table are computed from its figures. The strategies and the pilot grow side by side in several processes, and each
strategy leaves a run folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.compare import MIXED, VS_CHAINS
from ramify.cli.exit_codes import ExitCode
from ramify.cli.terminal import Terminal, figure_table

if TYPE_CHECKING:
    from rich.table import Table

    from ramify.cli.side_by_side import Tell
    from ramify.config.run_config import RunConfig
    from ramify.planner.interval import Interval
    from ramify.runner.events import Observer
    from ramify.runner.report import RunReport

SCHEMA = "ramify.demo_compare/1"
NUM_PROBLEMS = 64
"""With 64 problems the three verdicts are those of the first 100."""
NUM_PROBLEMS_FAST = 8
NUM_PROBLEMS_PILOT = 24
NUM_TOKENS = 224
"""Decode tokens a problem: about eleven chains of the built-in model."""
SETTINGS = ("growth.max_response_tokens=256", "limits.decode={tokens}", "max_trees=64", "prompts={problems}")
NUM_SLOTS = 256
"""Of the built-in engine: enough for the forks of all trees in flight, so that few prefixes are computed again."""


@dataclass(frozen=True, slots=True)
class DemoContender:
    """One strategy of the comparison: a preset, and settings that make it spend all its tokens."""

    name: str
    title: str
    preset: str
    settings: tuple[str, ...]


CHAINS = ("strategy.options.n=4", "strategy.options.repeat=budget")
CONTENDERS = (
    DemoContender("chains", "independent chains", "chains", CHAINS),
    DemoContender("offline", "offline tree", "offline", ("strategy.options.expansion_iterations=1000",)),
    DemoContender(
        "online", "online tree (ARPO)", "arpo", ("strategy.options.n=64", "strategy.options.initial_rollouts=4")
    ),
    DemoContender("restart", "chains, dead ends restart", "chains", (*CHAINS, "growth.prune=task")),
)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one strategy."""

    report: "RunReport"
    solved: Mapping[str, float]
    """Problem uid -> 1.0 if any leaf was right."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The advice of the pilot, and the results of `CONTENDERS` in their order."""

    advice: Sequence[str]
    results: Sequence[Result]

    @property
    def baseline(self) -> Result:
        return self.results[0]

    def less_chains(self, result: Result) -> "Interval":
        """Solved problems of `result` minus those of the chains, paired by problem."""
        from ramify.experiments.paired import paired_difference

        uids = sorted(self.baseline.solved)
        own, chains = ([each.solved.get(uid, 0.0) for uid in uids] for each in (result, self.baseline))
        return paired_difference(own, chains, num_comparisons=len(CONTENDERS) - 1)


def compare(num_problems: int, num_tokens: int, settings: Sequence[str], out: Path, terminal: Terminal) -> Compared:
    """Grow the pilot and all contenders, with a bar. `settings` are for all runs."""
    from ramify.cli.progress import RunProgress
    from ramify.cli.side_by_side import SideBySide

    configs = [_config(each, num_problems, num_tokens, settings) for each in CONTENDERS]
    num_pilot = min(configs[0].prompts, NUM_PROBLEMS_PILOT)
    is_verbose = terminal.verbosity > 0
    runs = [partial(_grown, config, out / c.name, is_verbose) for c, config in zip(CONTENDERS, configs, strict=True)]
    jobs = SideBySide([partial(_advice, configs[0], num_pilot), *runs])
    num_trees = num_pilot + sum(config.prompts for config in configs)
    terminal.say(f"{configs[0].prompts} problems, {num_tokens} sampled tokens each, for {len(CONTENDERS)} strategies")
    with RunProgress(terminal, title="pilot and strategies", num_trees=num_trees) as progress:
        advice, *results = jobs.run(show=progress.show, say=progress.say)
    return Compared(advice, results)


def execute(
    num_problems: int, num_tokens: int, settings: Sequence[str], out: Path, terminal: Terminal, *, is_json: bool
) -> ExitCode:
    """Compare, and print what was found."""
    found = compare(num_problems, num_tokens, settings, out, terminal)
    if is_json:
        arms = [_values(each, result, found) for each, result in zip(CONTENDERS, found.results, strict=True)]
        terminal.result(SCHEMA, {"out": str(out), "advice": found.advice, "arms": arms})
    else:
        head = f"{len(found.baseline.solved)} held-out countdown problems, {num_tokens} sampled tokens for each"
        terminal.lines([*found.advice, "", head])
        terminal.whole(table(found, is_whole=terminal.verbosity > 0))
        terminal.lines([*findings(found), "", *_next(out)])
    return ExitCode.PARTIAL if any(result.report.failed_trees for result in found.results) else ExitCode.DONE


def table(found: Compared, *, is_whole: bool) -> "Table":
    """The table at equal decode tokens, with all figures if `is_whole`."""
    names = ("problems\nsolved", VS_CHAINS, "leaves", "tokens")
    more = ("reward", MIXED, "context new", "cached", "tools", "s") if is_whole else ()
    shown = figure_table("strategy", (*names, *more))
    for contender, result in zip(CONTENDERS, found.results, strict=True):
        report, difference = result.report, found.less_chains(result)
        interval = f"{difference.value:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"
        figures = (
            f"{report.mean_reward or 0:.2f}",
            f"{report.mixed_groups or 0:.0%}",
            str(report.prefill_uncached),
            str(report.prefill_cached),
            str(report.tool_calls),
            f"{report.seconds:.1f}",
        )
        shown.add_row(
            contender.title,
            f"{report.coverage or 0:.0%}",
            "" if result is found.baseline else interval,
            str(report.leaves),
            str(report.decode_tokens),
            *(figures if is_whole else ()),
        )
    return shown


def findings(found: Compared) -> Iterator[str]:
    """A sentence for each strategy but the first."""
    solved = {"more": "solves more problems", "fewer": "solves fewer problems", "equal": "no difference was shown"}
    yield ""
    for contender, result in zip(CONTENDERS[1:], found.results[1:], strict=True):
        ratio = result.report.leaves / max(found.baseline.report.leaves, 1)
        yield f"{contender.title}: {ratio:.1f}x the leaves, {solved[found.less_chains(result).word]}"
    yield "More leaves are not more solved problems. Run `ramify plan` before you choose a tree."


def _config(contender: DemoContender, num_problems: int, num_tokens: int, settings: Sequence[str]) -> "RunConfig":
    from ramify.config.configure import BUILTIN, resolve

    own = [text.format(tokens=num_tokens, problems=num_problems) for text in SETTINGS]
    config = resolve(preset=contender.preset, overrides=[*contender.settings, *own, *settings]).config
    if config.engine.name != BUILTIN:
        return config
    return replace(config, engine=replace(config.engine, options={"num_slots": NUM_SLOTS, **config.engine.options}))


def _advice(config: "RunConfig", num_problems: int, tell: "Tell") -> list[str]:
    """A job: the advice of a pilot on the same problems."""
    from ramify.cli.plan import advice, planned
    from ramify.cli.side_by_side import counted

    @contextmanager
    def watch(title: str, number: int) -> "Iterator[Observer]":
        yield counted(tell)

    made, flown = planned(config, num_problems=num_problems, aim="coverage", watch=watch)
    head = f"advice of a pilot ({num_problems} of the problems, samples of its own, {flown.decode} tokens):"
    return [head, *flown.caveats, *advice(made)]


def _grown(config: "RunConfig", out: Path, is_verbose: bool, tell: "Tell") -> Result:
    """A job: the run of one contender. It tells a line for the first fault of each kind, or for every phase."""
    from ramify.cli.progress import phase_line
    from ramify.cli.side_by_side import counted
    from ramify.runner import folder
    from ramify.runner.events import EngineFault, Event, Noticed, TreeClosed

    solved: dict[str, float] = {}
    faults: set[str] = set()

    def note(event: Event) -> None:
        if isinstance(event, TreeClosed):
            solved[event.tree.problem.uid] = float(1.0 in map(event.tree.reward, event.tree.leaves()))
        is_told = is_verbose
        if isinstance(event, EngineFault):
            is_told |= event.kind not in faults
            faults.add(event.kind)
        line = event.what if isinstance(event, Noticed) else phase_line(event) if is_told else None
        if line is not None:
            tell(f"{out.name}: {line}")

    report = folder.begin(config, out, observers=[note, counted(tell)])
    return Result(report, solved)


def _values(contender: DemoContender, result: Result, found: Compared) -> dict[str, object]:
    from ramify.experiments.paired import difference_dict

    less = None if result is found.baseline else difference_dict(found.less_chains(result))
    return {"name": contender.name, **result.report.as_dict(), "less_chains": less}


def _next(out: Path) -> list[str]:
    return [
        f"run folders: {out}/{{{','.join(each.name for each in CONTENDERS)}}}",
        "next:",
        f"  ramify view {out}  # all four in a browser, side by side",
        "  ramify plan --task herds --budget decode_tokens=224 --aim coverage  # a task where forks pay",
    ]
