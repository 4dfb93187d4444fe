"""Workspaces: folders of files for code agents, one state a branch, and commands that act on them behind walls.

May import `core`, `edge` and `sandbox`. Read first: `shell.py` (the tool), then `back_ends.py` (how states of files
are made and forked) and `command.py` (how one command runs).
"""
