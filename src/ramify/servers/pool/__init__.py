"""Pool: the engines of a service on cards and nodes. A plan is computed first, then carried out on this machine or on
Ray.

May import what `servers` may. Read first: `config.py`, then `plan.py` and the two files that carry out a plan:
`engines.py` (this machine) and `cluster.py` (a Ray cluster).
"""
