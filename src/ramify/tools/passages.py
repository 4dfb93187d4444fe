"""Passages: what a search index holds, how a text is split into words, and how a query is read.

Owns what all backends share. A word is a run of letters and digits; case and accents are ignored. In scripts without
spaces between words (Chinese, Japanese) a word is one character, as in Lucene's standard analysis. A query is its words
joined by OR, so a model's text is never query syntax. Hits are sorted by BM25 score, then by the order in which
passages were added, so the same query on the same passages gives the same answer.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from ramify.core.errors import ConfigError

FORMAT_VERSION: Final = 3
"""Format version of an index on disk; other versions are refused."""
MAX_QUERY_WORDS: Final = 64
"""Most different words of a query; later words are ignored."""
MAX_QUERY_CHARS: Final = 16384
"""Most characters of a query that are read."""
COMMON_SHARE: Final = 0.2
"""A word in more than this share of the passages is common: it says little and costs most of the time. Leaving such
words out of queries made the median query 19 times as fast (`bench/search_index.py`, 100,000 passages in SQLite)."""
MIN_LARGE: Final = 1000
"""An index with fewer passages is always fast, so none of its words counts as common."""
MAX_TOP_K: Final = 100
"""Most passages on a page; Search-R1 asks for 3."""
MAX_PARALLEL: Final = min(8, os.cpu_count() or 1)
"""Parallel searches in an index on disk; each keeps a core busy."""

_SIGNS: Final = "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Ideographs and hiragana, one word per character. Katakana forms whole words."""
_WORD = re.compile(f"[{_SIGNS}]|[^\\W_{_SIGNS}]+")
_ACCENTS = re.compile("[\u0300-\u036f]")


@dataclass(frozen=True, slots=True)
class Passage:
    """One indexed text."""

    text: str
    title: str = ""
    uid: str = ""
    """Its id in its corpus; '' = none."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A found passage. A higher `score` is a better match; None = the server gave no score."""

    passage: Passage
    score: float | None


class Index(Protocol):
    """Passages that can be searched. Safe to ask from several threads."""

    @property
    def num_passages(self) -> int: ...

    @property
    def is_blocking(self) -> bool:
        """Whether a search may be slow, so that an event loop should run it in a thread."""
        ...

    def search(self, query: str, top_k: int) -> Sequence[Hit]:
        """At most `top_k` hits, best first. Any text is a valid query; without words it finds nothing."""
        ...

    def close(self) -> None: ...


def words_of(text: str) -> list[str]:
    """The words of a text in order, in lower case and without accents."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))
    return _WORD.findall(text.lower())


def query_words(query: str) -> list[str]:
    """The words of a query, each once, at most `MAX_QUERY_WORDS`."""
    return list(islice(dict.fromkeys(words_of(query[:MAX_QUERY_CHARS])), MAX_QUERY_WORDS))


def indexed_text(passage: Passage) -> str:
    """The text that a backend indexes: the words of title and text, separated by spaces."""
    return " ".join(words_of(f"{passage.title} {passage.text}"))


def telling_words(words: Sequence[str], num_with: Callable[[str], int], num_passages: int) -> Sequence[str]:
    """The words to search for: those that are not common, or the least common if all are.

    `num_with` gives the number of passages, out of `num_passages`, that contain a word.
    """
    if num_passages < MIN_LARGE:
        return words
    telling = [word for word in words if num_with(word) <= COMMON_SHARE * num_passages]
    return telling or sorted(words, key=num_with)[:1]


def refusal(path: Path, why: str) -> ConfigError:
    """The error for a path that cannot be opened as an index."""
    return ConfigError(f"{str(path)!r} is no search index that can be used: {why}; build it again")


def unwritable(path: Path, error: Exception) -> ConfigError:
    """The error for a place that no index can be written to."""
    return ConfigError(f"{str(path)!r} cannot be written: {error}")


def refuse_version(path: Path, found: object) -> None:
    """Raise `ConfigError` unless an index has the version that is read here."""
    if found != FORMAT_VERSION:
        raise refusal(path, f"it has format {found!r}, and this version of ramify reads {FORMAT_VERSION}")
