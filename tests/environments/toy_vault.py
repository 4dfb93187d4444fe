"""A toy package of verifiers, as text: the tests write it to a folder on the path."""

VAULT = '''
import random

import verifiers.v1 as vf
from verifiers.v1.mcp import Toolset, ToolsetConfig


class VaultData(vf.TaskData):
    code: str
    planted: str = "PLANTED-SECRET"


class VaultState(vf.State):
    dialled: str = ""
    num_looks: int = 0
    is_open: bool = False


class Dial(Toolset[ToolsetConfig, VaultState]):
    TOOL_PREFIX = "dial"

    async def setup_task(self, task):
        self.clicks = []
        self.code = task.code

    @vf.tool
    async def turn(self, digit: int) -> str:
        """Turn the dial to a digit."""
        if not 0 <= digit <= 9:
            raise ValueError(f"the dial has no {digit}")
        self.clicks.append(digit)
        self.state.dialled = (self.state.dialled + str(digit))[-3:]
        self.state.is_open = self.state.dialled == self.code
        return f"click {len(self.clicks)}: {self.state.dialled}" + (" and it is open" if self.state.is_open else "")

    @vf.tool
    def look(self) -> dict:
        """Look at the dial."""
        self.state.num_looks += 1
        return {"dialled": self.state.dialled, "looks": self.state.num_looks}


class VaultTask(vf.Task[VaultData, VaultState, vf.TaskConfig]):
    async def finalize(self, trace):
        trace.info["finalized"] = True

    @vf.stop
    async def opened(self, trace: vf.Trace) -> bool:
        return trace.state.is_open

    @vf.reward(weight=2.0)
    async def is_open(self, trace) -> float:
        return float(trace.state.is_open and trace.info["finalized"])

    @vf.reward(weight=0.5)
    async def said(self, task, trace) -> float:
        return float(task.code[0] in trace.last_reply)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)

    @vf.metric
    async def results(self, trace) -> float:
        return float(len(trace.tool_messages))

    @classmethod
    def toolsets(cls, config):
        return [Dial(ToolsetConfig())]


class VaultConfig(vf.TasksetConfig):
    num_tasks: int = 50


class VaultTaskset(vf.Taskset[VaultTask, VaultConfig]):
    def load(self):
        rng = random.Random(0)
        for number in range(self.config.num_tasks):
            code = str(rng.randrange(100, 1000))
            data = VaultData(prompt=f"Open vault {number}.", system_prompt="You open vaults.", code=code)
            yield VaultTask(data, self.config.task)


__all__ = ["VaultTaskset"]

if __name__ == "__main__":
    Dial.run()
'''
