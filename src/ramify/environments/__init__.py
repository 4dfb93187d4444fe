"""Environments: worlds that answer the turns of an agent. Each file adapts one kind of world to `core.environment`.

Read `episodes` first: how an environment becomes tools that act on one state. `blocking` is the base of worlds that are
plain Python objects.
"""
