"""Pool: the engines of a service on cards and nodes: planned by values alone, then carried out here or on Ray.

May import what `servers` may. Read first: `config.py`, then `plan.py` and the two that carry a plan out: `engines.py`
(this machine) and `cluster.py` (a Ray cluster).
"""
