"""Many steps with many faults: every one has one end, and nothing is left of them."""

import os
import random
from pathlib import Path

import pytest

from ramify.core.problem import Problem
from ramify.sandbox.session import Session
from ramify.tools.python import Python

FAULTS = {
    "timeout": "while True: pass",
    "crashed": "import os; os.abort()",
    "error": "1 / 0",
    "ok": "import subprocess, threading, time\nsubprocess.Popen(['sleep', '99'])\n"
    "threading.Thread(target=time.sleep, args=(99,)).start()",
}
SEED = 7


def held() -> tuple[int, int]:
    """Open descriptors and living children of this process."""
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    return len([*Path("/proc/self/fd").iterdir()]), len(children)


@pytest.mark.parametrize(
    "num_steps", [pytest.param(2_000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.endurance)]
)
async def test_thousands_of_steps_with_faults_leave_nothing(num_steps: int) -> None:
    rng = random.Random(SEED)
    before = held()
    tool = Python(preload=(), max_nodes=64)
    sessions: list[tuple[Session, int]] = [(await tool.open(Problem("p", "q")), 0)]
    most = 0
    for number in range(num_steps):
        session, count = sessions[rng.randrange(len(sessions))]
        if rng.random() < 0.1:
            status = rng.choice([*FAULTS])
            answer = await session.run(FAULTS[status], 0.1 if status == "timeout" else 20)
            assert answer.status == status, (SEED, number)
        child = await session.fork()
        assert (await child.run("n = globals().get('n', 0) + 1; n", 20)).text == f"{count + 1}\n", (SEED, number)
        sessions.append((child, count + 1))
        while len(sessions) > 40:
            await sessions.pop(1 + rng.randrange(len(sessions) - 1))[0].close()
        if number == 1000:
            most = held()[0]
        if number > 1000:
            assert held()[0] < most + 100, (SEED, number)
    for session, _ in sessions:
        await session.close()
    assert held() == before
