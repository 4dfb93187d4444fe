"""What may be wrong with a search over states: its settings, what its functions return, and what they raise."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.core.errors import ConfigError, ContractError, EngineError, StoreError
from ramify.core.stop import stop_word
from ramify.runner.found import Found
from ramify.runner.search import ScoredState, search, search_async, search_steps
from ramify.testing.clock import run_virtual


def right(parent: object) -> tuple[str, float]:
    return "right", 0.5


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"budget": {"calls": 0}}, "budget: calls = 0; a whole number, at least 1"),
        ({"budget": {"calls": -3}}, "budget: calls = -3"),
        ({"budget": {"calls": 2.5}}, "budget: calls = 2.5; a whole number"),
        ({"budget": {"calls": True}}, "budget: calls = True"),
        ({"budget": {"seconds": -1}}, "budget: seconds = -1; a finite number above 0"),
        ({"budget": {"seconds": float("nan")}}, "budget: seconds = nan"),
        ({"budget": {"seconds": "5"}}, "budget: seconds = '5'"),
        ({"budget": {"call": 5}}, "budget: unknown 'call'; did you mean 'calls'?"),
        ({"budget": 50}, "budget = 50; a dict such as"),
        ({"budget": {"dollars": 1.0}}, "a budget in dollars needs dollars_per_call"),
        ({"options": ["width"]}, r"options = \['width'\]; a dict"),
        ({"options": {"widht": 3}, "preset": "beam"}, "'beam': options.widht: unknown key; did you mean 'width'"),
        ({"options": {"width": 0}, "preset": "beam"}, "width = 0"),
        ({"max_in_flight": 0}, "max_in_flight = 0: a whole number of calls at once"),
        ({"max_in_flight": 1.5}, "max_in_flight = 1.5"),
        ({"deadline_s": 0}, "deadline_s = 0: it must be a finite number above 0"),
        ({"deadline_s": "1"}, "deadline_s = '1'"),
        ({"dollars_per_call": -1.0}, "dollars_per_call = -1.0"),
        ({"bugdet": {"calls": 5}}, "search has no setting 'bugdet'; did you mean 'budget'?"),
        ({"resume": True}, "resume = True goes on with the search in a folder; say which by out="),
        ({"encode": str}, "decode is missing: encode and decode go together"),
        ({"decode": str}, "encode is missing: encode and decode go together"),
        ({"preset": "ab_mct"}, "unknown preset 'ab_mct'; did you mean 'ab_mcts'"),
        ({"question": " "}, "has no question"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_any_call(settings: dict[str, Any], said: str) -> None:
    def never(parent: object) -> Any:
        raise AssertionError("called")

    with pytest.raises(ConfigError, match=said):
        search(never, **settings)


@pytest.mark.parametrize(
    ("preset", "why"),
    [
        ("mctsr", "it asks models for critiques"),
        ("mathblackbox", "it asks models for critiques"),
        ("refine_chain", "it asks models for critiques"),
        ("chains", "it scores nothing; best_of_n keeps the best"),
        ("self_consistency", "it counts answers that are the same"),
        ("arpo", "it forks inside what a model samples"),
        ("treepo", "it forks inside what a model samples"),
        ("deepsearch", "it forks inside what a model samples"),
    ],
)
def test_a_preset_that_cannot_search_states_is_refused_with_the_reason(preset: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"preset '{preset}' cannot search the states of a function: {why}.*ab_mcts"):
        search(right, preset=preset)


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        (None, "generate is None; a function"),
        ({}, "there is no function to call"),
        ({"one": right, "other": 3}, "other is 3; a function"),
        ({"policy": right}, "called 'policy'; .* taken"),
        ({"": right}, "called ''"),
        ({1: right}, "called 1"),
    ],
)
def test_what_is_no_function_is_refused(functions: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        search(functions)


# -- what functions return --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("only a state", r"generate returned 'only a state'; it must return \(state, score\)"),
        (["state", 0.5], "it must return"),
        (("state", 0.5, 1), "it must return"),
        (None, "generate returned None; it must return"),
        ((None, 0.5), "the state None, which stands for the start"),
        (("state", float("nan")), "the score nan; it must be a number from 0 to 1"),
        (("state", float("inf")), "the score inf"),
        (("state", 1.5), "the score 1.5; it must be a number from 0 to 1"),
        (("state", -0.1), "the score -0.1"),
        (("state", "0.5"), "score = '0.5', of type str; it must be a number from 0 to 1"),
        (("state", True), "score = True, of type bool"),
        (("state", None), "score = None, of type NoneType"),
        (("state", np.array([0.5])), "of type ndarray"),
        (ScoredState("state", 0.5, dollars=-1), "dollars = -1.0; it must be finite and at least 0"),
        (ScoredState("state", 0.5, dollars="a"), "dollars = 'a', of type str"),  # type: ignore[arg-type]
        (ScoredState("state", 0.5, dollars=2.0), r"dollars = 2.0, more than dollars_per_call = 1.0"),
    ],
)
@pytest.mark.parametrize("preset", ["ab_mcts", "beam"])
def test_what_a_function_must_not_return_ends_the_search_by_name(preset: str, returned: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        search(lambda parent: returned, preset=preset, dollars_per_call=1.0)
    with pytest.raises(ContractError, match=said):
        list(search_steps(lambda parent: returned, preset=preset, dollars_per_call=1.0))


@pytest.mark.parametrize("score", [0, 1, np.float32(0.5), np.float64(1.0), np.int64(1)])
def test_any_real_number_from_0_to_1_is_a_score(score: Any) -> None:
    found = search(lambda parent: ("state", score), budget={"calls": 2})
    assert found.score == float(score)


# -- what functions raise ---------------------------------------------------------------------------------------------


def every_other(error: Callable[[], BaseException]) -> Callable[[Any], tuple[int, float]]:
    calls = 0

    def generate(parent: object) -> tuple[int, float]:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise error()
        return calls, 0.5

    return generate


@pytest.mark.parametrize("preset", ["ab_mcts", "mcts", "beam", "lats", "best_of_n"])
def test_a_call_that_raises_is_a_failed_node_and_the_search_goes_on(preset: str) -> None:
    found = search(every_other(lambda: ValueError("boom")), preset=preset, budget={"calls": 30})
    tree = found.tree
    failed = [node for node in range(1, len(tree)) if (stop := tree.stop(node)) and stop_word(stop).is_failure]
    assert len(failed) >= 3
    assert abs(len(failed) - len(found.nodes)) <= 1
    assert all("generate raised ValueError: boom" in tree.notes(node)["fault"] for node in failed)
    assert "test_search_faults.py, line" in tree.notes(failed[0])["fault"]
    assert found.report is not None and found.report.faults == {"function_raised": len(failed)}


@pytest.mark.parametrize("num_calls", [3, 100])
def test_a_search_whose_every_call_raises_ends_with_the_last_fault(num_calls: int) -> None:
    calls = 0

    def generate(parent: object) -> Any:
        nonlocal calls
        calls += 1
        raise KeyError(f"number {calls}")

    with pytest.raises(EngineError, match=r"no call gave a state; the last one failed: generate raised KeyError: 'num"):
        search(generate, budget={"calls": num_calls})
    assert calls == min(num_calls, 20)


@pytest.mark.parametrize("error", [ConnectionError, TimeoutError, ConnectionResetError])
def test_a_lost_connection_is_tried_again(error: type[Exception]) -> None:
    async def generate(parent: object) -> tuple[int, float]:
        return failing(parent)

    failing = every_other(lambda: error("gone"))
    found = run_virtual(search_async(generate, budget={"calls": 10}))
    assert len(found.nodes) == 10
    assert found.report is not None and found.report.faults == {"function_raised": 10}


def test_an_engine_error_says_itself_whether_it_is_tried_again() -> None:
    async def generate(parent: object) -> tuple[int, float]:
        return failing(parent)

    failing = every_other(lambda: EngineError("busy", "come back", is_retryable=True, retry_after_s=3.0))
    found = run_virtual(search_async(generate, budget={"calls": 5}))
    assert len(found.nodes) == 5
    failing = every_other(lambda: EngineError("refused", "never"))
    found = run_virtual(search_async(generate, budget={"calls": 6}))
    assert len(found.nodes) == 3


def test_a_coroutine_that_never_ends_is_given_up_at_its_deadline() -> None:
    calls = 0

    async def generate(parent: object) -> tuple[int, float]:
        nonlocal calls
        calls += 1
        if calls == 2:
            await asyncio.Event().wait()
        return calls, 0.5

    found = run_virtual(search_async(generate, budget={"calls": 5}))
    assert len(found.nodes) == 4
    assert found.last_fault == "generate gave nothing in 600 s"


def test_a_plain_function_that_never_ends_is_given_up_in_its_thread() -> None:
    never, calls = threading.Event(), 0

    def generate(parent: object) -> tuple[int, float]:
        nonlocal calls
        calls += 1
        if calls == 2:
            never.wait()
        return calls, 0.5

    found = search(generate, budget={"calls": 5}, deadline_s=0.2)
    assert len(found.nodes) == 4
    assert found.last_fault == "generate gave nothing in 0.2 s"
    never.set()


@pytest.mark.parametrize("settings", [{"max_in_flight": 2}, {"deadline_s": 5.0}])
def test_a_function_that_exits_in_a_thread_fails_its_call(settings: Any) -> None:
    found = search(every_other(lambda: SystemExit(3)), budget={"calls": 6}, **settings)
    assert len(found.nodes) == 3


def test_a_coroutine_that_cancels_itself_fails_its_call() -> None:
    async def generate(parent: object) -> tuple[int, float]:
        return failing(parent)

    failing = every_other(asyncio.CancelledError)
    assert len(search(generate, budget={"calls": 6}).nodes) == 3


def test_an_interrupt_ends_the_search_and_is_not_a_failed_call() -> None:
    def generate(parent: object) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(generate, budget={"calls": 6})


def test_a_budget_too_small_for_one_call_says_that_nothing_was_found() -> None:
    async def generate(parent: object) -> tuple[int, float]:
        await asyncio.sleep(10)
        return 1, 0.5

    with pytest.raises(EngineError, match="no call gave a state"):
        run_virtual(search_async(generate, budget={"seconds": 1}))


# -- folders ----------------------------------------------------------------------------------------------------------


class Thing:
    pass


@pytest.mark.parametrize("state", [Thing(), {1: 2}, (1, 2), np.float64(0.5), float("inf"), b"x", {"a": {1}}])
def test_a_state_that_json_cannot_give_back_is_refused_in_a_folder(state: object, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=rf"state of type {type(state).__name__}, .* pass encode .* and decode"):
        search(lambda parent: (state, 0.5), out=tmp_path / "run")
    assert search(lambda parent: (state, 0.5), budget={"calls": 2}).best is state


def test_a_state_that_holds_itself_is_refused_in_a_folder(tmp_path: Path) -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(ContractError, match="no plain JSON value"):
        search(lambda parent: (ring, 0.5), out=tmp_path / "run")


def test_encode_must_give_a_text_and_may_not_raise(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"encode returned b'x' for 1; it must return a text"):
        search(lambda parent: (1, 0.5), out=tmp_path / "one", encode=lambda state: b"x", decode=int)  # type: ignore[arg-type,return-value]
    with pytest.raises(ContractError, match=r"encode raised ZeroDivisionError: .* for 1"):
        search(lambda parent: (1, 0.5), out=tmp_path / "two", encode=lambda state: str(1 / 0), decode=int)


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    search(right, budget={"calls": 3}, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="holds a run already; resume=True goes on with it"):
        search(right, budget={"calls": 3}, out=tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"not empty"):
        search(right, budget={"calls": 3}, out=tmp_path / "other", resume=True)


def test_only_a_finished_search_is_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no run"):
        Found.open(tmp_path)
    for _ in search_steps(right, out=tmp_path / "run"):
        break
    with pytest.raises(StoreError, match=r"holds no finished search; go on with ramify\.search"):
        Found.open(tmp_path / "run")
