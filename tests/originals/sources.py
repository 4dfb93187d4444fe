"""Sources of the originals: where their trees are, and how their modules are imported without what they run on.

The trees are never part of this repository. An environment variable names each; a test whose tree is absent is skipped
with a sentence that says which variable to set.
"""

import importlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DIFFERS = "differs"
"""Key of what an original met in which ours is known to differ, as the tables of docs/methods say. Scenarios of each
such cause are counted in a row of their own."""


def source(variable: str, repository: str, inside: str) -> Path:
    """The tree that `variable` names, of this repository. `inside` is a path that it must have."""
    named = os.environ.get(variable)
    if not named:
        pytest.skip(f"{variable} is not set: name a checkout of {repository}")
    root = Path(named).expanduser().resolve()
    assert (root / inside).exists(), f"{variable} = {named!r}: {inside} is not there; name a checkout of {repository}"
    return root


def torch_module() -> Any:
    """`torch`, or the test is skipped."""
    return pytest.importorskip("torch", reason="torch is not installed: `make test-originals` runs where it is")


class _Absent(ModuleType):
    """Stands for a module that is imported and not used, or used as a decorator or a base class only."""

    __path__: list[str] = []  # noqa: RUF012 - the attribute that makes a module a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Anything:
    """A class, a decorator with arguments, or a value that nobody looks at."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __call__(self, function: Any = None, *args: Any, **kwargs: Any) -> Any:
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


@contextmanager
def imports(folder: Path, *, absent: tuple[str, ...]) -> Iterator[Any]:
    """`importlib.import_module` with `folder` on the path, and with `absent` modules that need not be installed. An
    absent package of `folder` itself has its modules, but its `__init__` is not run. Afterwards its modules and the
    absent ones are forgotten, and nothing is written beside them. Libraries stay: torch cannot be imported twice."""
    before, writes_nothing = dict(sys.modules), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    for name in absent:
        sys.modules[name] = _Absent(name)
        sys.modules[name].__path__ = [str(folder.joinpath(*name.split(".")))]
        parent, _, child = name.rpartition(".")
        if parent in absent:
            setattr(sys.modules[parent], child, sys.modules[name])
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = writes_nothing
        packages = {name.partition(".")[0] for name in absent}
        for name in set(sys.modules) - set(before):
            if name.partition(".")[0] in packages or not _is_library(sys.modules[name]):
                del sys.modules[name]
        sys.modules.update(before)


def _is_library(module: ModuleType) -> bool:
    """Whether a module is installed, or of Python itself."""
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    known = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not any(places) or any(place.startswith(tuple(known)) for place in places if place)
