"""Check of the golden of treequest's best-first search, played by the strategy through the driver."""

from typing import Any

import numpy as np
from tests.golden import abmcts

from ramify.strategies.best_first import AS_PUBLISHED, BestFirst, BestFirstConfig


def trace(given: abmcts.Input, mode: str | None) -> dict[str, Any]:
    config = BestFirstConfig(
        **abmcts.derived(given["actions"], len(given["scores"])),
        num_samples=given["num_samples"],
        pops=AS_PUBLISHED.pops,
    )
    search = BestFirst(config, np.random.default_rng(0))
    return {"expansions": abmcts.expansions(search, given)}
