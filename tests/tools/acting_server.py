"""An MCP server by the standard library alone, whose one tool `act` runs Python code in the server and returns what the
code calls `out`. Servers in workspaces are given this text by `python3 -c`: no file of the tests is seen there.
"""

import json
import sys
from typing import Any

SCHEMA = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
NAMES: dict[str, Any] = {}
"""Variables of the code, which last as long as the process."""


def called(code: str) -> dict[str, Any]:
    NAMES["out"] = ""
    try:
        exec(code, NAMES)
        said, is_error = NAMES["out"], False
    except Exception as error:  # noqa: BLE001
        said, is_error = f"{type(error).__name__}: {error}", True
    return {"content": [{"type": "text", "text": str(said)}], "isError": is_error}


def answered(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "acting", "version": "1"}}
            return {"protocolVersion": params["protocolVersion"], **about}
        case "tools/list":
            return {"tools": [{"name": "act", "inputSchema": SCHEMA}]}
        case "tools/call":
            return called(params["arguments"]["code"])
        case _:
            return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        found = answered(message["method"], message.get("params") or {})
        result = {"error": {"code": -32601, "message": "no such method"}} if found is None else {"result": found}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **result}) + "\n")
        sys.stdout.flush()
