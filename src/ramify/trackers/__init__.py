"""Trackers keep the metrics of a service or a run: JSON lines, W&B, TensorBoard, trackio. A file each.

May import `core` and `config`. Read `tracker.py`, the interface, first.
"""
