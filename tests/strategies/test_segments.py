import random
import tomllib
from importlib.resources import files

import numpy as np
import pytest
from tests.strategies.planned_world import End, PlannedWorld, places
from tests.strategies.test_exact import PROCESSES, Decisions, expected_gradient
from tests.strategies.token_world import TokenWorld
from tests.strategies.world import Journey, SeededWorld, journey, shape

from ramify.config.configure import resolve
from ramify.core.command import Grow, Tokens
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.tree import ROOT
from ramify.credit import credit, forest_of
from ramify.runner.driver import Asked
from ramify.strategies.segments import Segments, SegmentsConfig, full_size


def segments(*branching: int, tokens: int = 2) -> Segments:
    return Segments(SegmentsConfig(branching, tokens), np.random.default_rng(0))


def test_a_full_tree_has_the_leaves_and_segments_of_its_factors() -> None:
    tree = journey(segments(6, 6, 6), TokenWorld(length=8)).tree
    assert (tree.num_leaves, len(tree) - 1) == full_size((6, 6, 6)) == (216, 258)
    assert all(fork.rule == "segment" and fork.shares == (1 / 6,) * 6 and not fork.is_post_hoc for fork in tree.forks)


def test_segments_have_their_tokens_and_the_last_level_has_no_limit() -> None:
    trip = journey(segments(2, 3, tokens=3), TokenWorld(length=10))
    tree = trip.tree
    assert [tree.num_sampled(n) for n in tree.subtree()[1:]] == [3, 3] + [7] * 6
    commands = [c for event in trip.events if isinstance(event, Asked) for c in event.commands]
    assert [c.until for c in commands if isinstance(c, Grow)] == [Tokens(3)] * 2 + ["end"] * 6


def test_a_child_that_ends_early_is_a_leaf_and_is_not_expanded() -> None:
    tree = journey(segments(2, 2, 2), PlannedWorld({(0,): End(1.0), (1, 1): End(0.0)})).tree
    assert {places(tree, leaf) for leaf in tree.leaves()} == {(0,), (1, 1), (1, 0, 0), (1, 0, 1)}
    assert credit("auto", forest_of(tree)).forest.weight[-1] == 1 / 8


def test_a_segment_of_several_steps_forks_behind_the_last() -> None:
    tree = journey(segments(2, 2), PlannedWorld({}, num_steps=3)).tree
    assert [tree.depth(fork.node) for fork in tree.forks] == [0, 3, 3]
    assert tree.num_leaves == 4


def test_a_path_goes_on_before_its_siblings_have_ended() -> None:
    trip = Journey(segments(3, 2), TokenWorld(length=4))
    trip.step()
    trip.step()
    asks = [event for event in trip.events if isinstance(event, Asked)]
    assert [len(ask.commands) for ask in asks] == [3, 2]


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_outcomes_grows_the_same_tree(seed: int) -> None:
    expected = shape(journey(segments(3, 2, 2), SeededWorld()).tree)
    assert shape(journey(segments(3, 2, 2), SeededWorld(), order=random.Random(seed)).tree) == expected


def test_a_failed_child_takes_what_would_have_grown_below_it_and_leaves_the_credit_exact() -> None:
    tree = journey(segments(2, 3), TokenWorld(length=4), fails=lambda c: "engine_error" if c == 0 else None).tree
    assert tree.num_leaves == 3
    grown = forest_of(tree)
    assert grown.weight[grown.leaves].tolist() == [1 / 3] * 3
    assert len(tree.children(ROOT)) == 1


def test_a_budget_cuts_the_tree_and_the_rows_say_so() -> None:
    trip = journey(segments(3, 3), TokenWorld(length=6), limits=Limits(leaves=4))
    assert trip.driver.is_finished and trip.tree.num_leaves == 4
    assert not credit("auto", forest_of(trip.tree)).is_unbiased


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("branching", [(2, 2), (1, 3), (2, 1, 2)])
def test_a_full_tree_gives_the_exact_gradient(name: str, branching: tuple[int, ...]) -> None:
    process = Decisions(name)
    assert expected_gradient(process, lambda draws: segments(*branching, tokens=1)) == process.gradient


@pytest.mark.parametrize("options", [{"branching": ()}, {"branching": (2, 0)}, {"segment_tokens": 0}])
def test_a_shape_that_grows_nothing_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        SegmentsConfig(**options)  # type: ignore[arg-type]


def test_the_spo_preset_is_the_default_and_its_leaves_are_those_of_a_full_tree() -> None:
    for name in ("spo", "spo_as_published", "treerpo", "treerpo_as_published"):
        preset = tomllib.loads(files("ramify").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8"))
        assert preset["preset"]["leaves"] == full_size(preset["strategy"]["options"]["branching"])[0]
    options = resolve(preset="spo", overrides=["engine.name=scripted"]).config.strategy.options
    assert SegmentsConfig(tuple(options["branching"]), options["segment_tokens"]) == SegmentsConfig()
    assert resolve(preset="spo").config.strategy.options["segment_tokens"] == 6
