"""`python notebook_cells.py NOTEBOOK` executes the code cells of a notebook in order, in one event loop and one name
space as Jupyter does, and writes what every expression shows."""

import ast
import asyncio
import json
import sys
from inspect import isawaitable
from pathlib import Path
from typing import Any


def show(value: Any) -> None:
    """Write a value as Jupyter shows it: as a picture, if it is one."""
    if value is not None:
        sys.stdout.write(f"{value._repr_svg_() if hasattr(value, '_repr_svg_') else repr(value)}\n")


async def execute(notebook: dict[str, Any]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cells = ast.Interactive(ast.parse("".join(cell["source"])).body)
            made = eval(compile(cells, cell["id"], "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if isawaitable(made):
                await made


if __name__ == "__main__":
    sys.displayhook = show
    asyncio.run(execute(json.loads(Path(sys.argv[1]).read_text("utf-8"))))
