"""MCP leaks: how often a branch reads what another branch wrote, with three servers from npm and PyPI.

A scripted model writes words of its own and reads all words, under eight presets. A read is wrong if it does not show
exactly the words that its path wrote before. `shared` is `branches_share_state = true`, which is how servers ran before
they had working folders; `own` is `workdir = "branch"`; `workspace` is `workdir = "workspace"`, for which FOLDER must
be outside `/tmp`. In `shell`, the server acts on the `/w` of the tool `shell`, which writes and reads words there, too;
behind each run, the calls to each leaf are made again alone, and a leaf is `differing` if one has another text or
digest. Target: 0 wrong reads and 0 differing leaves in 1,000 calls of `own`, of `workspace` and of `shell`.

Run: python bench/mcp_leaks.py FOLDER [--install] [--questions N] [--ways own shared workspace shell] [--presets P …]

`--install` puts the servers into FOLDER first: @modelcontextprotocol/server-filesystem and server-memory by npm, and
mcp-server-sqlite with mcp<2 by pip, in an environment of its own that `--python` makes; in workspaces this must be a
Python below `/usr`.
"""

import argparse
import asyncio
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

from smoke import few

from ramify import rollout_sync
from ramify.config.run_config import ToolConfig, ToolsConfig
from ramify.core.errors import ToolError
from ramify.core.format import ToolAction
from ramify.core.segment import ToolCall
from ramify.core.tree import Tree
from ramify.runner.toolbox import Toolbox
from ramify.runner.tools import tools_of
from ramify.tasks.countdown import Countdown
from ramify.testing import Scripted

PRESETS = few(("aepo", "arpo", "at2po", "chains", "self_consistency", "tree_grpo", "treepo", "treerl"), ("arpo",))
WORD = re.compile(r"w\d{6}z")
SQLITE = "python3 -c \"import sqlite3 as s;c=s.connect('data.db');{}\""
INSERT = SQLITE.format("c.execute('INSERT INTO words VALUES(?)',['{}']);c.commit()")
SELECT = SQLITE.format("print(*c.execute('SELECT word FROM words'))")
ENTITY = """printf '\\n{{"type":"entity","name":"{}","entityType":"w","observations":[]}}' >> memory.jsonl"""
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
    command: str
    """Writes a word in the shell."""
    look: str
    """Shows all words in the shell."""


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
        "touch {}.txt",
        "ls",
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
        INSERT,
        SELECT,
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
        ENTITY,
        "test ! -e memory.jsonl || cat memory.jsonl",
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
    differing: int = 0
    """Leaves whose calls had another text or digest when they were made again alone."""

    def __add__(self, other: "Count") -> "Count":
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Count(*(one + two for one, two in both))


def install(folder: Path, python: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ["@modelcontextprotocol/server-filesystem", "@modelcontextprotocol/server-memory"]
    subprocess.run(["npm", "install", "--no-fund", "--no-audit", "--prefix", str(folder), *names], check=True)
    subprocess.run([python, "-m", "venv", str(folder / "python")], check=True)
    pip = str(folder / "python" / "bin" / "pip")
    subprocess.run([pip, "install", "-q", "mcp-server-sqlite", "mcp<2"], check=True)


def model(server: Server, folder: str, *, has_shell: bool) -> Callable[[Any], str]:
    """Writes or reads, as the seed says, and answers at the end. A call is shorter than a segment of `treepo`, since a
    script does not continue a turn that was cut."""

    def say(turn: Any) -> str:
        if turn.context.count("<result>") >= CALLS:
            return "<answer>done</answer>"
        word, is_write = f"w{turn.seed % 1_000_000:06d}z", turn.seed >> 20 & 1
        if has_shell and turn.seed >> 21 & 1:
            return f"<shell>{server.command.format(word) if is_write else server.look}</shell>"
        if is_write:
            return f"<write>{json.dumps(server.written(word, folder))}</write>"
        return f"<read>{json.dumps(server.asked(folder))}</read>"

    return say


def counted(trees: Sequence[Tree]) -> Count:
    """Each call once, however many leaves share it."""
    count, seen = Count(), set[int]()
    for tree in trees:
        for leaf in tree.leaves():
            wrote: set[str] = set()
            for call in tree.branch(leaf).tool_calls:
                if is_write(call) and call.status in ("ok", "empty"):
                    wrote |= set(WORD.findall(call.arguments))
                if id(call) not in seen:
                    seen.add(id(call))
                    count += of_call(call, wrote)
    return count


def is_write(call: ToolCall) -> bool:
    return call.tool == "write" or (call.tool == "shell" and WORD.search(call.arguments) is not None)


def of_call(call: ToolCall, wrote: set[str]) -> Count:
    failed = call.status not in ("ok", "empty")
    if failed or is_write(call):
        return Count(1, 0, 0, failed)
    return Count(1, 1, set(WORD.findall(call.result)) != wrote)


async def num_differing(use: Mapping[str, Any], trees: Sequence[Tree]) -> int:
    """Leaves whose calls give another text or digest when a fresh toolbox makes them alone."""
    config = ToolsConfig(use={name: ToolConfig(**entry) for name, entry in use.items()})
    found = 0
    for number, tree in enumerate(trees):
        box = Toolbox(tools_of(Countdown(), config), config, problems={str(number): tree.problem})
        for leaf in tree.leaves():
            try:
                await box.call(str(number), tree.branch(leaf), ToolAction("shell", "true"))
            except ToolError as error:
                print(error, file=sys.stderr)
                found += 1
            box.release(str(number))
        await box.close()
    return found


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
        elif way == "shell":
            use = {**server.options(at, "/w"), "workdir": "workspace", "workspace": "shell"}
        else:
            use = {**server.options(at, str(shared)), "branches_share_state": True}
        use |= {"only": [server.write, server.read], "rename": {server.write: "write", server.read: "read"}}
        entries = {server.name: {"kind": "mcp", "options": use}}
        if way == "shell":
            entries["shell"] = {"options": {"workspace": str(given), "readable": [str(at)]}}
        named = {"own": "/workdir", "workspace": "/w", "shell": "/w"}.get(way, str(shared))
        result = rollout_sync(
            [f"Note words ({number})." for number in range(options.questions)],
            preset=preset,
            engine=Scripted(model(server, named, has_shell=way == "shell")),
            growth__max_turns=CALLS + 1,
            max_trees=1,
            max_failed_share=1.0,
            tools__use=entries,
        )
        differing = asyncio.run(num_differing(entries, result.trees)) if way == "shell" else 0
    return counted(result.trees) + Count(lost=result.report.failed_leaves, differing=differing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="where the servers are, or are put by --install")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--questions", type=int, default=1)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ways", nargs="+", default=["shared", "own", "workspace", "shell"])
    parser.add_argument("--servers", nargs="+", default=[server.name for server in SERVERS])
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    options = parser.parse_args()
    if options.folder is None:
        print("skipped: name a folder of servers, or one to put them into with --install")
        return
    if options.install:
        install(Path(options.folder), options.python)
    heads = "".join(f"{head:>10}" for head in (*vars(Count()), "s/call"))
    print(f"{'way':9} {'server':11} {'preset':17}{heads}")
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
    numbers = "".join(f"{number:10}" for number in vars(count).values())
    return f"{way:9} {server:11} {preset:17}{numbers}{'' if seconds is None else f'{seconds:10.2f}'}"


if __name__ == "__main__":
    main()
