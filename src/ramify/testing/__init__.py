"""Testing: test doubles for writing a plug-in, and the contract of each kind of plug-in as a function.

Doubles: a scripted engine, a simulated server, virtual time, a tool with state, problems, worlds without a model.
Contracts: `check_strategy`, `check_tool`, `check_environment`, `check_engine`, `check_judge`, `check_credit`,
`check_task`, `check_format`. `check_exact`: whether a strategy with a credit is an exact policy gradient.
It may import anything except `cli`; of the package, only `experiments.capacity` imports it. Each name is imported when
it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramify.experiments.certify import Certificate, CertifyLimits, DecisionProblem, certify
    from ramify.testing.clock import Deadlock, run_virtual
    from ramify.testing.contracts.credits import check_credit
    from ramify.testing.contracts.engines import check_engine
    from ramify.testing.contracts.environments import check_environment
    from ramify.testing.contracts.formats import check_format
    from ramify.testing.contracts.judges import check_judge
    from ramify.testing.contracts.rules import BrokenRule
    from ramify.testing.contracts.strategies import check_strategy
    from ramify.testing.contracts.tasks import check_task
    from ramify.testing.contracts.tools import check_tool
    from ramify.testing.exactness import check_exact
    from ramify.testing.journeys import Journey, canonical, journey
    from ramify.testing.notebook import Notebook
    from ramify.testing.planned_faults import Delay, Fault
    from ramify.testing.policies import RandomAgent, chains, table
    from ramify.testing.prefill_cost import decode_if_chains, modelled_spend
    from ramify.testing.questions import branch_of, problems
    from ramify.testing.scripted import SCRIPTED, Scripted
    from ramify.testing.scripts import Rule, ScriptedTurn, Speech, TokenLaw
    from ramify.testing.simulated import SIMULATED, Simulated
    from ramify.testing.worlds import ListDraws, SeededWorld, StrategyWorld, bare_tree, sampled_step, text_step

__all__ = [
    "SCRIPTED",
    "SIMULATED",
    "BrokenRule",
    "Certificate",
    "CertifyLimits",
    "Deadlock",
    "DecisionProblem",
    "Delay",
    "Fault",
    "Journey",
    "ListDraws",
    "Notebook",
    "RandomAgent",
    "Rule",
    "Scripted",
    "ScriptedTurn",
    "SeededWorld",
    "Simulated",
    "Speech",
    "StrategyWorld",
    "TokenLaw",
    "bare_tree",
    "branch_of",
    "canonical",
    "certify",
    "chains",
    "check_credit",
    "check_engine",
    "check_environment",
    "check_exact",
    "check_format",
    "check_judge",
    "check_strategy",
    "check_task",
    "check_tool",
    "decode_if_chains",
    "journey",
    "modelled_spend",
    "problems",
    "run_virtual",
    "sampled_step",
    "table",
    "text_step",
]

_MODULES = {
    "clock": "Deadlock run_virtual",
    "contracts.credits": "check_credit",
    "contracts.engines": "check_engine",
    "contracts.environments": "check_environment",
    "contracts.formats": "check_format",
    "contracts.judges": "check_judge",
    "contracts.rules": "BrokenRule",
    "contracts.strategies": "check_strategy",
    "contracts.tasks": "check_task",
    "contracts.tools": "check_tool",
    "exactness": "check_exact",
    "journeys": "Journey canonical journey",
    "notebook": "Notebook",
    "planned_faults": "Delay Fault",
    "policies": "RandomAgent chains table",
    "prefill_cost": "decode_if_chains modelled_spend",
    "questions": "branch_of problems",
    "scripted": "SCRIPTED Scripted",
    "scripts": "Rule ScriptedTurn Speech TokenLaw",
    "simulated": "SIMULATED Simulated",
    "worlds": "ListDraws SeededWorld StrategyWorld bare_tree sampled_step text_step",
}
_PLACES = {name: f"ramify.testing.{module}" for module, names in _MODULES.items() for name in names.split()}
_PLACES |= dict.fromkeys(("Certificate", "CertifyLimits", "DecisionProblem", "certify"), "ramify.experiments.certify")


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'ramify.testing' has no attribute {name!r}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
