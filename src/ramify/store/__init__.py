"""Store: a run on disk or in memory: its configuration and an append-only journal, of which every tree is a function.

Imports core, and rows for its check; files and threads are its own. Read `records` first, then `journal` and `replay`.
"""
