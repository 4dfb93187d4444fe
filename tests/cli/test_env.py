"""`ramify env check` says what it found; `--env` names an environment."""

from pathlib import Path

import pytest
from tests.cli.commands import SCRIPTED, ramify

from ramify import plugins
from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import environment_settings
from ramify.core.errors import ConfigError

WORLDS = Path(__file__).parents[1] / "environments" / "worlds.py"


def test_the_check_prints_each_rule(capsys: pytest.CaptureFixture[str]) -> None:
    said = ramify(capsys, "env", "check", "hops")
    assert said.code == 0, said.err
    assert said.out.splitlines()[:5] == [
        "ok    turns are answered",
        "ok    a replay gives the same",
        "ok    a fork and its trunk are apart",
        "ok    episodes share nothing",
        "ok    no text holds a secret",
    ]
    assert "needs the secret: its score is an oracle" in said.out and "every state has a digest" in said.out


def test_a_fault_is_named_and_has_an_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    leaky = tmp_path / "leaky.py"
    source = WORLDS.read_text().replace("return Walk(self.place, self.num_steps, list(self.said))", "return self")
    leaky.write_text(source)
    said = ramify(capsys, "env", "check", f"{leaky}:Walking", "--turn", "right", "--json")
    assert said.code == ExitCode.CHECK
    assert "the state is shared" in said.json["findings"]["a fork and its trunk are apart"]


@pytest.mark.parametrize("flag", ["--turns", "--problems"])
def test_a_check_of_nothing_is_refused(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    said = ramify(capsys, "env", "check", "hops", flag, "0")
    assert said.code == ExitCode.CONFIG and "each is at least 1" in said.err


def test_a_run_acts_in_the_environment_that_a_flag_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ("--env", f"{WORLDS}:Walking", "--prompts", "2", *SCRIPTED)
    said = ramify(capsys, "rollout", *flags, "--out", tmp_path / "run", "--json")
    assert said.code == 0, said.err
    assert ramify(capsys, "check", tmp_path / "run", "--trust").code == 0
    assert "environment" in ramify(capsys, "show", tmp_path / "run", "0").out


def test_an_unknown_environment_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    said = ramify(capsys, "rollout", "--env", "hosp")
    assert said.code == ExitCode.CONFIG and "did you mean 'hops'?" in said.err


def test_an_option_that_no_environment_takes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = ramify(capsys, "rollout", "--env", "hops", "--set", "environment.options.costs=1")
    assert said.code == ExitCode.CONFIG and "environment.options.costs" in said.err
    said = ramify(capsys, "rollout", "--set", "environment.options.cost=1")
    assert said.code == ExitCode.CONFIG and "environment.name" in said.err
    said = ramify(capsys, "rollout", "--env", "hops", "--set", "environment.discount=0.5")
    assert said.code == ExitCode.CONFIG and "environment.reward = 'discounted'" in said.err


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("gym", "id"),
        ("hops", "num_hops"),
        ("inspect", "task"),
        ("openenv", "url"),
        ("repair", "num_bugs"),
        ("tau2", "domain"),
        ("textarena", "id"),
        ("textworld", "games"),
        ("trl", "factory"),
        ("verifiers", "name"),
    ],
)
def test_each_kind_has_an_option_that_may_follow_it(kind: str, option: str) -> None:
    value = ["x"] if option == "games" else "x"
    assert environment_settings(f"{kind}:x") == {"environment.name": kind, f"environment.options.{option}": value}


def test_every_kind_of_environment_is_named_here() -> None:
    kinds = {"gym", "hops", "inspect", "openenv", "repair", "tau2", "textarena", "textworld", "trl", "verifiers"}
    assert set(plugins.known("environment")) == kinds


def test_what_follows_a_kind_is_its_first_option() -> None:
    assert environment_settings("hops:2") == {"environment.name": "hops", "environment.options.num_hops": 2}
    assert environment_settings("worlds.py:Walking") == {"environment.name": "worlds.py:Walking"}
    assert environment_settings(None) == {}
    with pytest.raises(ConfigError, match="--env 'hops:'"):
        environment_settings("hops:")
