"""A task of Inspect grows trees, and its scorer gives their reward."""

from pathlib import Path

from ramify import rollout_sync
from ramify.environments.inspect import Inspect
from ramify.environments.task import EnvironmentTask
from ramify.testing import Scripted

Path("hello.py").write_text(
    """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate


@task
def hello():
    return Task(dataset=[Sample(input="Say hello.", target="hello")], solver=generate(), scorer=match())
""",
    "utf-8",
)
task = EnvironmentTask(Inspect(task="hello.py@hello"))
grown = rollout_sync(task=task, preset="chains", prompts=1, engine=Scripted(lambda turn: "hello"))
(tree,) = grown.trees
assert {tree.reward(leaf) for leaf in tree.leaves()} == {1.0}, tree
