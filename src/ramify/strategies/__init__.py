"""The list of methods: a file each, a folder for a family, and the arithmetic they share in `parts/`.

Pure: numpy and `ramify.core` alone; no clock, no files, no event loop. Read `chains.py` first, then `offline.py`.
"""
