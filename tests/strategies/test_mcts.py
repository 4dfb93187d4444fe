"""PUCT, treequest's search and rStar's, through the driver."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.strategies.world import Journey, SeededWorld, journey, path_text, seeded_values, shape, text_step, varied

from ramify.core.command import Close, Grow, Judge, Score
from ramify.core.errors import ConfigError, ContractError
from ramify.core.strategy import SearchStrategy
from ramify.core.tree import Step, Tree
from ramify.runner.driver import Asked, Start
from ramify.strategies.mcts.config import TREEQUEST, FirstPlay, MCTSConfig, Widening
from ramify.strategies.mcts.node import Counting, MCTSNode
from ramify.strategies.mcts.priors import Prior
from ramify.strategies.mcts.search import MCTS
from ramify.strategies.rstar_mcts import AS_PUBLISHED, RStarMCTS, RStarMCTSConfig

UNIFORM = Prior(evidence="uniform")


def letter(number: int) -> str:
    """`a` to `z`, then letters that no keyboard has."""
    return chr(ord("a") + number) if number < 26 else chr(0x100 + number)


class Letters:
    """The i-th child of a path says the i-th letter; `ends` are paths that end there, with a stop word; `tags` are the
    words that their generations stopped at."""

    def __init__(
        self,
        ends: Mapping[str, str] | None = None,
        says: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        scores: Mapping[str, tuple[Score, ...]] | None = None,
    ) -> None:
        self.ends, self.says, self.tags, self.scores = ends or {}, says or {}, tags or {}, scores or {}

    def steps(self, tree: Tree, start: Start) -> list[Step]:
        assert isinstance(start.command, Grow) and start.place is not None
        place = path_text(tree, start.place.parent) + letter(start.place.index)
        said = self.says.get(place, place[-1])
        role = "probe" if start.command.action == "rollout" else "policy"
        until_end = "answer" if start.command.until == "end" else None
        stop, scores = self.ends.get(place, until_end), self.scores.get(place, ())
        return [text_step(said, stop=stop, role=role, matched=self.tags.get(place), scores=scores)]


def by_path(values: Mapping[str, float | None], default: float = 0.5) -> Any:
    """A judge that goes by what was said."""

    def judge(tree: Tree, command: Judge) -> Sequence[float | None]:
        return [values.get(path_text(tree, node), default) for node in command.nodes]

    return judge


def puct(rng: Any = None, **options: Any) -> MCTS:
    return MCTS(MCTSConfig(**{"prior": UNIFORM, **options}), rng or np.random.default_rng(0))


def played(strategy: Any, world: Any = None, **options: Any) -> Journey:
    trip = journey(strategy, world or Letters(), **options)
    assert not in_flight(strategy.root), "what was reserved is released"
    return trip


def in_flight(root: Any) -> int:
    return root.in_flight + sum(node.in_flight for node in root.below())


def commands(trip: Journey, kind: Any) -> list[Any]:
    return [c for event in trip.events if isinstance(event, Asked) for c in event.commands if isinstance(c, kind)]


def named(trip: Journey, root: Any) -> dict[str, Any]:
    return {path_text(trip.tree, node.tip): node for node in root.below()}


def best_answer(trip: Journey) -> str:
    strategy = trip.driver.strategy
    assert isinstance(strategy, SearchStrategy)
    candidates = strategy.candidates(trip.tree)
    chosen = candidates[0] if strategy.vote == "first" else max(candidates, key=lambda c: c.score)
    return path_text(trip.tree, chosen.node)


# -- mcts ----------------------------------------------------------------------------------------------------


def test_visits_of_a_node_are_one_more_than_those_of_its_children() -> None:
    strategy = puct(n=60)
    played(strategy)
    for node in strategy.root.below():
        assert node.visits == 1 + sum(child.visits for child in node.children)
        assert node.value_sum == pytest.approx((node.value or 0) + sum(child.value_sum for child in node.children))


@pytest.mark.parametrize("number", [1, 3, 16, 200])
def test_no_more_is_in_flight_than_allowed_and_all_samples_are_used(number: int) -> None:
    strategy = puct(n=50, in_flight=number)
    most = 0
    trip = Journey(strategy, Letters(), delivery="eager", order=random.Random(2))
    while trip.step():
        most = max(most, strategy.root.in_flight)
    assert most <= number
    assert len(commands(trip, Grow)) == 51  # one more is grown to its end: no path has ended


def test_a_path_that_ended_is_chosen_once() -> None:
    strategy = puct(n=30)
    trip = played(strategy, Letters({"a": "answer"}), judge=by_path({"a": 1.0}))
    assert named(trip, strategy.root)["a"].visits == 1


def test_a_path_that_ended_is_revisited_where_that_is_switched_on() -> None:
    strategy = puct(n=30, endings="revisit")
    trip = played(strategy, Letters({"a": "answer"}), judge=by_path({"a": 1.0}))
    node = named(trip, strategy.root)["a"]
    assert node.visits > 10
    assert node.q == 1.0


def test_children_that_say_the_same_are_one_child_with_both_priors() -> None:
    strategy = puct(n=12, prior=Prior())
    trip = played(strategy, Letters(says={"b": "a", "d": "a"}))
    firsts = {path_text(trip.tree, c.tip): c for c in strategy.root.children}
    assert len(firsts) == len(strategy.root.children)
    assert firsts["a"].weight > max(c.weight for said, c in firsts.items() if said != "a")
    kept = puct(n=12, prior=Prior(), duplicates="keep")
    played(kept, Letters(says={"b": "a", "d": "a"}))
    assert len(kept.root.children) > len(strategy.root.children)


def test_priors_are_renormalised_when_a_sibling_arrives() -> None:
    class Louder(Letters):
        def steps(self, tree: Tree, start: Start) -> list[Step]:
            assert start.place is not None
            logprob = -3.0 + start.place.index
            return [text_step("abcdefgh"[start.place.index] * (start.place.index + 1), logprob=logprob)]

    strategy = puct(n=3, prior=Prior(temperature=2.0), widening=Widening(scale=3.0), finish="leave")
    played(strategy, Louder())
    root = strategy.root
    logprobs = [-3.0, -2.0, -1.0]
    assert len(root.children) == 3
    expected = [math.exp(x / 2) / sum(math.exp(y / 2) for y in logprobs) for x in logprobs]
    assert [c.weight / root.sum_weights for c in root.children] == pytest.approx(expected)


def test_an_engine_without_logprobs_is_refused_for_priors_of_logprobs() -> None:
    assert MCTS(MCTSConfig(), np.random.default_rng(0)).measures == {"logprobs"}
    assert puct().measures == frozenset()


def test_a_growth_that_failed_costs_a_sample_and_no_visit() -> None:
    strategy = puct(n=20)
    played(strategy, fails=lambda command_id: "engine_error" if command_id % 4 == 1 else None)
    assert strategy.root.visits < 20
    assert strategy.root.visits == sum(child.visits for child in strategy.root.children)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_segment_without_a_value_is_never_chosen(value: float | None) -> None:
    for valued in ("at_birth", "when_selected"):
        strategy = puct(n=30, valued=valued)
        trip = played(strategy, judge=by_path({"a": value}))
        assert all(not name.startswith("a") or node.visits == 0 for name, node in named(trip, strategy.root).items())
        assert all(math.isfinite(node.q) for node in strategy.root.below())


def test_children_valued_when_selected_ask_for_fewer_values() -> None:
    eager = played(puct(n=40, width=4))
    lazy = played(puct(n=40, width=4, valued="when_selected"))
    assert len(commands(lazy, Judge)) < len(commands(eager, Judge))


@pytest.mark.parametrize("kind", ["first", "parent", "value"])
def test_a_child_that_was_closed_before_its_first_visit_is_passed_over(kind: Any) -> None:
    search = puct(choice=Counting("uct"), valued="when_selected", first_play=FirstPlay(kind), n=30, width=4)
    trip = played(search, Letters(), judge=by_path({"a": None, "b": None}))
    nodes = named(trip, search.root)
    assert (nodes["a"].visits, nodes["b"].visits) == (0, 0)
    assert nodes["c"].visits > 0


def test_first_play_before_others_values_every_child_before_any_twice() -> None:
    strategy = puct(
        n=5, width=5, valued="when_selected", first_play=FirstPlay("first"), widening=Widening(scale=5.0, most=5)
    )
    played(strategy)
    assert not any(child.value is None for child in strategy.root.children) or strategy.root.visits < 5


def test_rollouts_are_probes_whose_outcome_is_the_value() -> None:
    strategy = puct(n=10, value="rollout", judge="", outcome="right")
    trip = played(strategy, judge=by_path({}, default=0.25))
    probes = [g for g in commands(trip, Grow) if g.action == "rollout"]
    assert len(probes) == 10
    assert {command.judge for command in commands(trip, Judge)} == {"right"}
    assert all(node.value == 0.25 for node in strategy.root.below())
    assert all(trip.tree.role(node.tip) == "policy" for node in strategy.root.below())


@pytest.mark.parametrize("backup", ["mean", "max", "softmax"])
def test_what_is_backed_up(backup: str) -> None:
    strategy = puct(n=25, choice=Counting(backup=backup), finish="leave")  # type: ignore[arg-type]
    played(strategy, judge=seeded_values)
    values = [node.value for node in strategy.root.below() if node.value is not None]
    by_kind = {
        "mean": sum(values) / len(values),
        "max": max(values),
        "softmax": 0.1 * math.log(sum(math.exp(v / 0.1) for v in values) / len(values)),
    }
    assert strategy.root.q == pytest.approx(by_kind[backup])


def test_values_of_an_unknown_range_are_normalised_by_those_seen() -> None:
    def grown(scale: float, **options: Any) -> Any:
        judge = lambda tree, command: [scale * v for v in seeded_values(tree, command)]  # noqa: E731
        return [row[:2] for row in shape(played(puct(n=40, **options), SeededWorld(), judge=judge).tree)]

    assert grown(1000.0, value_range=None) == grown(1.0, value_range=None)
    assert grown(1000.0, value_range=(0.0, 1000.0)) == grown(1.0)
    assert grown(1000.0) != grown(1.0)


def test_the_answer_is_the_end_of_the_most_visited_path_or_the_best_one() -> None:
    ends = {"aa": "answer", "b": "answer"}
    values = {"a": 0.9, "ab": 0.9, "aa": 0.6, "b": 0.7}
    assert best_answer(played(puct(n=30), Letters(ends), judge=by_path(values, 0.8))) == "aa"
    assert best_answer(played(puct(n=30, answer="best"), Letters(ends), judge=by_path(values, 0.8))) == "b"


def test_a_path_that_went_wrong_is_no_candidate() -> None:
    strategy = puct(n=20, finish="leave")
    trip = played(strategy, Letters({"a": "no_valid_step", "b": "answer", "c": "length"}))
    assert [path_text(trip.tree, c.node) for c in strategy.candidates(trip.tree)] == ["b"]


def test_a_search_without_an_answer_grows_its_most_visited_path_to_one() -> None:
    strategy = puct(n=20, in_flight=1)
    trip = played(strategy, judge=by_path({"b": 0.9}, 0.1))
    assert [g.until for g in commands(trip, Grow)] == ["step"] * 20 + ["end"]
    assert best_answer(trip).startswith("b")
    assert strategy.candidates(trip.tree)[0].score == 0.1
    left = puct(n=20, finish="leave")
    assert left.candidates(played(left).tree) == []


def test_children_of_the_last_level_grow_to_their_end() -> None:
    trip = played(puct(n=30, max_depth=2))
    assert {trip.tree.depth(leaf) for leaf in trip.tree.leaves()} == {2}


def test_noise_is_drawn_once_for_each_child_of_the_root() -> None:
    class Counted:
        number = 0

        def standard_gamma(self, shape: float) -> float:
            self.number += 1
            return 1.0 if self.number == 1 else 0.0

        def random(self) -> float:
            raise AssertionError

    rng = Counted()
    strategy = puct(rng, n=30, in_flight=1, prior=Prior(evidence="uniform", noise=0.5), finish="leave")
    played(strategy)
    root = strategy.root
    assert rng.number <= len(root.children) <= rng.number + 1
    known = root.children[: rng.number]
    share = sum(c.prior for c in known)
    assert known[0].weight / sum(c.weight for c in known) == pytest.approx(0.5 + 0.5 * known[0].prior / share)


def test_a_judge_that_saw_the_answer_is_refused_unless_declared() -> None:
    class Told(Letters):
        def steps(self, tree: Tree, start: Start) -> list[Step]:
            return [replace(super().steps(tree, start)[0], scores=(Score("process", 1.0, is_oracle=True),))]

    with pytest.raises(ContractError, match="oracle"):
        played(puct(n=5), Told())
    assert commands(played(puct(n=5, oracle="declared"), Told()), Judge) == []


@pytest.mark.parametrize(
    "options",
    [
        {"n": 0},
        {"in_flight": 0},
        {"actions": ()},
        {"value_range": (1.0, 1.0)},
        {"surplus": "adopt"},
        {"value": "rollout", "outcome": "reward"},
        {"judge": ""},
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MCTSConfig(**options)


# -- treequest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surplus", ["discard", "adopt"])
def test_surplus_work_is_lost_or_kept(surplus: str) -> None:
    config = replace(TREEQUEST, n=24, in_flight=6, surplus=surplus)
    strategy = MCTS(config, np.random.default_rng(0))
    trip = played(strategy)
    most = max(len(node.children) for node in [strategy.root, *strategy.root.below()])
    assert most == 2 if surplus == "discard" else most > 2
    assert len(commands(trip, Grow)) == 24
    assert (strategy.root.visits < 24) == (surplus == "discard")


def test_a_node_expanded_once_has_children_of_every_action() -> None:
    config = replace(TREEQUEST, n=24, actions=("policy", "other"), order="round_robin")
    trip = played(MCTS(config, np.random.default_rng(0)))
    assert [grow.action for grow in commands(trip, Grow)][:8] == ["policy", "other"] * 4


def test_a_search_where_every_path_has_ended_is_over() -> None:
    strategy = puct(n=50, widening=Widening("once"), width=2)
    trip = played(strategy, Letters({"aa": "answer", "ab": "answer", "b": "answer"}))
    assert len(commands(trip, Grow)) == 4


# -- rstar ----------------------------------------------------------------------------------------------------


def rstar(**options: Any) -> RStarMCTS:
    return RStarMCTS(varied(RStarMCTSConfig(), **{"width": 2, "max_depth": 3, **options}), np.random.default_rng(0))


def test_an_answer_is_a_visit_of_every_node_above_it() -> None:
    strategy = rstar(iterations=1)
    trip = played(strategy, Letters({"aa": "answer"}), judge=by_path({"a": 0.6, "aa": 0.4}))
    nodes = named(trip, strategy.root)
    assert (strategy.root.visits, nodes["a"].visits, nodes["aa"].visits) == (1, 2, 1)
    assert nodes["a"].q == pytest.approx(0.5)


@pytest.mark.parametrize(("extent", "visits"), [("root", 1), ("leaf", 0)])
def test_how_far_a_failure_goes(extent: str, visits: int) -> None:
    strategy = rstar(iterations=1, max_depth=1, backup_failures=extent)
    played(strategy, Letters({"a": "no_valid_step"}))
    assert strategy.root.visits == visits


def test_a_path_beyond_the_depth_is_closed_and_worth_the_negative_reward() -> None:
    strategy = rstar(iterations=3, max_depth=1, negative_reward=-2.0)
    trip = played(strategy)
    closed = commands(trip, Close)
    assert {command.reason for command in closed} == {"depth_limit"}
    assert {trip.tree.depth(command.node) for command in closed} == {2}
    assert all(node.q == -2.0 for node in strategy.root.below() if node.stop == "depth_limit")


@pytest.mark.covers("S4.3", "S4.6")
def test_by_rewards_a_right_answer_is_worth_the_positive_and_a_wrong_one_the_negative_reward() -> None:
    options = {"outcome": "reward", "oracle": "declared", "positive_reward": 2.0, "negative_reward": -3.0}
    strategy = rstar(iterations=1, width=3, **options)
    rewards = {"a": 1.0, "b": 0.0, "c": 0.5}
    scores = {letter: (Score("exact", value, is_oracle=True),) for letter, value in rewards.items()}
    trip = played(strategy, Letters(dict.fromkeys("abc", "answer"), scores=scores))
    nodes = named(trip, strategy.root)
    assert [nodes[letter].q for letter in "abc"] == [2.0, -3.0, 0.5]
    assert strategy.root.q == pytest.approx(-0.5 / 3)


def test_a_search_whose_root_is_closed_is_over() -> None:
    ends = {"a": "answer", "b": "tool_errors"}
    assert len(rolled(rstar(iterations=9), Letters(ends)).rollouts) == 1
    assert len(rolled(rstar(iterations=9, propagate_dead="by_rollout"), Letters(ends)).rollouts) == 9


def rolled(strategy: RStarMCTS, world: Letters) -> RStarMCTS:
    played(strategy, world)
    return strategy


@pytest.mark.parametrize(
    ("tags", "published"),
    [
        ({}, [1, 2, 3, 4]),
        ({"b": "<end_of_step>", "c": "<end_of_step>"}, [1, 2, 3, 4]),
        ({"b": "<end_of_step>", "c": "<end_of_answer>", "d": "<end_of_answer>"}, [3]),
        ({"a": "<end_of_answer>"}, [1]),
    ],
)
def test_the_first_step_with_the_tag_of_answers_drops_its_siblings_where_published(
    tags: Mapping[str, str], published: list[int]
) -> None:
    """As microsoft/rStar llms/llms.py filters the outputs of a prompt: by the stop reason. A boxed step that ended at
    another tag is an answer, and drops nothing."""
    ends = {"b": "answer", "c": "answer"}
    strategy = rolled(rstar(iterations=1, width=4, keep_answers="first"), Letters(ends, tags=tags))
    assert [child.tip for child in strategy.root.children] == published
    assert len(rolled(rstar(iterations=1, width=4), Letters(ends, tags=tags)).root.children) == 4


def test_steps_that_say_the_same_are_used_once() -> None:
    strategy = rolled(rstar(iterations=1, width=4), Letters(says={"b": "a", "d": "c"}))
    assert [child.tip for child in strategy.root.children] == [1, 3]


def test_as_published_steps_that_differ_only_in_their_tags_are_the_same() -> None:
    """As microsoft/rStar llms/llms.py drops repeated outputs: vLLM's text has no stop word."""
    tags = {"a": "<step>", "b": "<code>", "c": "<code>"}
    world = Letters(says={"a": "x<step>", "b": "x<code>", "c": "y<code>"}, tags=tags)
    for by, tips in (("text", [1, 3]), ("step", [1, 2, 3])):
        strategy = rolled(rstar(iterations=1, width=3, duplicates_by=by), world)
        assert [child.tip for child in strategy.root.children] == tips


@pytest.mark.parametrize(("value", "visits"), [(None, 0), (-1.0, 1)])
def test_a_step_without_a_value_is_closed(value: float | None, visits: int) -> None:
    strategy = rstar(iterations=4, failure_value=value)
    trip = played(strategy, judge=by_path({"a": None}))
    node = named(trip, strategy.root)["a"]
    assert node.is_closed
    assert node.visits == visits
    assert not node.children


def test_each_rollout_votes_with_its_best_answer() -> None:
    ends = {"a": "answer", "b": "answer"}
    judge = by_path({"a": 0.2, "b": 0.4})
    strategy = rstar(iterations=1)
    trip = played(strategy, Letters(ends), judge=judge)
    assert [c.score for c in strategy.candidates(trip.tree)] == [0.4]
    everything = rstar(iterations=1, ballots="all")
    trip = played(everything, Letters(ends), judge=judge)
    assert [c.score for c in everything.candidates(trip.tree)] == [0.2, 0.4]


def test_rollouts_at_once_go_different_ways() -> None:
    strategy = rstar(iterations=4, in_flight=4, width=4)
    played(strategy)
    assert len({rollout.moves[1] for rollout in strategy.rollouts}) == 4


@pytest.mark.parametrize("number", [1, 3])
def test_any_order_of_outcomes_keeps_the_counts_whole(number: int) -> None:
    for seed in range(4):
        strategy = RStarMCTS(replace(AS_PUBLISHED, width=3, max_depth=4, in_flight=number), np.random.default_rng(0))
        played(strategy, SeededWorld(), delivery="eager", order=random.Random(seed))


def test_the_root_has_no_parent() -> None:
    assert [node.tip for node in MCTSNode(3, MCTSNode(1)).path()] == [3, 1]
