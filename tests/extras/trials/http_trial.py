"""The gateway answers a client, the engine `openai` asks an endpoint of this process, and the tokenizer of a folder is
read by the package tokenizers."""

import json
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

from console import RAMIFY, ramify

from ramify.engines.builtin import FOLDER

QUESTION = "make 24 from 4 6 8 2"


class Endpoint(BaseHTTPRequestHandler):
    """A model that says always the same."""

    def do_GET(self) -> None:
        self.answer({"object": "list", "data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "<answer>24</answer>"}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self.answer({"object": "chat.completion", "model": "m", "choices": [choice], "usage": usage})

    def answer(self, body: Any) -> None:
        said = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


serve = [RAMIFY, "gateway", "--preset", "best_of_n", "--json", "-q"]
with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as gateway:
    try:
        assert gateway.stdout is not None
        told = json.loads(gateway.stdout.readline())
        assert "url" in told, told["error"]
        asked = json.dumps({"model": "best_of_n", "messages": [{"role": "user", "content": QUESTION}]}).encode()
        request = Request(f"{told['url']}/chat/completions", asked, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answered:
            assert json.load(answered)["choices"][0]["message"]["content"] == "24"
    finally:
        gateway.terminate()

Path("questions.jsonl").write_text(json.dumps({"question": QUESTION, "answer": "24"}), "utf-8")
with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
    Thread(target=server.serve_forever, daemon=True).start()
    endpoint = ("--engine", "openai", "--model", "m", "--base-url", f"http://127.0.0.1:{server.server_port}/v1")
    ramify("rollout", "--data", "questions.jsonl", *endpoint, "--preset", "chains", "--out", "run")
    server.shutdown()
(tree,) = json.loads(ramify("show", "run", "--json"))["trees"]
assert tree["reward"] == 1.0, tree

from ramify.engines.tokenizer_json import TokenizerJson  # noqa: E402 - without the extra, the refusal comes first

codec = TokenizerJson(FOLDER)
assert codec.decode(codec.encode(QUESTION)) == QUESTION
