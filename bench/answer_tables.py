"""The tables of docs/choose/measured.md: every search within equal budgets, beside it the best of n by the same judge.

A search has two parts: the judge that it goes by, and the way in which it spends its tokens. `best_of_n_by_steps` and
`best_of_n_by_grade` sample whole answers and pick by the judge of steps, or by the model's own grade, that the searches
above them were steered by. What a search has beyond that is its own; what it has beyond chains may be the judge's. The
judge of steps samples nothing; tokens of grades are within the budget.

Run: python bench/answer_tables.py [--problems 100] [--seeds 3] [--smoke] [--plots docs]
"""

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported: see `engines.builtin`

from ramify.cli.main import main as ramify
from ramify.experiments.paired import paired_difference
from ramify.planner.interval import Interval

STEPS, GRADE = "best_of_n_by_steps", "best_of_n_by_grade"
CHECKED: Final = ("chains", "self_consistency", "best_of_n", "reject")
"""The calculator shows whether their answers to countdown are right."""
BY_GRADE: Final = (GRADE, "refine_chain", "mctsr", "mathblackbox", "ab_mcts", "best_first")
BY_STEPS: Final = (
    *(STEPS, "beam", "rstar_beam", "dvts", "rebase", "particle_filter", "mcts", "rstar_mcts", "tot", "lats", "rap"),
)
TASKS: Final[Mapping[str, Sequence[str]]] = {
    "countdown": (*CHECKED, *BY_GRADE, *BY_STEPS),
    "hops": ("chains", "self_consistency", *BY_STEPS),
}
"""The built-in model learnt to grade countdown only."""
FILES: Final = {
    STEPS: """preset = "best_of_n"
strategy.options.judge = "process"
judges.process.kind = "value"
""",
    GRADE: """preset = "best_of_n"
strategy.options = { judge = "grade", in_flight = 1 }
judges.grade = { kind = "llm", options = { mode = "self_reward", max_replies = 3 } }

[actions.grade]
edge = "quotes"
role = "judge"
template = "<|user|>attempt : {answer} {question} grade<|end|><|assistant|>"
""",
}
"""The judges of the searches, as their presets have them for the built-in model."""
COLUMNS: Final = (
    *("preset", "right", "vs chains, 95% together", "vs best of n by its judge", "coverage", "majority", "candidates"),
    *("tokens", "context new", "judgements", "requests", "unspent"),
)


def contender(name: str, folder: Path) -> str:
    """What `--presets` calls a contender; a best of n by a judge of searches gets its file."""
    if name not in FILES:
        return name
    (folder / f"{name}.toml").write_text(FILES[name], "utf-8")
    return str(folder / f"{name}.toml")


def lines_of(task: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What `ramify eval --json` tells of a task, a line a preset and budget."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        names = [contender(name, Path(folder)) for name in TASKS[task]]
        arguments = ["eval", "--json", "--presets", ",".join(names), "--task", task]
        arguments += [
            "--budget",
            f"decode_tokens={options.budgets}",
            "--problems",
            str(options.problems),
            "--seeds",
            str(options.seeds),
        ]
        if options.plots is not None:
            arguments += ["--plot", str(options.plots / f"eval-{task}.svg")]
        if code := ramify(arguments):
            sys.exit(code)
    found = json.loads(said.getvalue())["lines"]
    return [{**each, "name": Path(each["name"]).stem} for each in found]


def same_judge(line: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> Interval | None:
    """A search less the best of n by its judge; None = it is no search, or there is none."""
    peer = next((of[0] for of in (BY_GRADE, BY_STEPS) if line["name"] in of[1:]), None)
    if peer not in others:
        return None
    own, best = line["by_problem"], others[peer]["by_problem"]
    number = sum(name in others for of in (BY_GRADE, BY_STEPS) for name in of[1:])
    return paired_difference([*own.values()], [best[uid] for uid in own], num_comparisons=number)


def told(difference: Interval | None) -> str:
    if difference is None:
        return ""
    text = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"**{text}**" if difference.sign() else text


def row(line: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> str:
    less = line["less_first"]
    chains = None if less is None else Interval(less["mean"], less["low"], less["high"])
    cells = (
        f"`{line['name']}`",
        f"{line['returned']:.1%}",
        told(chains),
        told(same_judge(line, others)),
        f"{line['covered']:.1%}",
        f"{line['by_vote']['majority']:.1%}",
        f"{line['candidates']:.1f}",
        f"{line['decode']:.0f}",
        f"{line['prefill_uncached']:.0f}",
        f"{line['judge_calls']:.1f}",
        f"{line['engine_calls']:.1f}",
        f"{line['unspent']:.0%}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="searches beside the best of n by their judges")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budgets", default="112,224", help="sampled tokens a problem")
    parser.add_argument("--plots", type=Path, help="a folder for a plot of each task")
    parser.add_argument("--smoke", action="store_true", help="one problem, seed and budget, for the form only")
    options = parser.parse_args()
    if options.smoke:
        options.problems, options.seeds, options.budgets = 1, 1, "112"
    for task in TASKS:
        lines = lines_of(task, options)
        for budget in dict.fromkeys(line["budget"] for line in lines):
            at = {line["name"]: line for line in lines if line["budget"] == budget}
            print(f"\n{task}, within {budget:g} sampled tokens a problem:\n")
            print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
            for line in at.values():
                print(row(line, at), flush=True)


if __name__ == "__main__":
    main()
