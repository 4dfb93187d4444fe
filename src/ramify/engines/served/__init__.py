"""Served engines: a model behind a vLLM or SGLang server that takes and returns token ids.

May import what `engines` may. Read first: `engine.py`, then `exchange.py` (one request), `turn.py` (which tokens
count).
"""
