"""Capacity: how long a run takes on so many GPUs, found by growing its trees on modelled servers in virtual time.

The strategy, the scheduler, the placement and the limits are the run's own. The model, the tool and the judges are
stand-ins: they write as many tokens as the workload says, in the time that the costs of a step give.
"""

from ramify.experiments.capacity.engine_costs import measured_costs
from ramify.experiments.capacity.forecast import Capacity
from ramify.experiments.capacity.workload import Workload, between

__all__ = ["Capacity", "Workload", "between", "measured_costs"]
