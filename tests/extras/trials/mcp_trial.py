"""`examples/mcp_tool.py`: every branch of a run has an MCP server of its own, and calls its tools."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[3] / "examples" / "mcp_tool.py"), run_name="__main__")
