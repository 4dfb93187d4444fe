"""Planner: a pilot -> a shape: where to fork, where to prune, and what that gains.

It imports core and itself; pure numpy. Read `plan` first.
"""

from ramify.planner.interval import Interval
from ramify.planner.levels import Levels, levels
from ramify.planner.pilot import Pilot, PilotTree
from ramify.planner.plan import Aim, Depth, Plan, Pruning, plan
from ramify.planner.shape import Shape

__all__ = ["Aim", "Depth", "Interval", "Levels", "Pilot", "PilotTree", "Plan", "Pruning", "Shape", "levels", "plan"]
