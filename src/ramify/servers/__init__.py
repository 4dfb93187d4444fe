"""Servers: the model servers that ramify starts, watches, starts again and stops; `pool/` plans those of a service.

May import the pure rings and the other edges; never the runner. Read first: `process.py` (one server that never
outlives us), then `member.py` and `server_pool.py` (kept up), and `launch.py` (the command of each kind).
"""
