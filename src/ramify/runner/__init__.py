"""Prepares a run from its configuration and grows its trees: `prepared.py` decides, `run.py` performs.

The runner may import every room except experiments, service and the command line. Read `driver.py` first (one tree
without asyncio), then `scheduler.py`.
"""
