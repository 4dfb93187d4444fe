"""The built-in model of `herds` is trained for one update, and the trained model grows trees."""

import json

from console import ramify

said = json.loads(
    ramify("train", "--task", "herds", "--steps", 1, "--trees", 2, "--eval-every", 0, "--out", "training", "--json")
)
ramify("rollout", "--task", "herds", "--model", said["model"], "--prompts", 2, "--out", "run")
ramify("check", "run")
