"""What a run is told: one tree of frozen values, read from presets, files and flags and checked before anything starts.

It may import the parts that a configuration names, and nothing that grows or stores. Read `run_config.py` first.
"""
