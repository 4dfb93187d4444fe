"""A large run is read by several processes: what `check`, `show` and `export` say is what one process says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.commands import SCRIPTED, ramify
from tests.sharded.divided import config, divided

from ramify.cli import tree_shares
from ramify.cli.main import main
from ramify.core.shard import Shard
from ramify.runner import loop
from ramify.runner.folder import grow_shard
from ramify.runner.saved import Saved
from ramify.store.records import ClosedRecord
from ramify.store.store import FolderStore, load


def whole(path: Path) -> None:
    options = ("--preset", "offline", "--prompts", "7", "--seed", "1", "--quiet", "--out", str(path))
    assert main(["rollout", *SCRIPTED, *options]) == 0


def killed(path: Path) -> None:
    """Some trees are not finished, and the last line is torn."""
    whole(path)
    journal = path / "journal" / "000000.jsonl"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size * 9 // 10])


def damaged(path: Path) -> None:
    whole(path)
    journal = path / "journal" / "000000.jsonl"
    content = bytearray(journal.read_bytes())
    content[len(content) * 9 // 10] ^= 1
    journal.write_bytes(content)


def forged(path: Path) -> None:
    """Two trees spent other than they say."""
    whole(path.with_name("honest"))
    saved = load(path.with_name("honest"))
    store = FolderStore.create(path, saved.header, saved.config)
    for record in saved.records:
        is_forged = isinstance(record, ClosedRecord) and record.tree in (5, 1)
        store.append(msgspec.structs.replace(record, spent={}) if is_forged else record)
    store.close()


def half_divided(path: Path) -> None:
    problems = divided(config(), path, num_shards=2)
    loop.run(grow_shard(path, Shard(0, 2).of(problems)))


@pytest.mark.slow
@pytest.mark.parametrize("make", [whole, killed, damaged, forged, half_divided])
def test_several_processes_say_what_one_says(
    make: Callable[[Path], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def said() -> list[Any]:
        rows = tmp_path / "rows.jsonl"
        return [
            ramify(capsys, "check", run, "--json"),
            ramify(capsys, "show", run, "--json"),
            ramify(capsys, "export", run, "--to", "jsonl", "--out", rows, "--force", "--json"),
            rows.read_bytes() if rows.exists() else None,
        ]

    run = tmp_path / "run"
    make(run)
    assert tree_shares.num_shares(Saved.open(run)) == 1
    alone = said()
    assert alone[-1] or make is damaged
    in_two(monkeypatch)
    assert said() == alone


def in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of any size are read by two processes."""
    monkeypatch.setattr(tree_shares, "SHARE_BYTES", 1)
    monkeypatch.setattr(tree_shares, "num_cores", lambda: 2)


def test_a_run_is_divided_where_it_is_large_and_no_code_of_others_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(tmp_path / "run")
    in_two(monkeypatch)
    assert tree_shares.num_shares(Saved.open(tmp_path / "run")) == 2
    assert tree_shares.num_shares(Saved.trusted(tmp_path / "run")) == 1
    monkeypatch.setattr(tree_shares, "num_cores", lambda: 1_000)
    assert tree_shares.num_shares(Saved.open(tmp_path / "run")) == tree_shares.MAX_SHARES


def test_options_of_rows_reach_every_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(tmp_path / "run")
    export = ("export", tmp_path / "run", "--to", "jsonl", "--normaliser", 3, "--out")
    assert ramify(capsys, *export, tmp_path / "one.jsonl").code == 0
    in_two(monkeypatch)
    assert ramify(capsys, *export, tmp_path / "two.jsonl").code == 0
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert b'"normaliser":3' in (tmp_path / "two.jsonl").read_bytes()
