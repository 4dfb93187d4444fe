"""Interpreter: which parts of this Python a sandbox can see, and at which paths.

Owns the neutral paths inside: the standard library under `/usr` or `/opt/python`, and the preloaded packages with their
requirements under `/opt/packages`. Other packages, the home folder and the project have no path inside.
"""

import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

from ramify.core.errors import ConfigError

PYTHON: Final = "/opt/python"
PACKAGES: Final = "/opt/packages"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Paths on the host and inside the sandbox."""

    prefix: Path
    """Folder of the standard library on the host."""
    executable: str
    """Path inside."""
    library_path: str | None
    """Path inside where the loader finds the interpreter's own shared library; None = the loader's standard path."""
    packages: Mapping[str, Path]
    """Name under `/opt/packages` -> path on the host."""

    @property
    def is_of_system(self) -> bool:
        """Whether it is installed under `/usr`."""
        return self.prefix == Path("/usr") or Path("/usr") in self.prefix.parents

    @property
    def site_folders(self) -> tuple[str, ...]:
        """Paths inside that would show packages of the host, and must be hidden."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        found = [f"/usr/lib/{version}/site-packages", "/usr/lib/python3/dist-packages", "/usr/src", "/usr/local/src"]
        found += [f"/usr/local/lib/{version}/{kind}-packages" for kind in ("site", "dist")]
        found = [path for path in found if Path(path).is_dir()]
        own = self.prefix / "lib" / version / "site-packages"
        return (
            (*found, f"{PYTHON}/lib/{version}/site-packages") if own.is_dir() and not self.is_of_system else (*found,)
        )


def interpreter(preload: Iterable[str]) -> Interpreter:
    """This process's own Python with `preload`. Raises `ConfigError` if a package is not installed.

    What was found is kept: to read what a package has installed takes longer than all else of a sandbox's start.
    """
    return _interpreter(tuple(preload))


@cache
def _interpreter(preload: tuple[str, ...]) -> Interpreter:
    prefix = Path(sys.base_prefix).resolve()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = Interpreter(prefix, "", None, dict(_packages(preload)))
    inside = str(prefix) if found.is_of_system else PYTHON
    has_library = bool(sysconfig.get_config_var("Py_ENABLE_SHARED")) and any(prefix.glob("lib/libpython*.so*"))
    return Interpreter(prefix, f"{inside}/bin/{version}", f"{inside}/lib" if has_library else None, found.packages)


def outside(preload: Iterable[str]) -> tuple[str, ...]:
    """Folders of the host that contain `preload`, for a sandbox without its own file system."""
    return tuple(sorted({str(path.parent) for _, path in _packages(preload)}))


def _packages(modules: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Top-level files and folders of the packages of `modules` and of all their requirements, each once."""
    seen: set[str] = set()
    waiting = [name.partition(".")[0] for name in modules]
    for module in waiting:
        if module not in sys.stdlib_module_names:
            yield from _of_module(module)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        waiting += _required(distribution)
        yield from _of_distribution(distribution)


def _of_module(module: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise ConfigError(
            f"preload: there is no module {module!r} in this environment; pip install it, or leave it out"
        )
    if spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations)))
        yield folder.name, folder
    elif spec.origin is not None and Path(spec.origin).is_file():
        yield Path(spec.origin).name, Path(spec.origin)


def _of_distribution(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    names = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    for name in sorted(names):
        path = Path(str(distribution.locate_file(name)))
        if not name.endswith(".pth") and path.exists():
            yield name, path


def _required(distribution: metadata.Distribution) -> Iterator[str]:
    """Names of its requirements without extras. Names meant for other platforms are included too; callers skip them
    because they are not installed."""
    for requirement in distribution.requires or ():
        head, _, marker = requirement.partition(";")
        name = _NAME.match(head.strip())
        if name is not None and "extra" not in marker:
            yield name[0]
