"""Formats: how a kind of agent speaks: its opening context, what ends a step, how an action is read, what an answer is.

Imports core only; pure text and ids. Read `core/format.py` first, then `tags`.
"""
