"""Contracts: what every plug-in of a kind keeps to, as functions that try it. One file a kind; begin with `rules.py`.

Each `check_*` of `ramify.testing` runs the rules of one file over a plug-in of yours; the tests of this project run the
same rules over every plug-in of the table.
"""
