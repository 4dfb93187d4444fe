"""The search methods: one file each, a folder for a family. Their shared parts are in `parts/`.

Pure: this folder imports only numpy and `ramify.core`, and uses no clock, files or event loop. Read `chains.py` first,
then `offline.py`.
"""
