"""Real Ray actors grow the trees of a run in one process, die, are interrupted, and leave nothing behind.

One cluster serves all tests but those of the command line, which begins and ends its own.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.sharded.divided import config, exported

from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError, FolderBusy
from ramify.runner.folder import begin
from ramify.runner.report import RunReport
from ramify.runner.tally import Tally
from ramify.sharded import ray as sharded
from ramify.store.journal import is_begun
from ramify.store.layout import shard_path
from ramify.store.shards import ShardedFolder

ray = pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = pytest.mark.ray

TIMEOUT_S = 120.0
SLOW = """
from ramify.testing.planned_faults import Delay
from ramify.testing.scripted import Scripted


class Slow(Scripted):
    def __init__(self):
        super().__init__(delay=Delay(call_s=0.03))
"""


HELD = """
from pathlib import Path
from ramify.testing.planned_faults import Delay
from ramify.testing.scripted import Scripted


class Held(Scripted):
    def __init__(self):
        is_held = Path(__file__).with_name("hold").exists()
        super().__init__(delay=Delay(call_s=1.0 if is_held else 0.0))
"""


@pytest.fixture
def held(tmp_path: Path) -> RunConfig:
    """A run of minutes while there is a file `hold` beside its engine, of moments otherwise."""
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "hold").touch()
    return config("arpo", prompts=40, max_trees=4, **{"engine.name": f"{tmp_path / 'held.py'}:Held"})


@pytest.fixture
def slow(tmp_path: Path) -> RunConfig:
    """A run of some seconds."""
    (tmp_path / "slow.py").write_text(SLOW)
    return config("arpo", prompts=12, max_trees=2, **{"engine.name": f"{tmp_path / 'slow.py'}:Slow"})


class Seen:
    """What a run showed, and what is done when its first tree has closed and every journal in `begun` has a record."""

    def __init__(self, do: Any = None, begun: Sequence[Path] = ()) -> None:
        self.do = do
        self.begun = begun
        self.tallies: list[Tally] = []
        self.lines: list[str] = []

    def show(self, tally: Tally) -> None:
        self.tallies.append(tally)
        if tally.num_closed and self.do is not None and all(map(is_begun, self.begun)):
            do, self.do = self.do, None
            do()


@pytest.mark.covers("S3.10")
def test_actors_grow_the_trees_of_one_process(tmp_path: Path, cluster: str) -> None:
    settings = config("arpo")
    whole = begin(settings, tmp_path / "whole")
    seen = Seen()
    report = sharded.rollout(settings, tmp_path / "run", num_workers=3, show=seen.show, say=seen.lines.append)
    assert exported(tmp_path / "run") == exported(tmp_path / "whole")
    assert (report.trees, report.leaves, report.decode_tokens) == (whole.trees, whole.leaves, whole.decode_tokens)
    assert seen.lines == []
    assert ray.is_initialized()


@pytest.mark.covers("S3.10", engine="builtin")
def test_every_actor_has_a_model_of_its_own(tmp_path: Path, cluster: str) -> None:
    settings = config("chains", prompts=4, **{"engine.name": "builtin", "growth.max_response_tokens": 60})
    begin(settings, tmp_path / "whole")
    sharded.rollout(settings, tmp_path / "run", num_workers=2)
    assert exported(tmp_path / "run") == exported(tmp_path / "whole")


@pytest.mark.covers("S3.10")
def test_an_actor_that_is_killed_loses_nothing(tmp_path: Path, cluster: str, slow: RunConfig) -> None:
    begin(slow, tmp_path / "whole")
    victim = shard_path(tmp_path / "run", 1) / "journal" / "lock"
    seen = Seen(lambda: os.kill(int(victim.read_text()), signal.SIGKILL), begun=[victim.parent])
    report = sharded.rollout(slow, tmp_path / "run", num_workers=2, show=seen.show, say=seen.lines.append)
    assert len(seen.lines) == 1 and "shard 1 died" in seen.lines[0]
    assert exported(tmp_path / "run") == exported(tmp_path / "whole")
    assert (report.trees, report.decode_tokens <= 3001) == (12, True)


@pytest.mark.covers("S3.10")
def test_an_interrupted_run_is_resumed_on_fewer_actors(tmp_path: Path, cluster: str, slow: RunConfig) -> None:
    begin(slow, tmp_path / "whole")
    journals = [shard_path(tmp_path / "run", index) / "journal" for index in range(3)]
    seen = Seen(lambda: signal.raise_signal(signal.SIGINT), begun=journals)
    with pytest.raises(KeyboardInterrupt):
        sharded.rollout(slow, tmp_path / "run", num_workers=3, show=seen.show)
    for journal in journals:
        last = (journal / "000000.jsonl").read_bytes().splitlines()[-1]
        assert b'"record":"sealed"' in last
    again = Seen()
    assert sharded.resume(tmp_path / "run", num_workers=2, show=again.show).trees == 12
    assert exported(tmp_path / "run") == exported(tmp_path / "whole")


def test_a_second_driver_is_refused(tmp_path: Path, cluster: str, slow: RunConfig) -> None:
    refused: list[str] = []

    def second() -> None:
        with pytest.raises(FolderBusy) as caught:
            ShardedFolder.open(tmp_path / "run")
        refused.append(str(caught.value))

    seen = Seen(second)
    sharded.rollout(slow, tmp_path / "run", num_workers=2, show=seen.show)
    assert len(refused) == 1 and f"process {os.getpid()}" in refused[0]


def test_more_workers_than_the_cluster_has_room_for_are_refused(tmp_path: Path, cluster: str) -> None:
    with pytest.raises(ConfigError, match="4 workers need a CPU each and the cluster has 3"):
        sharded.rollout(config(), tmp_path / "run", num_workers=4)
    assert not (tmp_path / "run").exists()


# -- the command line -------------------------------------------------------------------------------------------------


def command(*arguments: object, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """A command of its own session, with signals as a terminal would have them."""
    return subprocess.Popen(
        [sys.executable, "-m", "ramify.cli.main", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def said(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def left_behind(process: "subprocess.Popen[str]") -> list[int]:
    """Processes of the command's session."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == process.pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def flags(settings: RunConfig, path: Path) -> Sequence[object]:
    """A configuration as a file."""
    from ramify.config.configure import to_toml

    (path / "run.toml").write_text(to_toml(settings))
    return ("-c", path / "run.toml")


@pytest.mark.covers("S3.10")
def test_the_command_says_one_object_and_leaves_nothing_behind(tmp_path: Path, cluster: str, slow: RunConfig) -> None:
    begin(slow, tmp_path / "whole")
    process = command("rollout", "--ray", "--workers", 2, *flags(slow, tmp_path), "--out", tmp_path / "run", "--json")
    code, out, err = said(process)
    assert code == 0, err
    (line,) = out.splitlines()
    assert msgspec.json.decode(line)["trees"] == 12
    assert left_behind(process) == []
    assert exported(tmp_path / "run") == exported(tmp_path / "whole")


def wait_for(process: "subprocess.Popen[str]", path: Path) -> int:
    """Return when a worker of shard 0 has written something, with its process id."""
    lock = shard_path(path, 0) / "journal" / "lock"
    journal = lock.with_name("000000.jsonl")
    while not journal.exists() or b'"record":"closed"' not in journal.read_bytes():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            raise AssertionError(process.communicate())
    return int(lock.read_text())


@pytest.mark.covers("S3.10")
def test_ctrl_c_ends_the_cluster_that_was_begun_and_the_run_goes_on_on_another(
    tmp_path: Path, cluster: str, slow: RunConfig
) -> None:
    begin(slow, tmp_path / "whole")
    process = command("rollout", "--ray", "--workers", 2, *flags(slow, tmp_path), "--out", tmp_path / "run")
    victim = wait_for(process, tmp_path / "run")
    os.kill(victim, signal.SIGKILL)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = said(process)
    assert (code, out) == (130, "")
    assert f"ramify resume {tmp_path / 'run'}" in err
    assert left_behind(process) == []
    code, out, err = said(command("resume", tmp_path / "run", "--json", "--ray", cluster))
    assert (code, msgspec.json.decode(out)["trees"]) == (0, 12), err
    assert exported(tmp_path / "run") == exported(tmp_path / "whole")
    assert ray.is_initialized()


@pytest.mark.covers("S3.10")
def test_a_driver_that_was_killed_is_followed_by_another(tmp_path: Path, cluster: str, slow: RunConfig) -> None:
    begin(slow, tmp_path / "whole")
    first = ("rollout", "--ray", cluster, "--workers", 2, *flags(slow, tmp_path), "--out", tmp_path / "run")
    process = command(*first)
    wait_for(process, tmp_path / "run")
    process.kill()
    process.communicate()
    report: RunReport = sharded.resume(tmp_path / "run", num_workers=2)
    assert report.trees == 12
    assert exported(tmp_path / "run") == exported(tmp_path / "whole")


def child_of(process: "subprocess.Popen[str]", program: str) -> int:
    """The process of the cluster that the command began which runs `program`."""
    for pid in left_behind(process):
        with contextlib.suppress(OSError):
            if (
                Path(os.fsdecode((Path("/proc") / str(pid) / "cmdline").read_bytes()).partition("\0")[0]).name
                == program
            ):
                return pid
    raise AssertionError(f"no process of the command runs {program}")


@pytest.mark.covers("S3.10")
@pytest.mark.parametrize(
    ("program", "named"),
    [("raylet", "the raylet of this machine"), ("gcs_server", "the control server of the cluster")],
)
def test_a_cluster_that_dies_ends_the_command_within_a_minute_and_the_run_goes_on(
    tmp_path: Path, held: RunConfig, program: str, named: str
) -> None:
    process = command("rollout", "--ray", "--workers", 2, *flags(held, tmp_path), "--out", tmp_path / "run")
    wait_for(process, tmp_path / "run")
    os.kill(child_of(process, program), signal.SIGKILL)
    out, err = process.communicate(timeout=60.0)
    assert (process.returncode, out) == (75, "")
    assert named in err and f"ramify resume {tmp_path / 'run'}" in err
    assert "Traceback" not in err
    assert left_behind(process) == []
    (tmp_path / "hold").unlink()
    begin(held, tmp_path / "whole")
    code, _, err = said(command("resume", tmp_path / "run"))
    assert code == 0, err
    assert exported(tmp_path / "run") == exported(tmp_path / "whole")


@pytest.mark.covers("S3.10")
def test_ctrl_c_leaves_no_traceback(tmp_path: Path, slow: RunConfig) -> None:
    process = command("rollout", "--ray", "--workers", 2, *flags(slow, tmp_path), "--out", tmp_path / "run")
    wait_for(process, tmp_path / "run")
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = said(process)
    assert (code, out) == (130, "")
    assert "Traceback" not in err, err
    assert left_behind(process) == []


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("127.0.0.1:1", 3, "at '127.0.0.1:1' cannot be joined: nobody answers there: [Errno 111] Connection refused"),
        ("no.such.host.invalid:6379", 3, "at 'no.such.host.invalid:6379' cannot be joined: nobody answers there"),
        ("ray://127.0.0.1:10001", 2, "the address of the cluster itself is needed"),
        ("nowhere", 2, "the address of the cluster itself is needed"),
    ],
)
def test_a_cluster_that_is_not_there_is_named(tmp_path: Path, address: str, code: int, message: str) -> None:
    refused(tmp_path, address, code, message)


def refused(tmp_path: Path, address: str, code: int, message: str) -> None:
    """Assert that a run on the cluster at an address does not start, and how it says so."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    arguments = ("rollout", "--ray", address, "--engine", "scripted", "--out", tmp_path / "run")
    process = command(*arguments, environment=environment)
    found, _, err = said(process)
    assert (found, message in err, "Traceback" in err) == (code, True, False), err
    assert code == 2 or "ray start --head" in err
    assert not (tmp_path / "run").exists()
    assert left_behind(process) == []


def test_a_cluster_of_another_version_is_refused_in_rays_own_words(tmp_path: Path, cluster: str) -> None:
    from ray._private.ray_constants import KV_NAMESPACE_CLUSTER as space
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

    key = b"CLUSTER_METADATA"
    metadata = _internal_kv_get(key, namespace=space)
    other = msgspec.json.encode({**msgspec.json.decode(metadata), "ray_version": "1.0.1"})
    _internal_kv_put(key, other, overwrite=True, namespace=space)
    try:
        refused(tmp_path, cluster, 3, "cannot be joined: Version mismatch: The cluster was started with:")
    finally:
        _internal_kv_put(key, metadata, overwrite=True, namespace=space)


def test_an_address_where_something_else_listens_is_refused_within_a_minute(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        refused(tmp_path, f"127.0.0.1:{other.getsockname()[1]}", 3, "what answers there is no Ray cluster")


def test_a_cluster_that_cannot_be_begun_here_is_said(tmp_path: Path) -> None:
    (tmp_path / "full").write_text("")
    environment = {**os.environ, "RAY_TMPDIR": str(tmp_path / "full"), "RAY_ADDRESS": ""}
    process = command("rollout", "--ray", "--engine", "scripted", "--out", tmp_path / "run", environment=environment)
    code, _, err = said(process)
    assert (code, "a Ray cluster cannot be begun here: " in err, "Traceback" in err) == (3, True, False), err
    assert left_behind(process) == []


@pytest.mark.parametrize("after_s", [0.3, 0.8, 1.5, 2.5, 3.5])
def test_ctrl_c_while_ray_starts_leaves_no_traceback(tmp_path: Path, slow: RunConfig, after_s: float) -> None:
    process = command("rollout", "--ray", "--workers", 2, *flags(slow, tmp_path), "--out", tmp_path / "run")
    while "msgspec" not in Path(f"/proc/{process.pid}/maps").read_text():  # until Python itself has begun
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = said(process)
    assert (code, out) == (130, "")
    assert "Traceback" not in err, err
    assert left_behind(process) == []


def test_nothing_is_held_on_the_cluster_behind_a_run(cluster: str) -> None:
    with sharded.reserved(3):
        assert ray.is_initialized()
