"""How a search over a user's states is configured."""

from typing import Any

import pytest

from ramify.config.configure import from_toml, to_toml
from ramify.config.presets import preset_names
from ramify.config.state_search import MAX_CALLS, StateSearch, state_presets
from ramify.config.strategy_options import read_options
from ramify.core.errors import ConfigError
from ramify.strategies.mcts.config import TREEQUEST, MCTSConfig


def config(preset: str, **more: Any) -> Any:
    return StateSearch(functions=("generate",), preset=preset, **more).config()


@pytest.mark.parametrize("preset", state_presets())
def test_a_configuration_is_read_back_as_it_was_written(preset: str) -> None:
    made = config(preset, budget={"calls": 7, "seconds": 2.5, "dollars": 1.0}, dollars_per_call=0.125)
    assert from_toml(to_toml(made)) == made
    assert (made.limits.engine_calls, made.limits.seconds, made.limits.dollars) == (7, 2.5, 1.0)
    assert made.engine.prices.output == 125_000


@pytest.mark.parametrize("preset", state_presets())
def test_every_search_goes_by_the_score_and_asks_no_other_judge(preset: str) -> None:
    options = config(preset).strategy.options
    judges = {value for name, value in options.items() if name in ("judge", "outcome") or name.endswith("_judge")}
    assert judges == {"score"}
    assert not config(preset).judges


@pytest.mark.parametrize("preset", sorted({*preset_names()} - {*state_presets()}))
def test_a_preset_that_needs_more_than_a_score_is_refused(preset: str) -> None:
    with pytest.raises(ConfigError, match=rf"preset '{preset}' cannot search the states of a function: it "):
        config(preset)


@pytest.mark.parametrize(
    ("preset", "options", "depth"),
    [
        ("beam", {}, 40),
        ("beam", {"max_depth": 3}, 3),
        ("lats", {}, 7),
        ("tot", {"num_levels": 2}, 2),
        ("mcts", {}, 1000),
        ("reject", {}, 64),
        ("ab_mcts", {}, 1),
        ("best_of_n", {}, 1),
    ],
)
def test_a_path_is_as_deep_as_its_strategy_allows(preset: str, options: dict[str, Any], depth: int) -> None:
    assert config(preset, options=options).growth.max_response_tokens == depth


@pytest.mark.parametrize(("budget", "number"), [({}, 100), ({"calls": 7}, 7), ({"seconds": 3}, MAX_CALLS)])
def test_a_search_without_a_size_of_its_own_has_that_of_its_budget(budget: dict[str, float], number: int) -> None:
    options = {preset: config(preset, budget=budget).strategy.options for preset in ("ab_mcts", "best_of_n", "mcts")}
    assert options["ab_mcts"]["num_answers"] == options["best_of_n"]["n"] == options["mcts"]["n"] == number


def test_a_table_of_options_replaces_the_keys_that_it_has() -> None:
    choice = config("mcts", options={"choice": {"exploration": 0.5}}).strategy.options["choice"]
    assert (choice["rule"], choice["exploration"]) == ("uct", 0.5)


def test_mcts_is_treequest_s_but_for_what_is_in_flight_and_for_final_states() -> None:
    options, _, faults = read_options(MCTSConfig, config("mcts").strategy.options)
    assert not faults and options is not None
    flight = {"in_flight", "blocked", "surplus", "endings"}
    own = {"n", "actions", "judge", "outcome", "max_depth"}
    for name in set(MCTSConfig.__dataclass_fields__) - flight - own - {"choice"}:
        assert getattr(options, name) == getattr(TREEQUEST, name), name
    assert options.choice.rule == TREEQUEST.choice.rule
    assert options.choice.exploration == TREEQUEST.choice.exploration
