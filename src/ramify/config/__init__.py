"""The configuration of a run: one tree of frozen values, read from presets, files and flags and checked before the
start.

It may import the parts that a configuration names, but nothing that grows or stores trees. Read `run_config.py` first.
"""
