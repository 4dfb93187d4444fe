"""Fleet: several servers of one model as one engine: placement of requests, health, and the same weights everywhere.

May import what `engines` may; it knows no kind of server. Read first: `replicas.py`, then `placement.py`, `fleet.py`.
"""
