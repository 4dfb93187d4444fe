import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.strategies.step_world import Script, commands, found, played, scored
from tests.strategies.world import Journey, ListDraws, path_text, text_step

from ramify.core.command import Grow, Judge, Score
from ramify.core.errors import ConfigError, ContractError
from ramify.core.growth import Done, Scored
from ramify.core.limits import Limits
from ramify.core.tree import ROOT, Step, Tree
from ramify.runner.driver import Asked, Delivered, Driver, Start
from ramify.strategies.beam import Beam, BeamConfig
from ramify.strategies.dvts import DVTS, DVTSConfig
from ramify.strategies.parts.levels import LOOKAHEAD, LevelsConfig
from ramify.strategies.parts.paths import Aggregate, aggregate_scores


def beam(**options: Any) -> Beam:
    return Beam(BeamConfig(**options), ListDraws())


ANSWERS = {"": ["a", "b", "c."], "a": ["1.", "2."], "b": ["1.", "2."]}
VALUES = {"a": 0.4, "b": 0.6, "c.": 0.5, "a1.": 0.9, "a2.": 0.1, "b1.": 0.7, "b2.": 0.8}


@pytest.mark.parametrize(("agg", "score"), [("last", 0.5), ("min", 0.2), ("prod", 0.08), ("mean", 0.5)])
def test_scores_of_steps_become_one(agg: Aggregate, score: float) -> None:
    assert aggregate_scores((0.8, 0.2, 0.5), agg) == pytest.approx(score)


def test_every_step_is_judged_as_soon_as_it_has_grown_and_chosen_when_all_are() -> None:
    strategy = beam(width=1, samples=3, max_depth=2)
    trip = played(strategy, ANSWERS, VALUES)
    assert [path_text(trip.tree, c.node) for c in commands(trip, Grow)] == ["", "", "", "b", "b"]
    assert [path_text(trip.tree, c.nodes[0]) for c in commands(trip, Judge)] == ["a", "b", "c.", "b1.", "b2."]
    told, asked = trip.events[1:3]
    assert isinstance(told, Delivered) and told.command_id == 0
    assert isinstance(asked, Asked) and isinstance(asked.commands[0], Judge), "others are still growing"
    assert found(strategy, trip) == {"c.": 0.5, "b1.": 0.7, "b2.": 0.8}


def test_the_choice_shows_the_best_of_those_it_was_made_among() -> None:
    trip = played(beam(width=1, samples=3, max_depth=2), ANSWERS, VALUES)
    first, second = commands(trip, Grow)[3:]
    assert [(path_text(trip.tree, c.node), c.score) for c in first.why] == [("b", 0.6), ("c.", 0.5), ("a", 0.4)]
    assert second.why == ()


def test_growths_of_one_path_are_one_decision() -> None:
    trip = played(beam(width=1, samples=3, max_depth=2), ANSWERS, VALUES)
    assert [(fork.num_siblings, fork.rule, fork.score) for fork in trip.tree.forks] == [
        (3, "beam", None),
        (2, "beam", 0.6),
    ]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_path_whose_judgement_failed_vanishes(value: float | None) -> None:
    strategy = beam(width=1, samples=3, max_depth=2)
    trip = played(strategy, ANSWERS, {**VALUES, "b": value, "c.": value})
    assert found(strategy, trip) == {"a1.": 0.9, "a2.": 0.1}


def test_a_failed_judgement_counts_as_a_value_only_where_that_is_said() -> None:
    strategy = beam(width=1, samples=3, max_depth=2, failure_value=0.95)
    trip = played(strategy, ANSWERS, {**VALUES, "a": None})
    assert "a1." in found(strategy, trip)


def test_a_failed_judge_command_is_asked_once() -> None:
    strategy = beam(width=1, samples=3, max_depth=2)
    trip = played(strategy, ANSWERS, VALUES, fails=lambda i: "engine_error" if i >= 3 else None)
    assert len(commands(trip, Judge)) == 3
    assert found(strategy, trip) == {}


def test_what_is_scored_already_is_not_judged_again() -> None:
    class Judged(Script):
        def steps(self, tree: Tree, start: Start) -> list[Step]:
            return [
                replace(step, scores=(Score("process", 0.75),)) if step.stop else step
                for step in super().steps(tree, start)
            ]

    strategy = beam(width=1, samples=3, max_depth=2)
    trip = Journey(strategy, Judged(ANSWERS), judge=scored(VALUES)).run()
    assert [path_text(trip.tree, c.nodes[0]) for c in commands(trip, Judge)] == ["a", "b"]
    assert found(strategy, trip) == {"c.": 0.75, "b1.": 0.75, "b2.": 0.75}


def test_the_steps_of_the_last_level_are_judged_together_and_each_counts() -> None:
    said = {"": ["a"], "a": ["b"], "ab": ["c."]}
    strategy = beam(width=1, samples=1, max_depth=1, agg="prod")
    trip = played(strategy, said, {"a": 0.5, "ab": 0.4, "abc.": 0.5})
    assert [len(c.nodes) for c in commands(trip, Judge)] == [3]
    assert found(strategy, trip) == {"abc.": pytest.approx(0.1)}


def test_paths_that_a_limit_cut_off_are_judged_but_are_no_answers() -> None:
    said = {"": ["a!", "b."]}
    values = {"a!": 0.9, "b.": 0.2}
    strategy = beam(width=1, samples=2, max_depth=2)
    trip = played(strategy, said, values)
    assert len(commands(trip, Judge)) == 2
    assert found(strategy, trip) == {"b.": 0.2}
    strategy = beam(width=1, samples=2, max_depth=2, finished="any_end")
    assert found(strategy, played(strategy, said, values)) == {"a!": 0.9, "b.": 0.2}


@pytest.mark.parametrize("delivery", ["ordered", "eager"])
def test_a_budget_that_is_used_up_leaves_the_answers_found(delivery: Any) -> None:
    strategy = beam(width=1, samples=3, max_depth=2)
    fails = {3: "budget"}
    trip = played(strategy, {"": ["a.", "b.", "c"], "c": ["1."]}, {"a.": 0.1, "b.": 0.2, "c": 0.9}, fails=fails.get)
    assert set(found(strategy, trip)) == {"b."}
    assert len(commands(trip, Grow)) == 3
    strategy = beam(width=1, samples=3, max_depth=2)
    trip = played(strategy, ANSWERS, VALUES, limits=Limits(leaves=2), delivery=delivery)
    assert trip.tree.num_leaves <= 2


def test_a_step_refused_by_the_budget_first_does_not_lose_those_grown_beside_it() -> None:
    strategy = beam(width=1, samples=3, max_depth=2)
    fails = {0: "budget"}
    trip = played(strategy, {"": ["a.", "b.", "c"]}, {"b.": 0.2, "c": 0.9}, fails=fails.get)
    assert set(found(strategy, trip)) == {"b."}
    assert len(commands(trip, Grow)) == 3


LOOKED = {"": ["a", "b"], "a": ["x"], "ax": ["y."], "b": ["z."]}
LOOKED_VALUES = {"a": 0.9, "b": 0.1, "ax": 0.3, "axy.": 0.2, "bz.": 0.8}


def test_looking_ahead_scores_a_step_by_where_it_leads() -> None:
    strategy = beam(width=1, samples=2, max_depth=2, lookahead=2)
    trip = played(strategy, LOOKED, LOOKED_VALUES)
    grows = commands(trip, Grow)
    assert [path_text(trip.tree, c.node) for c in grows if c.action == LOOKAHEAD] == ["a", "b", "ax"]
    judged = sorted(path_text(trip.tree, c.nodes[0]) for c in commands(trip, Judge))
    assert judged == ["axy.", "bz.", "bz.", "bz."], "the steps themselves are not"
    assert grows[-1].node == trip.tree.stems()[1], "b leads further than a"
    assert found(strategy, trip) == {"bz.": 0.8}
    assert [trip.tree.role(n) for n in trip.tree.path(strategy.candidates(trip.tree)[0].node)[1:]] == ["policy"] * 2


def test_looking_ahead_by_more_than_the_last_score_counts_what_lies_between_and_forgets_it() -> None:
    said = {"": ["a", "b"], "a": ["x", "y"], "ax": ["x."], "ay": ["z."], "b": ["."]}
    values = {"a": 0.9, "ax": 0.5, "axx.": 0.8, "ay": 0.9, "ayz.": 0.9, "b": 0.5, "b.": 0.6}
    strategy = beam(width=1, samples=2, max_depth=2, lookahead=1, agg="prod", last_level="step")
    trip = played(strategy, said, values)
    shown = commands(trip, Grow)[-2].why
    assert [path_text(trip.tree, c.node) for c in shown] == ["a", "b"]
    assert [c.score for c in shown] == [pytest.approx(0.9 * 0.5), pytest.approx(0.5 * 0.6)]
    assert sorted(path.score for path in strategy.parts[0].paths()) == [pytest.approx(0.45), pytest.approx(0.81)]


def test_a_discarded_look_ahead_is_paid_for_and_changes_nothing() -> None:
    options: dict[str, Any] = {"width": 1, "samples": 2, "max_depth": 2}
    strategy, plain = beam(**options, lookahead=2, lookahead_use="discarded"), beam(**options)
    trip, plain_trip = played(strategy, LOOKED, LOOKED_VALUES), played(plain, LOOKED, LOOKED_VALUES)
    assert found(strategy, trip) == found(plain, plain_trip) == {"axy.": 0.2}
    assert len(commands(trip, Grow)) == len(commands(plain_trip, Grow)) + 3
    assert len(commands(trip, Judge)) == len(commands(plain_trip, Judge))


def test_an_oracle_steers_only_where_that_is_declared() -> None:
    def trip(oracle: Any) -> None:
        strategy = beam(width=1, samples=1, max_depth=1, oracle=oracle)
        tree = Journey(strategy).tree
        driver = Driver(tree, strategy)
        start = driver.pump().starts[0]
        driver.grew(start.command_id, text_step("a", stop="answer"))
        driver.ended(start.command_id, Done())
        judge = driver.pump().starts[0]
        driver.ended(judge.command_id, Scored((Score("process", 1.0, is_oracle=True),)))
        driver.pump()
        assert strategy.candidates(tree)[0].score == 1.0

    trip("declared")
    with pytest.raises(ContractError, match="declared"):
        trip("refused")


def test_parts_of_a_search_do_not_wait_for_each_other() -> None:
    strategy = DVTS(DVTSConfig(width=2, samples=1, max_depth=3), np.random.default_rng(0))
    journey = Journey(strategy)
    driver = Driver(journey.tree, strategy)
    one, other = driver.pump().starts
    driver.grew(one.command_id, text_step("a"))
    driver.ended(one.command_id, Done())
    (judge,) = driver.pump().starts
    driver.ended(judge.command_id, Scored((Score("process", 0.5),)))
    (onward,) = driver.pump().starts
    assert isinstance(onward.command, Grow) and onward.command.node != ROOT
    assert not driver.has_ended(other.command_id)


@pytest.mark.parametrize(
    "options", [{"judge": "reward"}, {"max_depth": 0}, {"lookahead": -1}, {"failure_value": math.nan}]
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LevelsConfig(**options)
