"""An MCP server by the standard library alone, so that it starts at once. It keeps notes in the file named first, and
misbehaves as it is asked to: `notes_server.py FILE [memory] [clock] [absolute] [readers] [log]`.

memory     notes are read from the process, not from the file
clock      results hold the time
absolute   the file is found by an absolute path that the folder holds
readers    every tool is said to be read-only
log        the folder holds the time of the last call
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FILE, WAYS = Path(sys.argv[1]), sys.argv[2:]
KEPT: list[str] = []
"""Notes of the process alone."""
TEXT = {"type": "string"}


def tool(name: str, *, is_reader: bool = False, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    hints = {"readOnlyHint": True} if is_reader or "readers" in WAYS else {}
    return {"name": name, "inputSchema": schema, "annotations": hints}


TOOLS = [tool("write", note=TEXT), tool("read", is_reader=True), tool("where", is_reader=True, thing=TEXT)]


def notes() -> list[str]:
    return FILE.read_text("utf-8").split("\n")[:-1] if FILE.exists() else []


def write(note: str) -> str:
    KEPT.append(note)
    with FILE.open("a", encoding="utf-8") as file:
        file.write(f"{note}\n")
    if "absolute" in WAYS:
        Path("where.txt").write_text(str(FILE.absolute()), "utf-8")
    if "log" in WAYS:
        Path("log.txt").write_text(str(time.time_ns()), "utf-8")
    return f"note {len(notes())} in {FILE.absolute()} {time.time_ns() if 'clock' in WAYS else ''}"


def read() -> str:
    if "absolute" in WAYS and Path("where.txt").exists():
        return " ".join(Path(Path("where.txt").read_text("utf-8")).read_text("utf-8").split("\n")[:-1])
    return " ".join(KEPT if "memory" in WAYS else notes())


def where(thing: str) -> str:
    """Where the server keeps a thing."""
    if thing == "fault":
        raise ValueError(f"no such file: {Path.cwd() / 'x'}")
    if thing == "die":
        sys.stderr.write(f"lost {Path.cwd()}\n")
        sys.stderr.flush()
        os._exit(3)
    return {"cwd": str(Path.cwd()), "tmp": os.environ.get("TMPDIR", ""), "pid": str(os.getpid())}.get(thing, thing)


def called(name: str, given: dict[str, Any]) -> dict[str, Any]:
    try:
        said, is_error = {"write": write, "read": read, "where": where}[name](**given), False
    except ValueError as error:
        said, is_error = str(error), True
    return {"content": [{"type": "text", "text": said}], "structuredContent": {"said": said}, "isError": is_error}


def answered(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "notes", "version": "1"}}
            return {"protocolVersion": params["protocolVersion"], **about}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return called(params["name"], params.get("arguments") or {})
        case _:
            return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        found = answered(message["method"], message.get("params") or {})
        result = {"error": {"code": -32601, "message": "no such method"}} if found is None else {"result": found}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **result}) + "\n")
        sys.stdout.flush()
