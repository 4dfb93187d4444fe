"""The modules whose names users may import: those of the table in `docs/guides/extend.md`."""

import re
from pathlib import Path
from typing import Final

EXTEND: Final = Path(__file__).parents[1] / "guides" / "extend.md"
SECTION: Final = "## What you may import"


def public_modules() -> tuple[str, ...]:
    section = EXTEND.read_text("utf-8").split(SECTION, 1)[1]
    lines = section.split("\n## ")[0].splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return tuple(name for cell in cells for name in re.findall(r"`(ramify[\w.]*)`", cell))


PUBLIC_MODULES: Final = public_modules()
