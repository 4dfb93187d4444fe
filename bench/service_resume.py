"""How long a rollout service that was killed takes to go on: 1,000 open trees in its buffer.

A child process grows a batch of 1,000 trees of eight chains whose tool calls take turns; when every tree is open and
half of the steps are grown it kills itself. Then the folder is opened again, and the time is taken until the last open
tree is back at its engine. Target: 5 s. The scripted engine of the resumed service never answers, so that nothing but
going on is measured.

Run: python bench/service_resume.py [--trees 1000]
"""

import argparse
import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path

from smoke import few

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.engine import Generation, Request
from ramify.runner import loop
from ramify.runner.events import Event, StepGrown, TreeOpened
from ramify.service.manager import RolloutManager
from ramify.testing.planned_faults import Delay
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

RULE = chains(3, 4, 5)
NUM_CHAINS = 8
NEVER_S = 1e6


def config(num_trees: int) -> RunConfig:
    return resolve(
        preset="chains",
        flags={
            "engine.name": "scripted",
            "task.name": "countdown",
            "data.questions": [f"question {number}?" for number in range(num_trees)],
            "max_trees": num_trees,
            "growth.max_response_tokens": 1024,
            "strategy.options.n": NUM_CHAINS,
            "service.batch_size": num_trees,
        },
    ).config


class Silent(Scripted):
    """Never answers; notes when it has so many requests."""

    def __init__(self, num_wanted: int) -> None:
        super().__init__(RULE, delay=Delay(call_s=NEVER_S))
        self.is_full = asyncio.Event()
        self._num_wanted = num_wanted

    async def generate(self, request: Request) -> Generation:
        if self.num_active + 1 >= self._num_wanted:
            self.is_full.set()
        return await super().generate(request)


async def grown_and_killed(path: Path, num_trees: int) -> None:
    num_steps = 0

    def watch(event: Event) -> None:
        nonlocal num_steps
        if isinstance(event, StepGrown):
            num_steps += 1
            if num_steps == num_trees * NUM_CHAINS * 5 // 2:
                os.kill(os.getpid(), signal.SIGKILL)

    engine = Scripted(RULE, delay=Delay(call_s=0.5))
    manager = await RolloutManager(config(num_trees), path, engine=engine, observers=[watch]).start()
    await manager.generate(0)


async def resumed(path: Path, num_trees: int) -> tuple[float, float, int]:
    """Seconds until the service is started, and until every open tree is back; and how many those are."""
    is_back = asyncio.Event()
    num_back = 0

    def watch(event: Event) -> None:
        nonlocal num_back
        if isinstance(event, TreeOpened):
            num_back += 1
            if num_back == num_trees:
                is_back.set()

    began = time.perf_counter()
    engine = Silent(num_trees)
    manager = await RolloutManager(None, path, engine=engine, observers=[watch]).start()
    started = time.perf_counter() - began
    asking = asyncio.create_task(manager.generate(0))
    await is_back.wait()
    await engine.is_full.wait()
    seconds = time.perf_counter() - began
    asking.cancel()
    await asyncio.wait({asking})
    await manager.close()
    return started, seconds, num_back


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=few(1000, 4))
    num_trees = parser.parse_args().trees
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        child = os.fork()
        if not child:
            loop.run(grown_and_killed(path, num_trees))
            os._exit(1)
        os.waitpid(child, 0)
        journal = sum(file.stat().st_size for file in (path / "journal").glob("*.jsonl"))
        began = time.process_time()
        started, seconds, num_back = loop.run(resumed(path, num_trees))
        print(f"{num_back} open trees, journal of {journal / 1e6:.1f} MB")
        print(f"started in {started:.2f} s, all back at their engine after {seconds:.2f} s (target 5)")
        print(f"CPU {time.process_time() - began:.2f} s")


if __name__ == "__main__":
    main()
