"""The document of a run holds exact figures that any page can read, of a run in any state."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.service.services import config as service_config
from tests.service.services import served
from tests.sharded.divided import config, divided
from tests.store.growths import CODEC, RULES, Live, answer, observed, sampled, turn
from tests.view.followed import begun, filled, looked, put

from ramify.core.command import Fork, Grow, Score
from ramify.core.growth import Failure
from ramify.core.ledger import Spend
from ramify.core.segment import ToolCall
from ramify.core.tree import ROOT, Step
from ramify.experiments.proportions import wilson
from ramify.runner.folder import begin, resume
from ramify.runner.saved import Saved
from ramify.service.manager import RolloutManager
from ramify.store.records import Accepted, Handed, InputsValue
from ramify.store.replay import replay
from ramify.store.store import FolderStore
from ramify.view.followed_run import FollowedRun
from ramify.view.run_document import run_document
from ramify.view.run_figures import figures_of, solved_over_tokens
from ramify.view.run_timeline import MAX_BYTES, MAX_POINTS, timeline
from ramify.view.tree_row import TreeRow, tree_row
from ramify.view.tree_values import COLUMNS, tree_values

TURN, ANSWER = len("<calc>1+1</calc>"), len("<answer>4</answer>")


def document(run: FollowedRun) -> dict[str, Any]:
    """The document, as a page reads it."""
    return json.loads(json.dumps(run_document(run), allow_nan=False))


def wrong() -> Step:
    return replace(answer("5"), scores=(Score("exact", 0.0),))


def mixed(number: int) -> Live:
    """A tree of two paths. The wrong one, of one step, is delivered before the right one of two."""
    live = Live(number)
    right, other = live.ask(Grow(ROOT, fork=Fork(2, "rule")), Grow(ROOT, fork=0))
    live.grow(right, turn())
    live.grow(right, answer())
    live.grow(other, wrong())
    live.end(other)
    live.end(right)
    live.shut()
    return live


def forked(number: int) -> Live:
    """A tree of two right paths: the second leaves the first behind the 7th token of its first step."""
    live = Live(number)
    (first,) = live.ask(Grow(ROOT))
    live.grow(first, turn())
    live.grow(first, answer())
    live.end(first)
    (second,) = live.ask(Grow(2, at=live.tree.length(ROOT) + 7, fork=Fork(1, "late")))
    live.grow(second, answer())
    live.end(second)
    live.shut()
    return live


def broken(number: int) -> Live:
    """A tree without a leaf: a tool fails, then the budget is spent; another command fails."""
    live = Live(number)
    call = ToolCall("calc", "1/0", "error", duration_s=0.5)
    first, second = live.ask(Grow(ROOT, fork=Fork(2, "rule")), Grow(ROOT, fork=0))
    live.grow(first, Step((sampled("<calc>1/0</calc>"), replace(observed("no"), tool_call=call))))
    live.end(first, Failure("budget"))
    live.end(second, Failure("engine_error"))
    live.shut("engine_error")
    return live


def growing(number: int) -> Live:
    live = Live(number)
    live.ask(Grow(ROOT))
    return live


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    """A run that is being written, with a tree of each kind."""
    flags = {"limits.decode": 100, "run_limits.decode": 200}
    with closing(begun(tmp_path / "run", **flags)) as store:
        for live in (mixed(0), forked(1), broken(2), growing(3)):
            put(store, live.records)
        yield store


# -- figures ----------------------------------------------------------------------------------------------------------


def test_figures_are_those_computed_by_hand(store: FolderStore):
    figures = document(filled(store.path))["figures"]
    assert (figures["filled"], figures["leaves"], figures["failed_leaves"]) == (3, 4, 0)
    rewards = figures["rewards"]
    assert rewards["counts"] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 3]
    assert (rewards["edges"][0], rewards["edges"][-1]) == (0.0, 1.0)
    assert (rewards["mean"], rewards["judged"], rewards["unjudged"]) == (0.75, 4, 0)
    low, high = wilson(2, 3)
    assert figures["solved"] == {"number": 2, "of": 3, "share": 2 / 3, "low": low, "high": high}
    assert figures["groups"] == {"solved": 1, "mixed": 1, "failed": 0, "unjudged": 1}
    assert figures["stops"] == {"answer": 4}
    assert figures["tools"] == {"calc": {"calls": 3, "failed": {"error": 1}, "mean_s": 0.5 / 3, "max_s": 0.5}}
    assert figures["faults"] == {"engine_error": 1}
    assert figures["dollars"] is None


def test_tokens_are_divided_into_those_that_won_and_the_others(store: FolderStore):
    tokens = document(filled(store.path))["figures"]["tokens"]
    of_mixed = of_forked = TURN + 2 * ANSWER
    assert tokens["sampled"] == of_mixed + of_forked + TURN
    assert tokens["winning"] == (TURN + ANSWER) + of_forked
    assert tokens["elsewhere"] == ANSWER
    assert tokens["flat"] == of_mixed + (TURN + ANSWER) + (7 + ANSWER)
    assert (tokens["cached"], tokens["uncached"], tokens["cache_share"]) == (7 * 3, 7 * 2, 0.6)


def test_a_tree_is_solved_when_its_first_right_leaf_is_delivered(store: FolderStore):
    run = filled(store.path)
    of_mixed = TURN + 2 * ANSWER
    assert [row and row.solved_at for row in rows(run)] == [of_mixed, TURN + ANSWER, None, None]
    curve = document(run)["figures"]["solved_over_tokens"]
    assert curve["of"] == 3
    assert curve["tokens"] == [-(-of_mixed * step // 20) for step in range(1, 21)]
    expected = [(tokens >= TURN + ANSWER) + (tokens >= of_mixed) for tokens in curve["tokens"]]
    assert curve["number"] == expected
    assert expected[-1] == 2
    assert curve["share"] == [number / 3 for number in expected]
    intervals = list(zip(curve["low"], curve["high"], strict=True))
    assert intervals == [wilson(number, 3) for number in expected]


def rows(run: FollowedRun) -> list[TreeRow | None]:
    return [tree.row for _, tree in sorted(run.trees.items())]


def test_limits_show_what_is_spent_and_left(store: FolderStore):
    budget = document(filled(store.path))["figures"]["budget"]
    spent, most = 3 * TURN + 4 * ANSWER, TURN + 2 * ANSWER
    assert budget["run"] == {"decode": {"limit": 200, "spent": spent, "left": 200 - spent}}
    assert budget["tree"] == {"decode": {"limit": 100, "spent": most, "left": 100 - most}}


def test_a_budget_is_known_before_any_tree_is_replayed(tmp_path: Path):
    begin(config(), tmp_path / "run")
    budgets = [document(run)["figures"]["budget"] for run in (looked(tmp_path / "run"), filled(tmp_path / "run"))]
    assert budgets[0] == budgets[1]
    assert budgets[0]["run"]["decode"]["spent"] == sum(
        tree.spent()["policy"].decode for tree in Saved.open(tmp_path / "run").trees()
    )


def test_the_totals_are_those_of_the_table(tmp_path: Path):
    path = tmp_path / "run"
    begin(config(), path)
    trees = list(Saved.open(path).numbered_trees())
    table = [tree_values(tree, number) for number, tree in trees]
    told = document(filled(path))
    for name in COLUMNS:
        assert told["trees"][name] == [list(v) if isinstance(v := row[name], tuple) else v for row in table]
    figures = told["figures"]
    assert figures["tokens"]["sampled"] == sum(told["trees"]["tokens"])
    assert figures["leaves"] == sum(told["trees"]["leaves"])
    assert sum(figures["stops"].values()) == figures["leaves"]
    assert figures["groups"].keys() == {"solved", "mixed", "failed", "unjudged"}
    assert sum(figures["groups"].values()) == len(trees)
    executed = sum(tool["calls"] for tool in figures["tools"].values())
    assert executed >= sum(told["trees"]["tools"]) > 0
    assert figures["tokens"]["flat"] == sum(
        tree.num_billed(node) for _, tree in trees for leaf in tree.leaves() for node in tree.path(leaf)
    )


def a_row(**fields: Any) -> TreeRow:
    plain: dict[str, Any] = {
        "values": {}, "rewards": (), "stops": {}, "tools": {}, "faults": {}, "spent": Spend(), "winning": None,
        "flat": 0, "solved_at": None, "sampled_version": None,
    }  # fmt: skip
    return TreeRow(**{**plain, **fields})


def test_rewards_beyond_0_and_1_widen_the_bins():
    figures = figures_of([a_row(rewards=(-1.0, 0.5)), a_row(rewards=(3.0,))], has_prices=False)
    assert figures["rewards"]["edges"][0] == -1.0
    assert figures["rewards"]["edges"][-1] == 3.0
    assert sum(figures["rewards"]["counts"]) == 3


def test_dollars_are_exact_where_engines_have_prices():
    figures = figures_of([a_row(spent=Spend(picodollars=3 * 10**9))] * 2, has_prices=True)
    assert figures["dollars"] == 0.006


@pytest.mark.parametrize("kind", ["no trees", "no judged leaf"])
def test_nobody_knows_what_is_solved_where_nothing_is_judged(kind: str):
    trees = [] if kind == "no trees" else [a_row(spent=Spend(decode=40))]
    figures = figures_of(trees, has_prices=False)
    assert figures["solved"] == {"number": 0, "of": 0, "share": None, "low": 0.0, "high": 1.0}
    assert figures["rewards"]["mean"] is None
    assert figures["tokens"]["cache_share"] is None
    assert set(solved_over_tokens(trees)["share"]) <= {None}
    json.dumps(figures, allow_nan=False)


def test_a_leaf_that_is_worth_nothing_wins_nothing():
    live = Live(0)
    (command,) = live.ask(Grow(ROOT))
    live.grow(command, wrong())
    live.end(command)

    row = tree_row(replay(live.records, CODEC, RULES)[0])
    assert (row.winning, row.is_solved, row.flat) == (0, False, ANSWER)


# -- trees ------------------------------------------------------------------------------------------------------------


def test_trees_are_columns_in_the_order_of_their_numbers(store: FolderStore):
    put(store, [Handed(rollout_id=4, trees=(1,), version=7, first_sample=0, num_samples=2)])
    told = document(filled(store.path))
    trees = told["trees"]
    assert trees.keys() == told["columns"].keys()
    assert {len(column) for column in trees.values()} == {4}
    assert trees["tree"] == [0, 1, 2, 3]
    assert trees["open"] == [False, False, False, True]
    assert trees["reason"] == ["done", "done", "engine_error", ""]
    assert trees["solved"] == [True, True, None, None]
    assert trees["rollout"] == [None, 4, None, None]
    assert trees["version"] == [None, 7, None, None]
    assert trees["tool_faults"] == [0, 0, 1, None]
    assert trees["tool_s"] == [0, 0, 0.5, None]
    assert trees["winning"] == [TURN + ANSWER, TURN + 2 * ANSWER, None, None]
    assert trees["faults"] == [0, 0, 1, None]
    assert trees["tool"] == [["calc"], ["calc"], ["calc"], None]
    assert trees["question"] == ["make 3 from 1 2"] * 4


def test_before_a_replay_most_columns_are_unknown(store: FolderStore):
    run = looked(store.path)
    told = document(run)
    assert (told["num_trees"], told["num_closed"], told["filled"]) == (4, 3, 0)
    assert told["trees"]["leaves"] == [2, 2, 0, None]
    assert told["trees"]["nodes"] == [None] * 4
    assert told["trees"]["uid"] == ["p0", "p1", "p2", "p3"]
    run.fill(0.0)
    assert document(run)["filled"] == 1


def test_a_run_that_was_read_again_has_its_trees_again(tmp_path: Path):
    path = tmp_path / "run"
    begin(config(), path)
    run = filled(path)
    (path / "journal").rename(path / "away")
    run.look()
    told = document(run)
    assert (told["trees"]["tree"], told["num_trees"]) == ([], 0)
    (path / "away").rename(path / "journal")
    run.look()
    assert document(run)["trees"]["tree"] == list(range(7))


# -- the run ----------------------------------------------------------------------------------------------------------


def test_a_run_says_what_it_is(store: FolderStore):
    told = document(FollowedRun.open(store.path, name="mine"))
    assert (told["name"], told["path"]) == ("mine", str(store.path))
    assert told["title"] == "preset offline, strategy offline, task countdown, engine scripted, seed 3"
    assert told["config"] == (store.path / "config.toml").read_text()
    assert told["num_asked"] == 7
    header = told["header"]
    assert header.keys() == set(store.header.__struct_fields__)
    assert (header["seed"], header["config_hash"]) == (3, store.header.config_hash)
    assert header["weights"][0]["engine"] == "scripted"
    assert header["reading"]["judges"] == []


def test_a_run_without_trees_has_a_document(tmp_path: Path):
    with closing(begun(tmp_path / "run")) as store:
        told = document(filled(store.path))
        assert told["is_growing"]
    assert set(told["trees"]["tree"]) == set()
    assert told["gaps"] == ["0 trees were begun of the 7 asked for"]
    assert not document(looked(tmp_path / "run"))["is_growing"]


def test_what_is_no_run_has_a_document(tmp_path: Path):
    told = document(looked(tmp_path / "nowhere"))
    assert (told["title"], told["config"], told["header"], told["num_asked"]) == ("", "", {}, None)
    assert len(told["faults"]) == 1
    assert told["trees"]["tree"] == []
    assert told["figures"]["budget"] == {"run": {}, "tree": {}}


def test_large_numbers_are_texts(tmp_path: Path):
    path = tmp_path / "run"
    begin(config(seed=2**53 + 1, prompts=1), path)
    assert document(looked(path))["header"]["seed"] == str(2**53 + 1)


def test_what_a_service_did_is_told(tmp_path: Path):
    async def use(manager: RolloutManager) -> None:
        await manager.generate(0)
        await manager.update_weights(1, "one")
        await manager.save(0)

    served(tmp_path / "run", use, configured=service_config())
    run = filled(tmp_path / "run")
    service = document(run)["service"]
    (handed,) = service["handed"]
    assert (handed["rollout_id"], handed["trees"]) == (0, list(run.news.handed[0].trees))
    assert service["updated"] == [{"version": 1, "source": "one"}]
    assert (service["dropped"], service["accepted"]) == ([], [])
    assert [marked["rollout_id"] for marked in service["marked"]] == [0]
    assert document(run)["gaps"] == [
        f"{len(run.trees) - run.num_closed} of {len(run.trees)} trees that were begun are not finished"
    ] * (len(run.trees) > run.num_closed)


def test_accepted_inputs_are_told(store: FolderStore):
    put(store, [Accepted(what=("data",), inputs=InputsValue(problems="abc"))])
    (accepted,) = document(looked(store.path))["service"]["accepted"]
    assert accepted["what"] == ["data"]
    assert accepted["inputs"]["problems"] == "abc"


# -- the log ----------------------------------------------------------------------------------------------------------


def logged(path: Path, lines: list[Mapping[str, Any]], *, behind: bytes = b"") -> Path:
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines) + behind)
    return path


def test_the_log_of_a_run_is_its_timeline(tmp_path: Path):
    path = tmp_path / "run"
    begin(config(), path)
    told = document(looked(path))
    points = told["timeline"]
    assert told["timeline_skipped"] == 0
    assert points[0]["time"] == 0.0
    assert [point["time"] for point in points] == sorted(point["time"] for point in points)
    assert sorted(p["tree"] for p in points if p["event"] == "closed") == list(range(7))
    (path / "log.jsonl").unlink()
    assert document(looked(path))["timeline"] == []


def test_a_long_log_is_thinned_out_and_keeps_its_ends(tmp_path: Path):
    lines = [{"time": 100.0 + number, "active_branches": number, "secret": 1} for number in range(5000)]
    points, num_skipped = timeline([logged(tmp_path / "log.jsonl", lines)])
    assert (len(points), num_skipped) == (MAX_POINTS, 0)
    assert points[0] == {"time": 0.0, "active_branches": 0}
    assert points[-1] == {"time": 4999.0, "active_branches": 4999}


def test_bad_lines_of_a_log_are_skipped_and_counted(tmp_path: Path):
    bad = [b"{", b"[]", b'{"event":"x"}', b'{"time":true}', b'{"time":"now"}', b"\xff\xfe", b"[" * 5000]
    good = [{"time": 5, "event": "x" * 500, "tree": [1], "phase": None, "command": 2**70}]
    path = logged(tmp_path / "log.jsonl", good, behind=b"\n".join(bad) + b'\n{"time":6')
    points, num_skipped = timeline([path])
    assert points == [{"time": 0.0, "event": "x" * 200, "tree": None, "phase": None, "command": None}]
    assert num_skipped == len(bad)


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path):
    lines = [{"time": number, "event": "phase", "reason": "x" * 190} for number in range(3 * MAX_BYTES // 200)]
    path = logged(tmp_path / "log.jsonl", lines)
    points, num_skipped = timeline([path])
    assert (len(points), num_skipped) == (MAX_POINTS, 0)
    assert points[-1]["time"] < len(lines) / 2


def test_logs_of_shards_are_put_together(tmp_path: Path):
    logs = [[{"time": n + 2 * m, "tree": n, "active_branches": m + 10 * n} for m in range(3)] for n in range(2)]
    paths = [logged(tmp_path / f"{n}.jsonl", log) for n, log in enumerate(logs)]
    points, _ = timeline([*paths, tmp_path / "nowhere"])
    assert [point["time"] for point in points] == [0, 1, 2, 3, 4, 5]
    assert [point["tree"] for point in points] == [0, 1] * 3
    assert [point["active_branches"] for point in points] == [0, 10, 11, 12, 13, 14]


def test_the_logs_of_a_divided_run_are_its_timeline(tmp_path: Path):
    path = tmp_path / "divided"
    divided(config(), path, num_shards=2)
    resume(path)
    points = document(looked(path))["timeline"]
    assert sorted(p["tree"] for p in points if p["event"] == "closed") == list(range(7))


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_a_log_that_is_no_file_is_not_opened(tmp_path: Path, make: Any):
    make(tmp_path / "log.jsonl")
    assert timeline([tmp_path / "log.jsonl"]) == ([], 0)
