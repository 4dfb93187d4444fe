# pyright: reportMissingImports=false
"""Inspect sandbox: the sandbox of a sample, which a fork copies as a folder.

Only Inspect's `local` sandbox is a folder. A copy has another path. Source: inspect_ai 0.3.285,
inspect_ai/util/_sandbox/local.py and context.py.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.core.errors import ConfigError, ToolError


def sandbox_of(task: Any, sample: Any) -> Any:
    """The sandbox of a sample (its own, or the task's), or None. Raises `ConfigError` for one that cannot be copied."""
    spec = sample.sandbox or task.sandbox
    if spec is not None and spec.type != "local":
        raise ConfigError(
            f"sandbox {spec.type!r} of sample {sample.id!r} cannot be copied at a fork; only 'local' can, as a folder"
        )
    return spec


async def opened_sandboxes(task: Any, sample: Any) -> Mapping[str, Any]:
    """The sandboxes of a sample with its files, set up, and set in this context."""
    if (spec := sandbox_of(task, sample)) is None:
        return {}
    from inspect_ai._eval.task.sandbox import read_sandboxenv_file, resolve_sample_files
    from inspect_ai.util._sandbox.context import init_sandbox_environments_sample
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    given = resolve_sample_files(sample.files) if sample.files else {}
    files = {path: await read_sandboxenv_file(content) for path, content in given.items()}
    setup = await read_sandboxenv_file(sample.setup) if sample.setup else None
    return await init_sandbox_environments_sample(
        LocalSandboxEnvironment, task.name, spec.config, files, setup, sample.metadata or {}
    )


def copied_sandbox(proxy: Any) -> Any:
    """A local sandbox with a copy of another's folder, at a path of its own."""
    from inspect_ai.util._sandbox.events import SandboxEnvironmentProxy
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    if proxy._sandbox._sandbox_tools_used:
        raise ToolError("not_copied", "a server of Inspect's sandbox tools runs in the sandbox; a copy would lose it")
    other = LocalSandboxEnvironment()
    shutil.copytree(proxy._sandbox.directory.name, other.directory.name, symlinks=True, dirs_exist_ok=True)
    return SandboxEnvironmentProxy(other)


def files_of(proxy: Any) -> list[tuple[str, int, bytes]]:
    """Path, mode and content of every file of a local sandbox; of a link its target."""
    root = Path(proxy._sandbox.directory.name)
    return [
        (
            str(path.relative_to(root)),
            path.lstat().st_mode,
            str(path.readlink()).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(root.rglob("*"))
    ]
