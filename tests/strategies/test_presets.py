"""The presets named after publications say what the constants beside the strategies say."""

import tomllib
from importlib.resources import files
from typing import Any

import msgspec
import pytest

from ramify.strategies.at2po import AS_PUBLISHED as AT2PO_AS_PUBLISHED
from ramify.strategies.at2po import AT2POConfig
from ramify.strategies.beam import AS_PUBLISHED as BEAM_AS_PUBLISHED
from ramify.strategies.beam import RSTAR, RSTAR_AS_PUBLISHED, BeamConfig
from ramify.strategies.dvts import DVTSConfig
from ramify.strategies.mctsr.config import AS_PUBLISHED as MCTSR_AS_PUBLISHED
from ramify.strategies.mctsr.config import MATHBLACKBOX
from ramify.strategies.offline import AS_PUBLISHED as OFFLINE_AS_PUBLISHED
from ramify.strategies.offline import OfflineConfig
from ramify.strategies.online import AEPO_AS_PUBLISHED, ARPO_AS_PUBLISHED, OnlineConfig
from ramify.strategies.particle_filter import ParticleFilterConfig
from ramify.strategies.planned import PlannedConfig
from ramify.strategies.rebase import RebaseConfig
from ramify.strategies.tree_grpo import TreeGRPOConfig
from ramify.strategies.treepo import AS_PUBLISHED as TREEPO_AS_PUBLISHED
from ramify.strategies.treepo import TreePOConfig
from ramify.strategies.treerl import AS_PUBLISHED as TREERL_AS_PUBLISHED
from ramify.strategies.treerl import TreeRLConfig

PRESETS = {
    "offline": OfflineConfig(),
    "offline_as_published": OFFLINE_AS_PUBLISHED,
    "arpo": OnlineConfig(),
    "arpo_as_published": ARPO_AS_PUBLISHED,
    "aepo": OnlineConfig(rule="aepo"),
    "aepo_as_published": AEPO_AS_PUBLISHED,
    "at2po": AT2POConfig(),
    "at2po_as_published": AT2PO_AS_PUBLISHED,
    "beam": BeamConfig(),
    "beam_as_published": BEAM_AS_PUBLISHED,
    "rstar_beam": RSTAR,
    "rstar_beam_as_published": RSTAR_AS_PUBLISHED,
    "dvts": DVTSConfig(),
    "mathblackbox": MATHBLACKBOX,
    "mctsr_as_published": MCTSR_AS_PUBLISHED,
    "planned": PlannedConfig((4, 1, 2)),
    "particle_filter": ParticleFilterConfig(),
    "rebase": RebaseConfig(),
    "tree_grpo": TreeGRPOConfig(),
    "tree_grpo_as_published": TreeGRPOConfig(),
    "treepo": TreePOConfig(),
    "treepo_as_published": TREEPO_AS_PUBLISHED,
    "treerl": TreeRLConfig(),
    "treerl_as_published": TREERL_AS_PUBLISHED,
}


@pytest.mark.parametrize(("name", "config"), PRESETS.items(), ids=PRESETS)
def test_a_preset_is_a_set_of_values(name: str, config: Any) -> None:
    preset = tomllib.loads(files("ramify").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8"))
    assert msgspec.convert(preset["strategy"]["options"], type(config)) == config
