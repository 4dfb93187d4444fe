"""What a newcomer meets, beside other libraries: size of `pip install`, time of `import`, the README, a gateway.

Each library is installed from its index by a plain `pip install NAME`, ramify from a wheel of this checkout, each into
a temporary virtual environment without pip. This needs a network, about 2 GB of disk and ten minutes. A library that
cannot be installed is listed with the last line of pip. Less is better in every column:

- `MB`: size of all files of the environment, in 10^6 bytes, compiled modules included; `packages`: how many it has,
- `import X`: CPU-seconds of a fresh interpreter that imports the library; `from X import`: that imports what the first
  program of its README or documentation names (some libraries load these only then). Medians of five,
- `words`: of the README on the index before its first block of commands or code, without markup,
- `longest line`: characters of its longest line, without images and addresses of links.

Then one sample through ramify's gateway and through its_hub's (self-consistency with budget 1), as in `gateway.py`.

Run: python bench/beside_others.py [--requests N] [--rounds N] [--smoke]
"""

import argparse
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Final
from urllib.error import URLError

from gateway import ANSWER_S, Served, both, row

REPOSITORY: Final = Path(__file__).resolve().parents[1]
RUNS: Final = 5
START_S: Final = 60.0
OUTSIDE: Final = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
COLUMNS: Final = (
    *("endpoint answers", "gateway", "in flight", "direct ms", "gateway ms"),
    *("added ms", "direct /s", "gateway /s", "CPU ms"),
)
FENCE: Final = re.compile(r"^\s*(```|~~~)", re.MULTILINE)
MARKUP: Final = (
    (re.compile(r"<!--.*?-->", re.DOTALL), ""),
    (re.compile(r"<[a-zA-Z/][^>]*>"), ""),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), ""),
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),
)


@dataclass(frozen=True, slots=True)
class Library:
    package: str
    """As its index spells it; an extra in brackets may follow."""
    first_names: str
    """A statement that imports what its first program names; empty = its import and README are not measured."""


OURS: Final = Library("ramify[http]", "")
LIBRARIES: Final = (
    Library("ramify", "from ramify import rollout_sync, search"),
    Library("treequest", "from treequest import ABMCTSA, top_k"),
    Library("its_hub", "from its_hub import SelfConsistency, BestOfN"),
    Library("verifiers", "from verifiers.v1 import Env, Taskset"),
    Library("inspect_ai", "from inspect_ai import Task, eval"),
    OURS,
    Library("its_hub[iaas]", ""),
)


def name_of(library: Library) -> str:
    return library.package.partition("[")[0]


def wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, capture_output=True)
    (made,) = folder.glob("ramify-*.whl")
    return made


def install(library: Library, environment: Path, own: Path) -> str | None:
    """Make an environment with the library; return why it cannot be installed, if so."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    wanted = library.package.replace("ramify", str(own)) if name_of(library) == "ramify" else library.package
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet", wanted]
    done = subprocess.run(pip, env=OUTSIDE, capture_output=True, text=True, check=False)
    return (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else None


def cpu_s(python: Path, statement: str) -> float:
    """CPU-seconds of a fresh interpreter that runs a statement: a median, after one run that is not counted."""
    taken: list[float] = []
    for _ in range(RUNS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([str(python), "-c", statement], env=OUTSIDE, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(taken[1:])


def plain(readme: str) -> str:
    """Markdown without comments, tags, images and addresses of links."""
    for pattern, kept in MARKUP:
        readme = pattern.sub(kept, readme)
    return readme


def words_before_code(readme: str) -> int:
    """Words before the first fenced block; all words where there is none."""
    words = plain(FENCE.split(readme, maxsplit=1)[0]).split()
    return sum(any(letter.isalnum() for letter in word) for word in words)


def figures(library: Library, environment: Path) -> str:
    """The row of a library that is installed."""
    python, (site,) = environment / "bin" / "python", environment.glob("lib/python*/site-packages")
    installed = {item.name.lower().replace("-", "_"): item for item in distributions(path=[str(site)])}
    of = installed[name_of(library)]
    files = (path for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    cells = [
        library.package,
        of.version,
        f"{sum(path.stat().st_size for path in files) / 1e6:.0f}",
        str(len(installed)),
    ]
    if not library.first_names:
        return f"| {' | '.join(cells)} | | | | |"
    readme = str(of.metadata.json["description"])
    seconds = [cpu_s(python, statement) for statement in (f"import {name_of(library)}", library.first_names)]
    longest = max(map(len, plain(readme).splitlines()))
    cells += [*(f"{second:.2f}" for second in seconds), str(words_before_code(readme)), str(longest)]
    return f"| {' | '.join(cells)} |"


def asked(url: str, body: dict[str, object] | None = None) -> bool:
    """Whether a server answers; a body is posted to it."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status == 200
    except URLError as error:
        if body is not None:
            raise SystemExit(f"{url} refused {body}: {error}") from error
        return False


@contextmanager
def its_hub(environment: Path, direct: str) -> Iterator[tuple[str, int]]:
    """The gateway of its_hub in front of an endpoint: its address and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(environment / "bin" / "its-iaas"), "--port", str(port), "--log-level", "WARNING"]
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    with subprocess.Popen(command, env=OUTSIDE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            while not asked(f"{url}/v1/models"):
                if started.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"its-iaas did not answer at {url} within {START_S:g} s")
                time.sleep(0.2)
            wanted = {"endpoint": direct, "model": "m", "api_key": "k", "alg": "self-consistency", "budget": 1}
            asked(f"{url}/configure", {**wanted, "regex_patterns": [r"(\d+)"]})
            yield f"{url}/v1", started.pid
        finally:
            started.terminate()
            started.wait(30)


@contextmanager
def gateways(environments: dict[str, Path], answer_s: float, folder: Path) -> Iterator[dict[str, Served]]:
    """Both gateways in front of one endpoint."""
    ours = [str(environments["ramify[http]"] / "bin" / "ramify")]
    with both(answer_s, folder, ramify=ours) as first, its_hub(environments["its_hub[iaas]"], first.direct) as second:
        yield {"ramify": first, "its_hub": Served(first.direct, *second)}


def compare_gateways(environments: dict[str, Path], folder: Path, *, num_requests: int, num_rounds: int) -> None:
    print(f"\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for answer_s in ANSWER_S:
        when = f"after {answer_s:g} s" if answer_s else "at once"
        with gateways(environments, answer_s, folder) as served:
            for in_flight in (1, 64):
                number = max(in_flight, num_requests if in_flight > 1 or not answer_s else num_requests // 20)
                for name, one in served.items():
                    line = row(one, in_flight=in_flight, num_requests=number, num_rounds=num_rounds)
                    print(f"| {when} | {name} {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=600, help="requests of a measurement (default 600)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the median is taken (default 5)")
    parser.add_argument("--smoke", action="store_true", help="only ramify itself, which takes seconds")
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]} alone: {cpu_s(Path(sys.executable), ''):.2f} CPU-seconds\n")
    print("| library | version | MB | packages | `import X` | `from X import` | words | longest line |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder, environments = Path(temporary), dict[str, Path]()
        own = wheel(folder)
        for library in (OURS,) if options.smoke else LIBRARIES:
            environment = folder / library.package
            if refusal := install(library, environment, own):
                print(f"| {library.package} | not installed: {refusal} | | | | | | |", flush=True)
                continue
            environments[library.package] = environment
            print(figures(library, environment), flush=True)
        if {"ramify[http]", "its_hub[iaas]"} <= environments.keys():
            compare_gateways(environments, folder, num_requests=options.requests, num_rounds=options.rounds)


if __name__ == "__main__":
    main()
