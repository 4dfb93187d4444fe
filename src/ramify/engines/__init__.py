"""Engines: they generate tokens, with a model in this process, a model server, or a chat completions endpoint.

`served/` holds engines that talk to a server in token ids. `fleet/` joins several servers of one model into one engine.
May import the pure rings (`core` first) and the other edges; never the runner or anything that configures it. Read
first: `batched.py`, an engine in this process, and `core/engine.py`, the interface that every engine implements.
"""
