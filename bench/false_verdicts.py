"""False verdicts: how often chains are said to differ from chains, which they never do.

For each cell, many comparisons are simulated as `ramify compare` makes them: some problems, of each a pool of chains,
and of each one to three trees that are k independent chains. Problems are equally hard or differ (Beta). The interval
of the difference should hold 0; where it does not, the verdict is false. The percentile bootstrap that is often used
stands beside it. The aim is 6 % in every cell, within the noise of the simulation.

Run: python bench/false_verdicts.py [--repeats N] [--smoke]
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ramify.experiments.compare import Chain, ChainPool
from ramify.experiments.paired import paired_difference
from ramify.planner.interval import CONFIDENCE

PROBLEMS: Final = (4, 6, 10, 20, 30, 60, 100, 200, 300)
RATES: Final = (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98)
"""Share of right chains."""
CHAINS: Final = (1, 2, 5, 10, 23, 40)
SEEDS: Final = (1, 3)
SPREADS: Final = (math.inf, 2.0)
"""Of the Beta distribution of the rate over problems: all equal, and very different ones."""
TARGET: Final = 0.06
NUM_RESAMPLES: Final = 500
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One design of a comparison."""

    num_problems: int
    rate: float
    num_chains: int
    num_seeds: int
    spread: float

    def differences(self, repeats: int, rng: np.random.Generator) -> tuple[Doubles, Doubles]:
        """(repeats, problems) shares of trees that solved, and what the pool says of as many chains."""
        size = (repeats, self.num_problems)
        rates = np.full(size, self.rate)
        if math.isfinite(self.spread):
            rates = rng.beta(self.rate * self.spread, (1 - self.rate) * self.spread, size=size)
        pool = min(256, max(16, int(1.25 * self.num_chains) + 1))
        expected = expected_of(self.num_chains, pool)[rng.binomial(pool, rates)]
        return rng.binomial(self.num_seeds, 1 - (1 - rates) ** self.num_chains) / self.num_seeds, expected

    def false_verdicts(self, repeats: int, rng: np.random.Generator) -> float:
        """Share of the comparisons whose interval does not hold 0."""
        pairs = zip(*self.differences(repeats, rng), strict=True)
        return float(np.mean([paired_difference(own, chains).sign() != 0 for own, chains in pairs]))

    def by_bootstrap(self, repeats: int, rng: np.random.Generator) -> float:
        """The same of a percentile bootstrap."""
        tail = (1 - CONFIDENCE) / 2
        own, chains = self.differences(repeats, rng)
        picks = rng.integers(self.num_problems, size=(NUM_RESAMPLES, self.num_problems))
        low, high = np.quantile((own - chains)[:, picks].mean(axis=2), (tail, 1 - tail), axis=1)
        return float(np.mean((low > 0) | (high < 0)))


def expected_of(num_chains: int, pool: int) -> Doubles:
    """(pool + 1,) what `ChainPool` expects of `num_chains` chains if 0, 1, … of its chains are right."""
    chains = ChainPool(str.__eq__)
    for right in range(pool + 1):
        chains.add(str(right), [Chain(float(i < right), None, 1) for i in range(pool)])
    found = chains.expected(num_chains)
    return np.array([found[str(right)]["solved"] for right in range(pool + 1)])


def cells() -> Iterator[Cell]:
    for spread in SPREADS:
        for num_seeds in SEEDS:
            for num_chains in CHAINS:
                for rate in RATES:
                    for num_problems in PROBLEMS:
                        yield Cell(num_problems, rate, num_chains, num_seeds, spread)


def main() -> None:
    parser = argparse.ArgumentParser(description="chains against chains")
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--smoke", action="store_true", help="a few seconds, for the figures' form only")
    options = parser.parse_args()
    repeats, rng = 20 if options.smoke else options.repeats, np.random.default_rng(0)
    found = {cell: cell.false_verdicts(repeats, rng) for cell in cells()}
    boot = {cell: cell.by_bootstrap(min(repeats, 60), rng) for cell in cells() if cell.num_seeds == 1}
    noise = 3 * math.sqrt(TARGET * (1 - TARGET) / repeats)
    print(f"{len(found)} designs, {repeats} comparisons each; share of false verdicts, aim {TARGET:.0%}")
    for name in ("num_problems", "rate", "num_chains"):
        print(f"\n{name:>14}{'mean':>8}{'worst':>8}{'bootstrap: mean':>18}{'worst':>8}")
        for value in dict.fromkeys(getattr(cell, name) for cell in found):
            own = [share for cell, share in found.items() if getattr(cell, name) == value]
            other = [share for cell, share in boot.items() if getattr(cell, name) == value]
            print(f"{value:>14}{np.mean(own):8.3f}{max(own):8.3f}{np.mean(other):18.3f}{max(other):8.3f}")
    worst = max(found, key=lambda cell: found[cell])
    met = "met" if found[worst] <= TARGET + noise else "MISSED"
    print(f"\nworst: {found[worst]:.3f}, {worst}; target {TARGET} within the simulation's noise of {noise:.3f}: {met}")


if __name__ == "__main__":
    main()
