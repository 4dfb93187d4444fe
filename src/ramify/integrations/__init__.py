"""Trainers: a folder each, with what that trainer loads by dotted path to train on trees.

May import every room but `train`, `view` and `cli`; a trainer itself only inside functions. Read `slime/` first.
"""
