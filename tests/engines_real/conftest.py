from collections.abc import Iterator

import pytest
from bench.real_replicas import Served, served


@pytest.fixture(scope="session")
def replicas() -> Iterator[Served]:
    with served() as both:
        yield both
