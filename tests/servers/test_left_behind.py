"""Nothing is left of servers, however and whenever the process that started them goes."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers.engine_folders import ROOT
from tests.servers.programs import marked, wait_until

RESTLESS = """
import asyncio, sys
from pathlib import Path
from tests.servers.engine_folders import ROOT
from tests.servers.programs import PROBE, QUICK, program, tell, until
from ramify.servers.home import Here, Home
from ramify.servers.server_pool import ServerPool, Up

async def main(folder):
    while True:
        ups = []
        pool = ServerPool(
            Here(program(crowd=str(folder / "pids"), mark=str(folder)), home=Home(logs=folder / "logs")),
            count=2,
            probe=PROBE,
            care=QUICK,
            observe=lambda event: ups.append(event) if isinstance(event, Up) else None,
        )
        print("starting", flush=True)
        await pool.start()
        await tell(pool.urls[0], "/die")
        await until(lambda: len(ups) == 3)
        await pool.stop()

asyncio.run(main(Path(sys.argv[1])))
"""
"""Servers of five processes each that start, die, start again and are stopped, over and over."""


@pytest.mark.covers("S3.2")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))])
def test_a_process_that_ends_at_any_moment_leaves_none_of_its_servers(tmp_path: Path, number: int, seed: int):
    moment_s = 1.5 * random.Random(f"{seed} {number}").random()
    process = subprocess.Popen([sys.executable, "-c", RESTLESS, tmp_path], stdout=subprocess.PIPE, cwd=ROOT)
    with process:
        assert process.stdout is not None and process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=moment_s)
        process.send_signal(number)
        assert process.wait() == -number
    wait_until(lambda: not marked(tmp_path))
