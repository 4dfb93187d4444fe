"""What every engine promises, as far as its capabilities say; add a builder here and it is held to it."""

from collections.abc import Callable

import pytest

from ramify.core.engine import Engine
from ramify.engines.builtin import FOLDER, Builtin
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.local import Local
from ramify.engines.retrying import Retrying
from ramify.testing.contracts.engines import ENGINE_RULES, EngineCase
from ramify.testing.contracts.rules import keep
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted
from ramify.testing.simulated import Simulated

ENGINES = {
    "builtin": Builtin,
    "local": pytest.param(lambda: Local(FOLDER), marks=pytest.mark.hf),
    "replicas-builtin": lambda: Replicas([Builtin(), Builtin()], max_in_flight=2),
    "replicas-scripted": lambda: Replicas([Scripted(), Scripted()], placement="round_robin"),
    "retrying": lambda: Retrying(Scripted()),
    "scripted-law": Scripted,
    "scripted-rule": lambda: Scripted(chains(1, 2, 3)),
    "simulated": lambda: Simulated(step_s=1e-5, version=3),
    "simulated-unversioned": lambda: Simulated(step_s=1e-5),
}


@pytest.fixture(params=ENGINES.values(), ids=ENGINES.keys())
def build(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    return request.param


@pytest.mark.parametrize("rule", ENGINE_RULES)
def test_every_engine_keeps_the_contract(build: Callable[[], Engine], rule: str) -> None:
    keep(ENGINE_RULES, rule, EngineCase(build), "the engine")
