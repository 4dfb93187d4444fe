"""Random models, written once a session."""

from pathlib import Path

import pytest
from tests.engines.models import write_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of width 32 and 256 positions."""
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def shipped_shape_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers with the matrix shapes of the shipped model."""
    return write_model(
        tmp_path_factory.mktemp("shipped_shape"),
        hidden_size=128, head_dim=32, intermediate_size=384, max_position_embeddings=512,
    )  # fmt: skip
