"""Tasks: the sources of problems, with the format, tools and judges that belong to them.

A task may import the pure rooms and the other edges (`tools`, `judges`), but not the runner. Read `countdown.py` first.
`data.py` reads a user's own files.
"""
