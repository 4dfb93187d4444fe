"""Inputs: digests that change with what a run reads, and with nothing else."""

import os
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from ramify.config.run_config import EngineConfig, JudgeConfig, RunConfig, StrategyConfig, TaskConfig
from ramify.core.errors import ConfigError, StoreError
from ramify.core.problem import Problem
from ramify.runner import inputs
from ramify.runner.inputs import BLOCK_BYTES, NUM_BLOCKS, WHOLE_BYTES, accept_option, check_inputs, inputs_of
from ramify.store.records import InputsValue

PROBLEMS = [Problem("a", "1?", {"n": 1}, {"answer": "2"}), Problem("b", "2?", {"n": 2}, {"answer": "3"})]
SAME = RunConfig()
RUN = Path("run")


def problems(number: int, **other: Any) -> list[Problem]:
    return [replace(each, **other) if i == number else each for i, each in enumerate(PROBLEMS)]


@pytest.mark.parametrize("other", [{"uid": "c"}, {"question": "3?"}, {"public": {"n": 3}}, {"split": "train"}])
def test_what_everybody_sees_of_a_problem_is_in_the_digest_of_problems(other: dict[str, Any]) -> None:
    assert inputs_of(SAME, problems(1, **other)).problems != inputs_of(SAME, PROBLEMS).problems


def test_the_order_of_problems_is_in_it() -> None:
    assert inputs_of(SAME, PROBLEMS[::-1]).problems != inputs_of(SAME, PROBLEMS).problems


def test_gold_answers_are_in_a_digest_of_their_own() -> None:
    now, before = inputs_of(SAME, problems(0, secret={"answer": "3"})), inputs_of(SAME, PROBLEMS)
    assert now.problems == before.problems and now.secrets != before.secrets
    assert inputs_of(SAME, [Problem("a", "1?")]).secrets == ""


def test_values_of_any_kind_have_a_digest_that_another_process_finds_too() -> None:
    values: list[Any] = ["é", "\ud800", b"x", None, True, 1, 1.5, [1, [2]], [[1], 2], {"a": 1}, {"b": 1}, np.arange(3)]
    found = [inputs_of(SAME, problems(0, public={"v": value})).problems for value in values]
    assert len({*found}) == len(values)
    one, other = (inputs_of(SAME, problems(0, public={"v": object()})).problems for _ in range(2))
    assert one == other
    assert found[-1] == inputs_of(SAME, problems(0, public={"v": [0, 1, 2]})).problems
    frozen = inputs_of(SAME, problems(0, public=MappingProxyType({"v": MappingProxyType({"a": 1})})))
    assert found[values.index({"a": 1})] == frozen.problems


def test_weights_are_those_of_local_folders(tmp_path: Path) -> None:
    config = RunConfig(
        engine=EngineConfig(name="local", model=str(tmp_path)), engines={"c": EngineConfig(model="herds")}
    )
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = inputs_of(config, []).weights
    assert list(before) == [str(tmp_path)]
    (tmp_path / "training.log").write_text("x")
    assert inputs_of(config, []).weights == before
    (tmp_path / "model.safetensors").write_bytes(b"weighty")
    assert inputs_of(config, []).weights != before
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    assert inputs_of(config, []).weights != before


@pytest.mark.slow
def test_a_large_file_of_weights_is_sampled(tmp_path: Path) -> None:
    config = RunConfig(engine=EngineConfig(name="local", model=str(tmp_path)))
    file, size = tmp_path / "model.safetensors", 4 * WHOLE_BYTES
    with file.open("wb") as new:
        new.truncate(size)
    before = inputs_of(config, []).weights
    step = (size - BLOCK_BYTES) / (NUM_BLOCKS - 1)
    for place in (0, 9, inputs.BEGINNING_BYTES - 1, int(100 * step) + 5, int(254 * step) + 5, size - 1):
        with file.open("r+b") as changed:
            changed.seek(place)
            changed.write(b"\1")
        assert inputs_of(config, []).weights != before, place
        with file.open("r+b") as changed:
            changed.seek(place)
            changed.write(b"\0")
        assert inputs_of(config, []).weights == before
    with file.open("ab") as longer:
        longer.write(b"\0")
    assert inputs_of(config, []).weights != before


def test_files_of_plug_ins_are_found_wherever_they_are_named(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.py" for name in ("task", "judge", "function", "choose")]
    for file in files:
        file.write_text("x = 1\n")
    task, judge, function, choose = files
    config = RunConfig(
        task=TaskConfig(name=f"{task}:X"),
        strategy=StrategyConfig(name="offline", options={"choose": f"{choose}:x"}),
        judges={
            "one": JudgeConfig(kind=f"{judge}:X"),
            "two": JudgeConfig(kind="function", options={"function": f"{function}:x"}),
        },
    )
    before = inputs_of(config, []).plugins
    assert sorted(before) == sorted(map(str, files))
    os.utime(task, (time.time() + 9, time.time() + 9))
    assert inputs_of(config, []).plugins == before
    judge.write_text("x = 2\n")
    assert [path for path, digest in inputs_of(config, []).plugins.items() if before[path] != digest] == [str(judge)]


def test_the_file_of_a_module_is_found_and_those_of_this_package_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_module.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = RunConfig(
        task=TaskConfig(name="some_module:X"), engine=EngineConfig(name="ramify.testing.scripted:Scripted")
    )
    assert list(inputs_of(config, []).plugins) == [str(tmp_path / "some_module.py")]


BEFORE = InputsValue(problems="p", secrets="s", weights={"m": "w"}, plugins={"f.py": "d"})


def test_equal_inputs_need_nothing() -> None:
    assert check_inputs(RUN, BEFORE, BEFORE, is_own=True, accept=()) is None
    assert check_inputs(RUN, BEFORE, BEFORE, is_own=True, accept=["data"]) is None


def test_all_that_differs_is_named_with_one_flag_for_all() -> None:
    now = InputsValue(problems="q", secrets="t", weights={"m": "v", "n": "w"}, plugins={})
    with pytest.raises(StoreError) as refused:
        check_inputs(RUN, BEFORE, now, is_own=True, accept=())
    for wanted in ("data: the questions", "the files in m", "the files in n", "plugins: f.py"):
        assert wanted in str(refused.value)
    assert str(refused.value).endswith("ramify resume run --accept data,weights,plugins")
    accepted = check_inputs(RUN, BEFORE, now, is_own=True, accept=["data", "weights", "plugins"])
    assert accepted is not None and accepted.what == ("data", "weights", "plugins") and accepted.inputs == now


def test_gold_answers_are_compared_only_under_the_key_that_they_were_recorded_with() -> None:
    now = InputsValue(problems="p", secrets="t", weights={"m": "w"}, plugins={"f.py": "d"})
    with pytest.raises(StoreError, match="data: the gold answers"):
        check_inputs(RUN, BEFORE, now, is_own=True, accept=["weights"])
    assert check_inputs(RUN, BEFORE, now, is_own=False, accept=()) is None


def test_the_words_of_accept_are_checked() -> None:
    assert accept_option("data, weights") == {"data", "weights"} and accept_option("") == frozenset()
    with pytest.raises(ConfigError, match=r"unknown 'date'.*'data'"):
        accept_option("date")
