"""A format class declares its options, the plug-ins and files they name, and its actions; nothing else knows them."""

from pathlib import Path

import pytest

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.codec import ByteCodec
from ramify.core.engine import Capabilities
from ramify.core.errors import ConfigError
from ramify.runner.formats import build_format
from ramify.tasks.countdown import Countdown

MINE = """
from dataclasses import dataclass, field

from ramify.formats.steps import tagged


@dataclass(frozen=True)
class Options:
    size: int = 1
    parser: str | None = field(default=None, metadata={"names": "step_parser"})
    words: str = field(default="", metadata={"names": "file"})


class Mine:
    Config = Options
    actions = {"ask": {"edge": "quotes", "template": "{question}"}}

    def __init__(self, options, *, parser=None):
        self.options = options
        self.parser = parser
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mine.py").write_text(MINE, "utf-8")
    monkeypatch.chdir(tmp_path)
    return "mine.py:Mine"


def configured(name: str, *options: str) -> RunConfig:
    return resolve(overrides=[f"format={name}", *(f"format_options.{option}" for option in options)]).config


def test_it_is_built_from_its_decoded_options_and_the_plug_ins_they_name(name: str) -> None:
    config = configured(name, "size=3", "parser=mine.py:tagged", "words=words.txt")
    tokens = Capabilities(name="mine", context_length=None, has_token_ids=True)
    format = build_format(config, Countdown(), ByteCodec(), tools=(), engines=[tokens])
    assert vars(format)["options"].size == 3
    assert vars(format)["parser"].__name__ == "tagged"


def test_its_files_are_absolute_and_its_actions_are_in_the_run(name: str, tmp_path: Path) -> None:
    config = configured(name, "parser=mine.py:tagged", "words=words.txt")
    assert config.format_options["words"] == str(tmp_path / "words.txt")
    assert config.format_options["parser"] == f"{tmp_path / 'mine.py'}:tagged"
    assert config.actions["ask"].edge == "quotes"


def test_what_is_wrong_with_its_options_is_said_before_the_run(name: str) -> None:
    with pytest.raises(ConfigError, match=r"format_options\.sise: unknown key"):
        configured(name, "sise=3")
    with pytest.raises(ConfigError, match=r"format_options\.parser: unknown step_parser 'tag'; did you mean 'tags'"):
        configured(name, "parser=tag")
