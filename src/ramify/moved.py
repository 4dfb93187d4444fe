"""Moved: modules that documents named and that stand elsewhere now. The old names work for one version, with a warning.

Owns one table. `ramify/__init__.py` adds the finder behind all others, so that it is asked for missing modules only.
"""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importing importlib.abc takes 11 ms, which every `import ramify` would pay

MOVED: Final[dict[str, str]] = {
    "ramify.config.pool_config": "ramify.servers.pool.config",
    "ramify.core.cost": "ramify.testing.prefill_cost",
    "ramify.engines.faults": "ramify.testing.planned_faults",
    "ramify.engines.policies": "ramify.testing.policies",
    "ramify.engines.replicas": "ramify.engines.fleet.replicas",
    "ramify.engines.scripted": "ramify.testing.scripted",
    "ramify.engines.scripts": "ramify.testing.scripts",
    "ramify.engines.sglang": "ramify.engines.served.sglang",
    "ramify.engines.simulated": "ramify.testing.simulated",
    "ramify.engines.vllm": "ramify.engines.served.vllm",
    "ramify.runner.api": "ramify.runner.library ramify.runner.build ramify.runner.folder ramify.runner.saved",
    "ramify.runner.clock": "ramify.testing.clock",
    "ramify.service.members": "ramify.servers.pool.members",
    "ramify.service.pool": "ramify.servers.pool.plan",
    "ramify.service.ray": "ramify.sharded.ray",
    "ramify.service.slime": "ramify.integrations.slime",
    "ramify.service.telemetry": "ramify.telemetry.telemetry",
    "ramify.service.trackers": "ramify.trackers.trackers",
    "ramify.strategies.allotment": "ramify.strategies.parts.allotment",
    "ramify.strategies.branching": "ramify.strategies.parts.branching",
    "ramify.strategies.choose": "ramify.strategies.parts.choose",
    "ramify.strategies.draws": "ramify.strategies.parts.draws",
    "ramify.strategies.entropy": "ramify.strategies.parts.entropy",
    "ramify.strategies.prune": "ramify.strategies.parts.prune",
    "ramify.strategies.sample": "ramify.strategies.parts.sample",
    "ramify.strategies.surprise": "ramify.strategies.parts.surprise",
    "ramify.strategies.ucb": "ramify.strategies.parts.ucb",
    "ramify.tools.notebook": "ramify.testing.notebook",
}
"""Old module -> the module that it is now, or several that share its names."""


class MovedModules(Loader):
    """Finds and loads old names: `sys.modules` then holds the new module under the old name, too."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """None: the usual empty module, which one that was split keeps."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        places = MOVED[name].split()
        where = " and ".join(places)
        warnings.warn(f"{name} has moved to {where}; the old name goes with the next version", DeprecationWarning, 2)
        found = [importlib.import_module(place) for place in places]
        if len(found) == 1:
            sys.modules[name] = found[0]
            return
        for part in reversed(found):
            module.__dict__.update({key: value for key, value in vars(part).items() if not key.startswith("_")})
