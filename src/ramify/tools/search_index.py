"""Indexes of passages for full-text search: what they hold, how a query is read, and how one gets onto a disk.

Owns what a word is, the same for every backend: a run of letters and digits, its case and accents ignored. A query is
its words joined by OR, so no text a model writes is ever query syntax. Hits come by BM25 score, equal scores in the
order the passages were added, so the same query on the same passages gives the same answer. An index on disk is built
once, appears whole or not at all, and is only read from then on.
"""

import contextlib
import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

from ramify.core.errors import ConfigError, nearest

Backend = Literal["sqlite", "tantivy"]
"""`sqlite` needs nothing but Python and makes one file; `tantivy` is quicker and makes a folder."""

FORMAT_VERSION: Final = 1
"""Of what is on disk; an index of another version is refused."""
MAX_QUERY_WORDS: Final = 64
"""Different words of a query that count; the rest of a longer one is ignored."""
MAX_QUERY_CHARS: Final = 16384
"""What is read of a query at all."""
COMMON_SHARE: Final = 0.2
"""A word in more than this share of the passages is common: it tells little and costs most of the time. Not asking for
such words made the median query 19 times as quick (`bench/search_index.py`, 100,000 passages in SQLite)."""
MIN_LARGE: Final = 1000
"""An index of fewer passages answers at once whatever it is asked: no word of it is common."""
MAX_PARALLEL: Final = min(8, os.cpu_count() or 1)
"""Searches at once in an index on disk; they keep a core busy each."""

_WORD = re.compile(r"[^\W_]+")
_ACCENTS = re.compile("[\u0300-\u036f]")


@dataclass(frozen=True, slots=True)
class Passage:
    """What is indexed and found."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage found; a higher `score` is a better match."""

    passage: Passage
    score: float


class Index(Protocol):
    """Passages that can be searched. Safe to ask from several threads."""

    @property
    def num_passages(self) -> int: ...

    @property
    def is_blocking(self) -> bool:
        """Whether a search may take long enough that an event loop should leave it to a thread."""
        ...

    def search(self, query: str, top_k: int) -> Sequence[Hit]:
        """At most `top_k` hits, best first. Any text is a query; one without words finds nothing."""
        ...

    def close(self) -> None: ...


def build_index(path: str | Path, passages: Iterable[Passage], *, backend: Backend = "sqlite") -> int:
    """Write an index of `passages` to `path`, where nothing may be yet. Returns how many they are.

    Passages are taken one by one and not kept. Raises `ConfigError` if there are none, `path` is taken or
    there is no such backend.
    """
    match backend:
        case "sqlite":
            from ramify.tools.sqlite_index import write
        case "tantivy":
            from ramify.tools.tantivy_index import write
        case _:
            raise ConfigError(f"backend = {backend!r}: no such backend; {nearest(backend, get_args(Backend))}")
    with _placed(Path(path)) as unfinished:
        num_passages = write(unfinished, passages)
        if num_passages == 0:
            raise ConfigError(f"there are no passages for the search index {str(path)!r}; one at least is needed")
    return num_passages


def open_index(path: str | Path) -> Index:
    """The index that `build_index` wrote to `path`; it says itself which backend it is of.

    Raises `ConfigError` if there is none, or one that this version cannot read.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"there is no search index {str(path)!r}; `build_index` of {__name__} makes one")
    if path.is_dir():
        from ramify.tools.tantivy_index import open_folder

        return open_folder(path)
    from ramify.tools.sqlite_index import open_file

    return open_file(path)


def words_of(text: str) -> list[str]:
    """The words of a text in their order, folded as they are compared."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))
    return _WORD.findall(text.lower())


def query_words(query: str) -> list[str]:
    """The words of a query, each once, at most `MAX_QUERY_WORDS`."""
    return list(islice(dict.fromkeys(words_of(query[:MAX_QUERY_CHARS])), MAX_QUERY_WORDS))


def indexed_text(passage: Passage) -> str:
    """What a backend is given to index: the words of title and text with spaces between them."""
    return " ".join(words_of(f"{passage.title} {passage.text}"))


def telling_words(words: Sequence[str], num_with: Callable[[str], int], num_passages: int) -> Sequence[str]:
    """The words to search for: those that are not common, or the least common if all are.

    `num_with` says in how many of the `num_passages` passages a word stands.
    """
    if num_passages < MIN_LARGE:
        return words
    telling = [word for word in words if num_with(word) <= COMMON_SHARE * num_passages]
    return telling or sorted(words, key=num_with)[:1]


def refusal(path: Path, why: str) -> ConfigError:
    """The error for what cannot be opened as an index."""
    return ConfigError(f"{str(path)!r} is no search index that can be used: {why}; build it again")


def refuse_version(path: Path, found: object) -> None:
    """Raise `ConfigError` unless an index has the version that is read here."""
    if found != FORMAT_VERSION:
        raise refusal(path, f"it has format {found!r}, and this version of ramify reads {FORMAT_VERSION}")


@contextlib.contextmanager
def _placed(path: Path) -> Iterator[Path]:
    """A path to build at, moved to `path` when the block ends well and removed when it does not."""
    if path.exists():
        raise ConfigError(f"{str(path)!r} is there already; remove it or name another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    _remove(unfinished)
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        _remove(unfinished)


def _remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
