"""Trainers: one folder per trainer, with the functions that it loads by dotted path to train on trees.

May import every room but `train`, `view` and `cli`. Imports a trainer itself only inside functions. Read `slime/`
first.
"""
