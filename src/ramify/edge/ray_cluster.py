"""Ray cluster: join one, or start one here that ends with the context. Needs ray, an extra.

Owns the connection of this process to a cluster, and knows whether the cluster is still there. The caller decides what
runs there. Ray itself waits without limit for a raylet that has died, and ends this process by `exit(1)` a minute after
the control server has.
"""

import asyncio
import ctypes
import os
import platform
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

from ramify.core.errors import ConfigError, Unavailable
from ramify.edge.interrupts import interrupts_kept
from ramify.edge.stdio_guard import (
    KILL_S,
    PR_GET_CHILD_SUBREAPER,
    PR_SET_CHILD_SUBREAPER,
    descendants,
    prctl,
    processes,
)

OBJECT_STORE_BYTES: Final = 80 * 2**20
"""Object store of a cluster started here: about the smallest that Ray accepts. Only counts and reports go through
it."""
ANSWER_S: Final = 10.0
"""Timeout for a cluster to accept a connection."""
MAX_PORT: Final = 65535
HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client of HTTP/2 says first, with an empty SETTINGS frame."""
FRAME_HEADER_BYTES: Final = 9
SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
"""Environment variables that Ray reads when it is imported. They turn usage reports off, let a worker see the same
devices as this process, and keep Ray's messages about dead workers off stdout."""
ROOM_S: Final = 120.0
"""Timeout for a cluster to make room for the workers."""
LOST_S: Final = 15.0
"""How long a process of the cluster may take no connections before the cluster counts as lost. A control server that is
restarted by its operator is back sooner; Ray gives up after 60 s."""
CONNECT_S: Final = 5.0
"""Timeout of one attempt to connect to it."""


def library() -> Any:
    """The module `ray`. Raises `ConfigError` with the install command if it is missing."""
    os.environ.update({name: value for name, value in SETTINGS.items() if name not in os.environ})
    try:
        with interrupts_kept():
            import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError("actors need Ray: pip install 'ramify[ray]'") from error
    return ray


@contextmanager
def joined(address: str | None, num_workers: int | None) -> Iterator[None]:
    """Connect to a cluster: the one at `address`, the one this process is already connected to, or a new one here with
    room for the workers, which ends with the context. Raises `Unavailable`, with Ray's own words, if there is none."""
    ray = library()
    if ray.is_initialized():
        yield
        return
    if address is not None:
        _check_address(address)
    before = _children()
    with _adopting() if address is None else nullcontext():
        try:
            with interrupts_kept():
                _init(ray, address, num_workers)
        except BaseException as error:
            _leave(ray, _children() - before, is_own=address is None)
            if not isinstance(error, Exception):
                raise
            raise Unavailable(_refusal(ray, address, str(error).strip() or type(error).__name__)) from error
        began = _children() - before
        try:
            yield
        finally:
            _leave(ray, began, is_own=address is None)


def _init(ray: Any, address: str | None, num_workers: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "CRITICAL", "include_dashboard": False}
    if address is None:
        ray.init("local", num_cpus=num_workers or _own_cpus(), object_store_memory=OBJECT_STORE_BYTES, **quiet)
    else:
        ray.init(address, **quiet)


@contextmanager
def _adopting() -> Iterator[None]:
    """Meanwhile what a process of the cluster leaves behind becomes a child of this process, and so is found."""
    before = ctypes.c_int()
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, before.value)


def _leave(ray: Any, began: set[int], *, is_own: bool) -> None:
    """Leave the cluster. If it is our own, end `began` and all that it starts, also while it ends, and wait for that.
    One that has not quite begun is killed first: Ray would end the raylet alone, and the helpers that it starts
    meanwhile would live on."""
    if not is_own:
        ray.shutdown()
        return
    began = _with_descendants(began)
    others = _children() - began
    if ray.is_initialized():
        ray.shutdown()
    began |= _children() - others
    _kill_left(began)
    ray.shutdown()
    for pid in began:  # Ray has waited for those that it started itself.
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _refusal(ray: Any, address: str | None, why: str) -> str:
    """Why there is no cluster, in Ray's words, and what to do."""
    versions = f"Ray {ray.__version__} and Python {platform.python_version()}"
    if address is None:
        return f"a Ray cluster cannot be begun here: {why}\n`ray start --head` shows more of it; this is {versions}"
    return (
        f"the Ray cluster at {address!r} cannot be joined: {why}\nstart one there by `ray start --head`, with "
        f"{versions} as here; without an address, one is begun on this machine"
    )


def _children() -> set[int]:
    return {process.id for process in descendants(os.getpid())}


def _with_descendants(pids: set[int]) -> set[int]:
    return pids | {process.id for pid in pids for process in descendants(pid)}


def _kill_left(began: set[int]) -> None:
    """Kill what Ray leaves of a cluster that was begun here: when its control server has died, helpers of the raylet
    live on."""
    _send(signal.SIGSTOP, began)  # Nothing is started any more while it is looked for.
    left = _with_descendants(began)
    _send(signal.SIGKILL, left)
    give_up = time.monotonic() + KILL_S
    while _running(left) and time.monotonic() < give_up:
        time.sleep(0.005)


def _send(number: signal.Signals, pids: set[int]) -> None:
    """Send a signal to those processes of this session that still run."""
    for pid in _running(pids):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _running(pids: set[int]) -> list[int]:
    """Those of the processes that are of this session and still run."""
    session = os.getsid(0)
    return [each.id for each in processes() if each.id in pids and each.session == session and each.state != "Z"]


class ClusterWatch:
    """Whether the two processes of the connected cluster that this process needs are there: the control server, and the
    raylet of this machine. It only connects to their ports: a call of Ray's would wait for the dead."""

    def __init__(self) -> None:
        ray = library()
        context = ray.get_runtime_context()
        own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        self._addresses = {
            "the control server of the cluster (GCS)": context.gcs_address,
            "the raylet of this machine": f"{own['NodeManagerAddress']}:{own['NodeManagerPort']}",
        }
        self._since: dict[str, float] = {}
        """Process -> since when it takes no connections."""
        self._is_lost = False

    def is_there(self) -> bool:
        """Whether a call of Ray's would be answered now."""
        return not self._is_lost and all(map(_is_listening, self._addresses.values()))

    async def lost(self) -> str | None:
        """Which process is gone for good; None = the cluster is there, as far as anybody can tell."""
        for name, address in self._addresses.items():
            if await _answers(address):
                self._since.pop(name, None)
            elif time.monotonic() - self._since.setdefault(name, time.monotonic()) >= LOST_S:
                self._is_lost = True
                return f"{name} at {address} has taken no connection for {LOST_S:g} s"
        return None


async def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


def _check_address(address: str) -> None:
    """Raise `ConfigError` for text that is no address, and `Unavailable` if nobody listens there, or something that
    speaks another protocol: Ray would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigError(
            f"Ray at {address!r}: the address of the cluster itself is needed, as in 10.0.0.7:6379, or auto"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S) as there:
            why = None if _speaks_grpc(there) else "what answers there is no Ray cluster: it does not speak gRPC"
    except OSError as error:
        raise Unavailable(_refusal(library(), address, f"nobody answers there: {error}")) from error
    if why is not None:
        raise Unavailable(_refusal(library(), address, why))


def _speaks_grpc(there: socket.socket) -> bool:
    """Whether the first that the other side says is the SETTINGS frame of HTTP/2. With TLS it is not asked."""
    if os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:
        return True
    try:
        there.sendall(HTTP2_PREFACE)
        return there.recv(FRAME_HEADER_BYTES, socket.MSG_WAITALL)[3:4] == b"\x04"
    except OSError:
        return False


def num_cpus() -> int:
    """Number of CPUs of the connected cluster; at least 1."""
    return max(1, int(library().cluster_resources().get("CPU", 1)))


def _own_cpus() -> int:
    return len(os.sched_getaffinity(0))
