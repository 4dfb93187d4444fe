"""Readers of what trackers wrote: independent of the code that wrote it."""

import json
import struct
from pathlib import Path

BLOCK = 32768
"""Bytes of a block of a wandb file, whose format is LevelDB's log."""


def lines(folder: Path) -> list[dict]:
    """Objects of a folder's `metrics.jsonl`."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def events(folder: Path) -> list[tuple[int, str, float]]:
    """(step, name, value) of all of a folder's event files, in order of their names."""
    from tensorboardX.proto import event_pb2

    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (size,) = struct.unpack_from("<Q", data, place)
            event = event_pb2.Event.FromString(data[place + 12 : place + 12 + size])
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            place += size + 16
    return found


def runs(folder: Path) -> list[tuple[str, list[dict], dict[str, str]]]:
    """(id, rows, name of a metric -> name of its axis) of the runs that wandb kept below a folder, in order of time."""
    return [_run(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]


def _run(path: Path) -> tuple[str, list[dict], dict[str, str]]:
    from wandb.proto import wandb_internal_pb2

    records = [wandb_internal_pb2.Record.FromString(data) for data in _records(path.read_bytes())]
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    metrics = [record.metric for record in records if record.HasField("metric")]
    axes = {metric.name or metric.glob_name: metric.step_metric for metric in metrics}
    (run_id,) = {record.run.run_id for record in records if record.HasField("run")}
    return run_id, [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows], axes


def _records(data: bytes) -> list[bytes]:
    found, part, place = [], b"", 7
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        part += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            found.append(part)
            part = b""
    return found
