"""Fused step: a compiled forward pass of the numpy model, of the same bits. Optional.

Where `build_fused_step` has built it, `NumpyModel` uses it in batch-invariant mode. Owns the compiled library and what
it is told; knows nothing of slots and requests.
"""

import ctypes
import hashlib
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ramify.core.errors import ConfigError
from ramify.engines.qwen3_weights import Floats, Qwen3Shape, Weights
from ramify.engines.slot_model import StepTokens

SOURCE: Final = Path(__file__).with_suffix(".c")
BUILD: Final = "python -m ramify.engines.build_fused_step"
"""The command that builds it."""
FLAGS: Final = ("-O3", "-fno-fast-math", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC")
"""A library of `-ffast-math` would round small numbers to 0 in the whole process that loads it."""
BLAS_NAMES: Final = (("scipy_cblas_{}64_", "int64_t"), ("cblas_{}64_", "int64_t"), ("cblas_{}", "int32_t"))
"""What numpy's BLAS calls its functions, and the type of their sizes: OpenBLAS of numpy's wheels, and others."""
STRIP: Final = 16
"""Outputs per strip of tiled weights."""
CHAIN: Final = 8
"""Inputs that are added up before they join the sum."""
Pointer = ctypes.c_void_p
Size = ctypes.c_int64


class _Loop(ctypes.Structure):
    """An inner loop of a numpy ufunc."""

    _fields_ = (("call", Pointer), ("data", Pointer))


class _Matrix(ctypes.Structure):
    _fields_ = (
        *((name, Pointer) for name in ("weights", "tiles")),
        *((name, Size) for name in ("inputs", "outputs", "first", "strips")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Matrix) for name in ("qkv", "out", "gate_up", "down")),
        ("qk_norm", Pointer),
    )


class _Network(ctypes.Structure):
    _fields_ = (
        *((name, Size) for name in ("num_layers", "width", "num_heads", "num_kv_heads", "head_dim", "mlp_width")),
        *((name, Size) for name in ("cache_width", "num_slots", "block", "is_bounded", "attends_in_tiles")),
        *((name, ctypes.c_float) for name in ("width_eps", "head_eps")),
        ("head", _Matrix),
        *((name, Pointer) for name in ("layers", "embedding", "rotations", "ones", "cache", "gemv", "dot")),
        *((name, _Loop) for name in ("exp", "tanh", "multiply_complex")),
    )


class _Ufunc(ctypes.Structure):
    """The head of numpy's public `PyUFuncObject` (numpy/ufuncobject.h)."""

    _fields_ = (
        *(("reference_count", ctypes.c_ssize_t), ("type", Pointer)),
        *((name, ctypes.c_int) for name in ("nin", "nout", "nargs", "identity")),
        *((name, ctypes.POINTER(Pointer)) for name in ("functions", "data")),
        *((name, ctypes.c_int) for name in ("ntypes", "reserved")),
        *(("name", ctypes.c_char_p), ("types", ctypes.POINTER(ctypes.c_byte))),
    )


class FusedStep:
    """The compiled forward pass of one model. Holds its weights, and writes into its cache of keys and values."""

    def __init__(
        self,
        library: ctypes.CDLL,
        shape: Qwen3Shape,
        weights: Weights,
        *,
        cache: Floats,
        rotations: npt.NDArray[np.complex64],
        ones: Floats,
        block: int,
        is_bounded: bool,
    ) -> None:
        """All arrays are contiguous, and kept. Raises `ConfigError` for a numpy whose BLAS or ufuncs cannot be called.

        - `cache`: (layers, slots, 2 KV, positions, hd), which `forward` writes; `positions` is a multiple of `block`.
        - `rotations`: (positions, hd / 2); `ones`: at least `block` ones.
        - `is_bounded`: whether scores stay so small that their maximum need not be taken off.
        """
        self._library = library
        self._kept: list[object] = []
        """Arrays that the library has pointers to."""
        layers = (_Layer * shape.num_layers)(
            *(
                _Layer(*map(self._matrix, (layer.qkv, layer.out, layer.gate_up, layer.down)), self._at(layer.qk_norm))
                for layer in weights.layers
            )
        )
        self._kept.append(layers)
        self._network = _Network(
            num_layers=shape.num_layers,
            width=shape.width,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            mlp_width=len(weights.layers[0].down),
            cache_width=cache.shape[3],
            num_slots=cache.shape[1],
            block=block,
            is_bounded=is_bounded,
            attends_in_tiles=_attends_in_tiles(library, block, shape.head_dim),
            width_eps=np.float32(shape.eps * shape.width),
            head_eps=np.float32(shape.eps * shape.head_dim),
            head=self._matrix(weights.head),
            layers=ctypes.cast(layers, Pointer),
            embedding=self._at(weights.embedding),
            rotations=self._at(rotations),
            ones=self._at(ones),
            cache=self._at(cache),
            gemv=_blas("sgemv"),
            dot=_blas("sdot"),
            exp=_loop(np.exp, np.float32),
            tanh=_loop(np.tanh, np.float32),
            multiply_complex=_loop(np.multiply, np.complex64),
        )
        self._num_outputs = weights.head.shape[1]
        self._sizes = len(weights.embedding), cache.shape[1], len(rotations)

    def forward(self, tokens: StepTokens) -> Floats:
        """Compute N tokens and write their keys and values into the cache. Returns the wanted logits. Raises
        `IndexError` for an id, a slot or a position that is none, and `MemoryError`."""
        ids = np.ascontiguousarray(tokens.ids, np.int32)
        slots, positions, last = (
            np.ascontiguousarray(array, np.int64) for array in (tokens.slots, tokens.positions, tokens.last)
        )
        for name, found, most in zip(("id", "slot", "position"), (ids, slots, positions), self._sizes, strict=True):
            if found.min() < 0 or found.max() >= most:
                raise IndexError(f"a token's {name} is not below {most}: {found.tolist()}")
        logits = np.empty((len(last), self._num_outputs), np.float32)
        given = (Size(len(ids)), *(Pointer(array.ctypes.data) for array in (ids, slots, positions)))
        wanted = (Size(len(last)), Pointer(last.ctypes.data), Pointer(logits.ctypes.data))
        if self._library.fused_step(ctypes.byref(self._network), *given, *wanted):
            raise MemoryError(f"no memory for a step of {len(ids)} tokens")
        return logits

    def _matrix(self, matrix: Floats) -> _Matrix:
        strips = _strips(matrix) if _is_tiled(self._library, *matrix.shape) else None
        self._kept += [matrix, strips]
        return _told(matrix, strips)

    def _at(self, array: npt.NDArray[Any]) -> int:
        """The address of an array, which is kept."""
        assert array.flags.c_contiguous and array.dtype in (np.float32, np.complex64)
        self._kept.append(array)
        return array.ctypes.data


@cache
def built() -> ctypes.CDLL | None:
    """The library that was built on this machine, of this source and for this numpy."""
    with suppress(OSError, ConfigError):
        path = place()
        found = path.lstat()
        if found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return ctypes.CDLL(str(path))
    return None


def place() -> Path:
    """Where the library is kept. Its name says of what it was built, and for what. Raises `ConfigError` for a user
    without a home folder."""
    of = f"{SOURCE.read_bytes()!r} {FLAGS} {np.__version__} {platform.machine()} {sys.platform}"
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise ConfigError("no folder for the fused step: name one by XDG_CACHE_HOME") from error
    return caches / "ramify" / f"fused-step-{hashlib.sha256(of.encode()).hexdigest()[:16]}.so"


def _strips(matrix: Floats) -> Floats:
    """(inputs, outputs) -> (strips, inputs, 16): all outputs but a few in front and behind."""
    first, behind = _apart(matrix.shape[1])
    strips = matrix[:, first : matrix.shape[1] - behind].reshape(len(matrix), -1, STRIP)
    return np.ascontiguousarray(strips.transpose(1, 0, 2))


def _apart(outputs: int) -> tuple[int, int]:
    """How many outputs OpenBLAS's kernel takes apart: in front of strips of 16, and behind them."""
    return outputs & 12, outputs & 3


def _told(matrix: Floats, strips: Floats | None) -> _Matrix:
    """What the library is told of weights; the caller keeps the arrays."""
    assert matrix.flags.c_contiguous and matrix.dtype == np.float32
    if strips is None:
        return _Matrix(matrix.ctypes.data, None, *matrix.shape)
    return _Matrix(matrix.ctypes.data, strips.ctypes.data, *matrix.shape, _apart(matrix.shape[1])[0], len(strips))


@cache
def _is_tiled(library: ctypes.CDLL, inputs: int, outputs: int) -> bool:
    """Whether products with (inputs, outputs) weights by tiles have the bits of numpy's, on this processor and with as
    many threads as its BLAS has here."""
    if inputs % CHAIN or outputs < STRIP or not library.has_tiles():
        return False
    x, weights, found = _drawn(5, inputs), _drawn(inputs, outputs), np.empty((5, outputs), np.float32)
    strips, network = _strips(weights), _Network(gemv=_blas("sgemv"), dot=_blas("sdot"))
    at = [Pointer(array.ctypes.data) for array in (x, found)]
    library.product(ctypes.byref(network), ctypes.byref(_told(weights, strips)), *at, Size(5))
    return found.tobytes() == np.matmul(x[:, None], weights)[:, 0].tobytes()


@cache
def _attends_in_tiles(library: ctypes.CDLL, block: int, size: int) -> bool:
    """As `_is_tiled`, for a block of keys and one of values."""
    if block % STRIP or size % STRIP or not library.has_tiles():
        return False
    query, shares, held = _drawn(size), _drawn(block), _drawn(block, size)
    scores, mixed = np.empty(block, np.float32), np.empty(size, np.float32)
    at = [Pointer(array.ctypes.data) for array in (query, held, scores, shares, mixed)]
    library.rows_in_tiles(*at[:3], Size(block), Size(size))
    library.row_in_tiles(at[3], at[1], at[4], Size(block), Size(size))
    same = np.matmul(held, query[:, None])[:, 0], np.matmul(shares[None], held)[0]
    return (scores.tobytes(), mixed.tobytes()) == (same[0].tobytes(), same[1].tobytes())


def _drawn(*shape: int) -> Floats:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@cache
def numpy_blas() -> tuple[ctypes.CDLL, str, str]:
    """numpy's BLAS, how it names its functions, and the type of their sizes. Raises `ConfigError` for another one."""
    core = "core" if np.__version__.startswith("1.") else "_core"
    file = sys.modules[f"numpy.{core}._multiarray_umath"].__file__
    library = ctypes.CDLL(file)
    for name, size in BLAS_NAMES:
        if hasattr(library, name.format("sgemv")):
            return library, size, name
    raise ConfigError(
        f"numpy {np.__version__} here has a BLAS that the fused step cannot call ({file}): install it from PyPI"
    )


def _blas(function: str) -> Pointer:
    library, _, name = numpy_blas()
    return ctypes.cast(getattr(library, name.format(function)), Pointer)


def _loop(ufunc: np.ufunc, dtype: type[Any]) -> _Loop:
    """The inner loop of a ufunc for arguments and result of `dtype`."""
    found, number = _Ufunc.from_address(id(ufunc)), np.dtype(dtype).num
    sizes = (found.nin, found.nout, found.nargs, found.ntypes)
    if sizes != (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes) or found.name != ufunc.__name__.encode():
        raise ConfigError(
            f"numpy {np.__version__} does not lay out ufuncs as in numpy/ufuncobject.h: install it from PyPI"
        )
    loops = range(found.ntypes)
    kinds = [[found.types[i * found.nargs + j] for j in range(found.nargs)] for i in loops]
    index = kinds.index([number] * found.nargs)
    return _Loop(found.functions[index], found.data[index])
