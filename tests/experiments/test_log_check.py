"""A run held against its engine's log: equal to the id, and every kind of difference is found."""

import json
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runner.parts import PROBLEM, Plan, Small, grown

from ramify.cli.main import main
from ramify.config.run_config import StrategyConfig
from ramify.core.codec import ByteCodec
from ramify.core.command import Command, Grow, Tokens
from ramify.core.engine import Generation, Request
from ramify.core.errors import ConfigError, EngineError, StoreError
from ramify.core.segment import Segment, token_array
from ramify.core.tree import ROOT, Step, Tree
from ramify.engines.logged import Entry, Logged, read_log
from ramify.experiments.log_check import EngineLog, LogComparison
from ramify.runner.sampler import request_id
from ramify.testing.clock import run_virtual
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

ONLINE = StrategyConfig(name="online", options={"n": 6, "initial_rollouts": 3})


class ForksInside(Plan):
    """A chain, then forks inside its runs: nodes are split, so generations are divided."""

    def wanted(self, tree: Tree) -> list[Command] | None:
        if not self.told:
            return [Grow(ROOT)]
        if len(self.told) > 4:
            return None
        leaf = tree.leaves()[0]
        start, end = tree.num_prompt(leaf), tree.length(leaf)
        return [Grow(leaf, at=start + (len(self.told) * 7) % (end - start), until=Tokens(30))]


def logged(path: Path, plan: type[Plan] | None = None, **fields: Any) -> tuple[list[Tree], Path]:
    log = path / "engine.jsonl"
    engine = Logged(Scripted(chains(3)), log)
    result = grown(plan, engine, task=Small(), **fields)
    run_virtual(engine.close())
    return list(result.trees), log


def compared(trees: list[Tree], log: Path) -> LogComparison:
    found = LogComparison()
    engine_log = EngineLog(read_log(log))
    for index, tree in enumerate(trees):
        engine_log.compare(tree, index, found)
    return engine_log.finish(found)


@pytest.mark.parametrize(("plan", "fields"), [(None, {"strategy": ONLINE}), (ForksInside, {})])
def test_every_id_of_a_run_is_in_its_engines_log(
    plan: type[Plan] | None, fields: dict[str, Any], tmp_path: Path
) -> None:
    trees, log = logged(tmp_path, plan, **fields)
    found = compared(trees, log)
    assert found.differences == []
    assert found.turns == len(list(read_log(log)))
    assert found.ids_sampled == sum(len(entry.sampled) for entry in read_log(log))
    assert found.only_in_log == 0


def changed(log: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    change(entries)
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda entries: entries[1]["sampled"].__setitem__(0, 1), "sampled id 0: the log has 1"),
        (lambda entries: entries[1]["fed"].__setitem__(5, 1), "fed id 5: the log has 1"),
        (lambda entries: entries[1]["sampled"].append(7), "the log has 7, the run the end"),
        (lambda entries: entries[1]["sampled"].pop(), "the end"),
        (lambda entries: entries[1]["fed"].pop(), "fed id"),
        (lambda entries: entries[1]["fed"].append(entries[1]["sampled"].pop(0)), "the run the end"),
        (lambda entries: entries.pop(1), "the log has no request"),
    ],
)
def test_a_difference_of_one_id_is_found(
    change: Callable[[list[dict[str, Any]]], None], said: str, tmp_path: Path
) -> None:
    trees, log = logged(tmp_path, strategy=ONLINE)
    changed(log, change)
    found = compared(trees, log)
    assert found.differences and any(said in difference for difference in found.differences)


def test_turns_that_only_the_log_holds_are_counted_and_are_no_difference(tmp_path: Path) -> None:
    trees, log = logged(tmp_path, strategy=ONLINE)
    changed(log, lambda entries: entries.append({**entries[0], "request_id": "0/00000000000000aa"}))
    found = compared(trees, log)
    assert (found.differences, found.only_in_log) == ([], 1)


def test_a_turn_that_was_tried_again_may_be_there_twice(tmp_path: Path) -> None:
    trees, log = logged(tmp_path, strategy=ONLINE)
    changed(log, lambda entries: entries.insert(0, {**entries[0], "sampled": entries[0]["sampled"][:-1]}))
    found = compared(trees, log)
    assert (found.differences, found.only_in_log) == ([], 1)
    assert found.turns + found.only_in_log == len(list(read_log(log)))


def test_one_try_must_hold_all_of_a_turn(tmp_path: Path) -> None:
    """Two tries that are wrong in different ways, one too long and one with another id, are not one that is right."""
    trees, log = logged(tmp_path, ForksInside)

    def spoil(entries: list[dict[str, Any]]) -> None:
        right = entries.pop(0)
        entries.append({**right, "sampled": [*right["sampled"], 7]})
        entries.append({**right, "sampled": [7, *right["sampled"][1:]]})

    changed(log, spoil)
    assert compared(trees, log).differences


# -- runs that are wrong in ways the runner never is ------------------------------------------------------------------

HERE, FED, MADE = 77, [1, 2, 3], [4, 5, 6, 7]


def against_one_turn(*paths: list[Segment]) -> list[str]:
    """Differences of a tree with these paths, one node a segment, to a log of one turn."""
    tree = Tree(PROBLEM, ByteCodec(), [Segment("prompt", token_array(FED))], seed=1)
    for path in paths:
        node = ROOT
        for segment in path:
            node = tree.add(Step((segment,)), tree.follow(node))
    found = LogComparison()
    engine_log = EngineLog([Entry(request_id("0", HERE), FED, MADE)])
    engine_log.compare(tree, 0, found)
    return engine_log.finish(found).differences


def part(start: int, end: int, seed: int | None = HERE) -> Segment:
    return Segment("sampled", token_array(MADE[start:end]), seed=seed)


def test_a_turn_in_parts_is_whole() -> None:
    assert against_one_turn([part(0, 4)]) == []
    assert against_one_turn([part(0, 1), part(1, 3), part(3, 4)]) == []


@pytest.mark.parametrize(
    "paths",
    [
        [[part(0, 2)], [part(0, 2)]],
        [[part(0, 4)], [part(0, 4)]],
        [[part(0, 2)], [part(0, 2), part(2, 4)]],
        [[part(0, 2), part(3, 4)]],
        [[part(0, 2)]],
        [[part(2, 4)]],
        [[part(0, 0)]],
    ],
)
def test_tokens_held_twice_or_lost_are_found(paths: list[list[Segment]]) -> None:
    assert len(against_one_turn(*paths)) == 1


def test_tokens_that_nobody_sampled_inside_a_turn_are_found() -> None:
    given = Segment("given", token_array(MADE[1:2]))
    assert against_one_turn([part(0, 1), given, part(2, 4)])
    assert against_one_turn([Segment("given", token_array(MADE[:1])), part(1, 4)])
    assert against_one_turn([part(0, 3), Segment("given", token_array(MADE[3:]))])


def test_sampled_tokens_that_name_no_request_are_found() -> None:
    (difference,) = against_one_turn([part(0, 4, seed=None)])
    assert "without a request" in difference


# -- the log ----------------------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_left_out_and_any_other_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b'{"request_id":"0/1","fed":[1],"sampled":[2]}\n{"request_id":"0/2","fe')
    assert list(read_log(log)) == [Entry("0/1", [1], [2])]
    log.write_bytes(b"no json\n")
    with pytest.raises(StoreError, match="line 1"):
        list(read_log(log))


async def answered(engine: Logged, *requests: Request) -> None:
    try:
        for request in requests:
            await engine.generate(request)
    finally:
        await engine.close()


def requests(*seeds: int) -> list[Request]:
    return [Request(token_array([65, 66]), 40, seed, request_id=request_id("0", seed)) for seed in seeds]


def test_a_log_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    """The kill came while the line was written, so its generation was never handed on."""
    log = tmp_path / "log"
    run_virtual(answered(Logged(Scripted(chains(1)), log), *requests(1, 2)))
    whole = log.read_bytes()
    log.write_bytes(whole[:-5])
    run_virtual(answered(Logged(Scripted(chains(1)), log), *requests(2, 3)))
    assert [entry.request_id for entry in read_log(log)] == [request_id("0", seed) for seed in (1, 2, 3)]


def test_a_generation_whose_line_has_no_room_on_the_disk_is_not_handed_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run_virtual(answered(Logged(Scripted(chains(1)), log), *requests(1)))
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 10, was[1]))
        with pytest.raises(EngineError, match="log_failed"):
            run_virtual(answered(Logged(Scripted(chains(1)), log), *requests(2)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)
        signal.signal(signal.SIGXFSZ, handled)
    run_virtual(answered(Logged(Scripted(chains(1)), log), *requests(3)))
    assert [entry.request_id for entry in read_log(log)] == [request_id("0", seed) for seed in (1, 3)]


def test_a_generation_whose_log_is_gone_is_not_handed_on(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    engine = Logged(Scripted(chains(1)), tmp_path / "folder" / "log")
    (tmp_path / "folder").rmdir()
    with pytest.raises(EngineError, match="log_failed"):
        run_virtual(answered(engine, *requests(1)))


def test_another_file_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("dear diary")
    with pytest.raises(ConfigError, match="is no engine's log"):
        Logged(Scripted(chains(1)), tmp_path / "notes")
    (tmp_path / "new").touch()
    Logged(Scripted(chains(1)), tmp_path / "new")


def test_what_becomes_of_the_ids_later_does_not_change_the_log(tmp_path: Path) -> None:
    log, request = tmp_path / "log", Request(token_array([65, 66]), 40, 1, request_id="0/1")

    class Careless(Scripted):
        async def generate(self, request: Request) -> Generation:
            generation = await super().generate(request)
            request.ids[:] = 0
            return generation

    run_virtual(answered(Logged(Careless(chains(1)), log), request))
    assert next(read_log(log)).fed == [65, 66]


def test_the_command_compares_a_saved_run_and_its_exit_code_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, log = tmp_path / "run", tmp_path / "engine.jsonl"
    settings = ["--preset", "offline", "--prompts", "2", "--set", f"engine.log={log}", "-q"]
    assert main(["rollout", *settings, "--out", str(run)]) == 0
    assert main(["check", str(run), "--against", str(log)]) == 0
    assert "0 differences" in capsys.readouterr().out
    changed(log, lambda entries: entries[0]["sampled"].__setitem__(0, 3))
    assert main(["check", str(run), "--against", str(log)]) == 5
    assert main(["check", str(run), "--against", str(tmp_path / "none")]) != 0
    assert "cannot be read" in capsys.readouterr().err


def test_a_run_whose_log_is_gone_is_read_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs, run = tmp_path / "logs", tmp_path / "run"
    logs.mkdir()
    settings = ["--preset", "offline", "--prompts", "1", "--set", f"engine.log={logs / 'engine.jsonl'}", "-q"]
    assert main(["rollout", *settings, "--out", str(run)]) == 0
    shutil.rmtree(logs)
    assert main(["check", str(run)]) == 0
    assert "everything holds" in capsys.readouterr().out
