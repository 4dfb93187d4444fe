"""Options of a strategy are read by its own `Config`: older layouts too, and the functions that they name."""

from pathlib import Path

import numpy as np
import pytest
from tests.strategies.world import journey

from ramify import plugins
from ramify.config.configure import from_toml, resolve, to_toml
from ramify.config.strategy_options import named_functions, read_options
from ramify.core.errors import ConfigError
from ramify.strategies.beam import AS_PUBLISHED, BeamConfig
from ramify.strategies.offline import Offline, OfflineConfig
from ramify.strategies.parts import choose

FLAT = """
[strategy]
name = "treerl"

[strategy.options]
stems = 3
shortage = "repeat"
ties = "later"
"""


def test_switches_that_were_options_of_their_own_are_read_into_the_table_published() -> None:
    flat = {"finished": "any_end", "lookahead_use": "discarded", "room": "full", "ties": "argsort"}
    options, reading, faults = read_options(BeamConfig, {**flat, "repeats": "kept", "keep_completed": "first"})
    assert (options, reading, faults) == (AS_PUBLISHED, None, [])


def test_a_recorded_configuration_of_the_older_layout_is_read_and_written_in_the_new_one() -> None:
    options = from_toml(FLAT).strategy.options
    assert options["stems"] == 3
    assert options["published"] == {"reading": "text", "shortage": "repeat", "ties": "later"}
    assert "shortage" not in options
    assert from_toml(to_toml(from_toml(FLAT))) == from_toml(FLAT)


def test_an_older_name_given_by_a_flag_wins_over_the_preset_and_leaves_its_other_switches() -> None:
    config = resolve(preset="treerl_as_published", overrides=["strategy.options.ties=earlier"]).config
    published = config.strategy.options["published"]
    assert published == {"reading": "token", "max_position": 7144, "shortage": "repeat", "ties": "earlier"}
    nested = resolve(preset="treerl_as_published", overrides=["strategy.options.published.ties=earlier"]).config
    assert nested.strategy == config.strategy


@pytest.mark.parametrize("name", ["ties", "published.ties"])
def test_a_wrong_switch_is_reported_by_the_name_it_was_given(name: str) -> None:
    said = f"--set strategy.options.{name}=never: strategy.options.{name}: got 'never'; allowed are 'earlier', 'later'"
    with pytest.raises(ConfigError) as refused:
        resolve(preset="treerl", overrides=[f"strategy.options.{name}=never"])
    assert str(refused.value) == said


def test_rules_of_two_configurations_in_one_process_are_apart(tmp_path: Path) -> None:
    """Two files name a rule alike; each strategy is handed its own, and no table of rules grows."""
    before = dict(choose.BUILT_IN)
    grown: list[set[int]] = []
    for number, which in enumerate(("0", "-1")):
        path = tmp_path / f"rule{number}.py"
        path.write_text(f"def mine(tree, candidates, k, rng):\n    return [candidates[{which}]] * k\n", "utf-8")
        options, _, faults = read_options(OfflineConfig, {"choose": f"{path}:mine", "expansion_iterations": 1})
        assert options is not None and not faults
        strategy = Offline(options, np.random.default_rng(0), **named_functions(options))
        grown.append({fork.node for fork in journey(strategy).tree.forks if fork.rule == f"{path}:mine"})
    assert grown[0] == {0}
    assert not grown[1] & grown[0]
    assert before == choose.BUILT_IN


def test_n_agent_is_read_by_the_config_of_chains() -> None:
    kind = plugins.config_class(plugins.find("strategy", "chains"))
    options, reading, _ = read_options(kind, {"n_agent": 2, "n": 3})
    assert options == kind(n=6)
    assert reading == "n_agent x n = 2 x 3: one group of 6"
