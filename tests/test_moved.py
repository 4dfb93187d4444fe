"""Modules that documents once named are found where they stand now, with a warning."""

import importlib
import subprocess
import sys

import pytest

from ramify.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_its_new_module_and_warns(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved to {MOVED[old].split()[0]}"):
        found = importlib.import_module(old)
    for place in MOVED[old].split():
        new = importlib.import_module(place)
        assert found is new or all(hasattr(found, name) for name in vars(new) if not name.startswith("_"))
        assert new.__name__ == new.__spec__.name == place  # type: ignore[union-attr]
    monkeypatch.delitem(sys.modules, old)


def test_the_warning_names_the_line_that_imports() -> None:
    code = "import ramify\nfrom ramify.runner.clock import run_virtual\nfrom ramify.runner.api import rollout, Saved\n"
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True)
    assert "<string>:2: DeprecationWarning: ramify.runner.clock has moved to ramify.testing.clock" in done.stderr
    assert "<string>:3: DeprecationWarning: ramify.runner.api has moved" in done.stderr


def test_slime_finds_its_functions_under_the_old_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ramify.service.slime", raising=False)
    with pytest.warns(DeprecationWarning, match="ramify.integrations.slime"):
        module = importlib.import_module("ramify.service.slime")
    assert callable(module.generate_rollout)
    assert callable(module.convert_samples_to_train_data)
    monkeypatch.delitem(sys.modules, "ramify.service.slime")


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("ramify.runner.clocks")
