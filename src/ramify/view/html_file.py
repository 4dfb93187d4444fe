"""HTML file: runs as one page that opens from the disk, without a network and without ramify.

Everything that the page can show is inside: figures, trees, decisions and tokens. Trees are added in the order of their
numbers. A file that would be too large is refused, with the options that make it smaller.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from ramify.core.errors import ConfigError
from ramify.view.documents import Documents
from ramify.view.page import blocks, page_of

MAX_BYTES: Final = 25 * 2**20
"""Larger files open slowly and cannot be sent by mail."""
FILL_S: Final = 60.0


def write_html(
    documents: Documents,
    path: Path,
    *,
    trees: Collection[int] | None = None,
    max_nodes: int | None = None,
    has_tokens: bool = True,
) -> int:
    """Write the new file `path` and return its size in bytes.

    `trees`: the only trees to put in; None = all. `max_nodes`: trees are put in until there are so many nodes. Other
    trees stand in the table only. Raises `ConfigError` if the file is there, cannot be written or would be too large,
    and if one of `trees` is in no run.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"cannot write {path}: the name of a page ends in .html")
    text = html_page(documents, trees=trees, max_nodes=max_nodes, has_tokens=has_tokens)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; name a new file") from error
    return len(text.encode())


def html_page(
    documents: Documents,
    *,
    trees: Collection[int] | None = None,
    max_nodes: int | None = None,
    has_tokens: bool = True,
) -> str:
    """The text of the file; see `write_html`."""
    list(documents.look())
    _refuse_unknown(documents, trees or ())
    chosen = _chosen(documents, trees=trees, max_nodes=max_nodes, has_tokens=has_tokens)
    text = page_of(_bounded(blocks(chosen)))
    if len(text) > MAX_BYTES:
        raise _too_large()
    return text


def _refuse_unknown(documents: Documents, trees: Collection[int]) -> None:
    unknown = sorted(set(trees).difference(*(run.trees for run in documents.runs)))
    if unknown:
        raise ConfigError(f"there is no tree {unknown[0]}; `ramify show RUN` lists the trees of a run")


def _bounded(blocks: Iterable[str]) -> Iterator[str]:
    """The blocks. A page that would be too large is refused before the rest of a large run is read."""
    size = 0
    for block in blocks:
        size += len(block)
        if size > MAX_BYTES:
            raise _too_large()
        yield block


def _chosen(
    documents: Documents, *, trees: Collection[int] | None, max_nodes: int | None, has_tokens: bool
) -> Iterator[tuple[str, Any]]:
    index = documents.index(is_live=False)
    first = sorted(documents.runs[0].trees) if documents.runs else []
    wanted = [number for number in first if trees is None or number in trees]
    yield "index", index | ({"opens": wanted[0]} if len(documents.runs) == 1 and len(wanted) == 1 else {})
    num_nodes = 0
    for run, followed in enumerate(documents.runs):
        for number in sorted(followed.trees):
            if (trees is not None and number not in trees) or (max_nodes is not None and num_nodes >= max_nodes):
                continue
            tree = documents.tree_or_error(run, number)
            yield f"run/{run}/tree/{number}", tree
            if "error" in tree:
                continue
            num_nodes += len(tree["nodes"]["parent"])
            for chunk in range(len(tree["chunks"]) if has_tokens else 0):
                yield f"run/{run}/tree/{number}/tokens/{chunk}", documents.tokens(run, number, chunk)
    while documents.fill(FILL_S):  # What is left: a tree that is put in has its figures already.
        pass
    for run in range(len(documents.runs)):
        yield f"run/{run}", documents.get(f"run/{run}")


def _too_large() -> ConfigError:
    return ConfigError(
        f"the page would be larger than {MAX_BYTES / 2**20:.0f} MiB; put less in: --tree N (may be repeated), "
        "--max-nodes N, or --no-tokens; `ramify view RUN` without --html has no such limit"
    )
