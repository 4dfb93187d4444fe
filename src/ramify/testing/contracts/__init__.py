"""Contracts: the rules for every kind of plug-in, as functions that check them. One file per kind; read `rules.py`
first.

Each `check_*` of `ramify.testing` checks the rules of one file on your plug-in. The tests of this project check the
same rules on every built-in plug-in.
"""
