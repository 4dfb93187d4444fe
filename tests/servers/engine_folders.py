"""Environments of engines for the tests: a `python` that has a `vllm`, an `sglang` or an `sglang_router`.

What is behind the names are small real servers (`programs.py`), started by the very command lines that ramify makes.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from tests.servers.programs import SERVER

ROOT = Path(__file__).parents[2]
ARGUMENTS = """
import argparse, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--host", required=True)
parser.add_argument("--port", required=True)
known, _ = parser.parse_known_args()
sys.argv = [sys.argv[0], known.host, known.port, os.environ.get("TEST_OPTIONS", "{}"), *sys.argv[1:]]
"""

ROUTER = """
import argparse, itertools, json, os, threading, time, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--host", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--worker-urls", nargs="+", required=True)
parser.add_argument("--refuses")
known, _ = parser.parse_known_args()
ids = map(str, itertools.count())
workers = {next(ids): url for url in known.worker_urls}
turns = itertools.count()

class Handler(BaseHTTPRequestHandler):
    def say(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/liveness":
            self.say(200, {})
        elif self.path == "/workers":
            self.say(200, {"workers": [{"id": i, "url": url, "is_healthy": True} for i, url in workers.items()]})
        elif self.path == "/readiness":
            self.say(200 if any(map(is_healthy, workers.values())) else 503, {})
        else:
            urls = list(workers.values())
            with urllib.request.urlopen(urls[next(turns) % len(urls)] + self.path) as answer:
                self.say(200, json.load(answer))

    def do_POST(self):
        url = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["url"]
        if known.refuses and not os.path.exists(known.refuses):
            open(known.refuses, "w").close()
            return self.say(500, {"error": "not now"})
        threading.Timer(0.1, workers.__setitem__, (next(ids), url)).start()
        self.say(202, {"status": "accepted"})

    def do_DELETE(self):
        del workers[self.path.rpartition("/")[2]]
        self.say(202, {"status": "accepted"})

    def log_message(self, *arguments):
        pass

def is_healthy(url):
    try:
        return urllib.request.urlopen(url + "/health", timeout=1).status == 200
    except OSError:
        return False

ThreadingHTTPServer((known.host, known.port), Handler).serve_forever()
"""

TOKENS = """
import argparse
from aiohttp import web
from tests.engines.token_servers import FakeVllm

parser = argparse.ArgumentParser()
parser.add_argument("--host", required=True)
parser.add_argument("--port", type=int, required=True)
known, _ = parser.parse_known_args()

@web.middleware
async def is_ready(request, handler):
    if request.path == "/health" or (request.path == "/v1/completions" and "request_id" not in await request.json()):
        return web.json_response({"choices": []})
    return await handler(request)

app = FakeVllm().app()
app.middlewares.insert(0, is_ready)
web.run_app(app, host=known.host, port=known.port)
"""
"""A vLLM that speaks token ids, by the fake that the engine's own tests use."""

MODULES = {
    "vllm": ("vllm/entrypoints/openai/api_server.py", ARGUMENTS + SERVER),
    "vllm of tokens": ("vllm/entrypoints/openai/api_server.py", TOKENS),
    "vllm of other nodes": ("vllm/entrypoints/cli/main.py", ARGUMENTS + SERVER),
    "sglang": ("sglang/launch_server.py", ARGUMENTS + SERVER),
    "sglang_router": ("sglang_router/launch_router.py", ROUTER),
    "torchvision": ("torchvision/__init__.py", ""),
}


def engine_python(folder: Path, modules: Iterable[str], *, packages: Iterable[tuple[str, str]] = ()) -> str:
    """An interpreter that has `modules`, and those of the tests, installed as `packages` of (name, version)."""
    site = folder / "site"
    for name in modules:
        path, code = MODULES[name]
        (site / path).parent.mkdir(parents=True)
        (site / path).write_text(code)
        for parent in (site / path).relative_to(site).parents:
            if parent.name:
                (site / parent / "__init__.py").touch()
    for name, version in packages:
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site}:{ROOT} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)
