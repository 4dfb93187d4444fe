from collections.abc import Iterator

import pytest
from tests.engines_real.replicas import Served, served


@pytest.fixture(scope="session")
def replicas() -> Iterator[Served]:
    with served() as both:
        yield both
