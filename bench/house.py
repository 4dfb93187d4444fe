"""What the shape of the package costs: a column a checkout, so that two versions can be compared.

    python bench/house.py [CHECKOUT ...]

Sizes are counted in `src`. Rooms and files are those whose functions run between the call of `rollout` and the first
request to an engine, and between its answer and the first row. CPU times are medians of ten fresh processes.
"""

import ast
import json
import os
import resource
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from smoke import few

ROOT = Path(__file__).parent.parent
NUM_RUNS = few(10, 1)

PASSED = """
import json, sys
from pathlib import Path
import ramify
from ramify.plugins import TABLE, config_class, find
root = str(Path(ramify.__file__).parent)
seen, phase = {"prompt": set(), "row": set()}, "prompt"
def watch(frame, event, arg):
    if event == "call" and phase and frame.f_code.co_filename.startswith(root):
        seen[phase].add(frame.f_code.co_filename[len(root) + 1:])
engine = find("engine", "scripted")()
generate = engine.generate
async def watched(request):
    global phase
    phase = None
    made = await generate(request)
    phase = "row"
    return made
engine.generate = watched
sys.setprofile(watch)
done = ramify.rollout_sync(prompts=1, engine=engine)
done.rows()
sys.setprofile(None)
def rooms(files):
    return len({file.split("/")[0] for file in files})
from dataclasses import fields
configs = [fields(config_class(find("strategy", name))) for name in TABLE["strategy"]]
print(json.dumps({
    "rooms before the first token": rooms(seen["prompt"]), "files before the first token": len(seen["prompt"]),
    "rooms from a token to its row": rooms(seen["row"]), "files from a token to its row": len(seen["row"]),
    "options of strategies, all": sum(map(len, configs)), "options of the longest": max(map(len, configs)),
}))
"""
LOADED = """
import sys
from ramify.strategies import chains
print(sum(name.startswith("ramify.strategies.") and ".parts" not in name for name in sys.modules))
"""
COMMANDS = {
    "import of one strategy, ms of CPU": ["-c", "import ramify.strategies.chains"],
    "ramify --help, ms of CPU": ["-m", "ramify.cli.main", "--help"],
    "ramify presets, ms of CPU": ["-m", "ramify.cli.main", "presets"],
}


def sizes(checkout: Path) -> dict[str, float]:
    files = list((checkout / "src").rglob("*.py"))
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return {
        "lines of src": sum(len(file.read_text("utf-8").splitlines()) for file in files),
        "files of src": len(files),
        "public class names that stand twice": sum(n > 1 and not name.startswith("_") for name, n in names.items()),
    }


def python(checkout: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd="/", capture_output=True, text=True, check=True
    )
    return done.stdout


def cpu_ms(checkout: Path, arguments: Sequence[str]) -> float:
    """Median of fresh processes, user and system."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        python(checkout, *arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)

    once()  # compiles what is not compiled yet
    return round(statistics.median(once() for _ in range(NUM_RUNS)))


def figures(checkout: Path) -> dict[str, float]:
    return {
        **sizes(checkout),
        **json.loads(python(checkout, "-c", PASSED)),
        "methods loaded by importing one": float(python(checkout, "-c", LOADED)),
        **{name: cpu_ms(checkout, arguments) for name, arguments in COMMANDS.items()},
    }


def main(checkouts: Sequence[Path]) -> None:
    table = Table("figure (lower is better)", *(str(checkout) for checkout in checkouts), box=None)
    columns = [figures(checkout) for checkout in checkouts]
    for name in columns[0]:
        table.add_row(name, *(f"{column[name]:,.0f}" for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main([Path(argument).resolve() for argument in sys.argv[1:]] or [ROOT])
