"""A divided run grows the trees of the whole one, however it is divided, whoever dies and wherever it goes on."""

import asyncio
import errno
import pickle
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.dying import died
from tests.sharded.divided import config, divided, exported, is_locked

from ramify.cli.exit_codes import ExitCode, code_of_error
from ramify.config.configure import from_toml
from ramify.core.errors import ConfigError, EnginesDown, ExportError, FolderBusy, RamifyError, StoreError, WorkersDown
from ramify.core.problem import Problem
from ramify.core.shard import Portion, Shard, shards_of
from ramify.runner import loop
from ramify.runner.events import Resumed
from ramify.runner.folder import begin, dealt, grow_shard, resume
from ramify.runner.report import RunReport
from ramify.runner.saved import Saved
from ramify.runner.tally import Tally
from ramify.sharded.run import RestartPolicy, ShardedRun
from ramify.sharded.workers import ShardEnd, ShardWorker, Worker, WorkerDied, WorkerInfo
from ramify.store.layout import SHARDS, shard_path
from ramify.store.shards import ShardedFolder
from ramify.store.store import header_and_config

IMPATIENT = RestartPolicy(max_deaths=2, pause_s=0.0, start_s=30.0, busy_s=0.2, stop_s=5.0, look_s=0.01)
CACHED = {"prefill_cached", "prefill_uncached"}
"""What an engine's cache holds depends on who else has asked it."""
MEASURED = {"seconds", "max_rss_mb", "tools"}


def counts(report: RunReport) -> dict[str, object]:
    return {name: value for name, value in report.as_dict().items() if name not in CACHED | MEASURED}


# -- the same trees ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.covers("S3.10")
@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("preset", ["chains", "offline", "arpo", "tree_grpo", "best_of_n"])
def test_a_divided_run_grows_the_trees_of_the_whole_one(tmp_path: Path, preset: str, num_shards: int):
    settings = config(preset)
    whole = begin(settings, tmp_path / "whole")
    divided(settings, tmp_path / "divided", num_shards=num_shards)
    merged = resume(tmp_path / "divided")
    assert exported(tmp_path / "divided") == exported(tmp_path / "whole")
    assert counts(merged) == counts(whole)
    assert merged.tools.keys() == whole.tools.keys()
    for name in ("tools/total_calls", "tools/calculator/calls", "tools/calculator/success_rate"):
        assert merged.tools.get(name) == pytest.approx(whole.tools.get(name))


def test_there_may_be_more_shards_than_problems(tmp_path: Path):
    settings = config(prompts=2)
    divided(settings, tmp_path / "divided", num_shards=4)
    assert resume(tmp_path / "divided").trees == 2
    assert len(list(Saved.open(tmp_path / "divided").trees())) == 2


def test_a_shard_alone_is_a_run_that_resumes_to_its_own_trees(tmp_path: Path):
    problems = divided(config(), tmp_path / "run", num_shards=3)
    loop.run(grow_shard(tmp_path / "run", Shard(1, 3).of(problems)))
    alone = shard_path(tmp_path / "run", 1)
    assert resume(alone).trees == 2
    assert [tree.problem.uid for tree in Saved.open(alone).trees()] == [problems[1].uid, problems[4].uid]
    assert [tree.problem.uid for tree in Saved.open(tmp_path / "run").trees()] == [problems[1].uid, problems[4].uid]


def test_trees_of_all_shards_come_in_order_of_their_problems(tmp_path: Path):
    problems = divided(config(), tmp_path / "run", num_shards=3)
    loop.run(grow_shard(tmp_path / "run", Shard(2, 3).of(problems)))
    loop.run(grow_shard(tmp_path / "run", Shard(0, 3).of(problems)))
    uids = [tree.problem.uid for tree in Saved.open(tmp_path / "run").trees()]
    assert uids == [problems[i].uid for i in (0, 2, 3, 5, 6)]


def test_what_is_done_at_one_time_is_dealt_out():
    settings = config(**{"max_trees": 10, "tools.max_parallel": 3})
    assert (dealt(settings, 4).max_trees, dealt(settings, 4).tools.max_parallel) == (2, 1)
    assert dealt(settings, 1) == settings


def test_the_shards_folder_holds_the_configuration_of_the_whole_run(tmp_path: Path):
    problems = divided(config(), tmp_path / "run", num_shards=3)
    loop.run(grow_shard(tmp_path / "run", Shard(0, 3).of(problems), num_at_once=3))
    header, text = header_and_config(shard_path(tmp_path / "run", 0))
    assert text == header_and_config(tmp_path / "run")[1]
    assert from_toml(text).max_trees == config().max_trees
    assert header.shard is not None and (header.shard.index, header.shard.count) == (0, 3)


# -- kills ------------------------------------------------------------------------------------------------------------


def killed(path: Path, portion: Portion, *, after: int) -> bool:
    """Grow a shard in a child process that kills itself after so many records; whether it was killed."""
    return died(lambda: loop.run(grow_shard(path, portion)), after=after)


@pytest.mark.slow
@pytest.mark.covers("S3.10")
@pytest.mark.parametrize("after", [1, 2, 9, 33, 60])
def test_a_shard_that_was_killed_goes_on_to_the_same_trees(tmp_path: Path, after: int):
    settings = config("arpo")
    begin(settings, tmp_path / "whole")
    problems = divided(settings, tmp_path / "run", num_shards=2)
    loop.run(grow_shard(tmp_path / "run", Shard(1, 2).of(problems)))
    assert killed(tmp_path / "run", Shard(0, 2).of(problems), after=after)
    report = resume(tmp_path / "run")
    assert exported(tmp_path / "run") == exported(tmp_path / "whole")
    assert report.decode_tokens <= 3001


@pytest.mark.parametrize(
    "prompts", [pytest.param(2, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.endurance)]
)
@pytest.mark.parametrize("preset", ["chains", "offline", "arpo"])
def test_every_record_of_a_shard_is_a_safe_place_to_die(tmp_path: Path, preset: str, prompts: int):
    settings = config(preset, prompts=prompts)
    begin(settings, tmp_path / "whole")
    expected, after, is_alive = exported(tmp_path / "whole"), 1, False
    while not is_alive:
        path = tmp_path / f"killed-{after}"
        problems = divided(settings, path, num_shards=2)
        is_alive = not killed(path, Shard(0, 2).of(problems), after=after)
        resume(path)
        assert exported(path) == expected, f"killed after {after} records"
        after += 1
    assert after > (60 if prompts == 7 else 20)


def test_a_progress_bar_of_a_resumed_run_begins_where_it_was_left(tmp_path: Path):
    problems = divided(config(), tmp_path / "run", num_shards=2)
    loop.run(grow_shard(tmp_path / "run", Shard(0, 2).of(problems)))
    seen: list[object] = []
    resume(tmp_path / "run", observers=[seen.append])
    assert [event for event in seen if isinstance(event, Resumed)] == [Resumed(4)]


# -- workers ----------------------------------------------------------------------------------------------------------


class Here:
    """Workers of this process. Those of the first starts of shard 0 are what `first` makes of them, one by one."""

    def __init__(self, *first: "type[ShardWorker]") -> None:
        self.first = list(first)
        self.slots: list[int] = []
        self.num_ended = 0

    async def start(self, path: Path, portion: Portion, *, slot: int, num_at_once: int) -> Worker:
        self.slots.append(slot)
        kind = self.first.pop(0) if self.first and not portion.shard.index else ShardWorker
        return kind(str(path), portion, num_at_once)

    def end(self, worker: Worker) -> None:
        self.num_ended += 1


class Mortal(ShardWorker):
    """Dies when it has sampled 200 tokens."""

    async def grow(self) -> ShardEnd:
        growing = asyncio.ensure_future(super().grow())
        while (await self.tally()).num_tokens < 200 and not growing.done():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        await self.stop()
        await growing
        raise WorkerDied("it was killed")


class Stillborn(ShardWorker):
    async def grow(self) -> ShardEnd:
        raise WorkerDied("no such library")


class Slow(ShardWorker):
    async def meet(self, token: str) -> WorkerInfo:
        await asyncio.Event().wait()
        raise AssertionError


class Elsewhere(ShardWorker):
    async def meet(self, token: str) -> WorkerInfo:
        return replace(await super().meet(token), sees_folder=False, host="far")


class Older(ShardWorker):
    async def meet(self, token: str) -> WorkerInfo:
        return replace(await super().meet(token), library="0.0.1", host="far")


class Broken(ShardWorker):
    async def grow(self) -> ShardEnd:
        return pickle.loads(pickle.dumps(ShardEnd(fault=StoreError("not saved"), errno=errno.ENOSPC)))


class Down(ShardWorker):
    async def grow(self) -> ShardEnd:
        return pickle.loads(pickle.dumps(ShardEnd(fault=EnginesDown("engines_down", "nobody answers"))))


class Unsound(ShardWorker):
    async def grow(self) -> ShardEnd:
        raise ValueError("a fault of the library")


class Stopped(ShardWorker):
    async def grow(self) -> ShardEnd:
        return ShardEnd()


class Waiting(ShardWorker):
    """Finds its journal locked at first."""

    is_free = False

    async def grow(self) -> ShardEnd:
        if not self.is_free:
            self.is_free = True
            return ShardEnd(fault=FolderBusy("a process that is going"))
        return await super().grow()


class Barred(ShardWorker):
    async def grow(self) -> ShardEnd:
        return ShardEnd(fault=FolderBusy("a process that stays"))


class Said:
    """What a run showed and said."""

    def __init__(self) -> None:
        self.tallies: list[Tally] = []
        self.lines: list[str] = []


def grown(
    path: Path, problems: Sequence[Problem], places: Here, said: Said | None = None, *, num_workers: int = 2
) -> RunReport:
    said = said or Said()
    with closing(ShardedFolder.open(path)) as folder:
        run = ShardedRun(
            folder,
            problems,
            places,
            num_workers=num_workers,
            show=said.tallies.append,
            say=said.lines.append,
            restarts=IMPATIENT,
        )
        return loop.run(run.grow())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, RunReport]:
    path = tmp_path_factory.mktemp("whole") / "run"
    report = begin(config("arpo"), path)
    return exported(path), report


@pytest.mark.slow
@pytest.mark.covers("S3.10")
@pytest.mark.parametrize("num_workers", [1, 2, 3, 9])
def test_workers_share_a_run(tmp_path: Path, whole: tuple[bytes, RunReport], num_workers: int):
    problems, places = divided(config("arpo"), tmp_path / "run", num_shards=3), Here()
    report = grown(tmp_path / "run", problems, places, num_workers=num_workers)
    assert exported(tmp_path / "run") == whole[0]
    assert counts(report) == counts(whole[1])
    assert (len(places.slots), places.num_ended) == (3, 3)
    assert set(places.slots) <= set(range(min(num_workers, 3)))
    assert sorted(p.name for p in (tmp_path / "run" / SHARDS).iterdir()) == ["0", "1", "2", "lock"]
    assert not is_locked(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.covers("S3.10")
def test_a_worker_that_dies_is_followed_by_one_that_goes_on(tmp_path: Path, whole: tuple[bytes, RunReport]):
    problems, said = divided(config("arpo"), tmp_path / "run", num_shards=2), Said()
    report = grown(tmp_path / "run", problems, Here(Mortal, Mortal, Mortal), said)
    assert exported(tmp_path / "run") == whole[0]
    assert counts(report) == counts(whole[1])
    assert said.lines == ["the worker of shard 0 died (it was killed); another one goes on"] * 3


@pytest.mark.covers("S3.10")
def test_a_shard_that_died_before_its_first_record_begins_anew(tmp_path: Path, whole: tuple[bytes, RunReport]):
    problems = divided(config("arpo"), tmp_path / "run", num_shards=2)
    journal = shard_path(tmp_path / "run", 1) / "journal"
    journal.mkdir(parents=True)
    (journal / "lock").touch()
    grown(tmp_path / "run", problems, Here())
    assert exported(tmp_path / "run") == whole[0]


def test_how_far_the_run_has_come_is_shown(tmp_path: Path):
    problems, said = divided(config("arpo"), tmp_path / "run", num_shards=2), Said()
    grown(tmp_path / "run", problems, Here(Mortal), said)
    closed = [tally.num_closed for tally in said.tallies]
    assert closed and max(closed) <= 7
    assert closed == sorted(closed)


@pytest.mark.covers("S3.10")
def test_workers_that_die_and_get_nowhere_end_the_run_which_can_be_resumed(
    tmp_path: Path, whole: tuple[bytes, RunReport]
):
    problems, said = divided(config("arpo"), tmp_path / "run", num_shards=2), Said()
    with pytest.raises(WorkersDown, match=r"shard 0 died 3 times in a row.*no such library") as caught:
        grown(tmp_path / "run", problems, Here(*[Stillborn] * 9), said)
    assert code_of_error(caught.value) is ExitCode.SAVED
    assert len(said.lines) == 2
    assert resume(tmp_path / "run").trees == 7
    assert exported(tmp_path / "run") == whole[0]


def test_a_run_whose_machines_are_lost_stops_at_once_and_can_be_resumed(tmp_path: Path, whole: tuple[bytes, RunReport]):
    async def lost() -> str:
        return "the raylet is gone"

    problems = divided(config("arpo"), tmp_path / "run", num_shards=2)
    with closing(ShardedFolder.open(tmp_path / "run")) as folder:
        run = ShardedRun(folder, problems, Here(Slow, Slow), num_workers=2, restarts=IMPATIENT, lost=lost)
        with pytest.raises(WorkersDown, match="the raylet is gone: no worker can go on") as caught:
            loop.run(run.grow())
    assert code_of_error(caught.value) is ExitCode.SAVED
    assert resume(tmp_path / "run").trees == 7
    assert exported(tmp_path / "run") == whole[0]


@pytest.mark.slow
def test_deaths_are_counted_anew_once_the_shard_has_got_on(tmp_path: Path, whole: tuple[bytes, RunReport]):
    problems = divided(config("arpo"), tmp_path / "run", num_shards=2)
    grown(tmp_path / "run", problems, Here(Stillborn, Stillborn, Mortal, Stillborn, Mortal))
    assert exported(tmp_path / "run") == whole[0]


def test_a_worker_that_does_not_start_counts_as_dead(tmp_path: Path):
    problems, said = divided(config(), tmp_path / "run", num_shards=2), Said()
    with closing(ShardedFolder.open(tmp_path / "run")) as folder:
        restarts = replace(IMPATIENT, start_s=0.05)
        run = ShardedRun(folder, problems, Here(Slow), num_workers=2, say=said.lines.append, restarts=restarts)
        assert loop.run(run.grow()).trees == 7
    assert said.lines == ["the worker of shard 0 died (it did not start within 0.05 s); another one goes on"]


@pytest.mark.parametrize(
    ("kind", "error", "message", "code"),
    [
        (Elsewhere, StoreError, "on far, does not see .*file system that all workers share", ExitCode.ENVIRONMENT),
        (Older, ConfigError, "far has ramify 0.0.1", ExitCode.CONFIG),
        (Broken, StoreError, "not saved", ExitCode.SAVED),
        (Down, EnginesDown, "nobody answers", ExitCode.SAVED),
        (Barred, FolderBusy, "a process that stays", ExitCode.ENVIRONMENT),
    ],
)
def test_a_fault_of_one_worker_stops_them_all_and_is_told(
    tmp_path: Path, kind: type[ShardWorker], error: type[RamifyError], message: str, code: ExitCode
):
    problems, places = divided(config(), tmp_path / "run", num_shards=2), Here(kind)
    with pytest.raises(error, match=message) as caught:
        grown(tmp_path / "run", problems, places)
    assert code_of_error(caught.value) is code
    assert len(places.slots) == places.num_ended
    assert not is_locked(tmp_path / "run")
    assert resume(tmp_path / "run").trees == 7


def test_a_fault_of_the_library_is_raised_as_it_is(tmp_path: Path):
    problems = divided(config(), tmp_path / "run", num_shards=2)
    with pytest.raises(ValueError, match="a fault of the library"):
        grown(tmp_path / "run", problems, Here(Unsound))


def test_a_worker_that_somebody_stopped_is_replaced(tmp_path: Path):
    problems, said = divided(config(), tmp_path / "run", num_shards=2), Said()
    assert grown(tmp_path / "run", problems, Here(Stopped), said).trees == 7
    assert "somebody else told it to stop" in said.lines[0]


@pytest.mark.slow
def test_a_journal_that_a_dying_process_holds_is_waited_for(tmp_path: Path, whole: tuple[bytes, RunReport]):
    problems, said = divided(config("arpo"), tmp_path / "run", num_shards=2), Said()
    grown(tmp_path / "run", problems, Here(Waiting), said)
    assert exported(tmp_path / "run") == whole[0]
    assert said.lines == []


@pytest.mark.slow
@pytest.mark.covers("S3.10")
@pytest.mark.parametrize("when", [0, 1, 3])
def test_a_cancelled_run_stops_its_workers_and_closes_their_journals(
    tmp_path: Path, whole: tuple[bytes, RunReport], when: int
):
    one_by_one = config("arpo", max_trees=2)
    problems, places = divided(one_by_one, tmp_path / "run", num_shards=2), Here()

    async def cancelled(folder: ShardedFolder) -> None:
        told = asyncio.Event()

        def look(tally: Tally) -> None:
            if tally.num_closed >= when:
                told.set()

        run = ShardedRun(folder, problems, places, num_workers=2, show=look, restarts=IMPATIENT)
        growing = asyncio.ensure_future(run.grow())
        await asyncio.wait({growing, asyncio.ensure_future(told.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert growing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await growing

    with closing(ShardedFolder.open(tmp_path / "run")) as folder:
        loop.run(cancelled(folder))
    assert len(places.slots) == places.num_ended
    for shard in shards_of(2):
        (journal,) = (shard_path(tmp_path / "run", shard.index) / "journal").glob("*.jsonl")
        assert b'"record":"sealed"' in journal.read_bytes().splitlines()[-1]
    resume(tmp_path / "run")
    assert exported(tmp_path / "run") == whole[0]


@pytest.mark.parametrize("options", [{"max_deaths": -1}, {"start_s": 0}, {"pause_s": -1.0}, {"look_s": 0.0}])
def test_an_impossible_patience_is_refused(options: dict[str, float]):
    with pytest.raises(ConfigError, match="times must be above 0"):
        RestartPolicy(**options)  # type: ignore[arg-type]


def test_a_run_without_workers_is_refused(tmp_path: Path):
    problems = divided(config(), tmp_path / "run", num_shards=2)
    with pytest.raises(ConfigError, match="0 workers"):
        grown(tmp_path / "run", problems, Here(), num_workers=0)


def test_what_goes_between_processes_can_be_pickled(tmp_path: Path):
    problems = divided(config(), tmp_path / "run", num_shards=2)
    portion = Shard(1, 2).of(problems)
    assert pickle.loads(pickle.dumps(portion)) == portion
    worker = ShardWorker(str(tmp_path / "run"), portion, 2)
    end, tally = loop.run(_both(worker))
    assert end.report is not None
    assert pickle.loads(pickle.dumps(end)).report.as_dict() == end.report.as_dict()
    assert pickle.loads(pickle.dumps(tally)) == tally
    assert (tally.num_closed, end.report.trees) == (3, 3)


async def _both(worker: ShardWorker) -> tuple[ShardEnd, Tally]:
    return await worker.grow(), await worker.tally()


def test_a_divided_run_knows_its_inputs(tmp_path: Path) -> None:
    questions = tmp_path / "q.jsonl"

    def write_gold(gold: str) -> None:
        rows = (f'{{"question": "what is {i} and 1?", "gold": "{gold}"}}\n' for i in range(4))
        questions.write_text("".join(rows), "utf-8")

    write_gold("1")
    flags = {"data.path": str(questions), "data.answer": "gold", "task.name": "data", "prompts": 4}
    problems = divided(config("chains", **flags), tmp_path / "run", num_shards=3)
    loop.run(grow_shard(tmp_path / "run", Shard(0, 3).of(problems)))
    write_gold("2")
    with pytest.raises(StoreError, match=r"data: the gold answers\n.*--accept data"):
        resume(tmp_path / "run")
    report = resume(tmp_path / "run", accept=["data"])
    assert (report.trees, report.failed_trees) == (4, 0)
    reasons = {row.uid: " ".join(row.reasons) for row in Saved.open(tmp_path / "run").rows()}
    assert {uid for uid, reason in reasons.items() if "other data" in reason} == {"1", "2"}
    resume(tmp_path / "run")
    with pytest.raises(ExportError, match="the gold answers"):
        list(Saved.open(tmp_path / "run").rows(gold="gold"))
