"""Tasks: where problems come from, and the format, tools and judges that go with them.

A task may import the pure rooms and the other edges (`tools`, `judges`), never the runner. Read
`countdown.py` first; `data.py` reads a user's own files.
"""
