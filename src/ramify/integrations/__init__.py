"""Trainers: one folder per trainer, with what it loads to train on trees.

May import every room but `train`, `view` and `cli`. `trl` and `verl` import their trainers; `slime`
imports its own only inside functions. Read `slime/` first.
"""
