"""Whole runs whose servers are started for them, by the configuration alone."""

from pathlib import Path
from typing import Any

import pytest
from tests.servers.engine_folders import engine_python
from tests.servers.programs import wait_until

from ramify.config.configure import from_toml, resolve, to_toml
from ramify.core.errors import ConfigError, EngineError
from ramify.engines.builtin import FOLDER
from ramify.runner.build import prepared_run
from ramify.runner.folder import begin
from ramify.runner.run import Run
from ramify.runner.saved import Saved


def flags(python: str, logs: Path, **more: Any) -> dict[str, Any]:
    return {
        "engine.name": "vllm",
        "engine.model": str(FOLDER),
        "engine.replicas": 2,
        "engine.server.python": python,
        "engine.server.logs": str(logs),
        "prompts": 2,
        **more,
    }


def commands_holding(word: str) -> list[str]:
    """Command lines of processes that name `word`."""
    lines: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_text("utf-8", "replace"))
            except OSError:
                continue
    return [line for line in lines if word in line]


@pytest.mark.slow
@pytest.mark.covers("S3.2")
def test_a_run_has_its_servers_and_leaves_none(tmp_path: Path):
    python = engine_python(tmp_path / "engine", ["vllm of tokens"])
    config = resolve(preset="chains", flags=flags(python, tmp_path / "logs")).config
    report = begin(config, tmp_path / "run")
    assert report.trees == 2 and not report.failed_trees
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["server-0.1.log", "server-1.1.log"]
    wait_until(lambda: not commands_holding(str(tmp_path)))
    assert len(list(Saved.open(tmp_path / "run").trees())) == 2, "a saved run is read without servers"


def test_a_run_whose_servers_cannot_start_ends_with_their_log(tmp_path: Path):
    python = engine_python(tmp_path / "engine", ["vllm"])
    options = {"engine.server.environment": {"TEST_OPTIONS": '{"dies": "gpt-7"}'}}
    config = resolve(preset="chains", flags=flags(python, tmp_path / "logs", **options)).config
    with pytest.raises(EngineError, match=r"(?s)exit code 1 at its start.*no such model: gpt-7"):
        begin(config, tmp_path / "run")
    wait_until(lambda: not commands_holding(str(tmp_path)))


def test_how_servers_are_started_is_kept_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    more = {"engine.server.arguments": ["--max-num-seqs", "64"], "engine.server.hand_on": ["HF_TOKEN"]}
    config = resolve(flags=flags("engine/bin/python", Path("logs"), **more)).config
    server = config.engine.server
    assert (server.python, server.logs) == (f"{tmp_path}/engine/bin/python", f"{tmp_path}/logs")
    assert from_toml(to_toml(config)) == config


def test_servers_of_an_engine_that_has_none_are_refused():
    config = resolve(flags={"engine.replicas": 2}).config
    with pytest.raises(ConfigError, match="they are started for 'vllm' and 'sglang', and need a model"):
        Run(prepared_run(config))


def test_an_unknown_setting_of_servers_is_named():
    with pytest.raises(ConfigError, match=r"engine\.server\.pyton: unknown key; did you mean 'python'\?"):
        resolve(flags={"engine.server.pyton": "x"})
