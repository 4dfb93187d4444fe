"""A divided run is a folder of ordinary ones, begun when its `shards.json` is whole, and held by one process."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from ramify.core.errors import ConfigError, FolderBusy, StoreError
from ramify.core.problem import Problem
from ramify.core.shard import WHOLE, Portion, Shard, shards_of
from ramify.store.layout import (
    LAYOUT,
    LAYOUT_COPY,
    SHARDS,
    is_sharded,
    layout_of,
    parts,
    read_by_copy,
    records,
    shard_path,
)
from ramify.store.records import Header, OpenedRecord, ShardValue
from ramify.store.shards import ShardedFolder
from ramify.store.store import FolderStore, header_and_config, load, stream

CONFIG = "prompts = 5\n"


def header(shard: Shard = WHOLE) -> Header:
    return Header(
        library="0",
        config_hash="",
        weights=(),
        seed=1,
        delivery="ordered",
        isolation="none",
        created=0.0,
        shard=None if shard == WHOLE else ShardValue(index=shard.index, count=shard.count),
    )


def opened(tree: int) -> OpenedRecord:
    return OpenedRecord(tree=tree, uid=f"p{tree}", seed=tree, codec_sha256="", question="?", public={}, prompt=())


def begun(path: Path, *trees: tuple[int, ...]) -> Path:
    """A divided run whose shards hold these trees; a shard without any has not begun."""
    ShardedFolder.create(path, header(), CONFIG, num_shards=len(trees)).close()
    for shard, numbers in zip(shards_of(len(trees)), trees, strict=True):
        if numbers:
            with closing(FolderStore.create(shard_path(path, shard.index), header(shard), CONFIG)) as store:
                for number in numbers:
                    store.append(opened(number))
    return path


# -- shards -----------------------------------------------------------------------------------------------------------


def test_every_problem_is_of_one_shard():
    problems = [Problem(f"p{i}", "?") for i in range(8)]
    portions = [shard.of(problems) for shard in shards_of(3)]
    assert sorted((i, p.uid) for portion in portions for i, p in portion.items()) == [(i, f"p{i}") for i in range(8)]
    assert [len(portion.problems) for portion in portions] == [shard.size(8) for shard in shards_of(3)] == [3, 3, 2]
    assert all(portion.shard.owns(i) for portion in portions for i, _ in portion.items())
    assert {portion.num_problems for portion in portions} == {8}


def test_a_shard_may_have_no_problem():
    assert list(Shard(2, 3).of([Problem("p", "?")]).items()) == []


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_an_impossible_shard_is_refused(index: int, count: int):
    with pytest.raises(ConfigError, match=f"shard {index} of {count}"):
        Shard(index, count)


def test_a_portion_of_another_size_is_refused():
    with pytest.raises(ConfigError, match="of 5 problems"):
        Portion(Shard(0, 2), (Problem("p", "?"),), 5)


# -- the folder -------------------------------------------------------------------------------------------------------


def test_a_divided_run_is_read_like_any_other(tmp_path: Path):
    path = begun(tmp_path / "run", (0, 3), (1,), ())
    assert is_sharded(path)
    assert header_and_config(path)[1] == CONFIG
    assert [record.tree for record in stream(path) if isinstance(record, OpenedRecord)] == [0, 3, 1]
    assert [part.shard for part in parts(path)] == [Shard(0, 3), Shard(1, 3)]
    assert [part.shard for part in parts(shard_path(path, 1))] == [Shard(1, 3)]


def test_a_whole_run_has_one_part(tmp_path: Path):
    FolderStore.create(tmp_path / "run", header(), CONFIG).close()
    assert not is_sharded(tmp_path / "run")
    assert parts(tmp_path / "run") == [(tmp_path / "run", WHOLE)]


@pytest.mark.parametrize("open_one", [load, FolderStore.resume])
def test_what_needs_one_journal_refuses_several(tmp_path: Path, open_one: object):
    assert callable(open_one)
    with pytest.raises(StoreError, match="run of several shards"):
        open_one(begun(tmp_path / "run", (0,), (1,)))


def test_no_run_begins_over_a_divided_one(tmp_path: Path):
    path = begun(tmp_path / "run", (0,), (1,))
    with pytest.raises(StoreError, match="holds a run already"):
        FolderStore.create(path, header(), CONFIG)
    with pytest.raises(StoreError, match="holds a run already"):
        ShardedFolder.create(path, header(), CONFIG, num_shards=2)


def test_a_run_that_lost_its_layout_is_not_begun_anew(tmp_path: Path):
    path = begun(tmp_path / "run", (0,), ())
    (path / LAYOUT).unlink()
    with pytest.raises(StoreError, match="shards/0"):
        ShardedFolder.create(path, header(), CONFIG, num_shards=2)


def test_a_crash_before_the_layout_was_whole_leaves_a_folder_that_counts_as_new(tmp_path: Path):
    path = begun(tmp_path / "run", (), ())
    (path / LAYOUT).rename(path / f"{LAYOUT}.part")
    ShardedFolder.create(path, header(), CONFIG, num_shards=3).close()
    assert layout_of(path).num_shards == 3


@pytest.mark.parametrize("text", [b"", b"{}", b'{"num_shards": 0}', b"\xff", b"[1]"])
def test_a_spoilt_layout_is_named(tmp_path: Path, text: bytes):
    path = begun(tmp_path / "run", (0,), (1,))
    (path / LAYOUT).write_bytes(text)
    (path / LAYOUT_COPY).unlink()
    with pytest.raises(StoreError, match=r"shards\.json"):
        list(stream(path))


def test_a_layout_of_no_shard_is_refused(tmp_path: Path):
    path = begun(tmp_path / "run", (0,), (1,))
    (path / LAYOUT).write_bytes((path / LAYOUT).read_bytes().replace(b'"num_shards": 2', b'"num_shards": 0'))
    (path / LAYOUT_COPY).unlink()
    with pytest.raises(StoreError, match="says 0 shards"):
        layout_of(path)
    with pytest.raises(ConfigError, match="0 shards"):
        ShardedFolder.create(tmp_path / "other", header(), CONFIG, num_shards=0)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.slow
def test_no_flipped_bit_in_the_layout_loses_a_run(tmp_path: Path):
    path = begun(tmp_path / "run", (0,), (1,))
    text, whole = (path / LAYOUT).read_bytes(), layout_of(path)
    spoilt = [flipped(text, bit) for bit in range(8 * len(text))]
    for changed in [*spoilt, b"", text[:-1], text[: len(text) // 2], text + b" ", text[len(text) // 2 :]]:
        (path / LAYOUT).write_bytes(changed)
        assert layout_of(path) == whole, changed
        assert any("shards.json" in told for told in read_by_copy(path)), changed
    assert len(list(stream(path))) == 2
    ShardedFolder.open(path).close()


@pytest.mark.slow
def test_a_damaged_copy_of_the_layout_is_not_read(tmp_path: Path):
    path = begun(tmp_path / "run", (0,), (1,))
    copy, whole = (path / LAYOUT_COPY).read_bytes(), layout_of(path)
    spoilt = [flipped(copy, bit) for bit in range(8 * len(copy))]
    for changed in [*spoilt, b"", copy[:-1], copy[: len(copy) // 2]]:
        (path / LAYOUT_COPY).write_bytes(changed)
        assert (layout_of(path), read_by_copy(path)) == (whole, []), changed
    (path / LAYOUT).write_bytes(b"{" + (path / LAYOUT).read_bytes())
    with pytest.raises(StoreError, match=r"shards\.json is not what a run writes"):
        layout_of(path)


def test_a_copy_alone_is_no_run(tmp_path: Path):
    path = begun(tmp_path / "run", (), ())
    (path / LAYOUT).unlink()
    assert not is_sharded(path)
    ShardedFolder.create(path, header(), CONFIG, num_shards=3).close()
    assert layout_of(path).num_shards == 3


def test_shards_that_were_exchanged_are_found_out(tmp_path: Path):
    path = begun(tmp_path / "run", (0,), (1,))
    (path / SHARDS / "0").rename(path / SHARDS / "x")
    (path / SHARDS / "1").rename(path / SHARDS / "0")
    (path / SHARDS / "x").rename(path / SHARDS / "1")
    with pytest.raises(StoreError, match="shard 0 of 2 and holds tree 1"):
        list(stream(path))
    with pytest.raises(StoreError, match="holds tree 0"):
        list(records(parts(path)[1]))


def test_a_changed_configuration_is_refused(tmp_path: Path):
    path = begun(tmp_path / "run", (0,), (1,))
    (path / "config.toml").write_text("prompts = 6\n")
    with pytest.raises(StoreError, match="not what the run began with"):
        ShardedFolder.open(path)


@pytest.mark.covers("S3.10")
def test_a_second_process_is_refused_and_told_the_first(tmp_path: Path):
    path = begun(tmp_path / "run", (0,), (1,))
    with closing(ShardedFolder.open(path)), pytest.raises(FolderBusy, match=f"process {os.getpid()}"):
        ShardedFolder.open(path)
    ShardedFolder.open(path).close()
