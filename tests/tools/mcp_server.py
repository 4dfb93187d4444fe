"""An MCP server on standard input and output, by the standard library alone, so that it starts at once.

It keeps notes in its memory, and misbehaves as it is asked to: `mcp_server.py [stubborn] [silent] [chatty] [child]
[astray] [endless] [flooding] [dies=METHOD]`.
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
NO_UTF8 = "text that is none"
TEXT = {"type": "string"}
SAMPLING = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 1}


def tool(name: str, description: str, *, hints: dict[str, bool] | None = None, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "inputSchema": schema, "annotations": hints or {}}


LATE = json.dumps({"jsonrpc": "2.0", "id": 99999, "result": {}})
CHANGED = json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
PING = json.dumps({"jsonrpc": "2.0", "id": "mine", "method": "ping"})
FLOODS = {
    "garbage lines": [*["no JSON"] * 5000, *[LATE] * 100],
    "notifications": [CHANGED] * 5000,
    "requests": [PING] * 1000,
}
SAID = {"no utf-8": NO_UTF8}
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
    tool("ask", "Ask the client for a model.", hints=READS, again=TEXT),
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
            flood(how)
            return [text("first"), text("second")] if how == "twice" else text(SAID.get(how, how), isError=False)


def flood(how: str) -> None:
    """Write what nobody asked for, and some of it for ever."""
    sys.stdout.write("".join(f"{line}\n" for line in FLOODS.get(how, ())))
    while how == "long line":
        sys.stdout.write("x" * (1 << 20))
    while how == "deaf":
        time.sleep(600)
    if how == "slow":
        time.sleep(0.05)
    if how == "complaints":
        sys.stderr.write("no memory\n" * 200_000 + "at last\n")
        sys.stderr.flush()
        os._exit(3)


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
        case "ask":
            say(json.dumps({"jsonrpc": "2.0", "id": "mine", "method": "sampling/createMessage", "params": SAMPLING}))
            return text(json.loads(sys.stdin.readline())["error"]["message"])
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
            more = {} if half and "endless" not in sys.argv else {"nextCursor": "4"}
            return {"tools": TOOLS[4:] if half else TOOLS[:4], **more}
        case "tools/call":
            return called(params["name"], params.get("arguments") or {})
        case _:
            raise KeyError(method)


def say(line: str) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(f"{line}\n".encode().replace(NO_UTF8.encode(), b"a\xffc"))
    sys.stdout.flush()


def answer(message: dict[str, Any]) -> None:
    said: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        result = answered(message["method"], message.get("params") or {})
    except KeyError as error:
        code = -32602 if message["method"] == "tools/call" else -32601
        say(json.dumps({**said, "error": {"code": code, "message": f"no {error}"}}))
        return
    for each in result if isinstance(result, list) else [result]:
        if each is not None:
            say(json.dumps({**said, "result": each}))


def hear(message: dict[str, Any]) -> None:
    if f"dies={message.get('method')}" in sys.argv:
        sys.exit(f"dead at {message['method']}")
    if "id" in message and "method" in message:
        answer(message)


def main() -> None:
    ways = sys.argv[1:]
    if "stubborn" in ways:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "chatty" in ways:
        sys.stderr.write("hello from the server\n")
    if "child" in ways:
        subprocess.Popen(["sleep", "600"])
    if "astray" in ways:
        sys.stderr.write(f"{subprocess.Popen(['sleep', '600'], start_new_session=True).pid}\n")
        sys.stderr.flush()
    while "flooding" in ways:
        sys.stdout.write("no JSON\n" * 1000)
        sys.stderr.write("no memory\n" * 1000)
    if "silent" in ways:
        time.sleep(600)
    for line in sys.stdin:
        hear(json.loads(line))
    if "stubborn" in ways:
        time.sleep(600)


if __name__ == "__main__":
    main()
