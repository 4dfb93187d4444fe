"""A twentieth of everything fails, by seed; what must hold of a run holds all the same (`chaos.py`, `weather.py`).

In virtual time: four servers of one scripted model, two calculators (one that forks, one that is replayed), a judge.
Whether something fails follows from its seed or its words, so that a branch that nothing struck must come out exactly
as in a run without faults, and a run cut off anywhere as one that was not.
"""

import asyncio
import random
import re

import pytest
from tests.engines.breakable import Breakable
from tests.faults.chaos import Chaos, EngineFaults, ShakyCalculator, ShakyJudge, delay
from tests.faults.grown import Grown, common, faults, grown, shape
from tests.faults.weather import TROUBLES, Weather

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.engines.fleet.replicas import Replicas
from ramify.formats.arpo import arpo
from ramify.store.replay import Replayed, replay
from ramify.tasks.countdown import Countdown, CountdownJudge
from ramify.testing.clock import run_virtual
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn

NUM_TREES = [pytest.param(200, marks=pytest.mark.slow), pytest.param(500, marks=pytest.mark.endurance)]
NUM_TREES_CUT = 60
"""Of runs that are cut off, each of which is grown five times."""
NUM_SERVERS = 4
PRESETS: dict[str, dict[str, int]] = {
    "chains": {"n": 3},
    "offline": {"initial_rollouts": 2, "expansion_iterations": 1},
    "arpo": {"n": 4, "initial_rollouts": 2},
    "aepo": {"n": 4, "initial_rollouts": 2},
}
"""With options that keep trees small."""
TAGS = {"calculator": "calc", "abacus": "abacus"}


def player(turn: ScriptedTurn) -> str:
    """Take a step with one of the calculators, mostly an allowed one; answer when one number is left, or at a loss."""
    draw = random.Random(turn.seed)
    tag = draw.choice([*TAGS.values()])
    shown = re.findall(rf"</{tag}> <result>\n\d+ : ([\d ]+)\n|from ([\d ]+)", turn.context)
    left = "".join(shown[-1]).split() if shown else ["?"]
    if len(left) < 2 or draw.random() < 0.1:
        return f"<answer>{left[0]}</answer>"
    one, other = draw.sample(left, 2)
    return f"<{tag}>{one}{draw.choice('+*-')}{other}</{tag}>"


def config(preset: str, seed: int, num_trees: int) -> RunConfig:
    return resolve(
        preset=preset,
        flags={
            **{f"strategy.options.{name}": value for name, value in PRESETS[preset].items()},
            "prompts": num_trees,
            "seed": seed,
            "engine.name": "scripted",
            "growth.max_response_tokens": 320,
            "limits.decode": 250,
            "tools.deadline_s": 20.0,
            "tools.max_retries": 1,
            "tools.max_result_bytes": 400,
            "tools.max_parked": 50,
            "max_trees": 8,
            "max_failed_share": 1.0,
        },
    ).config


def calculators(chaos: Chaos) -> tuple[ShakyCalculator, ...]:
    return ShakyCalculator(chaos), ShakyCalculator(chaos, "abacus", "replay")


def in_chaos(
    preset: str, chaos: Chaos, num_trees: int, *, known: dict[int, Replayed] | None = None
) -> tuple[Grown, Weather]:
    """A run in virtual time that must leave nothing behind."""
    settings = config(preset, chaos.seed, num_trees)
    problems = Countdown().problems("heldout", num_trees, chaos.seed)
    tools = calculators(chaos)
    task = Countdown(format=arpo(TAGS), tools=tools, judges=(ShakyJudge(chaos, CountdownJudge()),))
    planned = EngineFaults(chaos, problems).planned()
    servers = [Breakable(player, faults=planned, delay=delay, version=0) for _ in range(NUM_SERVERS)]
    replicas = Replicas(servers)
    weather = Weather(chaos, replicas, servers)

    async def main() -> Grown:
        async with weather.around():
            found = await grown(settings, task=task, engine=replicas, problems=problems, known=known)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    found = run_virtual(main())
    assert not any(server.inner.num_active for server in servers)
    assert not any(tool.open_sessions for tool in tools)
    return found, weather


def calm(preset: str, seed: int, num_trees: int) -> Grown:
    """The same run, in which nothing fails."""
    problems = Countdown().problems("heldout", num_trees, seed)
    task = Countdown(format=arpo(TAGS), tools=calculators(Chaos(seed, share=0.0)))
    engine = Scripted(player, delay=delay)
    return run_virtual(grown(config(preset, seed, num_trees), task=task, engine=engine, problems=problems))


@pytest.mark.parametrize("num_trees", NUM_TREES)
@pytest.mark.parametrize(("preset", "seed"), [("chains", 1), ("offline", 1), ("arpo", 1), ("aepo", 2)])
def test_a_run_in_which_a_twentieth_of_everything_fails_is_sound(preset: str, seed: int, num_trees: int) -> None:
    print(f"preset {preset}, seed {seed}")  # noqa: T201 - what to repeat a failure with
    chaos = Chaos(seed)
    (found, weather), quiet = in_chaos(preset, chaos, num_trees), calm(preset, seed, num_trees)
    assert [*faults(found)] == []
    assert [*faults(quiet)] == []
    assert found.stops["engine_error"] > 0
    assert weather.seen.keys() == {*TROUBLES}
    assert all(stats.num_failed for stats in weather.replicas.stats)

    assert 0.1 * num_trees < len(chaos.problems) < num_trees
    for uid in found.trees.keys() - chaos.problems:
        assert shape(found.trees[uid]) == shape(quiet.trees[uid]), f"{uid} was not struck and differs"
    pairs = [*common(found, quiet, has_struck=chaos.has_struck)]
    assert len(pairs) > num_trees
    assert [pair for pair in pairs if not pair[0].is_like(pair[1])] == []


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["chains", "offline", "arpo"])
def test_such_a_run_cut_off_anywhere_goes_on_to_the_same_trees(preset: str) -> None:
    seed = 3
    print(f"preset {preset}, seed {seed}")  # noqa: T201 - what to repeat a failure with
    whole, _ = in_chaos(preset, Chaos(seed), NUM_TREES_CUT)
    for share in (0.02, 0.3, 0.7, 0.99):
        records = whole.store.records[: int(share * len(whole.store.records))]
        known = replay(records, whole.run.prepared.codec, whole.run.prepared.rules)
        done = {again.tree.problem.uid: again.tree for again in known.values() if again.is_closed}
        rest, _ = in_chaos(preset, Chaos(seed), NUM_TREES_CUT, known=known)
        assert set(done) | set(rest.trees) == set(whole.trees)
        for uid, tree in {**done, **rest.trees}.items():
            assert shape(tree) == shape(whole.trees[uid]), f"{uid} differs after a cut at {share}"
