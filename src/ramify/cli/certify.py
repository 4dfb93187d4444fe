"""`ramify certify`: whether a strategy with a credit is an exact policy gradient.

It runs the strategy on small decision problems with every probability known, grows all trees that it can make, and
compares the expectation of the estimator with the gradient. With `--expect`, another verdict is exit code 5.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.exit_codes import ExitCode
from ramify.cli.help_text import WHAT, flag_group
from ramify.cli.options import add_file_flag, add_json_flag
from ramify.cli.terminal import Terminal, visible

if TYPE_CHECKING:
    from ramify.experiments.certify import Certificate

MAX_TREES = 200_000
MAX_SECONDS = 60.0
NUM_SAMPLES = 10_000
NEEDED = {"exact": ("exact",), "scaled": ("exact", "scaled")}
"""`--expect` -> the verdicts that fulfil it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = flag_group(parser, WHAT)
    group.add_argument("--preset", metavar="NAME", help="a published setting; make its tree small with --set")
    strategy = "a built-in strategy or path/to/file.py:Class (default: chains)"
    group.add_argument("--strategy", metavar="NAME", help=strategy)
    group.add_argument("--credit", metavar="NAME", help="a credit or path/to/file.py:function (default: auto)")
    add_file_flag(parser)
    setting = "one setting, e.g. strategy.options.n=2; may be repeated"
    group.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help=setting)
    how = flag_group(parser, "how to check")
    problem = "binary3, ragged, ternary2 or path/to/file.py:function; may be repeated (default: those three)"
    how.add_argument("--problem", action="append", default=[], metavar="NAME", help=problem)
    reduction = (
        "how a trainer reduces rows: sum_over_constant, mean_over_rows, token_mean, sequence_mean or "
        "path/to/file.py:function"
    )
    how.add_argument("--trainer", metavar="REDUCTION", default="sum_over_constant", help=reduction)
    batch = "trees of a trainer's batch: one, or the limit of many"
    how.add_argument("--batch", choices=("one", "many"), default="one", help=batch)
    how.add_argument("--max-trees", type=int, default=MAX_TREES, metavar="N", help="enumerate up to N trees a problem")
    seconds = "enumerate, or sample, for at most S seconds a problem"
    how.add_argument("--max-seconds", type=float, default=MAX_SECONDS, metavar="S", help=seconds)
    samples = "trees to sample where they cannot be enumerated"
    how.add_argument("--samples", type=int, default=NUM_SAMPLES, metavar="N", help=samples)
    how.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the samples")
    expect = "exit with 5 unless every verdict is exact; scaled: or scaled by one factor"
    how.add_argument("--expect", choices=tuple(NEEDED), help=expect)
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.config.configure import resolve
    from ramify.experiments.certify import PROBLEMS, CertifyLimits, Subject, certify_credits, problem_named
    from ramify.experiments.certify.reductions import reduction_named
    from ramify.runner.rows import named_credit
    from ramify.runner.run_strategy import RunStrategy

    flags = {"strategy.name": options.strategy, "credit": options.credit, "preset": options.preset}
    config = resolve(
        folder=Path.cwd(),
        files=options.config,
        flags={path: value for path, value in flags.items() if value is not None},
        overrides=options.set,
    ).config
    limits = CertifyLimits(
        max_trees=options.max_trees, max_seconds=options.max_seconds, num_samples=options.samples, seed=options.seed
    )
    subject = Subject(config, RunStrategy.of(config), reduction_named(options.trainer), options.batch)
    problems = [problem_named(name) for name in options.problem or PROBLEMS]
    found: list[Certificate] = []
    for problem in problems:
        found += certify_credits(subject, [named_credit(config.credit)], problem, limits=limits)
    if options.json:
        terminal.result("ramify.certify/1", {"certificates": [each.as_dict() for each in found]})
    else:
        terminal.lines(map(visible, lines(found)))
    is_missed = options.expect is not None and any(each.verdict not in NEEDED[options.expect] for each in found)
    return ExitCode.CHECK if is_missed else ExitCode.DONE


def lines(certificates: "Sequence[Certificate]") -> Iterator[str]:
    """What is printed of the certificates of one strategy with one credit."""
    first = certificates[0]
    batch = "" if first.batch == "one" else ", many trees a batch"
    yield f"strategy {first.strategy}, credit {first.credit}, {first.reduction}{batch}"
    width = max(len(each.problem) for each in certificates)
    for each in certificates:
        yield f"{each.problem:{width}}  {each.text}"
        yield f"{'':{width}}  {each.tested}"
    notes = dict.fromkeys(note for one in certificates for note in one.notes if note not in one.text)
    yield from (f"note: {each}" for each in notes)
    reasons = list(dict.fromkeys(reason for one in certificates for reason in one.reasons))
    yield from (f"the rows say: {reason}" for reason in reasons)
    if not reasons and all(each.verdict != "refused" for each in certificates):
        yield "the rows say that they are exact if they are summed and divided by a constant"
    if wrong := [each.problem for each in certificates if each.is_contradicted]:
        yield f"they are wrong on {', '.join(wrong)}: give the strategy a post_hoc_reason, or repair its shares"
