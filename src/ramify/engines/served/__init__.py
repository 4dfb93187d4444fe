"""Served engines: a model behind a vLLM or SGLang server, asked for token ids.

May import what `engines` may. Read first: `engine.py`, then `exchange.py` (one request), `turn.py` (what counts).
"""
