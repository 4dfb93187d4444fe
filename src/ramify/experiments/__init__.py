"""Experiments that compare runs: `compare`, `eval`, `noise`, the pilot of a plan, and the check against an engine log;
and `certify`, which compares trees with the gradient they estimate.

May import the pure rooms, the edges, `config`, `store` and `runner`. Read `compare.py` first.
"""
