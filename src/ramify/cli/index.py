"""`ramify index`: build a search index from a corpus, for the tool `search` and for `ramify retriever serve`."""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag
from ramify.cli.terminal import Terminal, visible

if TYPE_CHECKING:
    from ramify.tools.corpus import Corpus
    from ramify.tools.passages import Passage

PASSAGES_A_LOOK = 500
"""Passages between two updates of the progress bar: a hundredth of a second."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "corpus", type=Path, metavar="CORPUS", help="one row per passage: .jsonl, .jsonl.gz or .parquet"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="INDEX", help="path of the new index; it must not exist"
    )
    kinds = "sqlite: one file, needs nothing; tantivy: a folder, quicker, an extra"
    parser.add_argument("--backend", choices=("sqlite", "tantivy"), default="sqlite", help=kinds)
    parser.add_argument(
        "--text", metavar="COLUMN", help="column of the text (default: text, else Search-R1's contents)"
    )
    parser.add_argument("--title", metavar="COLUMN", help="column of the title (default: title, if there is one)")
    parser.add_argument("--id", metavar="COLUMN", help="column of the id (default: id, if there is one)")
    parser.add_argument(
        "--on-bad-row",
        choices=("stop", "skip"),
        default="stop",
        help="a row that cannot be read stops the build, or is skipped and counted",
    )
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    from ramify.tools.corpus import Columns, Corpus
    from ramify.tools.search_index import build_index

    columns = Columns(text=options.text, title=options.title, uid=options.id)
    corpus = Corpus(options.corpus, columns, on_bad_row=options.on_bad_row)
    began = time.perf_counter()
    number = build_index(options.out, _shown(corpus, terminal), backend=options.backend)
    seconds = round(time.perf_counter() - began, 1)
    if corpus.num_bad:
        terminal.say(f"{corpus.num_bad} bad rows were skipped:\n{visible(corpus.report(), keep=chr(10))}")
    if options.json:
        values = {"index": str(options.out), "passages": number, "bad_rows": corpus.num_bad, "seconds": seconds}
        terminal.result("ramify.index/1", {**values, "backend": options.backend})
    else:
        said = f"{number} passages in {options.out}, {seconds:.1f} s"
        terminal.lines([said])
    terminal.say(f"serve: ramify retriever serve {options.out} | in a run: [tools.use.search.options] index = ...")
    return ExitCode.DONE


def _shown(corpus: "Corpus", terminal: Terminal) -> "Iterator[Passage]":
    """The passages of a corpus, with a progress bar."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("index"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[number]} passages"),
        console=terminal.err,
        transient=True,
        disable=terminal.verbosity < 0 or not terminal.err.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=1.0, number=0)
        for count, passage in enumerate(corpus.passages(), start=1):
            if count % PASSAGES_A_LOOK == 0:
                bar.update(task, completed=corpus.share_read, number=count)
            yield passage
