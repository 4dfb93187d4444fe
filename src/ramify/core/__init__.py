"""Core: the nouns of a rollout tree and their laws: segments, tree, commands, growth, and the protocols of plug-ins.

Imports the standard library and numpy only; no async, clock, files or model. Read `command` first, then `tree`.
"""
