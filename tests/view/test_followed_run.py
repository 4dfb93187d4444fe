"""A run is followed while it grows, stops, is taken back, damaged or deleted; whatever happens is told and raises
nothing."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.service.services import config as service_config
from tests.service.services import served
from tests.sharded.divided import config, divided
from tests.store import test_take_back
from tests.store.growths import Live, answer, state, turn
from tests.view.followed import begun, filled, looked, put

from ramify.core.command import Grow
from ramify.core.errors import StoreError
from ramify.core.tree import ROOT
from ramify.runner.events import Event, TreeClosed
from ramify.runner.folder import begin, resume
from ramify.runner.saved import Saved
from ramify.runner.scheduler import TooManyFailures
from ramify.service.manager import RolloutManager
from ramify.store.framing import frame
from ramify.store.layout import SHARDS
from ramify.store.records import Accepted, Handed, InputsValue, Updated
from ramify.store.store import FolderStore, stream
from ramify.view import opened_run
from ramify.view.followed_run import FollowedRun
from ramify.view.opened_run import MAX_SHARDS
from ramify.view.tree_values import tree_values

NUM_TREES = 7
FIRST = Path("journal") / "000000.jsonl"


def values(run: FollowedRun) -> list[object]:
    return [tree.row.values if tree.row else None for _, tree in sorted(run.trees.items())]


def shown(path: Path) -> list[object]:
    """What `ramify show` has in its table."""
    return [tree_values(tree, number) for number, tree in Saved.open(path).numbered_trees()]


def grown(live: Live) -> Live:
    """A tree of one path, which is closed."""
    (command,) = live.ask(Grow(ROOT))
    live.grow(command, turn())
    live.grow(command, answer())
    live.end(command)
    live.shut()
    return live


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("followed") / "run"
    begin(config(), path)
    return path


@pytest.fixture
def run_path(whole: Path, tmp_path: Path) -> Path:
    """A finished run that a test may damage."""
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    """A run without trees, which is being written."""
    with closing(begun(tmp_path / "run")) as store:
        yield store


# -- runs that go on --------------------------------------------------------------------------------------------------


def test_a_finished_run_has_the_rows_of_the_table(whole: Path):
    run = FollowedRun.open(whole)
    assert run.trees == {}
    assert run.look() == set(range(NUM_TREES))
    assert values(run) == [None] * NUM_TREES
    assert not run.is_filled
    while run.fill(60.0):
        pass
    assert run.is_filled
    assert values(run) == shown(whole)
    assert (run.faults, run.gaps, run.is_growing) == ([], [], False)
    assert (run.look(), run.num_looks) == (set(), 2)


def test_a_run_is_followed_while_it_grows(tmp_path: Path):
    path = tmp_path / "run"
    run = FollowedRun.open(path)
    assert (run.look(), run.opened) == (set(), None)
    assert "is no run" in run.faults[0]
    seen: list[tuple[int, int]] = []

    def follow(event: Event) -> None:
        if isinstance(event, TreeClosed):
            run.look()
            run.fill(0.0)
            seen.append((run.num_closed, run.num_filled))
            assert run.is_growing
            assert run.faults == []

    begin(config(), path, observers=[follow])
    assert len(seen) == NUM_TREES
    assert seen == sorted(seen)
    run.look()
    while run.fill(60.0):
        pass
    assert values(run) == shown(path)
    assert not run.is_growing


def test_only_trees_with_new_records_change(store: FolderStore):
    run = looked(store.path)
    assert (run.trees, run.faults) == ({}, [])
    first, second = Live(0), Live(1)
    put(store, [*first.records, *second.records])
    assert run.look() == {0, 1}
    number = len(second.records)
    grown(second)
    put(store, second.records[number:])
    before = run.trees[0].revision
    assert run.look() == {1}
    assert run.trees[0].revision == before < run.trees[1].revision == run.revision
    assert [tree.closed is None for tree in run.trees.values()] == [True, False]


def test_a_tree_that_grows_is_replayed_as_it_stands(store: FolderStore):
    live = Live(0)
    (command,) = live.ask(Grow(ROOT))
    live.grow(command, turn())
    live.end(command)
    live.ask(Grow(1))
    put(store, live.records)
    run = looked(store.path)
    replayed = run.replayed(0)
    assert state(replayed.growth) == state(live.growth)
    assert not replayed.is_closed
    assert run.is_filled
    with pytest.raises(StoreError, match="has no tree 5"):
        run.replayed(5)


def test_a_tree_that_is_asked_for_has_its_row_too(whole: Path):
    run = looked(whole)
    for number in reversed(range(NUM_TREES)):
        run.replayed(number)
    assert (run.is_filled, run.num_filled) == (True, NUM_TREES)
    assert values(run) == shown(whole)
    assert (run.look(), run.look()) == (set(range(NUM_TREES)), set())


def test_a_fill_computes_at_least_one_row(whole: Path):
    run = looked(whole)
    for number in range(1, NUM_TREES + 1):
        before = run.revision
        assert run.fill(0.0) == (number < NUM_TREES)
        assert run.num_filled == number
        assert sum(tree.revision > before for tree in run.trees.values()) == 1
    before = run.revision
    assert not run.fill(0.0)
    assert run.revision == before


def test_what_two_lines_tell_is_known_before_a_replay(whole: Path):
    run = looked(whole)
    for number, row in enumerate(filled(whole).trees.values()):
        known = run.trees[number].values()
        assert known == {name: row.values()[name] for name in known}
        assert {"question", "uid", "leaves", "tokens", "tools", "context", "cached"} < known.keys()


def test_accepted_inputs_are_a_caveat_of_the_trees_that_were_not_finished(store: FolderStore):
    done, open_then, later = grown(Live(0)), Live(1), Live(2)
    accepted = Accepted(what=("data",), inputs=InputsValue())
    before = len(open_then.records)
    put(store, [*done.records, *open_then.records, accepted, *grown(later).records])
    put(store, grown(open_then).records[before:])
    run = filled(store.path)
    assert run.faults == []
    told = ("the run went on with other data than before, as was accepted",)
    assert [run.replayed(number).tree.caveats for number in range(3)] == [(), told, told]
    assert run.news.accepted == [accepted]


# -- divided runs -----------------------------------------------------------------------------------------------------


def test_a_divided_run_is_followed_shard_by_shard(tmp_path: Path, whole: Path):
    path = tmp_path / "divided"
    divided(config(), path, num_shards=3)
    run = looked(path)
    assert (run.trees, run.faults) == ({}, [])
    assert run.gaps == [f"0 trees were begun of the {NUM_TREES} asked for"]
    resume(path)
    assert run.look() == set(range(NUM_TREES))
    while run.fill(60.0):
        pass
    assert (run.faults, run.gaps) == ([], [])
    assert values(run) == shown(path)
    alone = filled(path / SHARDS / "1")
    assert sorted(alone.trees) == [1, 4]
    assert alone.faults == []


def test_a_tree_in_the_folder_of_another_shard_is_told(tmp_path: Path):
    path = tmp_path / "divided"
    divided(config(), path, num_shards=2)
    resume(path)
    for name in ("journal", "header.copy"):
        there = path / SHARDS / "1" / name
        shutil.rmtree(there) if there.is_dir() else there.unlink()
    shutil.copytree(path / SHARDS / "0" / "journal", path / SHARDS / "1" / "journal")
    run = filled(path)
    assert sorted(run.trees) == [0, 2, 4, 6]
    assert any("this is shard 1 of 2, and tree 0 is another's" in fault for fault in run.faults)


def test_a_run_of_a_million_shards_is_refused(tmp_path: Path):
    path = tmp_path / "divided"
    divided(config(), path, num_shards=2)
    text = (path / "shards.json").read_text().replace('"num_shards": 2', '"num_shards": 1000000')
    (path / "shards.json").write_text(text)
    (path / "shards.copy").unlink()
    run = looked(path)
    assert run.faults == [f"{path} says 1000000 shards; at most {MAX_SHARDS} are followed"]


# -- exchanged and deleted --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_is_taken_back_is_read_again(tmp_path: Path):
    path, settings = tmp_path / "cut", test_take_back.config(tmp_path, "chains")
    run = FollowedRun.open(path)
    with pytest.raises(TooManyFailures):
        begin(settings, path, observers=[lambda event: run.look()])
    assert run.faults == []
    before = set(run.trees)
    assert run.look() >= before
    assert run.anew == run.revision
    assert run.faults == [f"{path / FIRST} was replaced: the run was read again from its beginning"]
    (tmp_path / "well").touch()
    resume(path)
    run.look()
    while run.fill(60.0):
        pass
    assert values(run) == shown(path)
    assert len(run.trees) == 12


def test_a_run_that_is_deleted_while_it_is_viewed(run_path: Path, whole: Path):
    run = filled(run_path)
    shutil.rmtree(run_path)
    assert run.look() == set(range(NUM_TREES))
    assert (run.trees, run.opened, run.is_filled) == ({}, None, True)
    assert any("is gone" in fault for fault in run.faults)
    assert any("is no run" in fault for fault in run.faults)
    assert (run.look(), run.fill(1.0), run.gaps) == (set(), False, [])
    with pytest.raises(StoreError, match="has no tree"):
        run.replayed(0)
    shutil.copytree(whole, run_path)
    assert run.look() == set(range(NUM_TREES))
    assert len(run.faults) == 1


def test_files_that_go_between_a_look_and_a_fill_are_told(run_path: Path):
    run = looked(run_path)
    (run_path / FIRST).unlink()
    while run.fill(60.0):
        pass
    assert run.num_filled == 0
    assert "cannot read" in run.faults[0]
    with pytest.raises(StoreError, match="cannot read"):
        run.replayed(0)


# -- damage -----------------------------------------------------------------------------------------------------------


def test_a_torn_tail_is_a_gap(run_path: Path):
    with (run_path / FIRST).open("r+b") as file:
        file.truncate((run_path / FIRST).stat().st_size - 200)
    run = filled(run_path)
    assert run.faults == []
    torn, unfinished = run.gaps
    assert torn.startswith("the journal ends with a torn record, which is not read: ")
    assert unfinished == f"1 of {NUM_TREES} trees that were begun are not finished"
    assert run.num_filled == NUM_TREES - 1


def test_a_damaged_line_costs_its_tree_alone(run_path: Path):
    raw = (run_path / FIRST).read_bytes().splitlines(keepends=True)
    number = next(at for at, line in enumerate(raw) if b'"record":"grown","tree":2,' in line)
    raw[number] = raw[number].replace(b"grown", b"groan")
    (run_path / FIRST).write_bytes(b"".join(raw))
    run = filled(run_path)
    assert [number for number, tree in run.trees.items() if tree.row is None] == [2]
    assert "are no whole record" in run.faults[0]
    assert "tree 2" in run.trees[2].fault
    assert run.trees[2].fault in run.faults
    with pytest.raises(StoreError, match="tree 2"):
        run.replayed(2)


def forged(path: Path, *bodies: bytes) -> FollowedRun:
    """The run at `path`, to whose journal somebody has added records."""
    with (path / FIRST).open("ab") as file:
        for body in bodies:
            number = (path / FIRST).read_bytes().count(b"\n")
            file.write(frame(number, None, body))
            file.flush()
    return filled(path)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"record":"grown","tree":99}', "there is a record of tree 99, which was never opened"),
        (b'{"record":"grown","tree":1}', "tree 1: a record follows its closing"),
        (b'{"record":"opened","tree":50}', "tree 50: the record that opens it cannot be read"),
        (b'{"record":"opened","tree":1,"uid":"","question":""}', "tree 1 was opened twice"),
        (b'{"record":"handed"}', "no record of format 1"),
        (
            b'{"record":"opened","tree":50,"uid":"\xff","question":""}',
            "tree 50: the record that opens it cannot be read",
        ),
        (b'{"record":"updated","version":1,"source":"\xff"}', "no record of format 1"),
        (b'{"record":"marked","rollout_id":1,"source":{"a":' + b"[" * 9999, "no record of format 1"),
    ],
)
def test_records_that_do_not_fit_are_told(run_path: Path, body: bytes, words: str):
    run = forged(run_path, body)
    assert any(words in fault for fault in run.faults)
    assert run.num_filled == NUM_TREES


def test_records_that_nobody_knows_change_nothing(run_path: Path):
    run = forged(run_path, b'{"record":"news","text":"x"}', b"{}", b'{"record":"opened"}', b'{"record":"sealed"}')
    assert (run.faults, run.num_filled) == ([], NUM_TREES)


def test_a_tree_that_cannot_be_replayed_is_told(run_path: Path):
    run = forged(
        run_path,
        b'{"record":"opened","tree":50,"uid":"u","question":"q","surprise":1}',
        b'{"record":"closed","tree":50,"reason":"done","num_leaves":1,"spent":{"policy":{"decode":3}}}',
    )
    assert (run.num_filled, run.is_filled) == (NUM_TREES, True)
    assert "surprise" in run.trees[50].fault
    assert run.trees[50].values()["tokens"] == 3


def test_a_store_of_another_version_is_told(run_path: Path):
    raw = (run_path / FIRST).read_bytes().splitlines(keepends=True)
    body = b"{" + raw[0][9:-1].removeprefix(b'{"n":0,').replace(b'"format":1', b'"format":99')
    (run_path / FIRST).write_bytes(b"".join([frame(0, None, body), *raw[1:]]))
    (run_path / "header.copy").unlink()
    run = looked(run_path)
    assert (run.opened, run.trees) == (None, {})
    assert "the store has format 99" in run.faults[0]


def test_a_header_in_the_making_is_told_until_it_is_whole(run_path: Path):
    data = (run_path / FIRST).read_bytes()
    (run_path / "header.copy").unlink()
    (run_path / FIRST).write_bytes(data[:100])
    run = looked(run_path)
    assert "holds no whole record" in run.faults[0]
    (run_path / FIRST).write_bytes(data)
    assert run.look() == set(range(NUM_TREES))
    assert run.faults == []


def test_a_changed_configuration_is_told(run_path: Path):
    with (run_path / "config.toml").open("a") as file:
        file.write("# mine\n")
    run = looked(run_path)
    assert "is not what the run began with" in run.faults[0]
    assert run.trees == {}


def test_a_run_without_its_tokenizer_lists_its_trees(run_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise StoreError("the tokenizer is another one")

    monkeypatch.setattr(opened_run, "looked", refuse)
    run = looked(run_path)
    assert len(run.trees) == NUM_TREES
    assert run.faults == ["the tokenizer is another one"]
    assert (run.is_filled, run.fill(1.0)) == (True, False)
    with pytest.raises(StoreError, match="the tokenizer is another one"):
        run.replayed(0)


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("/etc")])
def test_what_is_no_run_is_told(tmp_path: Path, make: Callable[[Path], None]):
    make(tmp_path / "odd")
    run = looked(tmp_path / "odd")
    assert (run.trees, len(run.faults)) == ({}, 1)


# -- services ---------------------------------------------------------------------------------------------------------


def test_what_became_of_the_trees_of_a_service_is_known(tmp_path: Path):
    async def use(manager: RolloutManager) -> None:
        await manager.generate(0)
        await manager.update_weights(1, "one")
        await manager.generate(1)
        await manager.save(1)

    path = tmp_path / "run"
    served(path, use, configured=service_config())
    run = filled(path)
    assert run.faults == []
    records = list(stream(path))
    assert run.news.handed == [record for record in records if isinstance(record, Handed)]
    assert [handed.rollout_id for handed in run.news.handed] == [0, 1]
    for handed in run.news.handed:
        assert all(run.news.batches[tree] is handed for tree in handed.trees)
    assert run.news.updated == [record for record in records if isinstance(record, Updated)]
    assert [marked.rollout_id for marked in run.news.marked] == [1]
    second = [run.trees[tree].row for tree in run.news.handed[1].trees]
    assert {row.sampled_version for row in second if row is not None} == {1}


def test_a_tree_that_is_handed_over_changes(store: FolderStore):
    put(store, grown(Live(0)).records)
    run = looked(store.path)
    put(store, [Handed(rollout_id=3, trees=(0, 9), version=2, first_sample=0, num_samples=1)])
    assert run.look() == {0}
    assert run.news.batches[0].rollout_id == 3
