"""The tools of an MCP server in a run: the server is this file too, and the model is a script.

python examples/mcp_tool.py          (needs the extra: pip install 'ramify[mcp]')
"""

import sys
from pathlib import Path

from ramify import rollout_sync
from ramify.testing import Scripted


def serve():
    """A server that keeps notes in its memory."""
    from mcp.server.mcpserver import MCPServer
    from mcp_types import ToolAnnotations

    server = MCPServer("notes")
    notes: list[str] = []

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    def write(note: str) -> str:
        """Add a note."""
        notes.append(note)
        return f"{len(notes)} notes"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def read() -> str:
        """All notes."""
        return ", ".join(notes)

    server.run()


def say(turn):
    """Every branch writes a note of its own, reads its notes and answers."""
    turns = [f"<write>{turn.seed % 1000}</write>", "<read>{}</read>", "<answer>done</answer>"]
    return turns[turn.context.count("<result>")]


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        server = {"command": sys.executable, "args": [str(Path(__file__).absolute()), "serve"], "workdir": "branch"}
        result = rollout_sync(
            ["Note a number."],
            engine=Scripted(say),
            strategy__options={"n": 2},
            tools__use={"notes": {"kind": "mcp", "options": server}},
        )
        (tree,) = result.trees
        for leaf in tree.leaves():
            print(", then ".join(f"{call.tool}: {call.result}" for call in tree.branch(leaf).tool_calls))
