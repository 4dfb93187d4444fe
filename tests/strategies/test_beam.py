from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.strategies.step_world import commands, found, played
from tests.strategies.world import Journey, ListDraws, path_text, text_step, varied

from ramify.core.command import Grow
from ramify.core.errors import ConfigError
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Start
from ramify.strategies.beam import (
    AS_PUBLISHED,
    ITS_AS_PUBLISHED,
    RSTAR,
    RSTAR_AS_PUBLISHED,
    Beam,
    BeamConfig,
    BeamPublished,
)
from ramify.strategies.parts.levels import Level
from ramify.strategies.parts.paths import LevelPath
from ramify.strategies.parts.survivors import all_with_places, best_with_places, ranked, tiled

Said = Mapping[str, Sequence[str]]


class Watched(Beam):
    """A beam that remembers its levels."""

    def __init__(self, config: BeamConfig) -> None:
        super().__init__(config, ListDraws())
        self.levels: list[list[LevelPath]] = []

    def select(self, tree: Tree, level: Level) -> list[LevelPath]:
        self.levels.append(level.paths())
        return super().select(tree, level)


def levels(config: BeamConfig, said: Said, values: Mapping[str, float]) -> tuple[list[list[str]], dict[str, float]]:
    """Texts of every level, and the answers."""
    strategy = Watched(config)
    trip = played(strategy, said, values)
    return [[path_text(trip.tree, path.tip) for path in level] for level in strategy.levels], found(strategy, trip)


def path(score: float, *, ended: bool = False, answer: bool = False) -> LevelPath:
    return LevelPath(0, score=score, is_ended=ended or answer, is_finished=answer)


def scores(paths: Sequence[LevelPath]) -> list[float]:
    return [p.score for p in paths]


# -- what leaves the beam ---------------------------------------------------------------------------------------------

SAID = {"": ["a", "b", "c.", "d"], "a": ["1", "2"], "d": ["1", "2"], "a1": ["."], "a2": ["."], "d1": ["."], "d2": ["."]}
VALUES = {"a": 0.5, "b": 0.1, "c.": 0.2, "d": 0.6, "a1": 0.7, "a2": 0.6, "d1": 0.9, "d2": 0.3}
ENDS = {"a1.": 0.4, "a2.": 0.5, "d1.": 0.6, "d2.": 0.7}


def test_a_level_is_narrower_by_the_answers_found_or_as_wide_as_ever_as_published() -> None:
    corrected = BeamConfig(width=2, samples=2, max_depth=3)
    published = replace(AS_PUBLISHED, width=2, samples=2, max_depth=3)
    assert [len(level) for level in levels(corrected, SAID, VALUES | ENDS)[0]] == [4, 3, 3]
    assert [len(level) for level in levels(published, SAID, VALUES | ENDS)[0]] == [4, 4, 4]


def test_survivors_are_copied_in_turn_in_the_order_they_were_asked_for() -> None:
    config = BeamConfig(width=2, samples=2, max_depth=2, last_level="step", published=BeamPublished(room="full"))
    assert levels(config, SAID, VALUES)[0][1] == ["a1", "d1", "a2", "d2"]
    assert levels(replace(config, order="score"), SAID, VALUES)[0][1] == ["d1", "a1", "d2", "a2"]
    assert levels(replace(config, fill="path"), SAID, VALUES)[0][1] == ["a1", "a2", "d1", "d2"]


def test_the_best_answers_are_kept_or_the_first_as_published() -> None:
    said = {"": ["a.", "b"], "b": ["1.", "2."]}
    values = {"a.": 0.1, "b": 0.5, "b1.": 0.8, "b2.": 0.9}
    config = BeamConfig(width=1, samples=2, max_depth=2, published=BeamPublished(room="full"))
    assert levels(config, said, values)[1] == {"b1.": 0.8, "b2.": 0.9}
    assert levels(varied(config, keep_completed="first"), said, values)[1] == {"a.": 0.1, "b1.": 0.8}


def test_answers_are_named_in_the_order_in_which_they_were_found() -> None:
    said = {"": ["a.", "b.", "c."]}
    config = BeamConfig(width=1, samples=3, max_depth=2)
    assert list(levels(config, said, {"a.": 0.1, "b.": 0.9, "c.": 0.5})[1]) == ["a.", "b.", "c."]


def test_paths_that_say_the_same_are_one() -> None:
    said = {"": ["a", "a", "b"], "a": ["1.", "2.", "3."], "b": ["1.", "2.", "3."]}
    values = {"a": 0.9, "b": 0.5} | {f"{x}{i}.": 0.5 for x in "ab" for i in "123"}
    config = BeamConfig(width=2, samples=2, max_depth=2)
    assert set(levels(config, said, values)[0][1]) == {"a1.", "a2.", "b1.", "b2."}
    assert set(levels(varied(config, repeats="kept"), said, values)[0][1]) == {"a1.", "a2."}


def test_of_equal_scores_the_first_survives_or_the_later() -> None:
    paths = [path(0.5), path(0.7), path(0.7)]
    assert [paths.index(p) for p in ranked(paths)] == [1, 2, 0]
    assert [paths.index(p) for p in ranked(paths, "later")] == [2, 1, 0]


def test_as_published_numpy_sorts_equal_scores() -> None:
    """By search-and-learn's np.argsort, on this machine: the tail of its order survives."""
    values = [(number * 7 % 5) / 4 for number in range(40)]
    paths = [path(value) for value in values]
    tail = np.argsort(np.array([[value] for value in values]).flatten())[-8:]
    assert {paths.index(p) for p in ranked(paths, AS_PUBLISHED.published.ties)[:8]} == set(tail.tolist())
    assert not ranked([], "argsort")


@pytest.mark.parametrize(("by", "kept"), [("text", [1, 3]), ("step", [1, 2, 3])])
def test_as_published_steps_that_differ_only_in_their_tags_are_one(by: str, kept: list[int]) -> None:
    """As microsoft/rStar llms/llms.py drops repeated outputs: vLLM's text has no stop word."""
    strategy = Watched(varied(RSTAR_AS_PUBLISHED, width=3, samples=3, max_depth=1, repeats_by=by))
    Journey(strategy, Ended(), judge=lambda tree, command: [0.5]).run()
    assert [p.tip for p in strategy.holders] == kept


class Ended:
    """Says the same twice, ended by two tags, and then something else."""

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        said, tag = [("x", "<step>"), ("x", "<code>"), ("y", "<code>")][start.place.index]
        return [text_step(said + tag, matched=tag)]


# -- what stays in the beam -------------------------------------------------------------------------------------------


def test_ended_paths_that_stay_are_copied_and_cost_places() -> None:
    said = {"": ["a.", "b"], "b": ["1.", "2."]}
    values = {"a.": 0.9, "b": 0.5, "b1.": 0.2, "b2.": 0.3}
    config = replace(ITS_AS_PUBLISHED, width=2, samples=2)
    found_levels, answers = levels(config, said, values)
    assert found_levels == [["a.", "b"], ["a.", "b1.", "a.", "b2."]]
    assert answers == {"a.": 0.9}


def test_dead_paths_do_not_stay() -> None:
    said = {"": ["a!", "b"], "b": ["1.", "2."]}
    values = {"a!": 0.9, "b": 0.5, "b1.": 0.2, "b2.": 0.3}
    config = replace(ITS_AS_PUBLISHED, width=1, samples=2)
    assert levels(replace(config, finished="answers"), said, values)[1] == {"b2.": 0.3}
    assert levels(config, said, values)[1] == {"a!": 0.9}


# -- what takes a place for good --------------------------------------------------------------------------------------


@pytest.mark.covers("S4.2")
def test_an_answer_takes_a_place_if_it_is_among_the_best_and_live_paths_take_the_others() -> None:
    a, dead, b, late = path(0.9, answer=True), path(0.8, ended=True), path(0.5), path(0.1, answer=True)
    assert best_with_places([a, dead, b, late], 2) == ([a], [b])
    assert best_with_places([a, dead, b, late], 3) == ([a], [b])
    assert best_with_places([a, dead, b, late], 4) == ([a, late], [b])
    assert best_with_places([a, dead, b, late], 0) == ([], [])


def test_as_published_finished_and_dead_paths_hold_places() -> None:
    a, b, c = path(0.9, answer=True), path(0.5), path(0.4)
    assert all_with_places([a, b, c], 2) == ([a], [a])
    dead = path(0.7, ended=True)
    assert all_with_places([dead, b, c], 2) == ([], [dead, b])


def test_as_published_more_answers_than_places_count_from_the_end() -> None:
    finals = [path(score, answer=True) for score in (0.9, 0.8, 0.7)]
    live = [path(0.6), path(0.5), path(0.4)]
    assert all_with_places([*finals, *live], 1) == (finals, [*finals, live[0]])


def test_as_published_what_was_asked_for_one_path_is_believed_to_continue_another() -> None:
    said = {"": ["a.", "b", "c"], "b": ["1.", "2.", "3."], "c": ["1.", "2.", "3."]}
    values = {"a.": 0.9, "b": 0.5, "c": 0.4} | {f"{x}{i}.": 0.3 for x in "bc" for i in "123"}
    strategy = Watched(replace(RSTAR_AS_PUBLISHED, width=3, samples=3, max_depth=2))
    trip = played(strategy, said, values)
    believed = [path_text(trip.tree, p.parent.tip) for p in strategy.levels[1] if p.parent]
    assert believed == ["a."] * 3
    assert [path_text(trip.tree, p.tip) for p in strategy.levels[1]] == ["b1.", "b2.", "b3."], "the tree knows better"


@pytest.mark.parametrize(("keep", "kept"), [("first", ["b"]), ("all", ["a", "b", "c"])])
def test_as_published_the_first_step_with_the_tag_of_answers_drops_its_siblings(keep: str, kept: list[str]) -> None:
    """As microsoft/rStar llms/llms.py filters the outputs of a prompt: "a" is worth most and is dropped for "b"."""
    world = Tagged({"b": "<end_of_answer>", "c": "<end_of_answer>"})
    strategy = Watched(varied(RSTAR_AS_PUBLISHED, width=4, samples=3, max_depth=1, keep_answers=keep))
    trip = Journey(strategy, world, judge=lambda tree, command: [world.values[path_text(tree, command.nodes[0])]])
    trip.run()
    used = {path_text(trip.tree, p.tip) for p in [*strategy.completed, *strategy.holders]}
    assert sorted(used) == kept


class Tagged:
    """Says a, b and c; the steps in `tags` are answers and stopped at a tag."""

    values: ClassVar = {"a": 0.9, "b": 0.5, "c": 0.4}

    def __init__(self, tags: Mapping[str, str]) -> None:
        self.tags = tags

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert start.place is not None
        said = "abc"[start.place.index]
        return [text_step(said, stop="answer" if said in self.tags else None, matched=self.tags.get(said))]


def test_corrected_a_live_path_goes_on_beside_the_answers() -> None:
    said = {"": ["a.", "b", "c"], "b": ["1.", "2.", "3."]}
    values = {"a.": 0.9, "b": 0.5, "c": 0.4, "b1.": 0.6, "b2.": 0.7, "b3.": 0.1}
    found_levels, answers = levels(replace(RSTAR, width=2, samples=3, max_depth=3), said, values)
    assert found_levels == [["a.", "b", "c"], ["b1.", "b2.", "b3."]]
    assert answers == {"a.": 0.9, "b2.": 0.7}


def test_published_sets_cost_what_their_code_costs() -> None:
    """Requests when nothing ends early, with L levels: n L, b/w and b a level, k and w k a level."""
    for config, most in (
        (replace(AS_PUBLISHED, width=4, samples=2, max_depth=3, last_level="step"), 8 * 3),
        (replace(ITS_AS_PUBLISHED, width=4, samples=2, max_depth=3), 2 + 4 + 8),
        (varied(RSTAR, width=3, samples=4, max_depth=3, repeats="kept"), 4 + 3 * 4 * 2),
    ):
        texts = ["".join(t) for t in ("", *"ab", "aa", "ab", "ba", "bb")]
        values = {t + x: 0.5 for t in texts for x in "ab"}
        trip = played(Beam(config, ListDraws()), dict.fromkeys(texts, "ab"), values)
        assert len(commands(trip, Grow)) == most


def test_tiling_goes_round() -> None:
    assert tiled("abc", 5) == list("abcab")
    assert tiled("abc", 2) == list("ab")
    assert tiled([], 3) == []


@pytest.mark.parametrize("options", [{"width": 0}, {"samples": 0}, {"join": "position"}])
def test_impossible_beams_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError):
        varied(BeamConfig(), **options)


def test_a_beam_of_which_nothing_ends_has_no_answer() -> None:
    strategy = Beam(BeamConfig(width=1, samples=2, max_depth=1, last_level="step"), ListDraws())
    trip: Journey = played(strategy, {"": ["a", "b"]}, {"a": 0.1, "b": 0.2})
    assert found(strategy, trip) == {}
