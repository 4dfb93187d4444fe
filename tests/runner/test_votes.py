"""Votes and proportions: what is not in the golden files."""

import pytest
from tests.credit.trees import bare, end, fork

from ramify.core.tree import ROOT
from ramify.experiments.compare import figures
from ramify.experiments.proportions import pass_at_k, wilson
from ramify.runner import votes
from ramify.runner.answers import Answering
from ramify.runner.events import TreeClosed


def test_answers_that_mean_the_same_are_one_class() -> None:
    classes = votes.classes_of(["7", None, "7.0", "8", "7"], lambda one, other: float(one) == float(other))
    assert classes == [0, -1, 0, 3, 0]


def test_what_is_no_answer_never_wins() -> None:
    assert votes.best([-1, -1], [9.0, 9.0]) is votes.majority([-1, -1]) is votes.weighted([-1], [1.0]) is None
    assert votes.best([-1, 1], [9.0, 0.1]) == votes.first([-1, 1]) == 1


def test_negative_scores_never_speak_against_an_answer() -> None:
    assert votes.weighted([0, 1, 1, 1], [-0.1, -0.5, -0.5, -0.5]) == 0
    assert votes.weighted([0, 1, 1], [-0.4, -0.5, 0.2]) == 1


def test_pass_at_k_refuses_what_is_no_draw() -> None:
    with pytest.raises(ValueError, match="pass@5 of 4"):
        pass_at_k(4, 1, 5)


def test_nothing_tried_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_path_that_a_coin_ended_answers_nothing() -> None:
    growth = bare()
    fork(growth, ROOT, [end("7", 1.0)], [end("8", None, "roulette")])
    answering = Answering("first", read=lambda text: text, is_same=str.__eq__)
    assert answering.of(growth.tree).num_candidates == 1
    found = figures(TreeClosed(0, growth.tree), lambda text: text, str.__eq__)
    assert (found.answers, found.reward) == (1.0, 1.0)
