"""Judges: a branch -> a score, by rules, by a model's reply or by a value model.

A judge may import the pure rooms and the other edges, never the runner, which asks models for it. Read `exact.py`
first, then `llm.py`; `core/judge.py` holds the contract.
"""
