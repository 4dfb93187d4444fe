"""Two Ray actors grow the rows that one process grows, byte for byte."""

from pathlib import Path

from console import ramify

for name, where in {"divided": ("--ray", "--workers", 2), "whole": ()}.items():
    ramify("rollout", "--preset", "arpo", "--engine", "scripted", "--prompts", 4, *where, "--out", name)
    ramify("export", name, "--to", "jsonl", "--out", f"{name}.jsonl")
assert Path("divided.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
