"""Edge: code that engines, tools and judges share to reach the outside: HTTP, retries, timeouts, threads.

May import the pure rings; imports no other edge, since all others import it. Read first: `http.py`, then `retries.py`.
"""
