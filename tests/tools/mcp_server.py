"""An MCP server on standard input and output, by the standard library alone, so that it starts at once.

It keeps notes in its memory, and misbehaves as it is asked to: `mcp_server.py [stubborn] [silent] [chatty] [child]`.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

NOTES: list[str] = []
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TEXT = {"type": "string"}


def tool(name: str, description: str, *, hints: dict[str, bool] | None = None, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "inputSchema": schema, "annotations": hints or {}}


READS = {"readOnlyHint": True}
REPEATS = {"idempotentHint": True}
TOOLS = [
    tool("add", "Add two numbers.", hints=READS, a={"type": "integer"}, b={"type": "integer"}),
    tool("look", "Look at a thing.", hints=READS, thing={**TEXT, "enum": ["dot", "tone", "file", "page", "link"]}),
    tool("remember", "Add a note.", hints=REPEATS, note=TEXT),
    tool("recall", "All notes.", hints=READS),
    tool("spend", "Spend one coin.", kind=TEXT),
    tool("fault", "Go wrong.", hints=READS, how=TEXT),
    tool("pid", "The server's process.", hints=READS),
    tool("ghost", "Not there.", hints=READS),
    tool("environment", "Names of the variables the server has.", hints=READS),
]


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


def looked(thing: str) -> dict[str, Any]:
    data = base64.b64encode(PIXEL).decode()
    blocks: dict[str, dict[str, Any]] = {
        "dot": {"type": "image", "data": data, "mimeType": "image/png"},
        "tone": {"type": "audio", "data": data, "mimeType": "audio/wav"},
        "file": {"type": "resource", "resource": {"uri": "file:///f", "blob": data, "mimeType": "image/png"}},
        "page": {"type": "resource", "resource": {"uri": "file:///p", "text": "a page"}},
        "link": {"type": "resource_link", "uri": "http://127.0.0.1/x", "name": "x", "description": "far away"},
    }
    found = {"spans": [[1.5, 3.0]], "thing": thing}
    return {"content": [{"type": "text", "text": "seen"}, blocks[thing]], "structuredContent": found}


def went_wrong(how: str) -> Any:
    match how:
        case "die":
            sys.stderr.write("out of memory\n")
            sys.stderr.flush()
            os._exit(3)
        case "hang":
            return None
        case "error":
            return text("the disk is full", isError=True)
        case "garbage":
            return {"content": "no list"}
        case "junk line":
            say("Traceback: this is no JSON")
            return text("still here")
        case "big":
            return text("x" * 3_000_000, structuredContent={"all": "y" * 200_000})
        case "odd":
            return text("odd", structuredContent={"n": 1 << 80})
        case _:
            return text(how, isError=False)


def called(name: str, given: dict[str, Any]) -> Any:
    match name:
        case "add":
            return text(str(given["a"] + given["b"]))
        case "look":
            return looked(given["thing"])
        case "remember":
            NOTES.append(given["note"])
            return text(f"note {len(NOTES)}")
        case "recall":
            return text("; ".join(NOTES))
        case "spend":
            return text("spent")
        case "fault":
            return went_wrong(given["how"])
        case "pid":
            return text(str(os.getpid()))
        case "environment":
            return text(" ".join(sorted(os.environ)))
        case _:
            raise KeyError(name)


def answered(method: str, params: dict[str, Any]) -> Any:
    match method:
        case "initialize":
            version = params["protocolVersion"]
            return {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "t", "version": "1"},
            }
        case "tools/list":
            half = int(params.get("cursor", 0))
            more = {} if half else {"nextCursor": "4"}
            return {"tools": TOOLS[4:] if half else TOOLS[:4], **more}
        case "tools/call":
            return called(params["name"], params.get("arguments") or {})
        case _:
            raise KeyError(method)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def answer(message: dict[str, Any]) -> None:
    said: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        result = answered(message["method"], message.get("params") or {})
    except KeyError as error:
        code = -32602 if message["method"] == "tools/call" else -32601
        say(json.dumps({**said, "error": {"code": code, "message": f"no {error}"}}))
        return
    if result is not None:
        say(json.dumps({**said, "result": result}))


def main() -> None:
    ways = sys.argv[1:]
    if "stubborn" in ways:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "chatty" in ways:
        sys.stderr.write("hello from the server\n")
    if "child" in ways:
        subprocess.Popen(["sleep", "600"])
    if "silent" in ways:
        time.sleep(600)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            answer(message)
    if "stubborn" in ways:
        time.sleep(600)


if __name__ == "__main__":
    main()
