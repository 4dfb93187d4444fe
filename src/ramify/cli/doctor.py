"""`ramify doctor`: what this machine can use, what is missing, and the command that installs it.

Every finding is a line with a mark. A fault stops a run of the built-in model; a missing extra is not a fault.
"""

import argparse
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from rich.text import Text

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag
from ramify.cli.terminal import Terminal
from ramify.core.errors import ConfigError, RamifyError
from ramify.engines.shipped import MODELS

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "http": ("aiohttp", "tokenizers"),
    "chat": ("jinja2",),
    "hf": ("jinja2", "torch", "transformers"),
    "search": ("tantivy",),
    "math": ("math_verify",),
    "mcp": ("mcp",),
    "parquet": ("pyarrow",),
    "plot": ("matplotlib",),
    "metrics": ("opentelemetry_api", "opentelemetry_sdk", "prometheus_client"),
    "ray": ("ray",),
    "tensorboard": ("tensorboardX",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
"""Extra -> the packages it installs."""
BASE = ("numpy", "msgspec", "rich", "safetensors")
MIN_PYTHON = (3, 11)
MIN_FREE_BYTES = 1 << 30
MODEL_FILES = ("model.safetensors", "tokenizer.json", "config.json")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Mark = Literal["ok", "missing", "fault"]
STYLES: Mapping[Mark, str] = {"ok": "green", "missing": "yellow", "fault": "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing."""

    name: str
    mark: Mark
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="interpreter of the engines (default: this one)"
    )
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    found = [finding for look in (python, base, model, disk, threads, extras, sandbox) for finding in look()]
    found += engines(options.python)
    if options.json:
        terminal.result("ramify.doctor/1", {"findings": [asdict(finding) for finding in found]})
    else:
        for finding in found:
            mark = Text(f"{finding.mark:8}", STYLES[finding.mark])
            terminal.out.print(mark + Text(f"{finding.name:12}", "bold") + Text(finding.text), soft_wrap=True)
    return ExitCode.ENVIRONMENT if any(finding.mark == "fault" for finding in found) else ExitCode.DONE


def python() -> Iterator[Finding]:
    version = platform.python_version()
    is_new_enough = sys.version_info >= MIN_PYTHON
    yield Finding("python", "ok" if is_new_enough else "fault", f"{version} ({sys.executable})")


def base() -> Iterator[Finding]:
    for name in BASE:
        version = _version(name)
        yield Finding(name, "ok" if version else "fault", version or "not installed: pip install --force ramify")


def model() -> Iterator[Finding]:
    """The files of the shipped models and the hashes of their weights."""
    for name, folder in MODELS.items():
        missing = [file for file in MODEL_FILES if not (folder / file).is_file()]
        if missing:
            yield Finding("model", "fault", f"{name}: {', '.join(missing)} not there: install ramify again")
            continue
        weights = (folder / MODEL_FILES[0]).read_bytes()
        said = f"{name}, {len(weights) / 1e6:.1f} MB, sha256 {hashlib.sha256(weights).hexdigest()}"
        yield Finding("model", "ok", said)


def disk(folder: Path | None = None) -> Iterator[Finding]:
    """Free space in the current folder, where runs are written."""
    folder = folder or Path.cwd()
    free = shutil.disk_usage(folder).free
    is_writable = os.access(folder, os.W_OK)
    text = f"{free / 1e9:.1f} GB free in {folder}{'' if is_writable else ', which cannot be written'}"
    yield Finding("disk", "ok" if is_writable and free >= MIN_FREE_BYTES else "fault", text)


def threads() -> Iterator[Finding]:
    """Threads of the matrix library; for the built-in model one is as fast as two."""
    given = [f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if name in os.environ]
    limit = ", ".join(given) or "all cores; OMP_NUM_THREADS=1 leaves the others to other processes"
    yield Finding("threads", "ok", f"{os.cpu_count()} cores; matrix library: {limit}")


def _version(module: str) -> str | None:
    try:
        return metadata.version(module.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return None


def extras(has_module: Callable[[str], object] = _version) -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        missing = [name for name in modules if not has_module(name)]
        text = f"pip install 'ramify[{extra}]'" if missing else " ".join(f"{m} {_version(m)}" for m in modules)
        yield Finding(extra, "missing" if missing else "ok", text)


def sandbox() -> Iterator[Finding]:
    """Whether the tool python can run here in full isolation. Tries every wall."""
    import asyncio

    from ramify.tools.python import check

    try:
        asyncio.run(check())
    except RamifyError as error:
        yield Finding("sandbox", "missing", str(error))
    else:
        yield Finding("sandbox", "ok", "the tool python runs with isolation='strict': every wall holds")


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
        yield Finding("engines", "missing", f"{error}, or make one: {line('vllm')}")
        return
    for kind in NEEDED_BYTES:
        version = found.version(kind)
        if version is None:
            yield Finding(kind, "missing", f"not in {python}: {line(kind)}")
        elif kind == "vllm" and found.misfits:
            yield Finding(kind, "missing", uninstall_line(found))
        else:
            yield Finding(kind, "ok", f"{version}, for {found.device(kind)} ({python})")
    router = found.version("sglang_router")
    text = f"not in {python}: pip install sglang-router==0.3.2" if router is None else f"{router} ({python})"
    yield Finding("router", "missing" if router is None else "ok", text)
