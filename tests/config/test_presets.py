import numpy as np
import pytest

from ramify import plugins
from ramify.config.configure import resolve
from ramify.config.presets import preset, preset_names
from ramify.core.errors import ConfigError
from ramify.runner.api import rollout_sync

ENDS_EARLY = ("deepsearch", "segments")
"""Strategies whose trees have fewer leaves than they may where paths end within the first segments, as here they do."""


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_grows_as_many_leaves_and_is_as_exact_as_it_says(name: str):
    about = preset(name)
    config = resolve(preset=name, overrides=["engine.name=scripted", "prompts=4", "seed=2"]).config
    trees = rollout_sync(config=config).trees
    most = max(tree.num_leaves for tree in trees)
    assert most < about.leaves if config.strategy.name in ENDS_EARLY else most == about.leaves
    kind = plugins.find("strategy", config.strategy.name)
    strategy = kind(plugins.config_class(kind)(**config.strategy.options), np.random.default_rng(0))
    assert (strategy.unpredictable == "" and config.credit == "auto") is about.is_exact


@pytest.mark.parametrize(
    ("name", "setting"), [("offline", "strategy.options.commit=before"), ("arpo", "strategy.options.restart=none")]
)
def test_the_setting_that_is_said_to_make_credit_exact_does(name: str, setting: str):
    assert setting.partition("=")[0].rpartition(".")[2] in preset(name).notes
    result = rollout_sync(
        config=resolve(preset=name, overrides=["engine.name=scripted", "prompts=4", "seed=2", setting]).config
    )
    assert all(row.is_unbiased for row in result.rows())


def test_the_offline_plan_as_published_forks_at_the_root_only():
    config = resolve(preset="offline_as_published", overrides=["engine.name=scripted", "prompts=4"]).config
    for tree in rollout_sync(config=config).trees:
        assert len(tree.stems()) == 5
        assert all(len(tree.children(node)) <= 1 for node in tree.subtree()[1:])


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="unknown preset 'arop'; did you mean 'arpo'"):
        preset("arop")
