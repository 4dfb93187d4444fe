"""Permission: who began a run, and what it would reach."""

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.store.growths import HEADER

from ramify.config.reach import reach
from ramify.config.run_config import EngineConfig, JudgeConfig, RunConfig, TaskConfig, ToolConfig, ToolsConfig
from ramify.core.errors import StoreError
from ramify.runner.permission import is_signed_here, signed, unsigned_reason
from ramify.store import ownership
from ramify.store.records import ShardValue

TEXT = "seed = 1\n"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_key_is_made_once_and_only_its_owner_reads_it(state: Path) -> None:
    first = ownership.key()
    assert ownership.key() == first and len(first) == 32
    (file,) = (state / "ramify").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_the_key_is_in_the_home_where_no_state_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for named in ("", "relative/folder"):
        monkeypatch.setenv("XDG_STATE_HOME", named)
        assert ownership.key_path() == tmp_path / ".local" / "state" / "ramify" / "run-key"


def test_every_field_of_a_header_and_every_byte_of_the_configuration_is_signed() -> None:
    header = signed(HEADER, TEXT)
    assert is_signed_here(header, TEXT)
    assert is_signed_here(msgspec.structs.replace(header, shard=ShardValue(index=0, count=2)), TEXT)
    assert not is_signed_here(header, "seed = 2\n")
    other: dict[str, Any] = {
        "seed": 5,
        "library": "x",
        "created": 1.5,
        "config_hash": "x",
        "weights": (),
        "mac": "0" * 64,
    }
    for name, value in other.items():
        assert not is_signed_here(msgspec.structs.replace(header, **{name: value}), TEXT), name


def test_another_key_signs_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    header = signed(HEADER, TEXT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert not is_signed_here(header, TEXT)


def test_without_a_place_for_the_key_a_run_is_not_signed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert unsigned_reason() is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert signed(HEADER, TEXT).mac == ""
    assert "Not a directory" in str(unsigned_reason()) and "--trust" in str(unsigned_reason())
    with pytest.raises(StoreError, match="set XDG_STATE_HOME"):
        ownership.key()


def test_processes_that_begin_together_have_one_key(state: Path) -> None:
    children = []
    for _ in range(8):
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, ownership.key())
            os._exit(0)
        os.close(write)
        children.append(read)
    keys = {os.read(read, 64) for read in children}
    for read in children:
        os.close(read)
        os.wait()
    assert len(keys) == 1 and [path.name for path in (state / "ramify").iterdir()] == ["run-key"]


def test_built_in_parts_reach_nothing() -> None:
    assert reach(RunConfig()) == []
    assert reach(RunConfig(engine=EngineConfig(model="herds"), task=TaskConfig(name="herds"))) == []


def test_whatever_a_run_would_load_start_or_connect_to_is_told() -> None:
    tools = {
        "mine": ToolConfig(kind="/t.py:look_up"),
        "files": ToolConfig(kind="mcp", options={"command": "npx", "args": ["server", "/data"]}),
        "web": ToolConfig(kind="retriever", options={"base_url": "http://10.0.0.1/r"}),
    }
    config = RunConfig(
        task=TaskConfig(name="package.module:Task", options={"folder": "~/x"}),
        engine=EngineConfig(name="openai", model="gpt", base_url="https://api.example/v1", log="/tmp/log"),
        engines={"critic": EngineConfig(name="vllm", model="/models/m", replicas=2)},
        judges={"j": JudgeConfig(kind="function", options={"function": "/j.py:f"})},
        tools=ToolsConfig(use=tools),
        format="/f.py:Format",
    )
    assert set(reach(config)) >= {
        "runs package.module:Task (task.name)",
        "opens ~/x (task.options.folder)",
        "uses the model gpt (engine.model)",
        "connects to https://api.example/v1 (engine.base_url)",
        "writes /tmp/log (engine.log)",
        "starts 2 servers of /models/m (engines.critic.replicas)",
        "runs /j.py (judges.j.options.function)",
        "runs /t.py (tools.use.mine)",
        "starts npx server /data (tools.use.files.options.command)",
        "connects to http://10.0.0.1/r (tools.use.web.options.base_url)",
        "runs /f.py (format)",
    }
