"""A taskset of verifiers grows trees, and its reward is theirs."""

import sys
from pathlib import Path

from ramify import rollout_sync
from ramify.environments.task import EnvironmentTask
from ramify.environments.verifiers import Verifiers
from ramify.testing import Scripted

Path("echo_words.py").write_text(
    """
import verifiers.v1 as vf


class EchoTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=1.0)
    async def is_hello(self, trace) -> float:
        return float(trace.last_reply == "hello")


class EchoTaskset(vf.Taskset[EchoTask, vf.TasksetConfig]):
    def load(self):
        return [EchoTask(vf.TaskData(idx=0, prompt="Say hello."), self.config.task)]


__all__ = ["EchoTaskset"]
""",
    "utf-8",
)
sys.path.insert(0, str(Path.cwd()))
task = EnvironmentTask(Verifiers(name="echo_words"))
grown = rollout_sync(task=task, preset="chains", prompts=1, engine=Scripted(lambda turn: "hello"))
(tree,) = grown.trees
assert {tree.reward(leaf) for leaf in tree.leaves()} == {1.0}, tree
