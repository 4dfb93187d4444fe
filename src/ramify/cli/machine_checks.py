"""Machine checks: what this machine has, what is missing, and what to do about it. Each check yields findings."""

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from ramify.core.errors import ConfigError, RamifyError
from ramify.engines.shipped import MODELS

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "http": ("aiohttp", "tokenizers"),
    "view": ("aiohttp",),
    "chat": ("jinja2",),
    "hf": ("jinja2", "torch", "transformers"),
    "train": ("jinja2", "torch", "transformers", "trl"),
    "search": ("tantivy",),
    "inspect": ("inspect_ai",),
    "math": ("math_verify",),
    "mcp": ("mcp",),
    "parquet": ("pyarrow",),
    "plot": ("matplotlib",),
    "metrics": ("opentelemetry_api", "opentelemetry_sdk", "prometheus_client"),
    "ray": ("ray",),
    "tensorboard": ("tensorboardX",),
    "trackio": ("trackio",),
    "verifiers": ("verifiers",),
    "wandb": ("wandb",),
    "gym": ("gymnasium",),
    "textworld": ("textworld",),
    "textarena": ("textarena",),
    "openenv": ("aiohttp",),
    "reasoning": ("reasoning_gym",),
}
"""Extra -> the packages it installs."""
BASE: Final = ("numpy", "msgspec", "orjson", "rich", "safetensors")
MIN_PYTHON: Final = (3, 11)
MIN_FREE_BYTES: Final = 1 << 30
MODEL_FILES: Final = ("model.safetensors", "tokenizer.json", "config.json")
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
REINSTALL: Final = "pip install --force-reinstall ramify"

Mark = Literal["ok", "missing", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing. A fault stops a command; what is missing only limits it."""

    name: str
    mark: Mark
    text: str
    remedy: str = ""
    """What to do; '' = nothing."""

    def __str__(self) -> str:
        return f"{self.text}: {self.remedy}" if self.remedy else self.text


def python() -> Iterator[Finding]:
    text = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info >= MIN_PYTHON:
        yield Finding("python", "ok", text)
    else:
        yield Finding("python", "fault", text, f"use Python {'.'.join(map(str, MIN_PYTHON))} or later")


def base() -> Iterator[Finding]:
    for name in BASE:
        version = _version(name)
        yield Finding(name, "ok", version) if version else Finding(name, "fault", "not installed", REINSTALL)


def model(models: Mapping[str, Path] = MODELS) -> Iterator[Finding]:
    """The files of the shipped models and the hashes of their weights."""
    for name, folder in models.items():
        missing = [file for file in MODEL_FILES if not (folder / file).is_file()]
        if missing:
            yield Finding("model", "fault", f"{name}: no {', '.join(missing)} in {folder}", REINSTALL)
            continue
        weights = (folder / MODEL_FILES[0]).read_bytes()
        said = f"{name}, {len(weights) / 1e6:.1f} MB, sha256 {hashlib.sha256(weights).hexdigest()}"
        yield Finding("model", "ok", said)


def disk(folder: Path | None = None) -> Iterator[Finding]:
    """Free space in the current folder, where runs are written."""
    folder = folder or Path.cwd()
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.1f} GB free in {folder}"
    if not os.access(folder, os.W_OK):
        yield Finding("disk", "fault", f"{text}, which cannot be written", "start in a folder of yours")
    elif free < MIN_FREE_BYTES:
        remedy = f"make {MIN_FREE_BYTES / 1e9:.1f} GB free, or start in a folder on another disk"
        yield Finding("disk", "fault", text, remedy)
    else:
        yield Finding("disk", "ok", text)


def threads() -> Iterator[Finding]:
    """Threads of the matrix library; for the built-in model one is as fast as two."""
    given = [f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if name in os.environ]
    limit = ", ".join(given) or "all cores; OMP_NUM_THREADS=1 leaves the others to other processes"
    yield Finding("threads", "ok", f"{os.cpu_count()} cores; matrix library: {limit}")


def fused_step() -> Iterator[Finding]:
    """Whether the built-in model's compiled step is used here."""
    from ramify.engines.fused_step import BUILD, built

    if built() is None:
        yield Finding(
            "fused_step", "missing", "the built-in model runs in numpy alone; faster, with the same bits", BUILD
        )
    else:
        yield Finding("fused_step", "ok", "the built-in model is computed by a compiled step, with the bits of numpy")


def _version(module: str) -> str | None:
    try:
        return metadata.version(module.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return None


def extras(
    names: Iterable[str] = EXTRAS, *, needed: Iterable[str] = (), version: Callable[[str], str | None] = _version
) -> Iterator[Finding]:
    """The packages of extras. One that is missing is a fault if it is `needed`."""
    for extra in names:
        versions = {module: version(module) for module in EXTRAS[extra]}
        if missing := [module for module, found in versions.items() if found is None]:
            mark: Mark = "fault" if extra in needed else "missing"
            yield Finding(extra, mark, f"no {', '.join(missing)}", f"pip install 'ramify[{extra}]'")
        else:
            yield Finding(extra, "ok", " ".join(f"{module} {found}" for module, found in versions.items()))


def sandbox() -> Iterator[Finding]:
    """Whether the tools python and shell can run here behind their walls. Tries every wall."""
    import asyncio

    from ramify.tools.python import check
    from ramify.workspaces.shell import check as check_shell

    try:
        asyncio.run(check())
    except RamifyError as error:
        yield Finding("sandbox", "missing", str(error))
    else:
        yield Finding("sandbox", "ok", "the tool python runs with isolation='strict': every wall holds")
    try:
        said = asyncio.run(check_shell())
    except RamifyError as error:
        yield Finding("shell", "missing", str(error))
    else:
        yield Finding("shell", "ok", said)


def engines(python: str, *, folder: Path | None = None) -> Iterator[Finding]:
    """The servers that `python` could start, and whether an environment with the missing ones fits here."""
    from ramify.servers.installed import NEEDED_BYTES, install_line, installed, uninstall_line
    from ramify.servers.launch import Kind

    folder = folder or Path.cwd()
    free = shutil.disk_usage(folder).free

    def line(kind: Kind) -> str:
        room = f"; too little: {free / 1e9:.1f} GB free in {folder}" if free < NEEDED_BYTES[kind] else ""
        return install_line(kind) + room

    try:
        found = installed(python, ours=os.environ)
    except ConfigError as error:
        yield Finding("engines", "missing", f"{error}, or make one", line("vllm"))
        return
    for kind in NEEDED_BYTES:
        version = found.version(kind)
        if version is None:
            yield Finding(kind, "missing", f"not in {python}", line(kind))
        elif kind == "vllm" and found.misfits:
            what, _, remedy = uninstall_line(found).partition(": ")
            yield Finding(kind, "missing", what, remedy)
        else:
            yield Finding(kind, "ok", f"{version}, for {found.device(kind)} ({python})")
    router = found.version("sglang_router")
    if router is None:
        yield Finding("router", "missing", f"not in {python}", f"{python} -m pip install sglang-router==0.3.2")
    else:
        yield Finding("router", "ok", f"{router} ({python})")
