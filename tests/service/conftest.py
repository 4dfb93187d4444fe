"""One Ray cluster for all tests that are marked `ray`."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a cluster that this process is connected to."""
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")

    from ramify.service import ray as service

    with service.joined(None, 3):
        yield ray.get_runtime_context().gcs_address
