"""A run folder holds one run, begun once, gone on with by one process at a time, never by surprise."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.store.growths import HEADER

from ramify.core.errors import StoreError
from ramify.store.commit import Writing
from ramify.store.journal import TornTail
from ramify.store.recording import shut
from ramify.store.store import FolderStore, MemoryStore, Store, config_hash, header_and_config, load, stream

CONFIG = "seed = 1\r\nname = 'é'\n"
QUICK = Writing(durability="os")
RECORDS = [shut(tree, "done", 0) for tree in range(5)]


def begun(path: Path, *, num_records: int = 3) -> Path:
    store = FolderStore.create(path, HEADER, CONFIG, writing=QUICK)
    for record in RECORDS[:num_records]:
        store.append(record)
    store.close()
    return path


def test_a_run_folder_gives_back_what_was_put_in(tmp_path: Path) -> None:
    run = load(begun(tmp_path / "deep" / "run"))
    assert (run.config, run.config_name, run.records, run.torn) == (CONFIG, "config.toml", RECORDS[:3], None)
    assert run.header.config_hash == config_hash(CONFIG)
    assert header_and_config(tmp_path / "deep" / "run") == (run.header, CONFIG)
    assert run.header.seed == HEADER.seed
    assert (tmp_path / "deep" / "run" / "config.toml").read_bytes() == CONFIG.encode()


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = begun(tmp_path / "run")
    store, saved = FolderStore.resume(path, writing=QUICK)
    assert saved.records == RECORDS[:3]
    assert store.log_path == path / "log.jsonl"
    for record in RECORDS[3:]:
        store.append(record)
    store.sync()
    assert store.unsaved == []
    store.close()
    assert load(path).records == list(stream(path)) == RECORDS


def test_a_torn_tail_is_reported_by_load_and_cut_by_resume(tmp_path: Path) -> None:
    path = begun(tmp_path / "run")
    file = path / "journal" / "000000.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:10])
    torn = TornTail("000000.jsonl", 3, sum(map(len, lines[:3])), 10)
    assert load(path).torn == torn
    assert load(path).torn == torn
    store, saved = FolderStore.resume(path, writing=QUICK)
    store.close()
    assert (saved.torn, saved.records) == (torn, RECORDS[:2])
    assert str(torn) == f"000000.jsonl: 10 bytes torn at record 3, byte {torn.offset}"
    assert load(path).torn is None


def test_a_run_is_never_begun_over_another_or_over_foreign_files(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    with pytest.raises(StoreError, match=r"holds a run already; go on with `ramify resume .*run`"):
        FolderStore.create(run, HEADER, CONFIG)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match=r"is not empty and no run \(it holds 'thesis.tex'\)"):
        FolderStore.create(tmp_path / "other", HEADER, CONFIG)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Not a directory"):
        FolderStore.create(tmp_path / "file", HEADER, CONFIG)
    assert load(run).records == RECORDS[:3]
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_an_empty_folder_and_one_where_nothing_was_recorded_are_free(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    begun(tmp_path / "empty")
    crashed = begun(tmp_path / "crashed")
    (crashed / "journal" / "000000.jsonl").write_bytes(b"0badc0de {")
    with pytest.raises(StoreError, match="nothing was done in that run"):
        FolderStore.resume(crashed)
    store = FolderStore.create(crashed, HEADER, "{}", config_name="config.json", writing=QUICK)
    store.close()
    assert (load(crashed).config, load(crashed).config_name, load(crashed).records) == ("{}", "config.json", [])


@pytest.mark.parametrize("open_run", [load, stream, header_and_config, FolderStore.resume])
def test_what_is_no_run_is_refused(tmp_path: Path, open_run: Callable[[Path], object]) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StoreError, match="is no run: it has no journal folder"):
            open_run(path)


def test_a_configuration_that_was_changed_or_lost_is_refused(tmp_path: Path) -> None:
    path = begun(tmp_path / "run")
    (path / "config.toml").write_text("seed = 2\n")
    for _ in range(2):
        with pytest.raises(StoreError, match="is not what the run began with"):
            FolderStore.resume(path, writing=QUICK)
    (path / "config.toml").unlink()
    with pytest.raises(StoreError, match=r"neither config\.toml nor config\.json is there"):
        load(path)


def test_two_runs_on_one_folder_are_refused(tmp_path: Path) -> None:
    store = FolderStore.create(tmp_path / "run", HEADER, CONFIG, writing=QUICK)
    with pytest.raises(StoreError, match=rf"process {os.getpid()}"):
        FolderStore.resume(tmp_path / "run")
    with pytest.raises(StoreError, match="holds a run already"):
        FolderStore.create(tmp_path / "run", HEADER, "other = 1")
    store.append(RECORDS[0])
    store.sync()
    assert load(tmp_path / "run").records == RECORDS[:1]
    store.close()


@contextmanager
def unprivileged(path: Path) -> Iterator[None]:
    """As a user whom permissions bind and who may reach `path`."""
    uid = os.geteuid()
    if uid:
        yield
        return
    above = {
        folder: stat.S_IMODE(folder.stat().st_mode) for folder in path.parents if folder.stat().st_mode & 0o005 != 5
    }
    for folder, mode in above.items():
        folder.chmod(mode | 0o055)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(uid)
        for folder, mode in above.items():
            folder.chmod(mode)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    with (
        unprivileged(locked / "run"),
        pytest.raises(StoreError, match=r"cannot make the run folder .*Permission denied"),
    ):
        FolderStore.create(locked / "run", HEADER, CONFIG)
    assert list(locked.iterdir()) == []


def test_a_run_that_became_read_only_can_be_read_and_not_resumed(tmp_path: Path) -> None:
    path = begun(tmp_path / "run")
    (path / "journal" / "lock").chmod(0o444)
    with unprivileged(path / "journal"):
        assert load(path).records == RECORDS[:3]
        with pytest.raises(StoreError, match=r"cannot lock .*journal: Permission denied"):
            FolderStore.resume(path)


def test_a_folder_that_cannot_be_looked_into_is_refused(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    path = begun(hidden / "run")
    hidden.chmod(0o000)
    with unprivileged(hidden):
        for action in (load, FolderStore.resume, lambda p: FolderStore.create(p, HEADER, CONFIG)):
            with pytest.raises(StoreError, match=r"cannot look into .*Permission denied"):
                action(path)
    hidden.chmod(0o755)


async def test_both_stores_take_records_alike(tmp_path: Path) -> None:
    stores: list[Store] = [MemoryStore(HEADER), FolderStore.create(tmp_path / "run", HEADER, CONFIG, writing=QUICK)]
    for store in stores:
        numbers = [store.append(record) for record in RECORDS]
        assert numbers == sorted(set(numbers))
        await store.room()
        await store.synced(numbers[-1])
        store.sync()
        store.close()
        assert store.header.seed == HEADER.seed
    memory = stores[0]
    assert isinstance(memory, MemoryStore)
    assert memory.records == load(tmp_path / "run").records == RECORDS
