from ramify.config.configure import resolve
from ramify.experiments.spend_bounds import bounds


def bound(*overrides: str, preset: str | None = None) -> tuple[int | None, ...]:
    config = resolve(preset=preset, overrides=["prompts=10", "growth.max_response_tokens=100", *overrides]).config
    return tuple(bounds(config).values())


def test_nothing_but_trees_is_bounded_without_limits():
    assert bound() == (10, None, None, None)


def test_limits_of_a_tree_count_for_every_tree_and_those_of_the_run_once():
    assert bound("limits.decode=50", "limits.leaves=2", "limits.tool_calls=3") == (10, 20, 500, 30)
    assert bound("limits.decode=50", "run_limits.decode=70", "run_limits.leaves=4") == (10, 4, 70, 24)


def test_a_preset_bounds_its_leaves_while_its_strategy_is_unchanged():
    assert bound(preset="offline") == (10, 50, 5000, 300)
    assert bound("strategy.options.beam_size=3", preset="offline") == (10, None, None, None)
