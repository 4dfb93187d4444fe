"""Small real servers for the tests: programs that listen, answer, and go wrong when they are told to."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from ramify.servers.member import Care
from ramify.servers.ports import Address
from ramify.servers.probe import Probe
from ramify.servers.process import Command, ServerProcess

SERVER = """
import json, os, signal, socket, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

host, port, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
state = {"hangs": False, "generates": True}

class Handler(BaseHTTPRequestHandler):
    def say(self, status, value):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/die":
            print("I was told to die", flush=True)
            os._exit(7)
        if self.path == "/hang":
            state["hangs"] = True
        elif self.path == "/numb":
            state["generates"] = False
        elif state["hangs"]:
            time.sleep(3600)
        self.say(200, {"pid": os.getpid(), "argv": sys.argv[1:], "environment": dict(os.environ)})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if options.get("html"):
            self.say(200, b"<html>a page of some other server</html>")
        elif state["generates"]:
            self.say(200, {"choices": [{"text": "a"}], "meta_info": {}})
        else:
            self.say(500, {"error": "the engine is dead"})

    def log_message(self, *arguments):
        pass

class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = not options.get("shares_nothing")

CHILD = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); time.sleep(3600)"
)

def child(**how):
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", CHILD], stdout=subprocess.PIPE, **how)
    process.stdout.readline()
    return process.pid

if options.get("crowd"):
    pids = [child(), child(start_new_session=True)]
    if not os.fork():
        os.setsid()
        pids.append(child())
        with open(options["crowd"] + ".new", "w") as file:
            json.dump([os.getppid(), *pids], file)
        os.rename(options["crowd"] + ".new", options["crowd"])
        os._exit(0)
if options.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if options.get("loses_port") and not os.path.exists(options["loses_port"]):
    open(options["loses_port"], "w").close()
    sys.exit("OSError: [Errno 98] Address already in use")
if options.get("dies"):
    sys.exit("no such model: " + options["dies"])
if options.get("starts") is not None:
    with open(options["starts"], "a") as file:
        file.write("x")
    if os.path.getsize(options["starts"]) > options["good_starts"]:
        sys.exit("this time it does not start")
print("listening on", port, flush=True)
Server((host, port), Handler).serve_forever()
"""

PROBE = Probe(path="/v1/completions", body={"prompt": "a"}, key="choices")
QUICK = Care(
    start_s=20, every_s=0.05, health_s=0.5, probe_s=0.5, max_silent=2, max_restarts=2, base_s=0, grace_s=5, steady_s=60
)
DEADLINE_S = 20.0


def program(**options: object) -> Callable[[Address], Command]:
    """How a small server is started at an address."""

    def command(address: Address) -> Command:
        argv = (sys.executable, "-I", "-S", "-c", SERVER, address.host, str(address.port), json.dumps(options))
        return Command(argv, {"PATH": os.defpath, "TEST_MARK": str(options.get("mark", ""))})

    return command


def python(code: str, **environment: str) -> Command:
    return Command((sys.executable, "-I", "-S", "-c", code), environment)


def marked(mark: object) -> list[int]:
    """Every process that has `mark` in its environment: those of a program, however they went their own ways."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(mark).encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def told(url: str, path: str = "/health") -> dict[str, object]:
    with urlopen(f"{url}{path}", timeout=DEADLINE_S) as answer:
        return json.load(answer)


def guard_of(server: ServerProcess) -> int:
    return int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])


async def ask(url: str, path: str = "/health") -> dict[str, object]:
    return await asyncio.to_thread(told, url, path)


async def answered(url: str) -> dict[str, Any]:
    """What a server says of itself, as soon as it listens."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(URLError):
                return await ask(url)
            await asyncio.sleep(0.01)


async def tell(url: str, path: str) -> None:
    """Send an order, which may cost the server its life before it answers."""
    with contextlib.suppress(URLError, OSError):
        await ask(url, path)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and only not asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(holds: Callable[[], object], *, deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)


async def until(holds: Callable[[], object], *, deadline_s: float = DEADLINE_S) -> None:
    await asyncio.to_thread(wait_until, holds, deadline_s=deadline_s)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
