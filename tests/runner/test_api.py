"""The library as a program uses it: rollouts, events as they happen, runs in folders."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runner.parts import OneChain, Plan, Small, grown, problems

from ramify import plugins
from ramify.config.configure import resolve
from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.command import Command, Grow
from ramify.core.errors import ConfigError, ContractError, EngineError, StoreError
from ramify.core.tree import ROOT, Tree
from ramify.edge.patience import Patience
from ramify.engines.fleet.replicas import Replicas
from ramify.rows.jsonl import write
from ramify.runner.build import build_engine
from ramify.runner.driver import Delivery
from ramify.runner.events import CommandsAsked, Event, OutcomeTold, StepGrown, TreeClosed, TreeOpened
from ramify.runner.folder import begin, resume
from ramify.runner.library import Watched, rollout, rollout_sync, steps
from ramify.runner.prepared import prepare
from ramify.runner.run import Run
from ramify.runner.saved import Saved
from ramify.runner.scheduler import TooManyFailures
from ramify.strategies.chains import Chains
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay, Fault
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

# -- rollout ----------------------------------------------------------------------------------------------------------


def test_questions_may_be_bare_text() -> None:
    result = grown(OneChain, questions=["make 3 from 1 2", "make 4 from 2 2"])
    assert [tree.problem.uid for tree in result.trees] == ["question-0", "question-1"]
    assert [tree.problem.question for tree in result.trees] == ["make 3 from 1 2", "make 4 from 2 2"]
    assert "make 4 from 2 2" in result.trees[1].branch(ROOT).text


@pytest.mark.parametrize("question", ["", "  ", "\n"])
def test_a_question_of_nothing_is_refused(question: str) -> None:
    with pytest.raises(ConfigError, match="'question-1' has no question"):
        grown(OneChain, questions=["fine", question])


def test_without_questions_the_task_makes_its_own() -> None:
    result = rollout_sync(engine=Scripted(chains(1)), prompts=3, seed=4, strategy=OneChain)
    assert len(result.trees) == 3
    assert all(tree.problem.split == "heldout" for tree in result.trees)
    again = rollout_sync(engine=Scripted(chains(1)), prompts=3, seed=4, strategy=OneChain)
    assert [t.problem.uid for t in again.trees] == [t.problem.uid for t in result.trees]


def test_settings_are_paths_with_underscores_for_dots() -> None:
    result = rollout_sync(
        problems(1), engine=Scripted(chains(1)), preset="offline", limits__leaves=2, strategy__options={"beam_size": 3}
    )
    assert result.config.strategy.options["beam_size"] == 3
    assert result.config.preset == "offline"
    assert len(result.trees[0].leaves()) == 2


def test_a_strategy_that_is_handed_in_has_options_of_its_own() -> None:
    @dataclass(frozen=True)
    class Options:
        number: int = 1

    class Several(OneChain):
        Config = Options

        def __init__(self, config: Options, rng: object) -> None:
            super().__init__(config, rng)  # type: ignore[arg-type]
            self.config = config

        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            return None if self.told else [Grow(ROOT)] * self.config.number

    for options, number in (({}, 1), ({"number": 3}, 3)):
        result = rollout_sync(
            problems(1), engine=Scripted(chains(1)), preset="offline", strategy=Several, strategy__options=options
        )
        assert len(result.trees[0].leaves()) == number
    with pytest.raises(ConfigError, match=r"strategy.options.numbr: unknown key; did you mean 'number'"):
        rollout_sync(problems(1), engine=Scripted(), strategy=Several, strategy__options={"numbr": 1})


def test_a_bad_setting_is_refused_before_anything_is_asked_of_the_engine() -> None:
    engine = Scripted(chains(1))
    with pytest.raises(ConfigError, match="did you mean 'limits'"):
        rollout_sync(problems(1), engine=engine, limit__leaves=2)
    assert engine.num_calls == 0


def test_trees_come_in_the_order_of_their_problems_whatever_ends_first() -> None:
    engine = Scripted(chains(1), delay=lambda turn: Delay(9.0 - int(turn.request_id.partition("/")[0])))
    result = grown(OneChain, engine, questions=problems(8))
    assert [tree.problem.uid for tree in result.trees] == [f"p{i}" for i in range(8)]


def test_no_problem_is_no_tree() -> None:
    result = grown(OneChain, questions=[])
    assert (result.trees, result.rows(), result.report.trees) == ((), [], 0)


@pytest.mark.parametrize("delivery", ["ordered", "eager"])
@pytest.mark.parametrize("preset", ["chains", "offline", "arpo"])
def test_both_deliveries_grow_whole_trees(preset: str, delivery: Delivery) -> None:
    engine = Scripted(delay=lambda turn: Delay(1.0 + turn.seed % 7))
    config = resolve(preset=preset, flags={"prompts": 4, "delivery": delivery}).config
    result = run_virtual(rollout(config=config, engine=engine))
    assert result.report.unfinished == {}
    assert result.report.failed_leaves == 0
    assert min(len(tree.leaves()) for tree in result.trees) >= 3
    assert result.rows()


def test_an_engine_that_was_handed_in_stays_open() -> None:
    engine = Scripted(chains(1))
    first, second = grown(OneChain, engine), grown(OneChain, engine)
    assert first.report.leaves == second.report.leaves == 1

    async def main() -> None:
        async for _ in steps(problems(1), config=RunConfig(), engine=engine, task=Small(), strategy=OneChain):
            pass
        await rollout(problems(1), config=RunConfig(), engine=engine, task=Small(), strategy=OneChain)

    run_virtual(main())


def test_an_observer_sees_every_event_in_order() -> None:
    events: list[Event] = []
    run_virtual(
        rollout(
            problems(1),
            config=RunConfig(),
            engine=Scripted(chains(1)),
            task=Small(),
            strategy=OneChain,
            observers=[events.append],
        )
    )
    names = [type(event).__name__ for event in events]
    assert names == [
        "TreeOpened", "PhaseBegan", "CommandsAsked", "StepGrown", "StepGrown", "OutcomeTold", "TreeClosed",
    ]  # fmt: skip
    grown_steps = [event for event in events if isinstance(event, StepGrown)]
    assert [(event.command_id, event.number) for event in grown_steps] == [(0, 0), (0, 1)]


# -- steps ------------------------------------------------------------------------------------------------------------


def watching(engine: Scripted, num_trees: int, **fields: Any) -> AsyncIterator[Watched]:
    return steps(problems(num_trees), config=RunConfig(**fields), engine=engine, task=Small(), strategy=OneChain)


def test_steps_yields_what_happens_as_it_happens() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        return [
            (type(watched.event).__name__, loop.time())
            async for watched in watching(Scripted(chains(1), delay=Delay(2.0)), 1)
            if isinstance(watched.event, StepGrown | TreeClosed)
        ]

    assert run_virtual(main()) == [("StepGrown", 2.0), ("StepGrown", 4.0), ("TreeClosed", 4.0)]


def test_a_tree_that_is_watched_can_be_stopped_and_the_others_go_on() -> None:
    engine = Scripted(chains(3), delay=Delay(1.0))

    async def main() -> dict[int, TreeClosed]:
        closed: dict[int, TreeClosed] = {}
        async for watched in watching(engine, 3):
            if watched.event.index == 1 and isinstance(watched.event, StepGrown):
                watched.stop()
            if isinstance(watched.event, TreeClosed):
                closed[watched.event.index] = watched.event
        return closed

    closed = run_virtual(main())
    assert {index: event.reason for index, event in closed.items()} == {0: "done", 1: "stopped", 2: "done"}
    assert [len(closed[i].tree.leaves()) for i in range(3)] == [1, 0, 1]
    assert engine.num_active == 0


class Counted(Scripted):
    """Counts how often one of its kind was closed."""

    num_closed = 0

    async def close(self) -> None:
        type(self).num_closed += 1


async def test_an_engine_that_was_handed_in_stays_open_and_those_of_the_configuration_do_not() -> None:
    class Mine(Counted):
        num_closed = 0

    config = RunConfig(engines={"critic": EngineConfig(name=f"{__file__}:Counted")})
    await rollout(problems(1), config=config, engine=Mine(chains(0)), task=Small())
    async with aclosing(steps(problems(1), config=config, engine=Mine(chains(0)), task=Small())) as watched:
        async for _ in watched:
            pass
    counted = plugins.find("engine", f"{__file__}:Counted")
    assert (Mine.num_closed, counted.num_closed) == (0, 2)


def test_stopping_a_tree_twice_or_after_its_end_changes_nothing() -> None:
    async def main() -> list[str]:
        reasons, stops = [], []
        async for watched in watching(Scripted(chains(1), delay=Delay(1.0)), 2, max_trees=1):
            stops.append(watched.stop)
            if isinstance(watched.event, OutcomeTold | CommandsAsked) and watched.event.index == 1:
                for stop in stops:
                    stop()
            if isinstance(watched.event, TreeClosed):
                reasons.append(watched.event.reason)
        return reasons

    assert run_virtual(main()) == ["done", "stopped"]


def test_rollout_sync_in_a_running_loop_names_rollout() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=r"one runs here already; use done = await ramify\.rollout\(…\)"):
            rollout_sync(preset="chains", prompts=1)

    asyncio.run(main())


def test_leaving_the_loop_cancels_the_rest() -> None:
    engine = Scripted(chains(3), delay=Delay(1.0))

    async def main() -> None:
        async with aclosing(watching(engine, 4)) as watched_steps:  # type: ignore[type-var]
            async for watched in watched_steps:
                if isinstance(watched.event, StepGrown):
                    break
        assert engine.num_active == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())


def test_a_fault_of_the_run_is_raised_where_its_events_are_read() -> None:
    async def main() -> int:
        num_events = 0
        engine = Scripted(chains(1), faults=[Fault("error", share=1.0, is_retryable=False)])
        try:
            async for _ in watching(engine, 40):
                num_events += 1
        except TooManyFailures:
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return num_events
        raise AssertionError("the fault was swallowed")

    assert run_virtual(main()) > 20


def test_a_fault_of_whoever_watches_cancels_the_run_and_stays_the_fault() -> None:
    engine = Scripted(chains(1), delay=Delay(1.0))

    async def main() -> None:
        async with aclosing(watching(engine, 4)) as watched_steps:  # type: ignore[type-var]
            async for watched in watched_steps:
                if isinstance(watched.event, StepGrown):
                    raise ZeroDivisionError
        raise AssertionError

    with pytest.raises(ZeroDivisionError):
        run_virtual(main())
    assert engine.num_active == 0


# -- runs in folders --------------------------------------------------------------------------------------------------


def config(**flags: Any) -> RunConfig:
    return resolve(preset="offline", flags={"prompts": 3, "seed": 2, "engine.name": "scripted", **flags}).config


def exported(saved: Saved, path: Path) -> bytes:
    write(saved.rows(), path)
    return path.read_bytes()


def test_a_run_in_a_folder_is_the_run_in_memory(tmp_path: Path) -> None:
    report = begin(config(), tmp_path / "run")
    memory = rollout_sync(config=config())
    saved = Saved.open(tmp_path / "run")
    write(memory.rows(), tmp_path / "memory.jsonl")
    assert exported(saved, tmp_path / "run.jsonl") == (tmp_path / "memory.jsonl").read_bytes()
    assert [t.problem.uid for t in saved.trees()] == [t.problem.uid for t in memory.trees]
    assert report.decode_tokens == memory.report.decode_tokens
    assert saved.config == config()


def test_a_finished_run_that_is_resumed_reports_the_same_and_grows_nothing(tmp_path: Path) -> None:
    first = begin(config(), tmp_path / "run")
    journal = {p.name: p.read_bytes() for p in (tmp_path / "run" / "journal").glob("*.jsonl")}
    events: list[Event] = []
    second = resume(tmp_path / "run", observers=[events.append])
    assert {p.name: p.read_bytes() for p in (tmp_path / "run" / "journal").glob("*.jsonl")} == journal
    assert not [event for event in events if isinstance(event, TreeOpened | StepGrown)]
    for name in ("trees", "leaves", "decode_tokens", "tool_calls", "mean_reward", "stop_words", "coverage"):
        assert getattr(second, name) == getattr(first, name)


def test_a_run_folder_is_never_begun_twice(tmp_path: Path) -> None:
    begin(config(), tmp_path / "run")
    with pytest.raises(StoreError, match="holds a run already"):
        begin(config(), tmp_path / "run")


def test_the_retry_policy_of_the_configuration_is_the_run_s() -> None:
    for max_tries in (1, 3):
        engine = Scripted(chains(1), faults=[Fault("error", share=1.0, reason="http_502")])
        settings: dict[str, Any] = {"engine__retry": {"max_tries": max_tries, "base_s": 0.0}}
        rollout_sync(problems(1), engine=engine, strategy=OneChain, **settings)
        assert engine.num_calls == max_tries


PATIENT = """
import asyncio
from ramify.edge.patience import Patience
from ramify.strategies.chains import Chains
from ramify.testing.scripted import Scripted


class Mine(Scripted):
    def __init__(self, base_url: str = "", *, patience: Patience = Patience()):
        super().__init__()
        self.patience = patience
"""


@pytest.mark.parametrize("base_url", [None, "http://127.0.0.1:9", "http://127.0.0.1:9,http://127.0.0.1:10"])
def test_engines_and_replicas_are_handed_the_patience_of_the_retry_policy(tmp_path: Path, base_url: str | None) -> None:
    (tmp_path / "mine.py").write_text(PATIENT)
    flags = {
        "engine.name": f"{tmp_path / 'mine.py'}:Mine",
        "engine.base_url": base_url,
        "engine.retry": {"max_tries": 2},
    }
    flags["engine.retry"]["patience"] = {"start_s": 7}  # type: ignore[index]
    config = resolve(flags=flags).config
    engine: Any = build_engine(config.engine)
    engines = [replica.engine for replica in engine._fleet.replicas] if isinstance(engine, Replicas) else [engine]
    assert {each.patience for each in engines} == {Patience(start_s=7.0)}


ABSENT = """
from ramify.core.errors import ConfigError, EngineError
from ramify.strategies.chains import Chains
from ramify.testing.scripted import Scripted


class Mine(Scripted):
    async def connect(self):
        raise FAULT
"""


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("EngineError('unreachable', is_retryable=True)", EngineError), ("ConfigError('another model')", ConfigError)],
)
def test_a_run_whose_engine_is_not_there_leaves_no_folder(tmp_path: Path, fault: str, kind: type[Exception]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(ABSENT.replace("FAULT", fault))
    with pytest.raises(kind):
        begin(config(**{"engine.name": f"{file}:Mine"}), tmp_path / "runs" / "run")
    assert list(tmp_path.glob("runs*")) == []


def test_a_folder_that_is_taken_is_refused_before_any_engine_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(ABSENT.replace("FAULT", "AssertionError('it was asked')"))
    begin(config(), tmp_path / "run")
    with pytest.raises(StoreError, match="holds a run already"):
        begin(config(**{"engine.name": f"{file}:Mine"}), tmp_path / "run")


class Knocking(Scripted):
    """Notes how its connecting ended, which takes a second or fails."""

    def __init__(self, fault: EngineError | None = None) -> None:
        super().__init__(chains(1))
        self.fault = fault
        self.num_asked = 0
        self.was_cancelled = False

    async def connect(self) -> None:
        self.num_asked += 1
        if self.fault is not None:
            raise self.fault
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


def knocking(fault: EngineError | None) -> tuple[Run, Knocking, Knocking]:
    slow, other = Knocking(), Knocking(fault)
    engines = {"other": EngineConfig(name="scripted")}
    made = RunConfig(engines=engines)
    prepared = prepare(made, task=Small(), engine=slow, engines={"other": other}, problems=problems(1))
    return Run(prepared), slow, other


def test_an_engine_that_is_not_there_ends_the_waiting_for_the_others() -> None:
    run, slow, _ = knocking(EngineError("unreachable"))

    async def main() -> None:
        with pytest.raises(EngineError, match="unreachable"):
            await run.connect()
        assert slow.was_cancelled
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())


def test_engines_are_asked_once() -> None:
    run, slow, other = knocking(None)

    async def main() -> None:
        await run.connect()
        await run.connect()
        await run.grow([])

    run_virtual(main())
    assert (slow.num_asked, other.num_asked) == (1, 1)


ENGINE = """
from dataclasses import replace

from ramify.testing.scripted import SCRIPTED, Scripted


class Mine(Scripted):
    def __init__(self):
        super().__init__(capabilities=replace(SCRIPTED, name="NAME"))
"""


def test_a_run_is_not_gone_on_with_by_another_engine(tmp_path: Path) -> None:
    file, folder = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(ENGINE.replace("NAME", "one"))
    begin(config(**{"engine.name": f"{file}:Mine"}), folder)
    file.write_text(ENGINE.replace("NAME", "other"))
    code = f"from pathlib import Path; from ramify.runner.folder import resume; resume(Path({str(folder)!r}))"
    resumed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert "StoreError: the run was begun with" in resumed.stderr
    assert "engine='one'" in resumed.stderr
    assert "engine='other'" in resumed.stderr


def test_the_secret_of_a_problem_is_nowhere_in_its_run(tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "who?", "gold": "TOPSECRET"}\n{"question": "where?", "gold": "TOPSECRET"}\n')
    flags = {"data.path": str(questions), "data.answer": "gold", "prompts": 2}
    begin(config(**flags, **{"task.name": "data"}), tmp_path / "run")
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"TOPSECRET" not in path.read_bytes()
    first = next(Saved.open(tmp_path / "run").trees())
    assert first.scores(first.leaves()[0])[-1].is_oracle


def test_rows_of_a_tree_whose_strategy_broke_say_that_they_are_not_exact() -> None:
    class Breaks(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            if self.told:
                raise ContractError("no more")
            return [Grow(ROOT), Grow(ROOT)]

    result = grown(Breaks)
    assert result.report.failed_trees == 1
    assert [row.reasons[0] for row in result.rows()] == ["growing ended before the strategy was done"] * 2


class Aged:
    """A strategy of the version before, which called its reason `unpredictable`."""

    Config = Chains.Config
    measures = frozenset[str]()
    is_order_free = True
    unpredictable = "it is said so"

    def __init__(self, config: Any, rng: np.random.Generator) -> None:
        chains = Chains(config, rng)
        self.ask, self.tell, self.is_done, self.phase = chains.ask, chains.tell, chains.is_done, chains.phase


async def test_the_old_name_of_a_post_hoc_reason_is_read_for_one_version():
    done = await rollout(prompts=1, strategy=Aged, engine=Scripted())
    assert done.traits.post_hoc_reasons == ("it is said so",)
