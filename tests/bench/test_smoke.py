"""The scripts of `bench` run: a few seconds of each, with `--smoke`. Their figures are not looked at."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = [path for path in sorted((REPOSITORY / "bench").glob("*.py")) if "__main__" in path.read_text("utf-8")]
SAYS_WHY = "skipped: "
"""How a script begins to say which library, server or checkout it needs."""
TIMEOUT_S = 300.0


def imported(script: Path) -> set[Path]:
    """The files of `bench` that a script imports, and those that these import."""
    found, left = set[Path](), [script]
    while left:
        names = re.findall(r"^(?:from|import) (\w+)", left.pop().read_text("utf-8"), re.MULTILINE)
        left += {path for name in names if (path := script.with_name(f"{name}.py")).exists()} - found
        found.update(left)
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_one_module_alone_takes_the_flag(script: Path) -> None:
    """`smoke.py` takes `--smoke` from the arguments, so a script that also looks for it runs in full."""
    has_own = 'add_argument("--smoke"' in script.read_text("utf-8")
    assert not (has_own and script.with_name("smoke.py") in imported(script)), "use `few` of smoke.py"


@pytest.mark.bench
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_bench_prints_its_figures(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, str(script), "--smoke"],
        check=False,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.stdout.strip(), "it printed nothing"
    if done.stdout.startswith(SAYS_WHY):
        pytest.skip(done.stdout.strip())
