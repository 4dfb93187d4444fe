"""Prepares a run from its configuration and grows its trees: `prepared.py` decides, `run.py` performs.

It may import everything but the rooms around it (experiments, service, command line). Read `driver.py` first, which is
one tree without asyncio, then `scheduler.py`.
"""
