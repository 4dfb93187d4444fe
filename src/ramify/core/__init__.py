"""Core: the parts of a rollout tree and their rules: segments, tree, commands, growth, and the protocols of plug-ins.

It imports only the standard library and numpy; no async, clock, files or model. Read `command` first, then `tree`.
"""
