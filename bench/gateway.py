"""What a gateway adds to a request: one sample through `ramify gateway` against the same endpoint asked directly.

The endpoint, the gateway and the client are three processes. Each round asks the endpoint directly, then the gateway,
`--requests` times with 1, 64 or 256 requests in flight. The endpoint answers at once (the most that the gateway can
carry), or after 0.2 s (what a client feels). Figures are medians of the rounds:

- `direct ms`, `gateway ms`: the median time of a request,
- `added ms`: their difference (less is better),
- `direct /s`, `gateway /s`: requests a second (more is better),
- `CPU ms`: CPU time of the gateway a request (less is better), which other load on the machine hardly changes.

Run: python bench/gateway.py [--requests N] [--rounds N] [--smoke]
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

IN_FLIGHT: Final = (1, 64, 256)
ANSWER_S: Final = (0.0, 0.2)
RAMIFY: Final = (sys.executable, "-m", "ramify.cli.main")
BODY: Final = json.dumps({"model": "m", "messages": [{"role": "user", "content": "What is 6 times 7?"}]}).encode()
HEADERS: Final = {"Content-Type": "application/json"}
SERVER: Final = """
import asyncio, json, sys
ANSWER_S = float(sys.argv[1])
MESSAGE = {"role": "assistant", "content": "The answer is 42."}
REPLY = json.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [
    {"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 6, "total_tokens": 18}}).encode()
LIST = json.dumps({"object": "list", "data": [{"id": "m"}]}).encode()

class Connection(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""
    def data_received(self, data):
        self.buffer += data
        while (end := self.buffer.find(b"\\r\\n\\r\\n")) >= 0:
            head = self.buffer[:end].lower()
            place = head.find(b"content-length:")
            length = int(head[place + 15:].split(b"\\r\\n")[0]) if place >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            self.buffer = self.buffer[end + 4 + length:]
            body = LIST if head.startswith(b"get") else REPLY
            head = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n"
            asyncio.get_running_loop().call_later(ANSWER_S, self.transport.write, head % len(body) + body)

async def main():
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@contextmanager
def process(*command: str) -> Iterator[tuple[str, int]]:
    """A server in a process of its own: the address that it prints, and its number."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        try:
            assert started.stdout is not None
            yield started.stdout.readline().strip(), started.pid
        finally:
            started.terminate()
            started.wait(30)


def cpu_s(pid: int) -> float:
    """CPU time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def times(url: str, *, num_requests: int, in_flight: int) -> tuple[float, float]:
    """The median time of a request in ms, and requests a second."""
    waiting = iter(range(num_requests))
    taken: list[float] = []
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one() -> None:
            began = time.perf_counter()
            async with session.post(f"{url}/chat/completions", data=BODY, headers=HEADERS) as response:
                answer = await response.json()
            assert answer["choices"][0]["message"]["content"] == "The answer is 42.", answer
            taken.append(time.perf_counter() - began)

        async def worker() -> None:
            for _ in waiting:
                await one()

        await asyncio.gather(*(one() for _ in range(in_flight)))  # connections are opened
        taken.clear()
        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(in_flight)))
        seconds = time.perf_counter() - began
    return 1000 * statistics.median(taken), len(taken) / seconds


@dataclass(frozen=True)
class Served:
    """What is asked."""

    direct: str
    gateway: str
    pid: int
    """Of the gateway."""


def row(served: Served, *, in_flight: int, num_requests: int, num_rounds: int) -> str:
    rounds: list[tuple[float, ...]] = []
    for _ in range(num_rounds):
        direct = asyncio.run(times(served.direct, num_requests=num_requests, in_flight=in_flight))
        before = cpu_s(served.pid)
        gateway = asyncio.run(times(served.gateway, num_requests=num_requests, in_flight=in_flight))
        cpu_ms = 1000 * (cpu_s(served.pid) - before) / (num_requests + in_flight)
        rounds.append((direct[0], gateway[0], gateway[0] - direct[0], direct[1], gateway[1], cpu_ms))
    figures = map(statistics.median, zip(*rounds, strict=True))
    cells = [f"{figure:.0f}" if number in (3, 4) else f"{figure:.1f}" for number, figure in enumerate(figures)]
    return f"| {' | '.join([str(in_flight), *cells])} |"


@contextmanager
def both(answer_s: float, folder: Path, *, ramify: Sequence[str] = RAMIFY) -> Iterator[Served]:
    """An endpoint, and a gateway in front of it, by the command `ramify`. Runs go into a new folder in `folder`."""
    with process(sys.executable, "-c", SERVER, str(answer_s)) as (direct, _):
        flags = ["--engine", "openai", "--model", "m", "--base-url", direct, "--preset", "self_consistency"]
        out = ["--out", str(folder / f"runs-{answer_s:g}"), "--max-in-flight", "1024", "-q"]
        with process(*ramify, "gateway", *flags, *out) as (gateway, pid):
            yield Served(direct, gateway, pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1500, help="requests of a measurement (default 1500)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the median is taken (default 5)")
    parser.add_argument("--smoke", action="store_true", help="a few requests, to see that everything runs")
    options = parser.parse_args()
    num_requests, num_rounds = (40, 1) if options.smoke else (options.requests, options.rounds)
    for answer_s in ANSWER_S:
        print(f"\nThe endpoint answers {'at once' if not answer_s else f'after {answer_s:g} s'}:\n")
        print("| in flight | direct ms | gateway ms | added ms | direct /s | gateway /s | CPU ms |")
        print("|---|---|---|---|---|---|---|")
        with tempfile.TemporaryDirectory() as folder, both(answer_s, Path(folder)) as served:
            for in_flight in IN_FLIGHT[: 2 if options.smoke else 3]:
                number = max(in_flight, num_requests if in_flight > 1 or not answer_s else num_requests // 20)
                print(row(served, in_flight=in_flight, num_requests=number, num_rounds=num_rounds), flush=True)


if __name__ == "__main__":
    main()
