"""Under ordered delivery the tree does not depend on what finishes first, also where a budget binds."""

import random
from functools import cache
from pathlib import Path

import pytest

from ramify.config.configure import resolve
from ramify.core.limits import Limits
from ramify.rows.jsonl import write
from ramify.runner.library import Rollout, rollout
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn

PRESETS = ("chains", "offline", "offline_as_published", "arpo", "aepo")
LIMITS = {"none": Limits(), "decode": Limits(decode=900), "leaves": Limits(leaves=5), "calls": Limits(tool_calls=6)}


@cache
def grown(preset: str, limits: Limits, *, shuffle: int) -> Rollout:
    draw = random.Random(shuffle)
    config = resolve(preset=preset, flags={"prompts": 4, "seed": 5, "growth.max_response_tokens": 160}).config

    def delay(turn: ScriptedTurn) -> Delay:
        return Delay(call_s=draw.uniform(0.01, 10.0))

    fields = {name: getattr(config, name) for name in config.__dataclass_fields__} | {"limits": limits}
    return run_virtual(rollout(config=type(config)(**fields), engine=Scripted(delay=delay)))


@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("preset", PRESETS)
def test_permuted_completion_times_give_the_same_bytes(tmp_path: Path, preset: str, limits: str) -> None:
    exports = []
    for shuffle in range(4):
        out = tmp_path / f"{shuffle}.jsonl"
        write(grown(preset, LIMITS[limits], shuffle=shuffle).rows(), out)
        exports.append(out.read_bytes())
    assert len(set(exports)) == 1


@pytest.mark.parametrize("name", [n for n in LIMITS if n != "none"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_budget_is_never_overrun(preset: str, name: str) -> None:
    limits = LIMITS[name]
    for tree in grown(preset, limits, shuffle=0).trees:
        spent = tree.spent()
        for counter, limit in limits.counted().items():
            assert sum(getattr(s, counter) for s in spent.values()) <= limit
