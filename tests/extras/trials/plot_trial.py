"""`ramify compare` and `ramify eval` draw their tables."""

from pathlib import Path

from console import ramify

ramify("compare", "--presets", "tree_grpo", "--problems", 4, "--seeds", 1, "--plot", "compare.svg")
ramify("eval", "--presets", "best_of_n", "--problems", 4, "--budget", "decode_tokens=64", "--plot", "eval.png")
assert "</svg>" in Path("compare.svg").read_text("utf-8")
assert Path("eval.png").read_bytes().startswith(b"\x89PNG")
