import random
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from tests.strategies.world import Journey, journey, path_text, shape, text_step

from ramify.core.command import Grow, Judge, Score
from ramify.core.errors import ConfigError, ContractError
from ramify.core.limits import Limits
from ramify.core.tree import Step, Tree
from ramify.judges.replies import CONFIDENCES, label_value, tenths, vote, votes
from ramify.runner.driver import Asked, Start
from ramify.strategies.parts.proportional import probabilities, sampled, sampled_once
from ramify.strategies.tot import ToT
from ramify.strategies.tot.bfs import LevelRules, ToTLevels
from ramify.strategies.tot.dfs import DepthRules
from ramify.strategies.tot.search import AS_PUBLISHED, AS_PUBLISHED_CROSSWORDS, AS_PUBLISHED_TEXT, ToTConfig

SMALL = ToTConfig(width=2, num_levels=3, attempts=1, bfs=LevelRules(num_kept=2))
DEEP = ToTConfig(search="dfs", width=2, num_levels=3, attempts=1)


class Letters:
    """Growth number i of a place says letter i of its alphabet; a text of `num_levels` letters has ended."""

    def __init__(self, alphabet: str = "ab", *, num_levels: int = 3, ends: frozenset[str] = frozenset()) -> None:
        self._alphabet, self._num_levels, self._ends = alphabet, num_levels, ends

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        text = path_text(tree, start.place.parent)
        letter = self._alphabet[start.place.index % len(self._alphabet)]
        has_ended = len(text) + 1 >= self._num_levels or text + letter in self._ends
        return [text_step(letter, stop="answer" if has_ended else None)]


class Values:
    """Values by text; 0.5 for any other. `asked` are the texts judged, in order."""

    def __init__(self, values: Mapping[str, float | None]) -> None:
        self._values = values
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, tree: Tree, command: Judge) -> list[float | None]:
        texts = tuple(path_text(tree, node) for node in command.nodes)
        self.asked.append(texts)
        return [self._values.get(text, 0.5) for text in texts]


def run(config: ToTConfig, values: Mapping[str, float | None], **options: object) -> tuple[Journey, Values]:
    judge = Values(values)
    world = options.pop("world", Letters(num_levels=config.num_levels))
    return journey(ToT(config, np.random.default_rng(0)), world, judge=judge, **options), judge  # type: ignore[arg-type]


def answers(trip: Journey) -> list[tuple[str, float]]:
    strategy = trip.driver.strategy
    assert isinstance(strategy, ToT)
    return [(path_text(trip.tree, c.node), c.score) for c in strategy.candidates(trip.tree)]


def grown_from(trip: Journey) -> list[str]:
    """Texts that were grown from, in the order decided."""
    return [path_text(trip.tree, fork.node) for fork in trip.tree.forks]


def test_a_level_keeps_the_best_and_grows_them_in_the_order_of_their_values() -> None:
    trip, judge = run(SMALL, {"a": 0.1, "b": 0.9, "bb": 0.7, "aa": 0.8, "aab": 1.0})
    assert grown_from(trip) == ["", "b", "a", "aa", "bb"]
    assert answers(trip) == [("aaa", 0.5), ("aab", 1.0)]
    assert len(judge.asked) == 2 + 4 + 4


def test_attempts_are_numbered_and_their_values_summed() -> None:
    trip, _ = run(replace(SMALL, attempts=3), {})
    assert [s.attempt for s in trip.tree.scores(1)] == [0, 1, 2]
    assert {score for _, score in answers(trip)} == {1.5}


def test_a_path_that_ended_early_is_an_answer_where_it_is_kept() -> None:
    values = {"a": 0.9, "b": 0.8}
    trip, _ = run(SMALL, values, world=Letters(ends=frozenset({"a"})))
    assert grown_from(trip) == ["", "b", "ba", "bb"]
    assert answers(trip)[0] == ("a", 0.9)


def test_a_candidate_without_a_value_is_dropped_and_never_0() -> None:
    trip, _ = run(SMALL, {"a": None, "b": -5.0})
    assert grown_from(trip)[:2] == ["", "b"]


def test_not_a_number_is_no_value() -> None:
    trip, _ = run(SMALL, {"a": float("nan"), "b": 0.1})
    assert grown_from(trip)[:2] == ["", "b"]


@pytest.mark.parametrize(
    ("rule", "num_judged", "kept"),
    [("drop", 1, ["a"]), ("share", 1, ["a", "a"]), ("zero", 1, ["a", "a"]), ("own", 2, ["a", "a"])],
)
def test_repeats_of_a_text(rule: str, num_judged: int, kept: list[str]) -> None:
    rules = LevelRules(num_kept=2, repeats="kept")
    config = replace(SMALL, num_levels=2, duplicate_value=rule, bfs=rules)
    trip, judge = run(config, {"a": 0.9}, world=Letters("aa", num_levels=2))
    assert judge.asked.count(("a",)) == num_judged
    assert grown_from(trip)[1:] == kept
    strategy = trip.driver.strategy
    assert isinstance(strategy, ToT) and isinstance(strategy.walk, ToTLevels)
    second = {"drop": [], "share": [0.9], "zero": [0.0], "own": [0.9]}[rule]
    assert [c.score for c in strategy.walk.levels[0].candidates] == [0.9, *second]


def test_paths_that_say_the_same_are_kept_once_unless_told_otherwise() -> None:
    config = replace(SMALL, num_levels=2, duplicate_value="share")
    trip, _ = run(config, {}, world=Letters("aa", num_levels=2))
    assert grown_from(trip) == ["", "a"]


def test_repeats_are_found_across_places_of_one_text() -> None:
    config = replace(SMALL, num_levels=2, duplicate_value="zero", bfs=LevelRules(num_kept=2, repeats="kept"))
    trip, judge = run(config, {}, world=Letters("aa", num_levels=2))
    assert judge.asked == [("a",), ("aa",)]
    assert [score for _, score in answers(trip)] == [0.5, 0.0]


def test_votes_are_one_judgement_of_a_whole_level() -> None:
    config = replace(SMALL, attempts=2, bfs=LevelRules(num_kept=1, evaluate="vote"))
    trip, judge = run(config, {"a": 0.0, "b": 1.0})
    assert judge.asked[:2] == [("a", "b"), ("a", "b")]
    assert grown_from(trip)[1] == "b"


def test_sampling_is_in_proportion_and_one_draw_a_path() -> None:
    class Fixed:
        """Draws that are always the middle."""

        num = 0

        def random(self) -> float:
            self.num += 1
            return 0.5

        def integers(self, low: int, /) -> int:
            raise AssertionError(low)

    draws = Fixed()
    assert sampled([1.0, 3.0], 3, draws) == [1, 1, 1]
    assert sampled_once([1.0, 3.0], 3, draws) == [1, 0]
    assert draws.num == 3 + 2
    assert probabilities([-1.0, 1.0]) == [0.0, 1.0]


def test_values_of_0_are_sampled_uniformly_or_end_the_search() -> None:
    zeros = dict.fromkeys(["a", "b"], 0.0)
    for zero_values, num_forks in (("uniform", 5), ("stop", 1)):
        rules = LevelRules(num_kept=2, select="sample", zero_values=zero_values)
        trip, _ = run(replace(SMALL, bfs=rules), zeros)
        assert len(trip.tree.forks) == num_forks


def test_depth_first_tries_the_best_first_and_comes_back() -> None:
    trip, _ = run(DEEP, {"a": 0.1, "b": 0.9, "ba": 0.2, "bb": 0.3})
    assert grown_from(trip) == ["", "b", "bb", "ba", "a", "aa", "ab"]
    assert [text for text, _ in answers(trip)][:3] == ["bba", "bbb", "baa"]


def test_depth_first_gives_up_states_of_too_little_value_but_counts_them() -> None:
    config = replace(DEEP, dfs=DepthRules(threshold=0.15, max_steps=4))
    trip, _ = run(config, {"a": 0.15, "b": 0.9})
    assert "a" not in grown_from(trip)
    strategy = trip.driver.strategy
    assert isinstance(strategy, ToT) and strategy.walk.round == 4


def test_depth_first_tries_only_so_many_of_a_state() -> None:
    trip, _ = run(replace(DEEP, dfs=DepthRules(max_tried=1)), {"a": 0.9})
    assert grown_from(trip) == ["", "a", "aa"]


def test_depth_first_ends_with_enough_answers() -> None:
    trip, _ = run(replace(DEEP, dfs=DepthRules(max_answers=1)), {})
    assert answers(trip) == [("aaa", 0.5)]


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_growing_ahead_visits_the_same_states(ahead: int) -> None:
    values = {"a": 0.1, "b": 0.9, "ba": 0.2, "bb": 0.3, "aa": 0.7}
    rules = DepthRules(max_steps=7)
    plain, _ = run(replace(DEEP, dfs=rules), values)
    config = replace(DEEP, dfs=replace(rules, ahead=ahead))
    trips = [run(config, values, delivery="eager", order=random.Random(seed))[0] for seed in range(4)]
    for trip in trips:
        assert answers(trip) == answers(plain)
        assert shape(trip.tree) == shape(trips[0].tree)
        assert len(trip.tree) > len(plain.tree)


def test_a_judge_that_is_down_ends_the_search_soon() -> None:
    def fails(command_id: int) -> str | None:
        return "judge_error" if isinstance(trip.driver.growth.flights[command_id].command, Judge) else None

    for config in (SMALL, DEEP, replace(SMALL, bfs=LevelRules(evaluate="vote"))):
        trip = Journey(ToT(config, np.random.default_rng(0)), Letters(), fails=fails)
        trip.run()
        assert trip.driver.growth.num_asked <= 4
        assert answers(trip) == []


def test_no_room_for_judgements_ends_the_search() -> None:
    trip, _ = run(SMALL, {}, limits=Limits(judge_calls=3))
    asked = [c for e in trip.events if isinstance(e, Asked) for c in e.commands]
    assert sum(isinstance(c, Judge) for c in asked) <= 6
    assert trip.driver.is_finished


def test_an_oracle_that_was_not_declared_is_refused() -> None:
    class Told(Letters):
        def steps(self, tree: Tree, start: Start) -> list[Step]:
            return [replace(s, scores=(Score("process", 1.0, is_oracle=True),)) for s in super().steps(tree, start)]

    with pytest.raises(ContractError, match="declared"):
        run(SMALL, {}, world=Told())
    trip, judge = run(replace(SMALL, oracle="declared"), {}, world=Told())
    assert judge.asked == [] and len(answers(trip)) == 2


def test_published_configurations_differ_by_switches_alone() -> None:
    assert (AS_PUBLISHED.bfs.num_kept, AS_PUBLISHED.attempts, AS_PUBLISHED.num_levels) == (5, 3, 4)
    assert (AS_PUBLISHED_TEXT.bfs.num_kept, AS_PUBLISHED_TEXT.attempts, AS_PUBLISHED_TEXT.width) == (1, 5, 5)
    assert AS_PUBLISHED_CROSSWORDS.dfs == DepthRules(threshold=0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"num_levels": 0},
        {"attempts": 0},
        {"judge": "reward"},
        {"search": "dfs", "bfs": LevelRules(evaluate="vote")},
    ],
)
def test_impossible_configurations_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="tot"):
        ToTConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"max_tried": 0}, {"max_steps": 0}, {"ahead": -1}, {"max_answers": 0}])
def test_impossible_depth_rules_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="tot"):
        DepthRules(**wrong)


def test_a_vote_is_the_last_whole_integer_and_as_published_its_last_digit() -> None:
    assert vote("The best choice is 12") == 12
    assert vote("The best choice is 12", reading="as_published") == 2
    assert vote("2 is good. The best choice is none") is None
    assert votes(["best choice is 10"], 10) == [0] * 9 + [1]
    assert votes(["best choice is 10"], 10, reading="as_published") == [0] * 10
    assert votes(["best choice is " + "9" * 5000, "best choice is 0"], 3) == [0, 0, 0]


@pytest.mark.parametrize(
    "text", ["best choice is 1\nbest choice is x", "best choice is 4 best choice is 13.", "nothing 3"]
)
def test_a_published_vote_is_what_its_pattern_finds(text: str) -> None:
    match = re.match(r".*best choice is .*(\d+).*", text, re.DOTALL)
    assert vote(text, reading="as_published") == (int(match.group(1)) if match else None)


def test_labels_that_say_nothing_are_no_value() -> None:
    assert label_value(["so\n Sure. ", "perhaps"]) == 20
    assert label_value(["so\n Sure. "], reading="as_published") == 0
    assert label_value(["perhaps", ""]) is None
    assert label_value(["certain", "low"], worth=CONFIDENCES) == pytest.approx(1.1)


def test_a_score_is_strictly_one_to_ten_and_as_published_any_digit() -> None:
    assert tenths("Step 9 is odd. Thus the correctness score is 7") == 0.7
    assert tenths("Step 9 is odd. Thus the correctness score is 7", reading="as_published") == 0.9
    assert tenths("the correctness score is 11") is None
    assert tenths("no score") is None
    assert tenths("no score", reading="as_published") == -1.0
