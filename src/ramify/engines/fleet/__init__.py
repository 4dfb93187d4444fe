"""Fleet: several servers of one model as one engine: places requests, checks health, and keeps all weights the same.

May import what `engines` may; it knows no kind of server. Read first: `replicas.py`, then `placement.py`, `fleet.py`.
"""
