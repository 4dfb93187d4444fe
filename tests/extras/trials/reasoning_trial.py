"""A set of reasoning_gym scores its own answer with 1.0."""

from ramify import rollout_sync
from ramify.tasks.reasoning_gym import ReasoningGym
from ramify.testing import Scripted

task = ReasoningGym("leg_counting")
(problem,) = task.problems("heldout", 1, 0)
said = f"<answer>{problem.secret['answer']}</answer>"
grown = rollout_sync(task=task, preset="chains", prompts=1, engine=Scripted(lambda turn: said))
(tree,) = grown.trees
assert {tree.reward(leaf) for leaf in tree.leaves()} == {1.0}, tree
