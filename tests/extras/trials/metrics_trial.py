"""A run is counted on the page that Prometheus reads, and its spans are in a file."""

import json
from pathlib import Path
from urllib.request import urlopen

import ramify
from ramify.engines.builtin import Builtin
from ramify.telemetry.telemetry import Telemetry, TelemetryConfig

telemetry = Telemetry(TelemetryConfig(agent="chains", spans=Path("spans.jsonl")))
address = telemetry.serve_metrics()
engine = telemetry.in_front_of(Builtin(), "builtin")
ramify.rollout_sync(prompts=1, preset="chains", engine=engine, observers=[telemetry.observe])
with urlopen(address) as page:
    assert 'ramify_trees_closed_total{ramify_reason="done"} 1.0' in page.read().decode()
telemetry.close()
names = [json.loads(line)["name"] for line in Path("spans.jsonl").read_text("utf-8").splitlines()]
assert "invoke_agent chains" in names, names
