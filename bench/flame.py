"""Where the time of a turn goes, as a picture: py-spy watches a run with 512 trees in flight (`many_trees.py`).

The scripted engine answers at once in virtual time, so what is seen is the work of the process that grows trees. The
wider a call, the more time in it; what it calls stands below it. Functions are named with a line of them.

`--checkout` names a checkout of another commit, whose run is watched in place of that of this one.

Run: python bench/flame.py [--spy .venv-peers/bin/py-spy] [--out docs/flame-turn.svg] [--checkout FOLDER]
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from smoke import IS_SMOKE, few

CHECKOUT: Final = Path(__file__).resolve().parent.parent
RUN: Final = """\
import sys
sys.path[:0] = {paths!r}
from many_trees import engine, grown
from ramify.testing.clock import run_virtual
print("ready", flush=True)
sys.stdin.readline()
run_virtual(grown(engine(1.0), trees={trees}))
"""
TITLE: Final = re.compile(r'(<text id="title"[^>]*>)[^<]*')
"""py-spy writes its command line there, with the paths of this machine."""
SCRIPT: Final = re.compile(r"<script.*?</script>| onload=\"[^\"]*\"", re.DOTALL)
"""A picture in a page runs none."""


def recorded(spy: str, out: Path, checkout: Path) -> str:
    """Watch a run from its first tree to its end. What py-spy says of a fault; "" if the picture is there."""
    code = RUN.format(paths=[str(checkout / "src"), str(checkout / "bench")], trees=few(512, 4))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        run.stdout.readline()
        command = [spy, "record", "--rate", "200", "--function", "--output", str(out), "--pid", str(run.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as spying:
            assert spying.stdout is not None
            first = spying.stdout.readline()
            run.stdin.write("go\n")
            run.stdin.close()
            said = first + spying.stdout.read()
    return said if spying.returncode else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spy", default=shutil.which("py-spy") or str(CHECKOUT / ".venv-peers/bin/py-spy"))
    out = Path("flame.svg") if IS_SMOKE else CHECKOUT / "docs" / "flame-turn.svg"
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help="whose run is watched")
    options = parser.parse_args()
    if not Path(options.spy).exists():
        print(f"skipped: {Path(options.spy).name} is missing: pip install py-spy, or make .venv-peers/.ready")
        return
    if fault := recorded(options.spy, options.out, options.checkout.resolve()):
        print(f"skipped: py-spy may not watch processes here: {fault.strip().splitlines()[-1]}")
        return
    drawn = SCRIPT.sub("", options.out.read_text("utf-8"))
    options.out.write_text(TITLE.sub(r"\1A run with 512 trees in flight", drawn, count=1), "utf-8")
    print(f"{options.out.name}: {len(drawn) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
