"""A game of textarena grows trees, and ends a path at the second strike."""

from ramify import rollout_sync
from ramify.environments.task import EnvironmentTask
from ramify.environments.textarena import TextArena
from ramify.testing import Scripted

task = EnvironmentTask(TextArena(id="GuessTheNumber-v0"))
grown = rollout_sync(task=task, preset="chains", prompts=1, engine=Scripted(lambda turn: "no number"))
(tree,) = grown.trees
assert {tree.reward(leaf) for leaf in tree.leaves()} == {0.0}, tree
