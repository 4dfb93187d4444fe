"""Clients are installed in the environment of `make test-gateway` alone."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gateway_clients" in item.path.parts:
            item.add_marker(pytest.mark.gateway)
