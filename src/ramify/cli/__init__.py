"""The command line: one module a command, each a thin shell over the library.

It may import every other room, and imports what is slow inside functions, because `--help` must be quick. A command
prints results on stdout and messages for people on stderr. Read `main.py` first, then `rollout.py`.
"""
