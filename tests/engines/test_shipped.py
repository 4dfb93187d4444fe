"""The models that come with the package, by name, and which of them plays a task."""

from dataclasses import replace
from pathlib import Path

import pytest

from ramify import plugins
from ramify.config.configure import from_toml, resolve, to_toml
from ramify.config.run_config import EngineConfig, RunConfig, TaskConfig
from ramify.core.errors import ConfigError
from ramify.engines.builtin import Builtin
from ramify.engines.shipped import MODEL_OF_TASK, MODELS, folder_of
from ramify.servers.launch import Launch


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_model_is_named(name: str) -> None:
    assert folder_of(name) == MODELS[name]
    assert Builtin(name).capabilities.name == "builtin"


def test_any_folder_is_taken_by_its_path(tmp_path: Path) -> None:
    assert folder_of(tmp_path) == folder_of(str(tmp_path)) == tmp_path


def test_a_folder_of_a_shipped_name_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "herds").mkdir()
    monkeypatch.chdir(tmp_path)
    assert folder_of("herds") == MODELS["herds"]
    assert folder_of("./herds").resolve() == tmp_path / "herds"


@pytest.mark.parametrize(
    ("name", "told"),
    [("herd", "did you mean 'herds'"), ("qwen", "known: builtin, herds")],
)
def test_another_name_is_refused_with_those_there_are(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"none of the shipped models; {told}"):
        Builtin(name)


def test_the_table_names_tasks_and_models_that_there_are() -> None:
    assert set(MODEL_OF_TASK) <= set(plugins.known("task"))
    assert set(MODEL_OF_TASK.values()) <= set(MODELS)


def test_the_engine_takes_the_model_that_plays_the_task() -> None:
    assert RunConfig(task=TaskConfig(name="herds")).engine.model == "herds"
    assert resolve(flags={"task.name": "herds"}).config.engine.model == "herds"
    assert RunConfig().engine.model is None
    assert from_toml(to_toml(RunConfig(task=TaskConfig(name="herds")))).engine.model == "herds"


@pytest.mark.parametrize("engine", [EngineConfig(model="builtin"), EngineConfig(name="scripted")])
def test_a_model_that_is_named_and_another_engine_stay_as_they_are(engine: EngineConfig) -> None:
    assert replace(RunConfig(), task=TaskConfig(name="herds"), engine=engine).engine == engine


@pytest.mark.parametrize("name", MODELS)
def test_a_server_is_given_the_folder_of_a_shipped_model(name: str) -> None:
    launch = Launch(model=name)
    assert launch.path == str(MODELS[name])
    assert launch.name == name
