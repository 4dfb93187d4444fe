"""Strategies: one file each, and the shared arithmetic beside them as named functions."""

from ramify.strategies.chains import Chains
from ramify.strategies.offline import Offline
from ramify.strategies.online import Online

STRATEGIES = {
    "chains": "ramify.strategies.chains:Chains",
    "offline": "ramify.strategies.offline:Offline",
    "online": "ramify.strategies.online:Online",
}
"""Built-in strategies by name."""

__all__ = ["STRATEGIES", "Chains", "Offline", "Online"]
