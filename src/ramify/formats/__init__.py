"""Formats: how a kind of agent speaks. A format defines the opening context, what ends a step, how an action is read,
and what an answer is.

It imports core only; pure text and ids. Read `core/format.py` first, then `tags`.
"""
