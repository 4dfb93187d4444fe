"""An environment of gymnasium grows trees, and says which action it does not know."""

from ramify import rollout_sync
from ramify.environments.gym import Gym
from ramify.environments.task import EnvironmentTask
from ramify.testing import Scripted

task = EnvironmentTask(Gym(id="FrozenLake-v1", kwargs={"is_slippery": False}, max_steps=4))
grown = rollout_sync(task=task, preset="chains", prompts=1, engine=Scripted(lambda turn: "up"))
(tree,) = grown.trees
assert {tree.reward(leaf) for leaf in tree.leaves()} == {0.0}, tree
assert {tree.stop(leaf) for leaf in tree.leaves()} == {"env_limit"}, tree
