import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramify.core.errors import ConfigError
from ramify.servers.ports import BLOCK, FIRST_PORT, RANGE, Address, Ports, listeners


@pytest.fixture
def ports() -> Iterator[Ports]:
    ports = Ports()
    yield ports
    ports.close()


def listening(port: int, *, option: int | None = socket.SO_REUSEADDR) -> socket.socket:
    """A server's socket, as asyncio's, vLLM's and the router's servers bind theirs."""
    server = socket.socket()
    if option is not None:
        server.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        server.bind(("127.0.0.1", port))
        server.listen()
    except OSError:
        server.close()
        raise
    return server


@pytest.mark.covers("S3.2")
def test_no_port_is_given_out_twice(ports: Ports):
    addresses = [ports.address() for _ in range(50)]
    others = Ports()
    addresses += [others.address() for _ in range(50)]
    others.close()
    used = [port for a in addresses for port in (a.port, *range(a.block, a.block + BLOCK))]
    assert len(used) == len(set(used)) == 100 * (1 + BLOCK)


def test_a_port_that_is_held_is_given_to_nobody_but_its_server(ports: Ports):
    port = ports.address().port
    with pytest.raises(OSError, match="in use"):
        listening(port, option=None)
    listening(port).close()
    given = set()
    for _ in range(500):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            given.add(other.getsockname()[1])
    assert port not in given


def test_a_port_that_is_listened_on_is_refused_by_name(ports: Ports):
    with listening(0) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} of 127\.0\.0\.1 cannot be used .*in use"):
            ports.address(port)
    assert ports.address(port).port == port, "it is free again at once"


def test_a_server_that_shares_nothing_finds_room_after_a_move(ports: Ports):
    address = ports.address()
    with pytest.raises(OSError, match="in use"):
        listening(address.port, option=None)
    moved = ports.moved(address)
    assert moved.port != address.port and moved.block != address.block
    listening(moved.port, option=None).close()
    listening(address.port, option=None).close()


def test_blocks_lie_outside_what_the_system_gives_away(ports: Ports):
    first = int(RANGE.read_text().split()[0])
    block = ports.address().block
    assert block >= FIRST_PORT and (block + BLOCK <= first or first < FIRST_PORT + 64 * BLOCK)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_a_host_that_is_no_address_for_clients_is_refused(host: str):
    with pytest.raises(ConfigError, match="name the one address that clients use"):
        Ports(host)


def test_a_host_of_another_machine_is_refused():
    with pytest.raises(ConfigError, match=r"host = '192\.0\.2\.1' cannot be listened on"):
        Ports("192.0.2.1").address()


def test_a_named_port_is_one_pools_alone(ports: Ports):
    port = ports.address().port
    ports.close()
    ports.address(port)
    others = Ports()
    with pytest.raises(ConfigError, match=rf"port {port} of 127\.0\.0\.1 cannot be used .*in use"):
        others.address(port)
    ports.close()
    assert others.address(port).port == port
    others.close()


def test_who_listens_at_a_port_is_told_by_the_system():
    with listening(0) as server:
        (name,) = listeners(server.getsockname()[1])
        assert Path(f"/proc/self/fd/{server.fileno()}").readlink() == Path(name)
    assert not listeners(9)


@pytest.mark.parametrize("port", [-1, 0, 1 << 16])
def test_a_number_that_is_no_port_is_refused(ports: Ports, port: int):
    with pytest.raises(ConfigError, match="cannot be used"):
        ports.address(port)


def test_addresses_of_the_sixth_version_stand_in_brackets():
    assert Address("::1", 8000, 10000).url == "http://[::1]:8000"
    assert Address("127.0.0.1", 8000, 10000).url == "http://127.0.0.1:8000"
