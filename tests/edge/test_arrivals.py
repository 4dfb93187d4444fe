"""The time at which bytes come does not depend on who reads them, and when."""

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from threading import Thread

import pytest

from ramify.edge.arrivals import Arrival, num_received, num_unread

SLACK_S = 0.25
"""Less than what a reader is late."""


def later(send: Callable[[bytes], object], *chunks: bytes) -> tuple[Thread, list[float]]:
    """Sends the chunks one after the other, with 0.05 s before each; and the times at which it does."""
    times: list[float] = []

    def run() -> None:
        for chunk in chunks:
            time.sleep(0.05)
            times.append(time.monotonic())
            send(chunk)

    thread = Thread(target=run)
    thread.start()
    return thread, times


def test_bytes_of_a_pipe_have_their_times_though_nobody_reads_them() -> None:
    reading, writing = os.pipe()
    arrival = Arrival(reading, partial(num_unread, reading))
    sending, times = later(partial(os.write, writing), b"abc", b"de")
    sending.join()
    time.sleep(0.3)  # The reader is busy.
    first, second = arrival.at(3), arrival.at(5)
    assert first is not None and second is not None
    assert 0 <= first - times[0] < SLACK_S
    assert 0 <= second - times[1] < SLACK_S
    assert arrival.at(6) is None
    arrival.close()
    arrival.close()
    os.close(reading)
    os.close(writing)


def test_bytes_of_a_connection_are_counted_read_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        arrival = Arrival(ours.fileno(), partial(num_received, ours))
        sending, times = later(theirs.sendall, b"abc", b"de")
        assert ours.recv(3) == b"abc"
        time.sleep(0.3)
        sending.join()
        assert num_received(ours) == 5
        second = arrival.at(5)
        assert second is not None and 0 <= second - times[1] < SLACK_S
        arrival.close()
        theirs.close()


def test_bytes_that_are_read_first_are_never_noted_too_early() -> None:
    """Whoever reads at once may leave nothing to note; the count of later bytes is not that of earlier ones."""
    ours, theirs = socket.socketpair()
    num_read = 0
    arrival = Arrival(ours.fileno(), lambda: num_read + num_unread(ours.fileno()))
    for number in range(1, 200):
        began = time.monotonic()
        theirs.send(b"x")
        assert ours.recv(1)
        num_read = number
        noted = arrival.at(number)
        assert noted is None or noted >= began
    arrival.close()
    ours.close()
    theirs.close()


def test_bytes_that_come_while_the_thread_counts_are_not_noted_too_early() -> None:
    reading, writing = os.pipe()
    times: list[float] = []

    def count() -> int:
        time.sleep(0.01)
        times.append(time.monotonic())
        os.write(writing, b"x")
        return num_unread(reading)

    arrival = Arrival(-1, count)
    arrival.note()
    noted = arrival.at(1)
    assert noted is not None and noted >= times[0]
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("count", [partial(num_unread, -1), lambda: 0])
def test_what_cannot_be_counted_is_not_noted(count: Callable[[], int]) -> None:
    reading, writing = os.pipe()
    arrival = Arrival(reading, count)
    os.write(writing, b"abc")
    arrival.note()
    assert arrival.at(1) is None
    arrival.close()
    os.close(reading)
    os.close(writing)


def test_a_descriptor_that_is_closed_or_none_is_no_fault() -> None:
    arrival = Arrival(-1, lambda: 1)
    assert arrival.at(1) is None
    arrival.close()
    reading, writing = os.pipe()
    arrival = Arrival(reading, partial(num_unread, reading))
    os.close(reading)
    os.close(writing)
    arrival.close()
    assert arrival.at(1) is None
