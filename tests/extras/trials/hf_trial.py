"""Torch samples from the weights of the built-in model, and measures the noise of its gradients."""

import json

from console import ramify

from ramify.engines.builtin import FOLDER

ramify("rollout", "--engine", "local", "--model", FOLDER, "--preset", "chains", "--prompts", 2, "--out", "run")
ramify("check", "run")
noise = json.loads(ramify("noise", "--presets", "chains", "--problems", 2, "--seeds", 1, "--projection", 64, "--json"))
assert noise["parameters"] > 100_000, noise
