"""Store: a run on disk or in memory: its configuration and an append-only journal. Every tree is a function of the
journal.

It imports core, and rows for its check, and it uses files and threads. Read `records` first, then `journal` and
`replay`.
"""
