"""A generated text adventure grows trees, each path in a process of its own."""

from ramify import rollout_sync
from ramify.environments.task import EnvironmentTask
from ramify.environments.textworld import TextWorld
from ramify.testing import Scripted

task = EnvironmentTask(TextWorld(folder="games", max_steps=3))
grown = rollout_sync(task=task, preset="chains", prompts=1, engine=Scripted(lambda turn: "look"))
(tree,) = grown.trees
calls = [each.tool_call for node in range(len(tree)) for each in tree.segments(node) if each.tool_call is not None]
assert {call.status for call in calls} == {"ok"}, calls
