"""A tracker writes figures to a run that wandb keeps on this machine, and nothing is sent."""

from pathlib import Path

from ramify.config.tracker_config import TrackerConfig
from ramify.trackers.trackers import tracker_of

tracker = tracker_of(TrackerConfig(kind="wandb", project="p", name="n", folder="here"))
tracker.log({"eval/aime": 0.5}, step_key="eval/step", step=3)
tracker.close()
(run,) = Path("here").glob("wandb/offline-run-*/*.wandb")
assert b"eval/aime" in run.read_bytes()
