"""Servers: the model servers that ramify starts, watches, restarts and stops; `pool/` plans the servers of a service.

May import the pure rings and the other edges; never the runner. Read first: `process.py` (one server process that never
outlives us), then `member.py` and `server_pool.py` (keep servers running), and `launch.py` (the command of each kind).
"""
