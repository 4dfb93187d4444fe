"""Conversations are rendered by the chat template of the built-in model's folder."""

from console import ramify

small = ("--set", "growth.max_response_tokens=24", "--set", "strategy.options.n=2")
ramify("rollout", "--prompts", 2, "--set", "format=chat", *small, "--out", "run")
assert "<calc>" in ramify("show", "run", 0)
