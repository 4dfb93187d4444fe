"""Runs that find too many files open: the message says so, nothing is lost, and no traceback is shown."""

import errno
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.engines.endpoint import Endpoint, Said, said

from ramify.cli.exit_codes import ExitCode, code_of_error, words_of
from ramify.core.errors import EngineError, StoreError
from ramify.edge.open_files import out_of_files

TIMEOUT_S = 60.0


def rolled_out(num_files: int, out: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """`ramify rollout` in a process that may have so many files open."""
    return subprocess.run(
        [sys.executable, "-m", "ramify.cli.main", "rollout", "--json", "--out", str(out), *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, num_files)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("num_files", [12, 40])
def test_a_run_with_few_open_files_sends_fewer_requests_and_loses_no_path(tmp_path: Path, num_files: int) -> None:
    def slow(body: object) -> Said:
        time.sleep(0.01)
        return said("<answer>7</answer>")

    with Endpoint(slow) as endpoint:
        settings = (
            "engine.model=m",
            f"engine.base_url={endpoint.url}",
            "engine.options.max_in_flight=64",
            "max_trees=60",
        )
        flags = [part for setting in settings for part in ("--set", setting)]
        done = rolled_out(num_files, tmp_path / "run", "--prompts", "40", "--engine", "openai", *flags)
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout)
    assert (report["trees"], report["failed_leaves"]) == (40, 0)
    assert set(report["faults"]) == {"busy"}
    told = f"this process may have {num_files}" in done.stderr and "ulimit -n" in done.stderr
    assert told or report["faults"]["busy"] == 1  # Printed from the second on, as every busy server is.
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("num_files", [6, 7, 8])
def test_a_run_without_open_files_does_not_begin_and_says_why(tmp_path: Path, num_files: int) -> None:
    done = rolled_out(num_files, tmp_path / "run", "--engine", "scripted")
    assert done.returncode == 3, done.stderr
    assert f"this process may have {num_files}" in done.stderr
    assert "ulimit" in msgspec.json.decode(done.stdout)["error"]
    assert "Traceback" not in done.stderr


def test_files_that_ran_out_are_found_behind_any_error() -> None:
    full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    group = ExceptionGroup("two", [ValueError(), full])
    wrapped = ConnectionError("no connection")
    vars(wrapped)["os_error"] = full
    error = StoreError("the journal stopped")
    error.__cause__ = full
    for found in (full, group, wrapped, error):
        assert "too many open files" in (out_of_files(found) or "")
    assert "fs.file-max" in (out_of_files(OSError(errno.ENFILE, "x")) or "")
    assert out_of_files(EngineError("unreachable")) is None
    assert code_of_error(error) is ExitCode.ENVIRONMENT
    assert words_of(error).startswith("the journal stopped\ntoo many open files")
