"""Judges: score a branch by rules, by a model's reply or by a value model.

A judge may import the pure rooms and the other edges, but not the runner, which asks the models. Read `exact.py` first,
then `llm.py`. The contract is in `core/judge.py`.
"""
