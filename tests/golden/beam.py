"""Checks of the goldens of beams, DVTS and particle filters: the strategies played on scripts of steps and scores."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.strategies.world import Journey, ListDraws, path_text, text_step, varied

from ramify.core.command import Grow, Judge
from ramify.core.growth import Scored
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Delivered, Start
from ramify.strategies.beam import AS_PUBLISHED, ITS_AS_PUBLISHED, Beam, BeamConfig
from ramify.strategies.dvts import AS_PUBLISHED as DVTS_AS_PUBLISHED
from ramify.strategies.dvts import DVTS, DVTSConfig
from ramify.strategies.particle_filter import AS_PUBLISHED as PARTICLES_AS_PUBLISHED
from ramify.strategies.particle_filter import ParticleFilter, ParticleFilterConfig, log_odds
from ramify.strategies.parts.draws import Draws
from ramify.strategies.parts.levels import LOOKAHEAD, Level, LevelSearch
from ramify.strategies.parts.paths import LevelPath
from ramify.strategies.parts.survivors import tiled

Input = Mapping[str, Any]


class ScriptedSteps:
    """The i-th request at a text gets its entry i mod their number; greedy ones get the first and count for nothing."""

    def __init__(self, script: Mapping[str, Sequence[str]]) -> None:
        self._script = script
        self._num_asked: Counter[str] = Counter()

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        before, found = path_text(tree, start.place.parent), list[Step]()
        is_greedy = start.command.action == LOOKAHEAD
        while not found or (start.command.until == "end" and found[-1].stop is None):
            entries = self._script[before]
            said = entries[0 if is_greedy else self._num_asked[before] % len(entries)]
            self._num_asked[before] += not is_greedy
            before += said
            role, stop = "probe" if is_greedy else "policy", "end_of_sequence" if said.endswith(".") else None
            found.append(text_step(said, stop=stop, role=role))
        return found


def played(strategy: LevelSearch, given: Input) -> Journey:
    """The strategy's whole search on the case's script."""

    def judge(tree: Tree, command: Judge) -> list[float]:
        return [given["scores"][path_text(tree, node)] for node in command.nodes]

    return Journey(strategy, ScriptedSteps(given["script"]), judge=judge).run()


def costs(trip: Journey) -> dict[str, int]:
    endings = [event.ending for event in trip.events if isinstance(event, Delivered)]
    num_scored = sum(isinstance(ending, Scored) for ending in endings)
    return {"num_generate_calls": len(endings) - num_scored, "num_scored": num_scored}


def texts(trip: Journey, paths: Sequence[LevelPath]) -> list[str]:
    return [path_text(trip.tree, path.tip) for path in paths]


def first_best(values: Sequence[float]) -> int:
    return int(np.argmax(values))


class WatchedBeam(Beam):
    """A beam that remembers its levels."""

    def __init__(self, config: BeamConfig) -> None:
        super().__init__(config, ListDraws())
        self.levels: list[list[LevelPath]] = []

    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        self.levels.append(level.paths())
        return super().select(tree, level)


def hf_beam(given: Input, mode: str | None) -> dict[str, object]:
    """The cases were recorded where numpy's sort of so few was stable; elsewhere it is not (`ties`)."""
    strategy = WatchedBeam(
        varied(
            AS_PUBLISHED,
            width=given["n"] // given["beam_width"],
            samples=given["beam_width"],
            max_depth=given["num_iterations"],
            agg=given["agg"],
            lookahead=given["lookahead"],
            ties=given.get("ties", "later"),
            repeats="dropped" if given["filter_duplicates"] else "kept",
            keep_completed="best" if given["sort_completed"] else "first",
        )
    )
    trip = played(strategy, given)
    completed = tiled(strategy.kept(), given["n"])
    best = max(strategy.candidates(trip.tree), key=lambda candidate: candidate.score)
    return {
        "levels": [texts(trip, level) for level in strategy.levels],
        "completions": texts(trip, completed),
        "scores": [path.score for path in completed],
        "pred": path_text(trip.tree, best.node),
        **costs(trip),
    }


def its_beam(given: Input, mode: str | None) -> dict[str, object]:
    samples = given["budget"] // given["beam_width"]
    strategy = WatchedBeam(replace(ITS_AS_PUBLISHED, width=given["beam_width"], samples=samples))
    trip = played(strategy, given)
    responses = strategy.parts[0].beams
    scores = [path.score for path in responses]
    return {
        "levels": [texts(trip, level) for level in strategy.levels],
        "responses": texts(trip, responses),
        "scores": scores,
        "selected_index": first_best(scores),
        **costs(trip),
    }


class WatchedDVTS(DVTS):
    """A search that remembers what each part chose."""

    def __init__(self, config: DVTSConfig) -> None:
        super().__init__(config, ListDraws())
        self.trails: dict[Level, list[LevelPath]] = {part: [] for part in self.parts}

    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        beams = super().select(tree, level)
        self.trails[level].append(self.chosen[level])
        return beams


def dvts(given: Input, mode: str | None) -> dict[str, object]:
    """A part that has ended stands where it stood in the levels after it."""
    strategy = WatchedDVTS(
        replace(
            DVTS_AS_PUBLISHED,
            width=given["n"] // given["beam_width"],
            samples=given["beam_width"],
            max_depth=given["num_iterations"],
            agg=given["agg"],
            lookahead=given["lookahead"],
        )
    )
    trip = played(strategy, given)
    trails = list(strategy.trails.values())
    candidates = strategy.candidates(trip.tree)
    scores = [candidate.score for candidate in candidates]
    completions = [path_text(trip.tree, candidate.node) for candidate in candidates]
    return {
        "levels": [
            texts(trip, [trail[min(i, len(trail) - 1)] for trail in trails]) for i in range(max(map(len, trails)))
        ],
        "completions": completions,
        "scores": scores,
        "pred": completions[first_best(scores)],
        **costs(trip),
    }


class WatchedParticles(ParticleFilter):
    """A filter that remembers its levels and what it drew."""

    def __init__(self, config: ParticleFilterConfig, draws: Draws) -> None:
        super().__init__(config, draws)
        self.levels: list[list[LevelPath]] = []
        self.resamplings: list[tuple[list[float], list[int]]] = []

    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        self.levels.append(level.paths())
        return super().select(tree, level)

    def ancestors(self, weights: Sequence[float]) -> list[int]:
        drawn = super().ancestors(weights)
        self.resamplings.append((list(weights), drawn))
        return drawn


def particle_filter(given: Input, mode: str | None) -> dict[str, object]:
    config = replace(PARTICLES_AS_PUBLISHED, n=given["n"])
    strategy = WatchedParticles(config, ListDraws(given["draws"]))
    trip = played(strategy, given)
    log_weights = [log_odds(path.score) for path in strategy.particles]
    return {
        "levels": [
            {"texts": texts(trip, level), "probs": probs}
            for level, (probs, _) in zip(strategy.levels, strategy.resamplings, strict=True)
        ],
        "ancestors": [drawn for _, drawn in strategy.resamplings],
        "responses": texts(trip, strategy.particles),
        "log_weights": log_weights,
        "selected_index": first_best(log_weights),
        "num_generate_calls": costs(trip)["num_generate_calls"],
    }
