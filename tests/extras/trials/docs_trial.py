"""Sphinx builds the site from the documents of this repository and the installed code, without a warning."""

import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]

made = shutil.ignore_patterns("_build", "generated")
shutil.copytree(REPOSITORY / "docs", "docs", ignore=made)
for page in REPOSITORY.glob("*.md"):
    shutil.copy(page, page.name)
shutil.copytree(REPOSITORY / "examples", "examples")
subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", "docs", "site"], check=True)
assert "ramify" in Path("site", "index.html").read_text("utf-8")
