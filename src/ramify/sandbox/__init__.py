"""Sandbox: runs the model's code behind kernel barriers ("walls"), keeps its state between steps and forks it.

May import `core`; what runs inside the sandbox imports the standard library only. Read first: `session.py` (what a tool
uses), then `host.py` (one sandbox, from outside) and `node.py` (one state, from inside).
"""
