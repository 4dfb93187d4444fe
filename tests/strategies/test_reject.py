"""Reject: chains given up early and begun again."""

import numpy as np
import pytest
from tests.strategies.world import Journey, bare_tree, journey, path_text, text_step

from ramify.core.command import Judge, Score
from ramify.core.errors import ConfigError, ContractError
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Start
from ramify.strategies.reject import Reject, RejectConfig

GIVEN_UP = {"!": "closed", "?": "roulette"}


class Spelled:
    """The n-th chain says its word, a letter a step; capitals and marks end it. `reward`: what its ends are worth."""

    def __init__(self, words: list[str], reward: dict[str, float] | None = None) -> None:
        self.words, self.reward = words, reward or {}

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        so_far = path_text(tree, start.place.parent)
        chain = start.place.index if not so_far else tree.index(tree.path(start.place.parent)[1])
        letter = self.words[chain % len(self.words)][len(so_far)]
        scores = (Score("world", self.reward.get(letter, 0.0)),) if letter.isupper() else ()
        return [text_step(letter, stop="answer" if letter.isupper() else GIVEN_UP.get(letter), scores=scores)]


def search(**options: object) -> Reject:
    return Reject(RejectConfig(**options), np.random.default_rng(0))  # type: ignore[arg-type]


def low_x(tree: Tree, command: Judge) -> list[float]:
    return [0.0 if path_text(tree, node).endswith("x") else 0.5 for node in command.nodes]


def texts(trip: Journey) -> list[str]:
    return [path_text(trip.tree, leaf) for leaf in trip.tree.leaves()]


def test_a_chain_that_a_rule_ended_is_begun_again_until_an_answer_is_accepted() -> None:
    trip = journey(search(judge="process", max_chains=9), Spelled(["a!", "b!", "cW", "dW"], {"W": 1.0}))
    assert texts(trip) == ["a!", "b!", "cW"]
    assert [c.node for c in trip.driver.candidates()] == [trip.tree.leaves()[-1]]


def test_a_chain_that_a_coin_ended_is_no_answer_and_nobody_is_asked_for_its_worth() -> None:
    config = {"judge": "process", "outcome": "process", "accept": 0.5, "max_chains": 9}
    asked: list[str] = []

    def judge(tree: Tree, command: Judge) -> list[float]:
        asked.extend(path_text(tree, node) for node in command.nodes)
        return [0.5] * len(command.nodes)

    trip = journey(search(**config), Spelled(["a?", "bW"]), judge=judge)
    assert texts(trip) == ["a?", "bW"]
    assert asked == ["a", "b", "bW"]
    assert [c.node for c in trip.driver.candidates()] == [trip.tree.leaves()[-1]]


def test_a_step_judged_below_the_threshold_ends_its_chain() -> None:
    trip = journey(search(judge="process", max_chains=9), Spelled(["axxW", "abW"], {"W": 1.0}), judge=low_x)
    assert texts(trip) == ["ax", "abW"]
    assert trip.tree.notes(trip.tree.leaves()[0])["closed"] == "judged 0, below 0.05"


def test_other_chains_end_where_they_are_when_an_answer_is_accepted() -> None:
    world = Spelled(["W", "abcdefghijkW"], {"W": 1.0})
    trip = journey(search(judge="process", in_flight=2, max_chains=9), world)
    assert texts(trip) == ["W"]
    assert len(trip.tree) == 3


def test_answers_that_are_not_good_enough_are_followed_by_others_and_the_best_is_kept() -> None:
    trip = journey(search(max_chains=3), Spelled(["V", "W", "X"], {"V": 0.2, "W": 0.6, "X": 0.4}))
    assert [c.score for c in trip.driver.candidates()] == [0.2, 0.6, 0.4]


def test_an_answer_whose_judgement_failed_is_no_candidate() -> None:
    trip = journey(
        search(outcome="process", max_chains=2, accept=None),
        Spelled(["V", "W"]),
        fails=lambda command_id: "judge" if command_id == 1 else None,
    )
    assert len(trip.driver.candidates()) == 1


def test_scores_of_an_oracle_are_refused_unless_declared() -> None:
    class Oracle(Spelled):
        def steps(self, tree: Tree, start: Start) -> list[Step]:
            return [text_step("W", stop="answer", scores=(Score("exact", 1.0, is_oracle=True),))]

    with pytest.raises(ContractError, match="saw the answer"):
        journey(search(), Oracle([]), tree=bare_tree())
    assert journey(search(oracle="declared"), Oracle([])).driver.candidates()


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="in_flight=3, max_chains=2"):
        RejectConfig(in_flight=3, max_chains=2)
