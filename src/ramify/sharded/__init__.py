"""One run in many processes: its shards, the workers that grow them, and workers on Ray.

May import the pure rooms, the edges, `config`, `store` and `runner`. Read `run.py` first.
"""
