"""Passages: what a search index holds, how a text is split into words, and how a query is read.

Owns what all backends share. A word is a run of letters and digits, its case and accents ignored; in scripts
that put no spaces between words (Chinese, Japanese) it is one sign, as in Lucene's standard analysis. A query is its
words joined by OR, so no text a model writes is ever query syntax. Hits come by BM25 score, equal scores in the
order the passages were added, so the same query on the same passages gives the same answer.
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
MAX_TOP_K: Final = 100
"""Passages a page; Search-R1 asks for 3."""
MAX_PARALLEL: Final = min(8, os.cpu_count() or 1)
"""Searches at once in an index on disk; they keep a core busy each."""

_SIGNS: Final = "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Ideographs and hiragana; katakana spell one word at a time."""
_WORD = re.compile(f"[{_SIGNS}]|[^\\W_{_SIGNS}]+")
_ACCENTS = re.compile("[\u0300-\u036f]")


@dataclass(frozen=True, slots=True)
class Passage:
    """What is indexed and found."""

    text: str
    title: str = ""
    uid: str = ""
    """Its id in the corpus it is from; '' = it has none."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage found; a higher `score` is a better match, None = it was not told."""

    passage: Passage
    score: float | None


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
    """The error for a path that cannot be opened as an index."""
    return ConfigError(f"{str(path)!r} is no search index that can be used: {why}; build it again")


def unwritable(path: Path, error: Exception) -> ConfigError:
    """The error for a place that no index can be written to."""
    return ConfigError(f"{str(path)!r} cannot be written: {error}")


def refuse_version(path: Path, found: object) -> None:
    """Raise `ConfigError` unless an index has the version that is read here."""
    if found != FORMAT_VERSION:
        raise refusal(path, f"it has format {found!r}, and this version of ramify reads {FORMAT_VERSION}")
