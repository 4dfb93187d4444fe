"""Metrics and spans of any run or service, with OpenTelemetry, and the page that Prometheus reads.

May import the pure rooms, the edges and `runner`. Read `telemetry.py` first; `metrics.py` is the table of metrics.
"""
