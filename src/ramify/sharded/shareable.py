"""Shareable: checks, before any process starts, that several processes can run a configuration side by side."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.errors import ConfigError
from ramify.engines.shipped import MODELS


def check_shareable(config: RunConfig) -> None:
    """Raise one `ConfigError` with everything that several processes cannot share."""
    if found := list(faults(config)):
        raise ConfigError("several processes cannot share this run: " + "; ".join(found))


def faults(config: RunConfig) -> Iterator[str]:
    """Settings that each process would have separately, or would not find."""
    for name, engine in {"engine": config.engine, **{f"engines.{n}": e for n, e in config.engines.items()}}.items():
        yield from _engine_faults(name, engine)
        model = None if engine.model in MODELS else engine.model
        yield from _relative({f"{name}.model": model, **_named(f"{name}.options", engine.options)})
    yield from _relative(_named("task.options", config.task.options))
    for name, tool in config.tools.use.items():
        yield from _relative(_named(f"tools.use.{name}.options", tool.options))
    for name, judge in config.judges.items():
        yield from _relative(_named(f"judges.{name}.options", judge.options))


def _engine_faults(name: str, engine: EngineConfig) -> Iterator[str]:
    if engine.replicas:
        yield (
            f"{name}.replicas = {engine.replicas}: each process would start servers of its own; start them once with "
            "`ramify serve` and give their addresses with --base-url"
        )
    if engine.log is not None:
        yield f"{name}.log = {engine.log!r}: all would write to one file; leave it out"


def _named(path: str, options: Mapping[str, object]) -> dict[str, object]:
    return {f"{path}.{key}": value for key, value in options.items()}


def _relative(settings: Mapping[str, object]) -> Iterator[str]:
    """Files with a relative path; another process has another current folder."""
    for path, value in settings.items():
        if isinstance(value, str) and value and "\0" not in value and _is_relative_file(Path(value)):
            whole = str(Path(value).resolve())
            yield f"{path} = {value!r}: each process would look for it in a folder of its own; give {whole!r}"


def _is_relative_file(path: Path) -> bool:
    try:
        return not path.is_absolute() and path.exists()
    except OSError:
        return False  # Not a valid file name.
