"""What every engine promises, as far as its capabilities say; a registered engine is found by its name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ramify import plugins
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

ENGINES: dict[str, Any] = {
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
ELSEWHERE = {
    "local": "above, where torch is installed",
    "openai": "tests/engines/test_openai.py: it needs a server",
    "scripted": "above, by a law and by a rule",
    "sglang": "tests/engines/test_sglang.py: it needs a server",
    "states": "tests/runner/test_search.py: it calls functions of a program",
    "vllm": "tests/engines/test_vllm.py and tests/engines_real: it needs a server",
}
"""Registered engines that are not built here by their name alone -> where they are held to the contract."""
ENGINES |= {
    name: partial(plugins.build, "engine", name)
    for name in plugins.known("engine")
    if name not in ENGINES and name not in ELSEWHERE
}


@pytest.fixture(params=ENGINES.values(), ids=ENGINES.keys())
def build(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    return request.param


@pytest.mark.parametrize("rule", ENGINE_RULES)
def test_every_engine_keeps_the_contract(build: Callable[[], Engine], rule: str) -> None:
    keep(ENGINE_RULES, rule, EngineCase(build), "the engine")
