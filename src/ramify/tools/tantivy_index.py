"""Search indexes of tantivy (an extra), one folder each: over 20 times as fast as SQLite on 100,000 passages.

Tantivy promises no order of its segments, so every passage stores its number, and ties are sorted here. Opening needs a
writable folder, because tantivy locks it.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ramify.core.errors import ConfigError
from ramify.tools.output import valid
from ramify.tools.passages import (
    FORMAT_VERSION,
    Hit,
    Passage,
    indexed_text,
    query_words,
    refusal,
    refuse_version,
    telling_words,
    unwritable,
)

try:
    import tantivy
except ImportError as error:
    raise ConfigError("an index of tantivy needs the package tantivy: pip install 'ramify[search]'") from error

META: Final = "ramify.json"
"""Our file beside tantivy's own: the format version and the number of passages."""
HEAP_BYTES: Final = 128_000_000
"""Memory for a build (tantivy's default)."""
NUM_RANKED: Final = 64
"""Hits fetched at first. More are fetched only if the last hit to show may tie with the last one fetched."""

_STORED: Final = ("text", "title", "uid")


class TantivyIndex:
    """An index in a folder that `write` made."""

    def __init__(self, index: tantivy.Index, num_passages: int) -> None:
        self._schema = index.schema
        self._searcher = index.searcher()
        self.num_passages: Final = num_passages
        self.is_blocking: Final = True

    def search(self, query: str, top_k: int) -> Sequence[Hit]:
        words = telling_words(query_words(query), self._num_with, self.num_passages)
        if not words:
            return []
        either = tantivy.Occur.Should
        terms = [(either, tantivy.Query.term_query(self._schema, "words", word, "freq")) for word in words]
        ranked = self._ranked(tantivy.Query.boolean_query(terms), top_k)
        return [Hit(self._passage(address), score) for score, address in ranked]

    def close(self) -> None:
        """Its files are released together with the index object."""

    def _num_with(self, word: str) -> int:
        return self._searcher.doc_freq("words", word)

    def _ranked(self, asked: tantivy.Query, top_k: int) -> list[tuple[float, tantivy.DocAddress]]:
        """The best passages as (score, address); ties are in the order the passages were added."""
        limit = max(NUM_RANKED, 2 * top_k)
        while True:
            found: list[Any] = self._searcher.search(asked, limit, count=False).hits
            if len(found) < limit or found[-1][0] < found[top_k - 1][0]:
                break
            limit *= 8
        numbers = self._searcher.fast_field_values("number", [address for _, address in found])
        ranked = sorted(zip(found, numbers, strict=True), key=lambda hit: (-hit[0][0], hit[1]))
        return [hit for hit, _ in ranked[:top_k]]

    def _passage(self, address: tantivy.DocAddress) -> Passage:
        document = self._searcher.doc(address)
        text, title, uid = (document.get_all(field)[0].decode() for field in _STORED)
        return Passage(text, title, uid)


def open_folder(path: Path) -> TantivyIndex:
    """The index in a folder that `write` made. Raises `ConfigError` if it is not an index."""
    try:
        meta = json.loads((path / META).read_bytes())
        refuse_version(path, meta["format"])
        index = tantivy.Index.open(str(path))
        index.config_reader("manual")
        num_passages, num_held = meta["num_passages"], index.searcher().num_docs
    except FileNotFoundError:
        raise refusal(path, f"there is no {META} in it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise refusal(path, str(error)) from error
    if num_held != num_passages:
        raise refusal(path, f"it holds {num_held} of its {num_passages} passages")
    if not num_passages:
        raise refusal(path, "it is empty")
    return TantivyIndex(index, num_passages)


def write(path: Path, passages: Iterable[Passage]) -> int:
    """Write an index to a new folder. Returns the number of passages."""
    with _writing(path):
        path.mkdir()
        writer = tantivy.Index(_schema(), str(path)).writer(HEAP_BYTES, num_threads=1)
    num_passages = 0
    try:
        for passage in passages:
            num_passages += 1
            with _writing(path):
                writer.add_document(_document(num_passages, passage))
        with _writing(path):
            writer.commit()
            meta = {"format": FORMAT_VERSION, "num_passages": num_passages}
            (path / META).write_text(json.dumps(meta), "utf-8")
    finally:
        writer.wait_merging_threads()  # merging threads write to the folder until then
    return num_passages


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn write errors into `ConfigError`. Errors of the source of the passages are not wrapped."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error


def _document(number: int, passage: Passage) -> tantivy.Document:
    """A passage as a tantivy document; `number` is its position in the order, from 1."""
    document = tantivy.Document()
    document.add_unsigned("number", number)
    document.add_text("words", indexed_text(passage))
    for field, said in zip(_STORED, (passage.text, passage.title, passage.uid), strict=True):
        document.add_bytes(field, valid(said).encode())
    return document


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("number", fast=True)
    builder.add_text_field("words", tokenizer_name="whitespace", index_option="freq")
    for stored in _STORED:  # as bytes, since tantivy would index a text
        builder.add_bytes_field(stored, stored=True)
    return builder.build()
