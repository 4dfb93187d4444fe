import pickle
from pathlib import Path

import pytest

from ramify import plugins
from ramify.config.configure import resolve
from ramify.core.errors import ConfigError
from ramify.strategies.parts import choose

MINE = """
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    n: int = 2


class Mine:
    Config = Settings

    def __init__(self, config, rng):
        self.config = config


class Plain:
    def __init__(self, *, size: int = 1):
        self.size = size


instance = Plain(size=3)
"""


def written(folder: Path, content: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(content, "utf-8")
    return path


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in plugins.KINDS for name in plugins.known(kind)])
def test_every_entry_of_the_table_resolves(kind: plugins.Kind, name: str):
    assert plugins.find(kind, name) is not None


@pytest.mark.parametrize("name", plugins.known("strategy"))
def test_every_strategy_has_options_of_its_own(name: str):
    assert plugins.config_class(plugins.find("strategy", name))()


def test_the_table_names_the_rules_that_strategies_know():
    assert {name: plugins.find("choose", name) for name in plugins.known("choose")} == choose.BUILT_IN


def test_a_class_of_a_file_is_found_once_and_pickles(tmp_path: Path):
    path = written(tmp_path, MINE)
    found = plugins.find("strategy", f"{path}:Mine")
    assert plugins.find("strategy", f"{path}:Mine") is found
    options = plugins.config_class(found)(n=5)
    assert pickle.loads(pickle.dumps(options)) == options


def test_an_attribute_of_a_module_is_found():
    assert plugins.find("prune", "ramify.strategies.parts.prune:repeated_call") is plugins.find(
        "prune", "repeated_call"
    )


def test_a_class_is_built_with_options_and_an_instance_is_taken_as_it_is(tmp_path: Path):
    path = written(tmp_path, MINE)
    assert plugins.build("tool", f"{path}:Plain", size=4).size == 4
    assert plugins.build("tool", f"{path}:instance").size == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import nothing_like_it\n", "line 1: ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("\n\nx = 1 / 0\n", "line 3: ZeroDivisionError: division by zero"),
        ("def f():\n    return g()\n\n\nf()\n", "line 2: NameError: name 'g' is not defined"),
        ("x = 1\nclass Mine(:\n", "line 2: SyntaxError"),
        ("x = 1\n", "has no 'Mine'; known: x"),
        ("class Mined: ...\n", "has no 'Mine'; did you mean 'Mined'?"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line(tmp_path: Path, content: str, message: str):
    path = written(tmp_path, content)
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            plugins.find("strategy", f"{path}:Mine")
        assert str(path) in str(caught.value)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("onlin", "unknown strategy 'onlin'; did you mean 'online' or 'offline'?"),
        ("zzz", f"unknown strategy 'zzz'; known: {', '.join(plugins.known('strategy'))}. Or name a file: path/"),
        ("", "unknown strategy ''"),
        ("mine.py", "unknown strategy 'mine.py'; say what is meant in that file: mine.py:Name"),
        (":Mine", "unknown strategy ':Mine'"),
        ("no/such/file.py:Mine", "there is no file 'no/such/file.py'"),
        ("no.such.module:Mine", "'no.such.module:Mine' cannot be imported: No module named 'no'"),
        ("ramify.strategies.chains:Chain", "ramify.strategies.chains has no 'Chain'; did you mean 'Chains'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, message: str):
    with pytest.raises(ConfigError) as caught:
        plugins.find("strategy", name)
    assert message in str(caught.value)


def test_a_file_that_imports_the_one_beside_it_is_told_how(tmp_path: Path):
    (tmp_path / "beside_it.py").write_text("x = 1\n", "utf-8")
    path = written(tmp_path, "from beside_it import x\n")
    with pytest.raises(ConfigError, match=f"No module named 'beside_it'. It stands beside .*: PYTHONPATH={tmp_path} "):
        plugins.find("tool", f"{path}:x")


def test_a_file_named_as_a_module_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_part.py").write_text("x = 1\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"'my_part:x' cannot be imported: .*; for the file here say my_part.py:x"):
        plugins.find("tool", "my_part:x")


def test_options_that_a_class_does_not_take_are_refused(tmp_path: Path):
    path = written(tmp_path, MINE)
    with pytest.raises(ConfigError, match="unknown key 'sise'; did you mean 'size'"):
        plugins.build("tool", f"{path}:Plain", sise=4)
    with pytest.raises(ConfigError, match="is no class, so it takes no options"):
        plugins.build("tool", f"{path}:instance", size=4)
    with pytest.raises(ConfigError, match="cannot be made with"):
        plugins.build("tool", f"{path}:Mine")


def test_keywords_without_a_default_that_nobody_gave_are_missing():
    def target(first: int, *others: int, second: int, third: int = 3, **rest: int) -> None: ...

    assert plugins.missing_keywords(target, {"first", "else"}) == ["second"]
    assert plugins.missing_keywords(target, {"first", "second"}) == []


def test_an_object_is_taken_as_it_is(tmp_path: Path):
    (tmp_path / "mine.py").write_text("from ramify.testing.scripted import Scripted\nENGINE = Scripted()\n", "utf-8")
    name = f"{tmp_path / 'mine.py'}:ENGINE"
    assert resolve(flags={"engine.name": name}).config.engine.name == name
    with pytest.raises(ConfigError, match="unknown key 'size'; it is no class"):
        resolve(flags={"engine.name": name, "engine.options": {"size": 4}})


def test_a_class_without_a_config_is_no_strategy(tmp_path: Path):
    path = written(tmp_path, MINE)
    with pytest.raises(ConfigError, match="is no strategy"):
        plugins.config_class(plugins.find("strategy", f"{path}:Plain"))
