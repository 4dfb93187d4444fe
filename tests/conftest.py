"""Settings of all tests. No deadline a case: a busy machine is no fault of the code."""

import gc
import os
import signal
import tempfile
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

settings.register_profile("ramify", deadline=None)
settings.load_profile("ramify")
STATE = tempfile.TemporaryDirectory(prefix="ramify-state-")
os.environ["XDG_STATE_HOME"] = STATE.name
"""Runs that tests begin are signed with a key of their own, also in processes that tests start."""
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a script: Ctrl-C would be ignored here, and by every process that tests begin.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests with the garbage collector off, and keep it from walking through them and all modules later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def watch_of_arrivals() -> None:
    """Begin to note arrivals. Its thread and epoll stay, and tests count descriptors before and after."""
    from ramify.edge.arrivals import Arrival

    read, write = os.pipe()
    Arrival(read, lambda: 0).close()
    os.close(read)
    os.close(write)


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a Ray cluster that this process is connected to: one for all tests that are marked `ray`."""
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")

    from ramify.edge.ray_cluster import joined

    with joined(None, 3):
        yield ray.get_runtime_context().gcs_address
