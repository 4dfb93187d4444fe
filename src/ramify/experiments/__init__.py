"""Experiments that compare runs: `compare`, `eval`, `noise`, the pilot of a plan, and the check against an engine log;
`certify`, which compares trees with the gradient they estimate; and `capacity`, which says how long a run takes.

May import the pure rooms, the edges, `config`, `store` and `runner`; `capacity` also `testing`. Read `compare.py`
first.
"""
