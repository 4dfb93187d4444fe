"""Whole runs of ramify's rStar on the scripted world: the presets and the format as published, a tool, judges."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from tests.golden.mcts import WORDS, tags_of
from tests.originals.rstar_world import GOLD, QUESTION, Given, World, shown
from tests.runner.parts import Small

from ramify.config.configure import resolve
from ramify.core.branch import Branch
from ramify.core.codec import ByteCodec
from ramify.core.engine import Generation, Request
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.segment import Finish, token_array
from ramify.core.stop import ANSWERED
from ramify.core.tree import ROOT, Tree
from ramify.formats.rstar import AS_PUBLISHED, RStar
from ramify.runner.library import Rollout, rollout_sync
from ramify.strategies.beam import Beam
from ramify.strategies.parts.levels import Level
from ramify.strategies.parts.paths import LevelPath
from ramify.strategies.rstar_mcts import RStarMCTS
from ramify.testing.scripted import SCRIPTED
from ramify.tools.function import FunctionTool

TEMPLATE: Final = "<|user|>:\n{question}\n\n<|assistant|>: Let's think step by step and solve the problem with code."
"""The prompt of the recipes of evaluation."""


class Policy:
    """An engine of bytes that says what the world says. The i-th request at a prompt is its i-th sample."""

    codec = ByteCodec(is_exact=True)
    capabilities = SCRIPTED

    def __init__(self, world: World) -> None:
        self.prompts: list[str] = []
        self._world = world
        self._counts: Counter[str] = Counter()

    async def generate(self, request: Request) -> Generation:
        prompt = self.codec.decode(request.ids)
        index = self._counts[prompt] % self._world.given["width"]
        self._counts[prompt] += 1
        self.prompts += [] if index else [prompt]
        text, tag = self._world.says(prompt, index)
        ids = token_array([*self.codec.encode(text + tag), *([] if tag else [self.codec.eos_id])])
        finish = Finish("stop", tag) if tag else Finish("end_of_sequence")
        return Generation(ids, finish, np.zeros(len(ids), np.float32), num_billed=len(ids))

    async def close(self) -> None: ...


@dataclass(frozen=True)
class RewardModel:
    world: World
    name: str = "process"
    is_oracle: bool = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
        return [Verdict(self.world.value(branch.text)) for branch in branches]


@dataclass(frozen=True)
class GroundTruth:
    format: RStar
    name: str = "truth"
    is_oracle: bool = True

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
        return [Verdict(float(self.format.answer(branch.said) == problem.secret["answer"])) for branch in branches]


@dataclass(frozen=True)
class Played:
    """A run of one tree."""

    result: Rollout
    prompts: Sequence[str]
    format: RStar

    @classmethod
    def of(cls, given: Given, strategy: type[Any], preset: str, options: Mapping[str, Any]) -> "Played":
        world = World(given)
        policy = Policy(world)
        format = RStar(replace(AS_PUBLISHED, template=TEMPLATE, errors_threshold=given.get("errors_threshold", 1)))

        async def python(program: str) -> str:
            return world.runs(program)

        truth = [GroundTruth(format)] if options.get("outcome") == "reward" else []
        task = Small(format=format, tools=(FunctionTool(python),), judges=(RewardModel(world), *truth))
        options = {"max_depth": given["max_depth"], **options}
        flags = {f"strategy.options.{name}": value for name, value in options.items()}
        config = resolve(preset=preset, flags=flags, is_small=False).config
        problem = Problem("p", QUESTION, secret={"answer": GOLD})
        result = rollout_sync([problem], config=config, task=task, engine=policy, strategy=strategy)
        return cls(result, policy.prompts, format)

    @property
    def tree(self) -> Tree:
        return self.result.trees[0]

    def answer(self, node: int, stop: str | None = None) -> str | None:
        """The final answer at a node, or the published name of its end. `stop`: what the search knows of it."""
        stop = stop or self.tree.stop(node) or ""
        said = self.format.answer(self.tree.branch(node).said) if stop in ANSWERED else None
        return said or WORDS.get(stop)

    def row(self, node: int, stop: str | None = None, **more: object) -> Mapping[str, object]:
        """What became of a node."""
        text = "" if node == ROOT else "".join(self.tree.codec.decode(s.ids) for s in self.tree.segments(node))
        answer = self.answer(node, stop)
        return {"text": shown(text, answer), "answer": answer, **more}


def ours_mcts(given: Given) -> Mapping[str, object]:
    kept = ("iterations", "width", "exploration", "positive_reward", "negative_reward")
    options = {"failure_value": given["negative_reward"], **{name: given[name] for name in kept}}
    if given["mode"] != "evaluation":
        options |= {"outcome": "reward", "oracle": "declared"}
    if given["mode"] == "sampling":
        options |= {"judge": "", "steps": "unjudged"}
    made: list[RStarMCTS] = []

    class Watched(RStarMCTS):
        def __init__(self, config: Any, rng: Any) -> None:
            super().__init__(config, rng)
            made.append(self)

    played = Played.of(given, Watched, "rstar_mcts_as_published", options)
    search = max(made, key=lambda each: len(each.rollouts))
    tags = tags_of(search.root)
    # By the ground truth the original keeps no list of answers.
    finals = search._finals if given["mode"] == "evaluation" else []
    votes = search.candidates(played.tree) if finals else []
    rollout_of = {node: number for number, node, _ in finals}
    return {
        "rollouts": [[[tags[node]] for node in rollout.moves] for rollout in search.rollouts],
        "prompts": played.prompts,
        "nodes": {
            tags[node.tip]: played.row(node.tip, node.stop, terminal=node.is_closed, visits=node.visits, q=node.q)
            for node in (search.root, *search.root.below())
        },
        "finals": [tags[node] for _, node, _ in finals],
        "bests": [(rollout_of[vote.node], played.answer(vote.node), vote.score) for vote in votes],
        "answer": played.result.answers()[0].answer if votes else None,
    }


class WatchedBeam(Beam):
    """A beam that remembers the paths it chose among, and what held a place when a level was grown."""

    def __init__(self, config: Any, rng: Any) -> None:
        super().__init__(config, rng)
        self.paths: list[LevelPath] = []
        self.held: list[list[LevelPath]] = []

    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        beams = super().select(tree, level)
        if level.number < self.config.max_depth and beams:
            self.held.append(list(self.holders))
        return beams

    def _take_places(self, paths: Sequence[LevelPath]) -> None:
        self.paths += paths
        super()._take_places(paths)


def ours_beam(given: Given) -> Mapping[str, object]:
    made: list[WatchedBeam] = []

    class Watched(WatchedBeam):
        def __init__(self, config: Any, rng: Any) -> None:
            super().__init__(config, rng)
            made.append(self)

    options = {"width": given["beams"], "samples": given["width"]}
    played = Played.of(given, Watched, "rstar_beam_as_published", options)
    search = max(made, key=lambda each: len(each.paths))
    tags, num_children = {ROOT: "0"}, Counter[int]()
    nodes = {"0": played.row(ROOT, terminal=False, value=0.0)}
    for path in search.paths:
        above = path.parent.tip if path.parent else ROOT
        num_children[above] += 1
        tags[path.tip] = f"{tags[above]}.{num_children[above]}"
        nodes[tags[path.tip]] = played.row(path.tip, terminal=path.is_ended, value=path.score)
    solutions = sorted(search.candidates(played.tree), key=lambda each: -each.score)
    return {
        "rollouts": [[["0"], *([tags[path.tip] for path in level] for level in search.held)]],
        "prompts": played.prompts,
        "nodes": nodes,
        "finals": [tags[path.tip] for path in search.completed],
        "solutions": [[tags[one.node], played.answer(one.node), one.score] for one in solutions],
        "answer": played.result.answers()[0].answer if solutions else None,
    }
