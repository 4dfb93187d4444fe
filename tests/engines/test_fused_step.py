"""The compiled forward pass has the bits of numpy, and is used only where it was built by this user."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.core.errors import ConfigError
from ramify.engines import fused_step, value_model
from ramify.engines.build_fused_step import build
from ramify.engines.builtin import FOLDER, Builtin
from ramify.engines.numpy_model import NumpyModel
from ramify.engines.shipped import MODELS
from ramify.engines.slot_model import Chunk, Rows
from ramify.testing.contracts.engines import ENGINE_RULES, EngineCase
from ramify.testing.contracts.rules import keep

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, as the fused step does")
NO_ROWS = Rows(np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros(0, np.int32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    fused_step.built.cache_clear()
    yield
    fused_step.built.cache_clear()


@pytest.fixture
def library() -> ctypes.CDLL:
    found = fused_step.built()
    if found is None:
        build()
        found = fused_step.built()
    assert found is not None
    return found


def pair(library: ctypes.CDLL, folder: Path, **options: Any) -> tuple[NumpyModel, NumpyModel]:
    """The same model by the library and by numpy."""
    compiled, in_numpy = (NumpyModel(folder, **options) for _ in range(2))
    compiled.fuse(library)
    in_numpy.fuse(None)
    return compiled, in_numpy


def check_same(models: tuple[NumpyModel, NumpyModel], rows: Rows, *chunks: Chunk) -> None:
    compiled, in_numpy = (model.forward(rows, chunks) for model in models)
    assert compiled.tobytes() == in_numpy.tobytes()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("folder_of_model", [FOLDER, value_model.FOLDER, MODELS["herds"]], ids=lambda path: path.name)
def test_random_steps_have_the_bits_of_numpy(library: ctypes.CDLL, folder_of_model: Path, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    models, lengths = pair(library, folder_of_model, num_slots=9), np.zeros(9, np.intp)
    for _ in range(8):
        fresh = drawn.permutation(9)[: drawn.integers(0, 5)]
        chunks = list[Chunk]()
        for slot in fresh:
            start = int(drawn.integers(0, lengths[slot] + 1))
            ids = drawn.integers(0, 550, drawn.integers(1, 50)).astype(np.int32)
            chunks.append(Chunk(int(slot), start, ids))
            lengths[slot] = start + len(ids)
        others = np.setdiff1d(np.flatnonzero(lengths), fresh)
        rows = Rows(others, lengths[others], drawn.integers(0, 550, len(others)).astype(np.int32))
        lengths[others] += 1
        if len(others) or chunks:
            check_same(models, rows, *chunks)
        source, target = drawn.permutation(9)[:2]
        for model in models:
            model.copy(int(source), int(target), int(lengths[source]))
        lengths[target] = lengths[source]


def test_products_by_calls_of_blas_have_the_bits_of_numpy_too(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the processor has no AVX2, or numpy's BLAS adds up in another order."""
    monkeypatch.setattr(fused_step, "_is_tiled", lambda *of: False)
    monkeypatch.setattr(fused_step, "_attends_in_tiles", lambda *of: False)
    models = pair(library, FOLDER, num_slots=2)
    check_same(models, NO_ROWS, *(Chunk(slot, 0, np.arange(70 + slot, dtype=np.int32)) for slot in range(2)))


def test_scores_that_must_be_kept_small_have_the_bits_of_numpy(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramify.engines.numpy_model.MAX_BOUNDED_SCORE", 0.0)
    check_same(pair(library, FOLDER, num_slots=1), NO_ROWS, Chunk(0, 0, np.arange(130, dtype=np.int32)))


def test_other_weights_and_an_empty_cache_are_those_of_the_library(library: ctypes.CDLL) -> None:
    models = pair(library, FOLDER, num_slots=1)
    for model in models:
        model.load(MODELS["herds"])
        model.clear()
    check_same(models, NO_ROWS, Chunk(0, 0, np.arange(20, dtype=np.int32)))


@pytest.mark.parametrize("rule", ENGINE_RULES)
def test_the_engine_contract_holds(library: ctypes.CDLL, rule: str) -> None:
    keep(ENGINE_RULES, rule, EngineCase(Builtin), "the engine")


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk(0, 0, np.array([550])),
        Chunk(0, 0, np.array([-1])),
        Chunk(1, 0, np.array([1])),
        Chunk(0, 512, np.array([1])),
    ],
)
def test_what_is_no_token_of_the_model_is_refused_before_memory_is_touched(library: ctypes.CDLL, chunk: Chunk) -> None:
    compiled, _ = pair(library, FOLDER, num_slots=1)
    with pytest.raises(IndexError, match="is not below"):
        compiled.forward(NO_ROWS, [chunk])


def test_a_user_without_a_home_has_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert fused_step.built() is None
    with pytest.raises(ConfigError, match="name one by XDG_CACHE_HOME"):
        build()


@pytest.mark.slow
def test_the_command_builds_it_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fused_step.built() is None
    command = [sys.executable, *fused_step.BUILD.split()[1:]]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    fused_step.built.cache_clear()
    assert fused_step.built() is not None
    assert Path(said.stdout.strip()).parent == tmp_path / "ramify" and said.stderr == ""
    assert [path.name for path in (tmp_path / "ramify").iterdir()] == [Path(said.stdout.strip()).name]


@pytest.mark.slow
def test_a_compiler_of_fast_math_makes_no_zeros_of_small_numbers(tmp_path: Path) -> None:
    """As `CC` may have it in the environment of a user."""
    code = "from ramify.engines.build_fused_step import build; build(); print(float.fromhex('0x1p-1070') * 0.5 > 0)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CC": "cc -ffast-math"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout == "True\n"


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("false", "ended with 1"),
        ("no-such-compiler", "needs a C compiler; name it by CC"),
        (f"{sys.executable} -c 'raise SystemExit(\"no room on the disk\")'", "no room on the disk"),
        ("cc -Dsqrtf=fabsf", "gives other bits than numpy"),
    ],
)
def test_what_cannot_be_built_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, said: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(ConfigError, match=said):
        build()
    assert fused_step.built() is None
    assert list((tmp_path / "ramify").iterdir()) == []


def test_a_library_that_others_can_write_is_not_used(library: ctypes.CDLL, folder: Path) -> None:
    (file,) = (folder / "ramify").iterdir()
    file.chmod(0o722)
    fused_step.built.cache_clear()
    try:
        assert fused_step.built() is None
    finally:
        file.chmod(0o700)
