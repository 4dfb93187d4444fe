"""Checks of the goldens of rStar's step beam: the strategy played on scripts of steps, values and answers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tests.strategies.world import Journey, ListDraws, text_step

from ramify.core.codec import Codec
from ramify.core.command import Grow, Judge
from ramify.core.growth import Scored
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Delivered, Start
from ramify.strategies.beam import RSTAR, RSTAR_AS_PUBLISHED, Beam, BeamConfig
from ramify.strategies.parts.levels import Level
from ramify.strategies.parts.paths import LevelPath

Input = Mapping[str, Any]
CONFIGS: Final = {"as_published": RSTAR_AS_PUBLISHED, "corrected": RSTAR}
ANSWERS: Final = {
    "no_valid_step": "no_valid_child",
    "tool_errors": "too_many_code_errors",
    "depth_limit": "too_many_steps",
}
"""What the published code writes for an answer where a path ended without one."""


def said(tree: Tree, node: int) -> str:
    """What the step at `node` said; nothing at the root."""
    codec: Codec = tree.codec
    return "" if node == ROOT else codec.decode(tree.segments(node)[0].ids)


def stop_of(entry: Mapping[str, Any]) -> str | None:
    if entry.get("unparsable"):
        return "no_valid_step"
    if entry.get("answer") is not None:
        return "answer"
    return "tool_errors" if "error" in entry.get("observation", "ok").lower() else None


class ScriptedAnswers:
    """The i-th sample of a step is the i-th of its list; one beyond the list fails."""

    def __init__(self, script: Mapping[str, Mapping[str, Any]]) -> None:
        self._script = script

    def has(self, tree: Tree, start: Start) -> bool:
        assert start.place is not None
        return start.place.index < len(self._script[said(tree, start.place.parent)]["next"])

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        text = self._script[said(tree, start.place.parent)]["next"][start.place.index]
        return [text_step(text, stop=stop_of(self._script[text]))]


class WatchedBeam(Beam):
    """A beam that remembers its nodes and what held a place when a level was grown."""

    def __init__(self, config: BeamConfig) -> None:
        super().__init__(config, ListDraws())
        self.paths: list[LevelPath] = []
        self.held: list[list[LevelPath]] = []

    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        self.paths += level.paths()
        beams = super().select(tree, level)
        if level.number < self.config.max_depth and beams:
            self.held.append(list(self.holders))
        return beams


def beam_trace(given: Input, mode: str | None) -> dict[str, object]:
    script, config = given["script"], given["config"]
    strategy = WatchedBeam(
        replace(
            CONFIGS[mode or ""],
            width=config["step_beam_width"],
            samples=config["n_generate_sample"],
            max_depth=config["max_depth"],
        )
    )
    world = ScriptedAnswers(script)

    def judge(tree: Tree, command: Judge) -> list[float]:
        return [script[said(tree, node)]["value"] for node in command.nodes]

    def fails(command_id: int) -> str | None:
        flight = trip.driver.growth.flights[command_id]
        if not isinstance(flight.command, Grow):
            return None
        start = Start(command_id, flight.command, flight.place, trip.driver.ledger.spent)
        return None if world.has(trip.tree, start) else "engine_error"

    trip = Journey(strategy, world, judge=judge, fails=fails)
    trip.run()
    return summary(strategy, trip, script)


def summary(strategy: WatchedBeam, trip: Journey, script: Input) -> dict[str, object]:
    """The tree as the search believes it to be: what was joined to a wrong path hangs there."""
    tree, tags, num_children = trip.tree, {ROOT: "0"}, dict[int, int]()
    root = {"text": "", "terminal": False, "answer": None, "value": 0.0}
    nodes: dict[str, object] = {"0": root}
    for path in strategy.paths:
        above = path.parent.tip if path.parent else ROOT
        num_children[above] = num_children.get(above, 0) + 1
        tags[path.tip] = f"{tags[above]}.{num_children[above]}"
        entry = script[said(tree, path.tip)]
        nodes[tags[path.tip]] = {
            "text": said(tree, path.tip),
            "terminal": path.is_ended,
            "answer": ANSWERS.get(tree.stop(path.tip) or "", entry.get("answer")),
            "value": path.score,
        }
    endings = [event.ending for event in trip.events if isinstance(event, Delivered)]
    held = [[tags[path.tip] for path in level] for level in strategy.held]
    return {
        "rollouts": [[["0"], *held]],
        "nodes": nodes,
        "num_generated": len(tree) - 1,
        "num_judged": sum(isinstance(ending, Scored) for ending in endings),
        "finals": [tags[path.tip] for path in strategy.completed],
    }
