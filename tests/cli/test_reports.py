import pytest
from tests.cli.commands import ramify

from ramify.config.presets import KINDS, preset, preset_names


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
