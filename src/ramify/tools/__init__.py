"""Tools: what a model can call. A tool's sessions branch with the tree.

A tool may import `core` and the other edges, never the runner, which owns deadlines, retries and parking. Read
`calculator.py` first, then `function.py`; `core/tool.py` holds the contract.
"""
