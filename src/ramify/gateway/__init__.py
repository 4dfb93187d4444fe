"""The gateway: chat completions over HTTP in which every search is a model, for unchanged clients.

Read `server.py` first: the life of one request. `chat_request` reads it, `offers` holds what is served, `request_run`
grows its tree, `completion` writes the answer.
"""
