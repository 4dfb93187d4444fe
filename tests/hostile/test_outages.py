"""Outages: servers, workers and clusters that go while a run grows. They cost time and no path."""

from pathlib import Path

import pytest
from bench import outage
from tests.store import test_take_back as stops

from ramify.runner import folder

pytestmark = pytest.mark.hostile

OUTAGE_S = 2.5
SHORT_S = 0.3
"""For servers that are really killed: starting a process again takes longer anyway."""


IN_FLIGHT = [8, 64, pytest.param(512, marks=pytest.mark.slow)]


@pytest.mark.parametrize("in_flight", IN_FLIGHT)
def test_a_lone_server_that_goes_for_a_while_costs_time_and_no_path(in_flight: int) -> None:
    """A lone server that drops all its connections and is back after 2.5 s costs no path."""
    calm, cut = outage.simulated(in_flight, None, waves=1), outage.simulated(in_flight, OUTAGE_S, waves=1)
    assert (cut.paths, cut.lost) == (calm.paths, 0)
    assert OUTAGE_S <= cut.seconds - calm.seconds + 1.0 <= 2 * OUTAGE_S + calm.seconds


@pytest.mark.parametrize("in_flight", [8, 64])
def test_a_tunnel_whose_far_end_is_gone_costs_no_path(in_flight: int) -> None:
    """A tunnel that takes connections and cuts them while the server behind it is gone costs no path."""
    cut = outage.simulated(in_flight, OUTAGE_S, waves=1, later="disconnected")
    assert (cut.paths, cut.lost) == (in_flight, 0)


@pytest.mark.parametrize("in_flight", IN_FLIGHT)
def test_an_endpoint_that_is_killed_and_started_again_costs_no_path(in_flight: int) -> None:
    """An endpoint that is killed and started again at the same port costs no path, whatever is in flight."""
    cut = outage.endpoint(in_flight, SHORT_S, waves=1)
    assert (cut.paths, cut.lost) == (in_flight, 0)


@pytest.mark.parametrize("preset", ["chains", "offline", "arpo"])
def test_a_run_that_stopped_for_its_engines_asks_again_for_what_they_failed(tmp_path: Path, preset: str) -> None:
    """A run that stops for its engines asks again, on resume, for what they failed."""
    settings = stops.config(tmp_path, preset)
    stops.stopped(settings, tmp_path / "cut")
    (tmp_path / "well").touch()
    assert folder.resume(tmp_path / "cut").failed_leaves == 0
    folder.begin(settings, tmp_path / "whole")
    assert stops.rows(tmp_path / "cut") == stops.rows(tmp_path / "whole")
