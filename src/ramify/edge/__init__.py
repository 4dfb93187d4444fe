"""Edge: what engines, tools, judges and servers share where they touch the outside: HTTP, retries, timeouts, threads.

May import the pure rings; imports no other edge, since all others import it. Read first: `http.py`, then `retries.py`.
"""
