from dataclasses import replace

import numpy as np
import pytest
from tests.golden.agents import Actions
from tests.strategies.world import Journey, path_text, shape, varied

from ramify.core.command import Judge
from ramify.core.errors import ConfigError
from ramify.core.tree import Tree
from ramify.runner.driver import Asked
from ramify.strategies.rap import AS_PUBLISHED, RAP, RAPConfig

Table = dict[str, list[dict[str, object]]]


def action(name: str, fast: float, reward: float, *, terminal: bool = False) -> dict[str, object]:
    return {"action": name, "fast_reward": fast, "reward": reward, "terminal": terminal}


TABLE: Table = {
    "": [action("a", 0.9, 0.1), action("b", 0.2, 0.8)],
    "a": [action("a", 0.5, 0.2, terminal=True), action("b", 0.4, 0.6, terminal=True)],
    "b": [action("a", 0.3, 0.7, terminal=True), action("b", 0.1, 0.9)],
    "bb": [action("a", 0.6, 0.4, terminal=True), action("b", 0.7, 0.3)],
}
SMALL = RAPConfig(width=2, iterations=8, depth_limit=4)


def run(config: RAPConfig = SMALL, table: Table = TABLE, **options: object) -> Journey:
    world = Actions(table)
    strategy = RAP(config, np.random.default_rng(3))
    fails = options.pop("fails", None)
    trip = Journey(
        strategy,
        world,
        judge=options.pop("judge", world.judge),  # type: ignore[arg-type]
        fails=fails or (lambda command_id: world.failure(trip, command_id)),  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )
    return trip.run()


def strategy_of(trip: Journey) -> RAP:
    assert isinstance(trip.driver.strategy, RAP)
    return trip.driver.strategy


def answers(trip: Journey) -> dict[str, float]:
    return {path_text(trip.tree, c.node): c.score for c in strategy_of(trip).candidates(trip.tree)}


def paths(trip: Journey) -> list[str]:
    return [path_text(trip.tree, tip) for tip in strategy_of(trip).paths]


def judged(trip: Journey, name: str) -> list[str]:
    """Texts that were judged, in order."""
    asked = [c for e in trip.events if isinstance(e, Asked) for c in e.commands]
    return [path_text(trip.tree, c.nodes[0]) for c in asked if isinstance(c, Judge) and c.judge == name]


def test_steps_have_their_fast_reward_at_once_and_their_reward_when_first_visited() -> None:
    trip = run(varied(SMALL, iterations=1))
    assert judged(trip, "fast") == ["a", "b", "aa", "ab"]
    assert judged(trip, "process") == ["a", "aa"]
    assert paths(trip) == ["aa"]


def test_the_answer_is_the_end_whose_rewards_are_highest_together() -> None:
    found = answers(run())
    assert max(found, key=lambda text: found[text]) == "bba"
    assert found["bba"] == pytest.approx(0.8 + 0.9 + 0.4)
    mean = answers(run(varied(SMALL, cum_reward="mean")))
    assert mean["bba"] == pytest.approx((0.8 + 0.9 + 0.4) / 3)


def test_what_can_teach_nothing_more_is_not_visited_again_unless_told_so() -> None:
    assert len(set(paths(run()))) == len(paths(run())) < SMALL.iterations
    again = paths(run(varied(SMALL, ends="revisited")))
    assert len(again) == SMALL.iterations > len(set(again))


def test_unvisited_steps_go_first_where_told_so() -> None:
    trip = run(varied(SMALL, iterations=2, exploration=0.0, unvisited="first"))
    assert [path[0] for path in paths(trip)] == ["a", "b"]


def test_a_selected_state_at_the_depth_limit_keeps_its_fast_reward_as_published() -> None:
    table: Table = {"": [action("a", 0.9, 0.1, terminal=True), action("b", 0.8, 0.5, terminal=True)]}
    config = replace(AS_PUBLISHED, width=2, iterations=3, depth_limit=1)
    assert list(answers(run(config, table))) == ["a"]
    assert list(answers(run(varied(config, limit_reward="computed"), table))) == ["a", "b"]


def test_without_a_visited_end_unvisited_ones_stand_for_it() -> None:
    table: Table = {"": [action("a", 0.9, 0.5), action("b", 0.2, 0.8, terminal=True)], "a": []}
    config = varied(SMALL, iterations=1)
    assert answers(run(config, table)) == {"b": 0.2}
    assert answers(run(varied(config, no_answer="none"), table)) == {}


@pytest.mark.parametrize(
    ("output", "expected"),
    [("last_iter", "last"), ("last_terminal_iter", "last"), ("max_iter", "best"), ("follow_max", "bb")],
)
def test_one_answer_by_the_rules_of_output(output: str, expected: str) -> None:
    trip = run(varied(SMALL, output=output, no_answer="none", iterations=4))
    ends = [text for text in paths(trip) if text in ("aa", "ab", "ba", "bba")]
    assert ends
    found = list(answers(trip))
    if expected == "bb":
        assert found == ["bba"] or found == []
    elif output == "last_iter":
        assert found == ([paths(trip)[-1]] if paths(trip)[-1] in ends else [])
    else:
        assert found and found[0] in ends


def test_a_step_without_a_reward_is_dropped_and_its_iteration_brings_nothing() -> None:
    world = Actions(TABLE)

    def judge(tree: Tree, command: Judge) -> list[float | None]:
        is_bad = command.judge == "process" and path_text(tree, command.nodes[0]) == "a"
        return [None] if is_bad else world.judge(tree, command)

    trip = run(judge=judge)
    assert all(text.startswith("b") for text in answers(trip))
    assert [child.tip for child in strategy_of(trip).root.children or ()] == [2]


def test_a_step_whose_fast_judgement_failed_is_dropped() -> None:
    world = Actions(TABLE)

    def judge(tree: Tree, command: Judge) -> list[float | None]:
        return [None if path_text(tree, command.nodes[0]) == "a" else world.judge(tree, command)[0]]

    assert all(text.startswith("b") for text in answers(run(judge=judge)))


def test_repeated_steps_are_dropped_and_not_judged_unless_kept() -> None:
    table: Table = {"": [action("a", 0.5, 0.5, terminal=True), action("a", 0.5, 0.5, terminal=True)]}
    config = varied(SMALL, depth_limit=2)
    assert judged(run(config, table), "fast") == ["a"]
    assert judged(run(varied(config, repeats="kept"), table), "fast") == ["a", "a"]


def test_if_everything_fails_the_search_ends_at_once() -> None:
    trip = run(fails=lambda command_id: "engine_error")
    assert trip.driver.growth.num_asked == SMALL.width
    assert answers(trip) == {}


def test_a_judge_of_both_rewards_is_asked_once() -> None:
    trip = run(varied(SMALL, judge="fast"))
    texts = judged(trip, "fast")
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize("simulate", ["sample", "random"])
def test_the_same_seed_simulates_the_same(simulate: str) -> None:
    first, second = (run(varied(SMALL, simulate=simulate)) for _ in range(2))
    assert shape(first.tree) == shape(second.tree)


@pytest.mark.parametrize(
    "wrong",
    [{"width": 0}, {"iterations": 0}, {"depth_limit": 0}, {"exploration": float("nan")}, {"fast_judge": "reward"}],
)
def test_impossible_configurations_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="rap"):
        varied(RAPConfig(), **wrong)  # type: ignore[arg-type]
