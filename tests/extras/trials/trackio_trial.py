"""A tracker writes figures to trackio's database."""

import os

os.environ["TRACKIO_DIR"] = "here"  # trackio reads it when it is imported

from ramify.config.tracker_config import TrackerConfig
from ramify.trackers.trackers import tracker_of

tracker = tracker_of(TrackerConfig(kind="trackio", project="p", name="n"))
tracker.log({"eval/aime": 0.5}, step_key="eval/step", step=3)
tracker.close()

from trackio.sqlite_storage import SQLiteStorage  # noqa: E402 - without the extra, ramify's own refusal comes first

(row,) = SQLiteStorage.get_logs("p", "n")
assert (row["step"], row["eval/aime"]) == (3, 0.5), row
