"""What several processes could not share is refused before any is started, all of it at once."""

from pathlib import Path
from typing import Any

import pytest
from tests.sharded.divided import config

from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.errors import ConfigError
from ramify.sharded.shareable import check_shareable, faults


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"engine.name": "builtin"},
        {
            "engine.name": "vllm",
            "engine.model": "/models/m",
            "engine.base_url": "http://127.0.0.1:1,http://127.0.0.1:2",
        },
        {"engine.options": {"block_size": 8}},
        {"task.options": {"difficulty": "no-such-file"}},
    ],
)
def test_what_every_process_can_have_of_its_own_is_shared(flags: dict[str, Any]):
    engine = EngineConfig(**{k.partition(".")[2]: v for k, v in flags.items() if k.startswith("engine.")})
    check_shareable(RunConfig(engine=engine))


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (EngineConfig(log="/tmp/engine.log"), r"engine\.log = '/tmp/engine.log': all would write to one file"),
        (EngineConfig(name="vllm", replicas=2), r"engine\.replicas = 2: .*`ramify serve`.*--base-url"),
        (EngineConfig(model="model"), r"engine\.model = 'model': .* give '/.*/model'"),
        (EngineConfig(model="./model"), r"engine\.model = './model'"),
        (EngineConfig(options={"script": "notes.txt"}), r"engine\.options\.script = 'notes.txt'"),
    ],
)
def test_an_engine_that_cannot_be_shared_is_refused(engine: EngineConfig, message: str):
    with pytest.raises(ConfigError, match=message):
        check_shareable(RunConfig(engine=engine))
    with pytest.raises(ConfigError, match=message.replace("engine", r"engines\.other", 1)):
        check_shareable(RunConfig(engines={"other": engine}))


def test_every_fault_is_told_at_once():
    engine = EngineConfig(log="/tmp/engine.log", replicas=1, model="model", options={"x": "notes.txt"})
    assert len(list(faults(RunConfig(engine=engine)))) == 4


def test_a_setting_that_no_file_could_be_called_is_no_file():
    check_shareable(RunConfig(engine=EngineConfig(options={"a": "x" * 9000, "b": "nul\0", "c": "", "d": 3})))


def test_files_of_the_configuration_are_absolute_before_they_are_looked_at(folder: Path):
    (folder / "questions.jsonl").write_text('{"question": "1 + 1?"}\n')
    check_shareable(config(prompts=1, **{"data.path": "questions.jsonl"}))
