"""Certified: which strategies are an exact policy gradient with which credits, found by enumeration.

`python -m tests.certified` (`make certify`) certifies small trees of the presets for training with every credit, on the
built-in decision problems, and writes the tables of docs/choose/certified.md. It takes about two minutes on two cores.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ramify.config.configure import resolve
from ramify.credit import CREDITS
from ramify.experiments.certify import (
    PROBLEMS,
    REDUCTIONS,
    Certificate,
    CertifyLimits,
    Subject,
    certify_credits,
    problem_named,
)
from ramify.experiments.certify.reductions import SUM, Batch, reduction_named
from ramify.runner.run_strategy import RunStrategy

PAGE = Path(__file__).parents[1] / "docs" / "choose" / "certified.md"
MARKS = ("<!-- certified: make certify -->\n", "<!-- end of certified -->\n")
LIMITS = CertifyLimits(max_trees=20_000, max_seconds=600.0)


@dataclass(frozen=True, slots=True)
class Shape:
    """A small tree of a preset."""

    preset: str
    options: str
    """`key=value` of the strategy, as `--set strategy.options.key=value` takes them."""

    def subject(self, reduction: str = SUM, batch: Batch = "one") -> Subject:
        overrides = [f"strategy.options.{each}" for each in self.options.split()]
        config = resolve(preset=self.preset, overrides=overrides, is_small=False).config
        return Subject(config, RunStrategy.of(config), reduction_named(reduction), batch)

    @property
    def text(self) -> str:
        return f"| `{self.preset}` | {', '.join(f'`{each}`' for each in self.options.split())} |"


SHAPES = (
    Shape("chains", "n=2"),
    Shape("planned", "children=[2,1.5]"),
    Shape("planned", "children=[1,2,0.5]"),
    Shape("spo", "branching=[2,2] segment_tokens=1"),
    Shape("treerpo", "branching=[1,2,2] segment_tokens=1"),
    Shape("arpo", "n=3 initial_rollouts=2"),
    Shape("arpo", 'n=3 initial_rollouts=2 restart="none"'),
    Shape("aepo", 'n=3 initial_rollouts=2 restart="none"'),
    Shape("offline", "initial_rollouts=2 expansion_iterations=1"),
    Shape("offline", 'initial_rollouts=2 expansion_iterations=1 commit="before" max_depth=2'),
    Shape("tree_grpo", "num_trees=1 num_nodes=1"),
    Shape("treerl", "stems=1 forks=1 continuations=2"),
    Shape("treerl", 'stems=2 forks=1 continuations=1 fork="after"'),
    Shape("treepo", "width=3 segment_tokens=1 max_depth=3 first_divergence=[2,2]"),
    Shape("treepo", 'width=3 segment_tokens=1 max_depth=3 first_divergence=[2,2] fallback="none"'),
    Shape("at2po", "initial_rollouts=2 expansion_iterations=1 expansion_nodes=1"),
    Shape("deepsearch", "n=2 width=2 segment_tokens=1 max_depth=4"),
)
TRAINED = (SHAPES[0], SHAPES[1], SHAPES[6])
"""Shapes of the table of reductions."""


def certified(shape: Shape, problem: str) -> list[Certificate]:
    """A certificate for each credit."""
    return certify_credits(shape.subject(), list(CREDITS), problem_named(problem), limits=LIMITS)


def reduced(shape: Shape, reduction: str, batch: Batch) -> list[Certificate]:
    """A certificate for each problem, with the credit `auto`."""
    subject = shape.subject(reduction, batch)
    return [certify_credits(subject, ["auto"], each, limits=LIMITS)[0] for each in PROBLEMS.values()]


def overall(certificates: Iterable[Certificate]) -> str:
    """The verdict that holds on all problems."""
    found = [each.verdict for each in certificates]
    order = ("refused", "biased", "untested", "scaled", "exact")
    return next(verdict for verdict in order if verdict in found)


def credits_table(found: Mapping[Shape, Sequence[Sequence[Certificate]]]) -> str:
    """Which credits are exact, scaled and refused on trees of each shape; all others are biased."""
    lines = ["| preset | tree | trees | exact | scaled | refused |", "|---|---|---|---|---|---|"]
    for shape, by_problem in found.items():
        verdicts: dict[str, list[str]] = {}
        for of_credit in zip(*by_problem, strict=True):
            verdicts.setdefault(overall(of_credit), []).append(f"`{of_credit[0].credit}`")
        trees = sum(certificates[0].num_trees for certificates in by_problem)
        cells = (", ".join(verdicts.get(verdict, ())) or "none" for verdict in ("exact", "scaled", "refused"))
        lines.append(f"{shape.text} {trees:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def reductions_table(found: Mapping[tuple[Shape, str, Batch], Sequence[Certificate]]) -> str:
    """What a trainer's reduction makes of rows that are exact."""
    names = list(PROBLEMS)
    lines = [f"| preset | tree | reduction | trees a batch | {' | '.join(names)} |", "|---" * (4 + len(names)) + "|"]
    for (shape, reduction, batch), certificates in found.items():
        cells = (each.text.partition(" (")[0] for each in certificates)
        lines.append(f"{shape.text} `{reduction}` | {batch} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def reductions() -> list[tuple[Shape, str, Batch]]:
    batches: Mapping[str, tuple[Batch, ...]] = {SUM: ("one",)}
    return [(s, name, batch) for s in TRAINED for name in REDUCTIONS for batch in batches.get(name, ("one", "many"))]


def tables() -> str:
    """Both tables, with what stands around them."""
    pairs = [(shape, problem) for shape in SHAPES for problem in PROBLEMS]
    with ProcessPoolExecutor(2) as pool:
        certificates = iter(list(pool.map(certified, *zip(*pairs, strict=True))))
        by_reduction = dict(zip(reductions(), pool.map(reduced, *zip(*reductions(), strict=True)), strict=True))
    by_shape = {shape: [next(certificates) for _ in PROBLEMS] for shape in SHAPES}
    return (
        f"## Which credits are exact for which trees\n\n{credits_table(by_shape)}\n"
        f"## What a trainer's reduction does\n\n{reductions_table(by_reduction)}"
    )


def parts_of_page() -> tuple[str, str, str]:
    """The page before its tables, the tables, and what follows."""
    before, _, rest = PAGE.read_text("utf-8").partition(MARKS[0])
    made, _, after = rest.partition(MARKS[1])
    return before, made, after


def main() -> int:
    before, _, after = parts_of_page()
    PAGE.write_text(f"{before}{MARKS[0]}\n{tables()}\n{MARKS[1]}{after}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
