import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from tests.cli.commands import SCRIPTED, Said, ramify

from ramify.cli.exit_codes import ExitCode
from ramify.cli.main import main
from ramify.config.configure import from_toml
from ramify.store.records import ClosedRecord
from ramify.store.store import FolderStore, load

FIELDS = "trees leaves decode_tokens prefill_cached prefill_uncached tool_calls mean_reward stop_words seconds".split()

MINE = """
from dataclasses import dataclass

from ramify import ROOT, Fork, Grow, Phase


@dataclass(frozen=True)
class Settings:
    n: int = 2


class Mine:
    Config = Settings
    measures = frozenset()
    is_order_free = True
    post_hoc_reason = ""

    def __init__(self, config, rng):
        self.config = config
        self.num_told = self.num_asked = 0

    def ask(self, tree):
        number, self.num_asked = self.config.n - self.num_asked, self.config.n
        return [Grow(ROOT, fork=Fork(number, "mine")) for _ in range(number)]

    def tell(self, tree, outcome):
        self.num_told += 1

    def is_done(self, tree):
        return self.num_told == self.config.n

    def phase(self, tree):
        return Phase("growing")


class Raises(Mine):
    def ask(self, tree):
        raise ValueError("no idea")


class Idle(Mine):
    def ask(self, tree):
        return []
"""


def run(capsys: pytest.CaptureFixture[str], out: Path, *flags: object) -> Said:
    return ramify(capsys, "rollout", *SCRIPTED, "--prompts", 3, "--seed", 1, "--out", out, *flags)


def test_a_run_is_one_json_object_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "run"
    said = run(capsys, out, "--preset", "offline", "--task", "countdown", "--json")
    assert said.code == 0
    assert said.json["schema"] == "ramify.rollout/1"
    assert set(FIELDS) <= set(said.json)
    assert (said.json["trees"], said.json["leaves"]) == (3, 15)
    assert from_toml((out / "config.toml").read_text()).preset == "offline"
    assert f"ramify view {out}" in said.err


def test_a_question_that_fills_the_context_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"question": "why? " * 2000, "answer": "so"}) + "\n", "utf-8")
    said = ramify(capsys, "rollout", "--data", file, "--preset", "chains", "--prompts", 1, "--out", tmp_path / "run")
    assert said.code == ExitCode.ENVIRONMENT
    assert (
        "nothing was sampled: before the first token, every path ended by context_full (the context of the" in said.err
    )


@pytest.mark.covers("S0.9")
def test_phases_are_said_with_v_and_nothing_with_q(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = run(capsys, tmp_path / "one", "--preset", "offline", "-v")
    for phrase in ("initial chains, 3 active", "expansion 1, 1 active", "expansion 2, 1 active", "collection 2"):
        assert f"tree 0: {phrase}" in said.err
    assert "tree 0: done" in said.err
    quiet = run(capsys, tmp_path / "two", "--preset", "offline", "-q")
    assert quiet.err == ""
    assert quiet.out.startswith("3 trees, 15 leaves")


def test_the_same_seed_gives_the_same_rows_byte_for_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    exports: list[bytes] = []
    for name in ("one", "two"):
        run(capsys, tmp_path / name, "--preset", "offline")
        said = ramify(capsys, "export", tmp_path / name, "--to", "jsonl", "--out", tmp_path / f"{name}.jsonl")
        assert said.out == f"15 rows in {tmp_path / name}.jsonl\n"
        exports.append((tmp_path / f"{name}.jsonl").read_bytes())
    assert exports[0] == exports[1]
    assert len(exports[0].splitlines()) == 15


def test_a_finished_run_is_checked_shown_repaired_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "run"
    first = run(capsys, out, "--preset", "offline", "--json").json
    checked = ramify(capsys, "check", out, "--json")
    assert checked.code == 0
    assert (checked.json["trees"], checked.json["unfinished"], checked.json["breaches"]) == (3, 0, [])
    assert checked.json["rows"] == 15
    assert ramify(capsys, "show", out).out.count("make ") == 3
    assert "make " in ramify(capsys, "show", out, "2").out
    assert "nothing was changed" in ramify(capsys, "repair", out).out
    again = ramify(capsys, "resume", out, "--json")
    assert again.code == 0
    assert {key: again.json[key] for key in FIELDS[:-1]} == {key: first[key] for key in FIELDS[:-1]}


def test_a_tree_is_drawn_as_a_picture_into_a_new_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, picture = tmp_path / "run", tmp_path / "tree.svg"
    run(capsys, out, "--preset", "offline")
    said = ramify(capsys, "show", out, "1", "--svg", picture)
    assert (said.code, said.out, said.err) == (0, "", f"wrote {picture}\n")
    assert picture.read_text("utf-8").startswith("<svg ")
    again = ramify(capsys, "show", out, "1", "--svg", picture)
    assert (again.code, again.err) == (2, f"error: cannot write {picture}: File exists; name a new file\n")
    assert "ends in .svg" in ramify(capsys, "show", out, "1", "--svg", out / "config.toml").err
    assert "a picture is of one tree" in ramify(capsys, "show", out, "--svg", tmp_path / "all.svg").err


def test_a_tree_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(capsys, tmp_path / "run")
    for number in ("3", "-1"):
        said = ramify(capsys, "show", tmp_path / "run", "--", number)
        assert said.code == 2
        assert f"has no tree {number}" in said.err
    assert ramify(capsys, "show", tmp_path / "run", "--limit", "-1").err == "error: --limit -1: at least 1 is needed\n"


def test_a_run_never_begins_over_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(capsys, tmp_path / "run")
    said = run(capsys, tmp_path / "run")
    assert said.code == 3
    assert "holds a run already; go on with `ramify resume" in said.err


def test_without_out_a_new_folder_is_made_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert ramify(capsys, "rollout", *SCRIPTED, "--preset", "chains", "--prompts", 1).code == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["chains-1", "chains-2"]


def test_a_dry_run_prints_the_whole_configuration_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"
    said = run(capsys, out, "--preset", "offline", "--dry-run")
    values = tomllib.loads(said.out)
    assert values["strategy"]["options"]["commit"] == "after"
    assert "# at most 3 trees, 15 leaves, 3840 decode_tokens, 90 tool_calls" in said.out
    assert not out.exists()
    said = run(capsys, out, "--dry-run", "--json", "--set", "limits.decode=100")
    assert said.json["at_most"] == {"trees": 3, "leaves": None, "decode_tokens": 300, "tool_calls": None}


def test_bad_configuration_exits_with_2_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "run"
    said = run(capsys, out, "--preset", "ofline", "--set", "growth.max_tool_cals=3")
    assert (said.code, said.out) == (2, "")
    assert "unknown preset 'ofline'; did you mean 'offline'?" in said.err
    assert "--set growth.max_tool_cals=3: growth.max_tool_cals: unknown key" in said.err
    assert not out.exists()


def test_a_file_of_settings_is_read_from_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ramify.toml").write_text("prompts = 1\n[strategy.options]\nn = 3\n")
    said = ramify(capsys, "rollout", *SCRIPTED, "--out", tmp_path / "run", "--json")
    assert (said.json["trees"], said.json["leaves"]) == (1, 3)


@pytest.mark.covers("S0.10")
def test_a_strategy_of_the_user_is_run_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.py").write_text(MINE)
    strategy = f"{tmp_path / 'mine.py'}:Mine"
    said = run(capsys, tmp_path / "run", "--strategy", strategy, "--set", "strategy.options.n=3", "--json", "-v")
    assert (said.code, said.json["leaves"]) == (0, 9)
    assert "tree 2: growing, 3 active" in said.err
    assert ramify(capsys, "check", tmp_path / "run").code == 0


@pytest.mark.parametrize(("name", "reason"), [("Raises", "ValueError: no idea"), ("Idle", "ContractError")])
def test_a_strategy_that_breaks_closes_its_trees_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
):
    (tmp_path / "mine.py").write_text(MINE)
    said = run(capsys, tmp_path / "run", "--strategy", f"{tmp_path / 'mine.py'}:{name}", "--json")
    assert said.code == 1
    assert said.json["failed_trees"] == 3
    assert all(reason in fault for fault in said.json["unfinished"].values())


def test_a_strategy_file_that_does_not_import_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.py").write_text("import nothing_like_it\n")
    said = run(capsys, tmp_path / "run", "--strategy", f"{tmp_path / 'mine.py'}:Mine")
    assert said.code == 2
    assert "--strategy: strategy.name:" in said.err
    assert "line 1: ModuleNotFoundError" in said.err


def test_the_users_own_questions_are_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "data.jsonl").write_text(
        '{"q": "one?", "a": "zebra", "level": 3}\n{"q": "two?", "a": "zebra", "level": 4}\n'
    )
    (tmp_path / "my.toml").write_text('[data]\nquestion = "q"\nanswer = "a"\n')
    flags = ["--data", tmp_path / "data.jsonl", "-c", tmp_path / "my.toml"]
    said = ramify(
        capsys, "rollout", *SCRIPTED, "--prompts", 2, *flags, "--out", tmp_path / "run", "--preset", "chains", "--json"
    )
    assert (said.code, said.json["leaves"], said.json["is_oracle"]) == (0, 16, True)
    ramify(capsys, "export", tmp_path / "run", "--to", "jsonl", "--out", tmp_path / "rows.jsonl")
    rows = [msgspec.json.decode(line) for line in (tmp_path / "rows.jsonl").read_bytes().splitlines()]
    assert {row["public"]["level"] for row in rows} == {3, 4}
    assert not [p for p in (tmp_path / "run").rglob("*") if p.is_file() and b"zebra" in p.read_bytes()]


def test_questions_of_a_file_can_be_asked_with_the_tools_of_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "data.jsonl").write_text('{"question": "make 12 from 3 4 5", "id": "mine"}\n')
    flags = ["--data", tmp_path / "data.jsonl", "--task", "countdown", "--set", "data.uid=id", "--prompts", 1]
    assert ramify(capsys, "rollout", *SCRIPTED, *flags, "--out", tmp_path / "run").code == 0
    assert "make 12 from 3 4 5  mine" in ramify(capsys, "show", tmp_path / "run", "0").out


def test_a_bad_data_file_is_refused_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "data.jsonl").write_text('{"question": "one?"}\n{"text": "two?"}\n')
    said = run(capsys, tmp_path / "run", "--data", tmp_path / "data.jsonl")
    assert said.code == 2
    assert "data.jsonl:2: column 'question' holds no question: None" in said.err
    assert not (tmp_path / "run").exists()


def test_an_unknown_export_is_refused_with_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(capsys, tmp_path / "run")
    said = ramify(capsys, "export", tmp_path / "run", "--to", "jsnl", "--out", tmp_path / "rows")
    assert said.code == 2
    assert "unknown export 'jsnl'; did you mean 'jsonl'?" in said.err


def overspent(record: ClosedRecord) -> ClosedRecord:
    spent = {role: {**counters, "decode": counters["decode"] + 1} for role, counters in record.spent.items()}
    return msgspec.structs.replace(record, spent=spent)


def test_check_finds_a_ledger_that_was_not_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(capsys, tmp_path / "run")
    saved = load(tmp_path / "run")
    store = FolderStore.create(tmp_path / "forged", saved.header, saved.config)
    for record in saved.records:
        store.append(overspent(record) if isinstance(record, ClosedRecord) and record.tree == 1 else record)
    store.close()
    said = ramify(capsys, "check", tmp_path / "forged", "--json")
    assert said.code == 5
    (breach,) = said.json["breaches"]
    assert breach.startswith("tree 1: ledger of 'policy': decode is ")


def test_check_finds_a_damaged_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(capsys, tmp_path / "run")
    path = next((tmp_path / "run" / "journal").glob("*.jsonl"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    said = ramify(capsys, "check", tmp_path / "run")
    assert said.code == 5
    assert "BROKEN journal:" in said.out
    assert ramify(capsys, "repair", tmp_path / "run").code == 0
    assert ramify(capsys, "resume", tmp_path / "run").code == 0
    assert ramify(capsys, "check", tmp_path / "run").code == 0


def test_a_torn_tail_is_cut_off_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(capsys, tmp_path / "run")
    path = next((tmp_path / "run" / "journal").glob("*.jsonl"))
    path.write_bytes(path.read_bytes()[:-30])
    said = ramify(capsys, "resume", tmp_path / "run")
    assert said.code == 0
    assert "cut off the last record, which was incomplete: " in said.err
    assert ramify(capsys, "check", tmp_path / "run").code == 0


SLOW_TO_END = ("--preset", "offline", "--engine", "scripted", "--prompts", "60", "--set", "max_trees=1")


@pytest.fixture(scope="module")
def rows_of_the_whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The rows of a run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert main(["rollout", *SLOW_TO_END, "--out", str(folder / "run"), "-q"]) == 0
    assert main(["export", str(folder / "run"), "--to", "jsonl", "--out", str(folder / "rows.jsonl")]) == 0
    return (folder / "rows.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("num_times", [1, 2])
def test_an_interrupted_run_is_saved_and_goes_on_to_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], num_times: int, rows_of_the_whole: bytes
):
    command = [sys.executable, "-m", "ramify.cli.main", "rollout", *SLOW_TO_END, "-v", "--out", str(tmp_path / "cut")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("tree 3: done"):
                for _ in range(num_times):
                    process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert f"continue with: ramify resume {tmp_path / 'cut'}" in rest
    assert "Traceback" not in rest
    assert ramify(capsys, "check", tmp_path / "cut").code == 0
    assert ramify(capsys, "resume", tmp_path / "cut", "-q").code == 0
    assert ramify(capsys, "export", tmp_path / "cut", "--to", "jsonl", "--out", tmp_path / "cut.jsonl").code == 0
    assert (tmp_path / "cut.jsonl").read_bytes() == rows_of_the_whole


@pytest.mark.parametrize("flags", [("--json",), ("-q",), ()])
def test_a_run_whose_server_is_down_at_its_start_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
):
    monkeypatch.chdir(tmp_path)
    endpoint = ("--engine", "openai", "--model", "m", "--base-url", "http://127.0.0.1:9/v1")
    said = ramify(capsys, "rollout", *endpoint, "--set", "format=messages", *flags)
    assert said.code == 3
    assert "error: unreachable: http://127.0.0.1:9/v1/models" in said.err
    assert list(tmp_path.iterdir()) == []


HANGS = """
import asyncio
from ramify.testing.scripted import Scripted


class Mine(Scripted):
    async def connect(self):
        print("connecting", flush=True)
        await asyncio.Event().wait()
"""


@pytest.mark.slow
def test_a_run_that_is_interrupted_before_it_began_leaves_no_folder(tmp_path: Path):
    (tmp_path / "mine.py").write_text(HANGS)
    flags = ["--engine", f"{tmp_path / 'mine.py'}:Mine", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "ramify.cli.main", "rollout", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "connecting\n"
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert said == "error: interrupted before the run began\n"
    assert not (tmp_path / "run").exists()
