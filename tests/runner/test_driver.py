"""The driver asks, budgets and delivers; no asyncio anywhere."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest

from ramify.core.codec import ByteCodec
from ramify.core.command import Cancel, Close, Command, Failed, Fork, Grow, Grown, Judge, Judged, Outcome, Score
from ramify.core.errors import ContractError
from ramify.core.growth import Asked, Done, Ended, Failure, Scored
from ramify.core.ledger import Spend
from ramify.core.limits import Limits
from ramify.core.problem import Problem
from ramify.core.segment import Segment, Usage, token_array
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Delivery, Driver
from ramify.runner.resume import redrive

CODEC = ByteCodec(is_exact=True)


class Script:
    """A strategy that asks what it is told to, one list an ask, and remembers what it heard."""

    measures: ClassVar[frozenset[str]] = frozenset()
    post_hoc_reason = ""

    def __init__(self, *asks: Sequence[Command], is_order_free: bool = False) -> None:
        self.asks = list(asks)
        self.is_order_free = is_order_free
        self.told: list[Outcome] = []
        self.num_open = 0

    def ask(self, tree: Tree) -> Sequence[Command]:
        commands = self.asks.pop(0) if self.asks else []
        self.num_open += len(commands)
        return commands

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self.num_open -= 1
        self.told.append(outcome)

    def is_done(self, tree: Tree) -> bool:
        return not self.asks and not self.num_open

    def phase(self, tree: Tree) -> Phase:
        return Phase("build")


def planted() -> Tree:
    return Tree(Problem("p", "q"), CODEC, [Segment("prompt", token_array(CODEC.encode("q: ")))], seed=1)


def driven(
    strategy: Script, *, delivery: Delivery = "ordered", limits: Limits | None = None, decode: int = 10
) -> Driver:
    return Driver(
        planted(), strategy, delivery=delivery, limits=limits, need=lambda t, c, p: Spend(leaves=1, decode=decode)
    )


def leaf(text: str = "yes") -> Step:
    ids = token_array(CODEC.encode(text))
    return Step((Segment("sampled", ids, usage=Usage(1, len(ids))),), stop="answer")


def finish(driver: Driver, command_id: int, text: str = "yes") -> None:
    driver.grew(command_id, leaf(text))
    driver.ended(command_id, Done())


def test_ordered_delivery_waits_for_the_earlier_command() -> None:
    strategy = Script([Grow(ROOT), Grow(ROOT)])
    driver = driven(strategy)
    assert [s.command_id for s in driver.pump().starts] == [0, 1]
    finish(driver, 1, "second")
    assert driver.pump().events == []
    assert len(driver.tree) == 1
    finish(driver, 0, "first")
    driver.pump()
    assert [o.command_id for o in strategy.told] == [0, 1]
    assert [driver.tree.branch(n).transcript for n in driver.tree.leaves()] == ["first", "second"]
    assert driver.is_finished


def test_eager_delivery_tells_at_once() -> None:
    strategy = Script([Grow(ROOT), Grow(ROOT)])
    driver = driven(strategy, delivery="eager")
    driver.pump()
    finish(driver, 1, "second")
    driver.pump()
    assert [o.command_id for o in strategy.told] == [1]
    finish(driver, 0, "first")
    driver.pump()
    assert [driver.tree.branch(n).transcript for n in driver.tree.leaves()] == ["first", "second"]


def test_an_order_free_strategy_is_told_eagerly_unless_a_budget_binds() -> None:
    for limits, heard in ((None, [1]), (Limits(decode=100), [])):
        strategy = Script([Grow(ROOT), Grow(ROOT)], is_order_free=True)
        driver = driven(strategy, limits=limits)
        driver.pump()
        finish(driver, 1)
        driver.pump()
        assert [o.command_id for o in strategy.told] == heard


def test_bare_grows_of_one_ask_are_one_decision() -> None:
    driver = driven(Script([Grow(ROOT), Grow(ROOT), Grow(ROOT)]))
    driver.pump()
    assert [(f.num_siblings, f.is_post_hoc) for f in driver.tree.forks] == [(3, False)]


def test_commands_of_one_fork_share_its_record() -> None:
    fork = Fork(2, "mine", shares=(0.25, 0.75))
    driver = driven(Script([Grow(ROOT, fork=fork), Grow(ROOT, fork=fork)]))
    driver.pump()
    assert [f.shares for f in driver.tree.forks] == [(0.25, 0.75)]


def test_what_does_not_fit_waits_for_what_is_in_flight() -> None:
    driver = driven(Script([Grow(ROOT) for _ in range(3)]), limits=Limits(decode=25))
    assert [s.command_id for s in driver.pump().starts] == [0, 1]
    finish(driver, 0)
    assert [s.command_id for s in driver.pump().starts] == [2]


def test_the_last_command_takes_what_is_left() -> None:
    driver = driven(Script([Grow(ROOT), Grow(ROOT)]), limits=Limits(decode=12))
    driver.pump()
    finish(driver, 0)
    (start,) = driver.pump().starts
    assert start.allotment.decode == 12 - 3


def test_a_command_without_room_fails_for_the_budget() -> None:
    strategy = Script([Grow(ROOT)], [Grow(ROOT)])
    driver = driven(strategy, limits=Limits(leaves=1))
    driver.pump()
    finish(driver, 0)
    driver.pump()
    assert strategy.told[1] == Failed(1, "budget")
    assert driver.is_finished


def test_the_ledger_equals_what_the_segments_billed() -> None:
    driver = driven(Script([Grow(ROOT), Grow(ROOT)]), limits=Limits(decode=100))
    driver.pump()
    for command_id in (0, 1):
        finish(driver, command_id)
    driver.pump()
    assert driver.ledger.spent == driver.tree.spent()["policy"]
    assert driver.ledger.reserved == Spend()


def test_an_empty_ask_with_nothing_in_flight_is_refused() -> None:
    with pytest.raises(ContractError, match="asked for nothing"):
        driven(Script([], [Grow(ROOT)])).pump()


@pytest.mark.parametrize(
    "command", [Grow(99), Judge((), "j"), Judge((5,), "j"), Close(4, "x"), Cancel(3), "grow", Grow(ROOT, fork=7)]
)
def test_an_impossible_command_is_refused(command: Command) -> None:
    with pytest.raises(ContractError):
        driven(Script([command])).pump()


def test_a_strategy_that_raises_is_named() -> None:
    class Broken(Script):
        def ask(self, tree: Tree) -> Sequence[Command]:
            raise KeyError("oops")

    with pytest.raises(ContractError, match=r"strategy Broken.ask raised KeyError"):
        driven(Broken([Grow(ROOT)])).pump()


def test_a_strategy_that_draws_its_own_randomness_is_refused() -> None:
    class Gambler(Script):
        def ask(self, tree: Tree) -> Sequence[Command]:
            super().ask(tree)
            return [Grow(ROOT, fork=Fork(1, "gamble", score=float(np.random.default_rng().random())))]

    driver = Driver(planted(), Gambler([Grow(ROOT)]), twin=Gambler([Grow(ROOT)]))
    with pytest.raises(ContractError, match="randomness"):
        driver.pump()


def test_closing_a_node_cancels_what_grows_below_it() -> None:
    strategy = Script([Grow(ROOT, until="step")], [Grow(1), Close(1, "hopeless")])
    driver = driven(strategy, delivery="eager")
    driver.pump()
    driver.grew(0, Step((Segment("sampled", token_array([65])),)))
    driver.ended(0, Done())
    pumped = driver.pump()
    assert pumped.cancels == [1]
    driver.ended(1, Failure("cancelled"))
    driver.pump()
    assert driver.tree.stop(1) == "closed"
    assert driver.tree.notes(1) == {"closed": "hopeless"}


@pytest.mark.parametrize("delivery", ["ordered", "eager"])
def test_a_leaf_made_or_taken_away_by_a_close_is_in_the_ledger(delivery: Delivery) -> None:
    asks = [Grow(ROOT, until="step"), Grow(ROOT, until="step")], [], [Close(2, "enough"), Grow(1), Close(1, "enough")]
    driver = driven(Script(*asks), delivery=delivery)
    driver.pump()
    for command_id in (0, 1):
        driver.grew(command_id, Step((Segment("sampled", token_array([65]), usage=Usage(1, 1)),)))
        driver.ended(command_id, Done())
    assert driver.pump().cancels == [3]
    driver.grew(3, Step((), stop="cancelled"))
    driver.ended(3, Failure("cancelled"))
    driver.pump()
    assert driver.is_finished
    assert driver.tree.leaves() == [2]
    assert driver.tree.num_leaves == 1
    assert driver.ledger.spent == driver.tree.spent()["policy"]


def test_a_judgement_lands_on_its_nodes() -> None:
    strategy = Script([Grow(ROOT)], [Judge((1,), "vote", attempt=2)])
    driver = driven(strategy)
    driver.pump()
    finish(driver, 0)
    driver.pump()
    driver.ended(1, Scored((Score("vote", 0.5, attempt=2),)))
    driver.pump()
    assert isinstance(strategy.told[1], Judged)
    assert driver.tree.scores(1) == (Score("vote", 0.5, attempt=2),)


@pytest.mark.parametrize("num_told", [0, 1, 2, 3])
def test_a_recorded_run_drives_a_fresh_driver_to_the_same_place(num_told: int) -> None:
    def asks() -> tuple[Sequence[Command], ...]:
        return ([Grow(ROOT), Grow(ROOT)], [Grow(ROOT)])

    live = driven(Script(*asks()))
    events = live.pump().events
    for command_id in range(num_told):
        finish(live, command_id, f"text {command_id}")
        events += live.pump().events
    recorded = [Ended(e.command_id, e.ending) if not hasattr(e, "commands") else e for e in events]
    again = driven(Script(*asks()))
    redriven = redrive(again, recorded, {i: [leaf(f"text {i}")] for i in range(num_told)})
    assert redriven.unsaid == []
    assert [s.command_id for s in redriven.starts] == sorted(live.growth.flights)
    assert [again.tree.branch(n).text for n in again.tree.leaves()] == [
        live.tree.branch(n).text for n in live.tree.leaves()
    ]
    assert isinstance(live.strategy, Script)
    assert all(isinstance(o, Grown) for o in live.strategy.told)


def test_a_waiting_command_that_is_cancelled_never_starts() -> None:
    strategy = Script([Grow(ROOT) for _ in range(4)], [Cancel(3)])
    driver = driven(strategy, delivery="eager", limits=Limits(decode=15))
    assert [s.command_id for s in driver.pump().starts] == [0]
    finish(driver, 0)
    pumped = driver.pump()
    assert 3 in pumped.cancels
    driver.ended(3, Failure("cancelled"))
    started = [s.command_id for s in pumped.starts] + [s.command_id for s in driver.pump().starts]
    for command_id in (1, 2):
        assert command_id in started
        finish(driver, command_id)
        started += [s.command_id for s in driver.pump().starts]
    assert 3 not in started
    assert driver.is_finished


class Insisting(Script):
    """A strategy that asks for the same again after every outcome, and is never done."""

    def __init__(self, command: Command) -> None:
        super().__init__()
        self.command = command
        self.num_asks = 0

    def ask(self, tree: Tree) -> Sequence[Command]:
        self.num_asks += 1
        assert self.num_asks < 100_000, "the driver goes round for ever"
        return [self.command]

    def is_done(self, tree: Tree) -> bool:
        return False


def test_a_strategy_that_asks_again_after_its_budget_is_spent_is_named() -> None:
    driver = driven(Insisting(Grow(ROOT)), limits=Limits(decode=3))
    driver.pump()
    finish(driver, 0)
    with pytest.raises(ContractError, match=r"strategy Insisting asked .* times in a row .*'budget'"):
        driver.pump()


def test_a_strategy_that_closes_for_ever_is_named() -> None:
    with pytest.raises(ContractError, match=r"strategy Insisting asked .* times in a row for what starts nothing"):
        driven(Insisting(Close(ROOT, "again"))).pump()


def test_a_strategy_may_try_every_node_when_its_budget_is_spent() -> None:
    strategy = Script([Grow(ROOT)], *([Grow(ROOT)] for _ in range(500)))
    driver = driven(strategy, limits=Limits(decode=3))
    driver.pump()
    finish(driver, 0)
    driver.pump()
    assert driver.is_finished
    assert sum(isinstance(outcome, Failed) for outcome in strategy.told) == 500


def test_judges_are_not_divided_by_a_budget() -> None:
    strategy = Script([Grow(ROOT)], [Judge((1, 1, 1), "vote")])
    driver = driven(strategy, limits=Limits(judge_calls=2))
    driver._need = lambda tree, command, place: Spend(judge_calls=3 if isinstance(command, Judge) else 0)
    driver.pump()
    finish(driver, 0)
    driver.pump()
    assert strategy.told[1] == Failed(1, "budget")


def test_an_eager_record_is_told_in_its_own_order() -> None:
    def asks() -> tuple[Sequence[Command], ...]:
        return ([Grow(ROOT, until="step")], [Close(1, "enough"), Grow(ROOT)])

    live = driven(Script(*asks()), delivery="eager")
    step = Step((Segment("sampled", token_array([65])),))
    events = live.pump().events
    live.grew(0, step)
    live.ended(0, Done())
    events += live.pump().events
    finish(live, 2)
    events += live.pump().events
    told = [e for e in events if not isinstance(e, Asked)]
    swapped = [Ended(e.command_id, e.ending) for e in told]
    swapped[1], swapped[2] = swapped[2], swapped[1]
    recorded = [events[0], swapped[0], events[2], *swapped[1:]]
    again = driven(Script(*asks()), delivery="eager")
    redrive(again, recorded, {0: [step], 2: [leaf()]})
    assert isinstance(again.strategy, Script)
    assert [o.command_id for o in again.strategy.told] == [0, 2, 1]


@pytest.mark.parametrize("command", [Grow(ROOT, until="foo"), Grow("0"), Grow(ROOT, at="1"), Grow(ROOT, fork="x")])
def test_a_command_of_wrong_types_is_refused(command: Command) -> None:
    with pytest.raises(ContractError):
        driven(Script([command])).pump()


def test_more_children_than_planned_are_refused() -> None:
    fork = Fork(2, "pair")
    with pytest.raises(ContractError, match="has them all"):
        driven(Script([Grow(ROOT, fork=fork)] * 3)).pump()


@pytest.mark.parametrize("shares", [(1.5, -0.5), (float("nan"), 0.5), (float("inf"), 0.5)])
def test_shares_that_do_not_share_are_refused(shares: tuple[float, float]) -> None:
    with pytest.raises(ContractError, match="shares"):
        Fork(2, "bad", shares=shares)
