"""A tracker writes figures to an event file."""

from pathlib import Path

from ramify.config.tracker_config import TrackerConfig
from ramify.trackers.trackers import tracker_of

tracker = tracker_of(TrackerConfig(kind="tensorboard", folder="board"))
tracker.log({"eval/aime": 0.5}, step_key="eval/step", step=3)
tracker.close()
(events,) = Path("board").glob("events.out.tfevents.*")
assert b"eval/aime" in events.read_bytes()
