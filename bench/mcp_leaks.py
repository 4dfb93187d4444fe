"""MCP leaks: how often a branch reads what another branch wrote, with three servers from npm and PyPI.

A scripted model writes words of its own and reads all words, under eight presets. A read is wrong if it does not show
exactly the words that its path wrote before. `shared` is `branches_share_state = true`, which is how servers ran before
they had working folders; `own` is `workdir = "branch"`; `workspace` is `workdir = "workspace"`, for which FOLDER must
be outside `/tmp` and this Python below `/usr`. Target: 0 wrong reads in 1,000 calls of `own` and of `workspace`.

Run: python bench/mcp_leaks.py FOLDER [--install] [--questions N] [--ways own shared workspace] [--presets P …]

`--install` puts the servers into FOLDER first: @modelcontextprotocol/server-filesystem and server-memory by npm, and
mcp-server-sqlite with mcp<2 by pip, in an environment of its own.
"""

import argparse
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify import rollout_sync
from ramify.core.segment import ToolCall
from ramify.core.tree import Tree
from ramify.testing import Scripted

PRESETS = ("aepo", "arpo", "at2po", "chains", "self_consistency", "tree_grpo", "treepo", "treerl")
WORD = re.compile(r"w\d{6}z")
CALLS = 6
"""Most calls of a path."""


@dataclass(frozen=True)
class Server:
    """One server: how it is started on the folder of its state, and how the model writes and reads words."""

    name: str
    options: Callable[[Path, str], Mapping[str, Any]]
    """(Folder of the installation, folder of the state) -> options."""
    write: str
    read: str
    written: Callable[[str, str], Mapping[str, Any]]
    """(Word, folder that the model names) -> arguments."""
    asked: Callable[[str], Mapping[str, Any]]


def npm(folder: Path, name: str) -> str:
    return str(folder / "node_modules" / ".bin" / name)


SERVERS = (
    Server(
        "filesystem",
        lambda at, state: {"command": npm(at, "mcp-server-filesystem"), "args": [state]},
        "write_file",
        "list_directory",
        lambda word, folder: {"path": f"{folder}/{word}.txt", "content": word},
        lambda folder: {"path": folder},
    ),
    Server(
        "sqlite",
        lambda at, state: {
            "command": str(at / "python" / "bin" / "mcp-server-sqlite"),
            "args": ["--db-path", f"{state}/data.db"],
        },
        "write_query",
        "read_query",
        lambda word, folder: {"query": f"INSERT INTO words VALUES ('{word}')"},
        lambda folder: {"query": "SELECT word FROM words"},
    ),
    Server(
        "memory",
        lambda at, state: {
            "command": npm(at, "mcp-server-memory"),
            "env": {"MEMORY_FILE_PATH": f"{state}/memory.jsonl"},
        },
        "create_entities",
        "read_graph",
        lambda word, folder: {"entities": [{"name": word, "entityType": "w", "observations": []}]},
        lambda folder: {},
    ),
)


@dataclass
class Count:
    """Calls and reads of the trees of one preset."""

    calls: int = 0
    reads: int = 0
    """Reads that were answered."""
    wrong: int = 0
    failed: int = 0
    """Calls that were refused or failed."""
    lost: int = 0
    """Leaves that ended because the calls of their path could not be repeated with the same results."""

    def __add__(self, other: "Count") -> "Count":
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Count(*(one + two for one, two in both))


def install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ["@modelcontextprotocol/server-filesystem", "@modelcontextprotocol/server-memory"]
    subprocess.run(["npm", "install", "--no-fund", "--no-audit", "--prefix", str(folder), *names], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "python")], check=True)
    pip = str(folder / "python" / "bin" / "pip")
    subprocess.run([pip, "install", "-q", "mcp-server-sqlite", "mcp<2"], check=True)


def model(server: Server, folder: str) -> Callable[[Any], str]:
    """Writes or reads, as the seed says, and answers at the end. A call is shorter than a segment of `treepo`, since a
    script does not continue a turn that was cut."""

    def say(turn: Any) -> str:
        if turn.context.count("<result>") >= CALLS:
            return "<answer>done</answer>"
        if turn.seed >> 20 & 1:
            call = server.written(f"w{turn.seed % 1_000_000:06d}z", folder)
            return f"<write>{json.dumps(call)}</write>"
        return f"<read>{json.dumps(server.asked(folder))}</read>"

    return say


def counted(trees: Sequence[Tree]) -> Count:
    """Each call once, however many leaves share it."""
    count, seen = Count(), set[int]()
    for tree in trees:
        for leaf in tree.leaves():
            wrote: set[str] = set()
            for call in tree.branch(leaf).tool_calls:
                if call.tool == "write" and call.status == "ok":
                    wrote |= set(WORD.findall(call.arguments))
                if id(call) not in seen:
                    seen.add(id(call))
                    count += of_call(call, wrote)
    return count


def of_call(call: ToolCall, wrote: set[str]) -> Count:
    failed = call.status not in ("ok", "empty")
    if failed or call.tool != "read":
        return Count(1, 0, 0, failed)
    return Count(1, 1, set(WORD.findall(call.result)) != wrote)


def template(folder: Path) -> Path:
    made = folder / "template"
    made.mkdir()
    with closing(sqlite3.connect(made / "data.db")) as database:
        database.execute("CREATE TABLE words (word TEXT)")
        database.commit()
    return made


def grown(server: Server, preset: str, way: str, options: argparse.Namespace) -> Count:
    with tempfile.TemporaryDirectory() as scratch:
        at, given = Path(options.folder).resolve(), template(Path(scratch))
        shared = shutil.copytree(given, Path(scratch) / "shared")
        if way == "own":
            use = {**server.options(at, "{branch}"), "workdir": "branch", "template": str(given)}
        elif way == "workspace":
            use = {**server.options(at, "/w"), "workdir": way, "template": str(given)}
            use["workspace"] = {"readable": [str(at)]}
        else:
            use = {**server.options(at, str(shared)), "branches_share_state": True}
        use |= {"only": [server.write, server.read], "rename": {server.write: "write", server.read: "read"}}
        named = {"own": "/workdir", "workspace": "/w"}.get(way, str(shared))
        result = rollout_sync(
            [f"Note words ({number})." for number in range(options.questions)],
            preset=preset,
            engine=Scripted(model(server, named)),
            growth__max_turns=CALLS + 1,
            max_trees=1,
            max_failed_share=1.0,
            tools__use={server.name: {"kind": "mcp", "options": use}},
        )
    return counted(result.trees) + Count(lost=result.report.failed_leaves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--questions", type=int, default=1)
    parser.add_argument("--ways", nargs="+", default=["shared", "own", "workspace"])
    parser.add_argument("--servers", nargs="+", default=[server.name for server in SERVERS])
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    options = parser.parse_args()
    if options.install:
        install(Path(options.folder))
    heads = "".join(f"{head:>7}" for head in (*vars(Count()), "s/call"))
    print(f"{'way':7} {'server':11} {'preset':17}{heads}")
    for way in options.ways:
        total = Count()
        for server in (each for each in SERVERS if each.name in options.servers):
            for preset in options.presets:
                began = time.monotonic()
                count = grown(server, preset, way, options)
                seconds = (time.monotonic() - began) / count.calls
                print(row(way, server.name, preset, count, seconds), flush=True)
                total += count
        print(row(way, "all", "all", total, None), flush=True)


def row(way: str, server: str, preset: str, count: Count, seconds: float | None) -> str:
    numbers = "".join(f"{number:7}" for number in vars(count).values())
    return f"{way:7} {server:11} {preset:17}{numbers}{'' if seconds is None else f'{seconds:7.2f}'}"


if __name__ == "__main__":
    main()
