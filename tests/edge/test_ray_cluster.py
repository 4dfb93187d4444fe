"""The end of a cluster of Ray that was begun here: nothing of it is left, also not what it starts while it ends."""

import subprocess
import sys

import pytest

from ramify.edge.ray_cluster import _adopting, _leave, _running  # pyright: ignore[reportPrivateUsage]

ADOPTS_AFTERWARDS = """
import ctypes
from ramify.edge.ray_cluster import _adopting
from ramify.edge.stdio_guard import PR_GET_CHILD_SUBREAPER, PR_SET_CHILD_SUBREAPER, prctl
prctl(PR_SET_CHILD_SUBREAPER, {before})
with _adopting():
    pass
after = ctypes.c_int(-1)
prctl(PR_GET_CHILD_SUBREAPER, ctypes.addressof(after))
print(after.value)
"""


class EndingRaylet:
    """Starts a worker when Ray ends it, as a raylet may that has just begun."""

    def __init__(self) -> None:
        self.is_up = True
        self.worker = 0

    def is_initialized(self) -> bool:
        return self.is_up

    def shutdown(self) -> None:
        if self.is_up:
            command = ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"]
            self.worker = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        self.is_up = False


def test_a_worker_that_the_ending_raylet_starts_is_ended_too() -> None:
    ray = EndingRaylet()
    with subprocess.Popen(["sleep", "60"]) as began, subprocess.Popen(["sleep", "60"]) as others, _adopting():
        _leave(ray, {began.pid}, is_own=True)
        left, unharmed = _running({began.pid, ray.worker}), _running({others.pid})
        others.kill()
    assert not left
    assert unharmed, "what is not of the cluster goes on"


def test_nothing_of_the_cluster_of_others_is_ended() -> None:
    ray = EndingRaylet()
    with subprocess.Popen(["sleep", "60"]) as theirs:
        _leave(ray, {theirs.pid}, is_own=False)
        assert _running({theirs.pid, ray.worker}) == [theirs.pid, ray.worker]
        theirs.kill()
    subprocess.run(["kill", str(ray.worker)], check=True)


@pytest.mark.parametrize("before", [0, 1])
def test_a_process_that_adopted_before_adopts_afterwards(before: int) -> None:
    """The process may be the first one of a container, which adopts whatever its programs leave behind."""
    code = ADOPTS_AFTERWARDS.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == before
