"""Engines on a Ray cluster of two nodes at two addresses of this machine, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers.engine_folders import ROOT
from tests.servers.programs import marked, wait_until

pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = pytest.mark.ray

TIMEOUT_S = 180.0


def script(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.servers.ray_nodes", str(folder), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.covers("S3.2")
def test_an_engine_on_two_nodes_outlives_its_members_and_leaves_nothing(tmp_path: Path) -> None:
    process = script(tmp_path)
    said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said
    assert not marked(tmp_path)


@pytest.mark.covers("S3.2")
def test_nothing_is_left_on_any_node_when_the_service_is_killed(tmp_path: Path) -> None:
    process = script(tmp_path, "--stay")
    try:
        wait_until(lambda: (tmp_path / "up").exists() or process.poll() is not None, deadline_s=TIMEOUT_S)
        assert process.poll() is None, process.communicate()[0]
        wait_until(lambda: len(marked(tmp_path)) >= 10, deadline_s=60)  # Two members of five processes.
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
    wait_until(lambda: not marked(tmp_path), deadline_s=60)
