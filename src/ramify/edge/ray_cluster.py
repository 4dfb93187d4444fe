"""Ray cluster: join one, or start one here that ends with the context. Needs ray, an extra.

Owns the connection of this process to a cluster. The caller decides what runs there.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ramify.core.errors import ConfigError

OBJECT_STORE_BYTES: Final = 80 * 2**20
"""Object store of a cluster started here: about the smallest that Ray accepts. Only counts and reports go through
it."""
ANSWER_S: Final = 10.0
"""Timeout for a cluster to accept a connection."""
MAX_PORT: Final = 65535
SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
"""Environment variables that Ray reads when it is imported. They turn usage reports off, let a worker see the same
devices as this process, and keep Ray's messages about dead workers off stdout."""
ROOM_S: Final = 120.0
"""Timeout for a cluster to make room for the workers."""


def library() -> Any:
    """The module `ray`. Raises `ConfigError` with the install command if it is missing."""
    os.environ.update({name: value for name, value in SETTINGS.items() if name not in os.environ})
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError("actors need Ray: pip install 'ramify[ray]'") from error
    return ray


@contextmanager
def joined(address: str | None, num_workers: int | None) -> Iterator[None]:
    """Connect to a cluster: the one at `address`, the one this process is already connected to, or a new one here with
    room for the workers, which ends with the context."""
    ray = library()
    if ray.is_initialized():
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": "CRITICAL", "include_dashboard": False}
    try:
        if address is None:
            ray.init("local", num_cpus=num_workers or _own_cpus(), object_store_memory=OBJECT_STORE_BYTES, **quiet)
        else:
            _check_address(address)
            ray.init(address, **quiet)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        ray.shutdown()
        where = "cannot be begun here" if address is None else f"at {address!r} cannot be joined"
        raise ConfigError(f"a Ray cluster {where}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise `ConfigError` for text that is no address, and `OSError` if nobody listens there: Ray would try for
    minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigError(
            f"Ray at {address!r}: the address of the cluster itself is needed, as in 10.0.0.7:6379, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise ConnectionError(f"nobody answers there: {error}") from error


def num_cpus() -> int:
    """Number of CPUs of the connected cluster; at least 1."""
    return max(1, int(library().cluster_resources().get("CPU", 1)))


def _own_cpus() -> int:
    return len(os.sched_getaffinity(0))
