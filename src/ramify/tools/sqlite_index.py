"""Search indexes in SQLite's FTS5, which comes with Python: in memory or in one file.

The words of a passage are stored separately from its text, so FTS5 sees only words and its tokenizer does not matter. A
file is opened read-only and immutable, with several connections for several threads.
"""

import contextlib
import queue
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from ramify.tools.output import valid
from ramify.tools.passages import (
    COMMON_SHARE,
    FORMAT_VERSION,
    MAX_PARALLEL,
    MIN_LARGE,
    Hit,
    Passage,
    indexed_text,
    query_words,
    refusal,
    refuse_version,
    telling_words,
    unwritable,
)

APPLICATION_ID: Final = int.from_bytes(b"rmfy", "big")
"""Tells our files from other SQLite files."""
BATCH: Final = 1000
"""Passages written at a time."""

_PASSAGES = """
CREATE TABLE passages (number INTEGER PRIMARY KEY, uid TEXT NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='ascii');
"""
_META = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE common (word TEXT PRIMARY KEY, num_passages INTEGER NOT NULL) WITHOUT ROWID;
CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, words, row);
"""
# Rank first and read afterwards, so that only the shown passages are fetched.
_SEARCH = """
SELECT text, title, uid, -score
FROM (SELECT rowid AS number, rank AS score FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?)
JOIN passages USING (number) ORDER BY score, number
"""


class SqliteIndex:
    """A search index with several connections to the same passages. Made by the functions below."""

    def __init__(
        self,
        connections: Sequence[sqlite3.Connection],
        num_passages: int,
        *,
        common: Mapping[str, int],
        is_blocking: bool,
    ) -> None:
        """`common`: common word -> number of passages that contain it."""
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        for connection in connections:
            self._idle.put(connection)
        self._num_connections = len(connections)
        self._common = common
        self.num_passages: Final = num_passages
        self.is_blocking: Final = is_blocking

    def search(self, query: str, top_k: int) -> Sequence[Hit]:
        words = telling_words(query_words(query), lambda word: self._common.get(word, 0), self.num_passages)
        if not words:
            return []
        asked = " OR ".join(f'"{word}"' for word in words)
        connection = self._idle.get()
        try:
            found = connection.execute(_SEARCH, (asked, top_k)).fetchall()
        finally:
            self._idle.put(connection)
        return [Hit(Passage(text, title, uid), score) for text, title, uid, score in found]

    def close(self) -> None:
        """Wait for running searches; later searches raise."""
        connections = [self._idle.get() for _ in range(self._num_connections)]
        for connection in connections:
            connection.close()
            self._idle.put(connection)

    def __del__(self) -> None:
        self.close()


def memory_index(passages: Iterable[Passage]) -> SqliteIndex:
    """An index in memory without common words; a hundred passages take a millisecond."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.executescript(_PASSAGES)
    num_passages = _insert(connection, passages)
    return SqliteIndex([connection], num_passages, common={}, is_blocking=num_passages >= MIN_LARGE)


def open_file(path: Path) -> SqliteIndex:
    """The index in a file that `write` made. Raises `ConfigError` if it is not an index."""
    with contextlib.closing(_connection(path)) as connection:
        try:
            num_passages = _checked(path, connection)
            common = dict(connection.execute("SELECT word, num_passages FROM common"))
        except sqlite3.Error as error:
            raise refusal(path, str(error)) from error
    connections = [_connection(path) for _ in range(MAX_PARALLEL)]
    return SqliteIndex(connections, num_passages, common=common, is_blocking=True)


def write(path: Path, passages: Iterable[Passage]) -> int:
    """Write an index to a new file, in one transaction. Returns the number of passages."""
    try:
        return _written(path, passages)
    except sqlite3.Error as error:
        raise unwritable(path, error) from error


def _written(path: Path, passages: Iterable[Passage]) -> int:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")  # an unfinished file is thrown away
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        database.executescript(f"BEGIN; {_PASSAGES} {_META}")
        num_passages = _insert(database, passages)
        database.execute("INSERT INTO words(words) VALUES ('optimize')")
        if num_passages >= MIN_LARGE:
            counted = "SELECT term, doc FROM temp.vocabulary WHERE doc > ?"
            database.execute(f"INSERT INTO common {counted}", (COMMON_SHARE * num_passages,))
        database.execute("INSERT INTO meta VALUES ('num_passages', ?)", (num_passages,))
        database.execute("COMMIT")
    return num_passages


def _insert(database: sqlite3.Connection, passages: Iterable[Passage]) -> int:
    """Add passages in their order, numbered from 1. Returns how many there were."""
    numbered = enumerate(passages, start=1)
    num_passages = 0
    while batch := list(islice(numbered, BATCH)):
        rows = ((number, valid(p.uid), valid(p.title), valid(p.text)) for number, p in batch)
        database.executemany("INSERT INTO passages VALUES (?, ?, ?, ?)", rows)
        words = ((number, indexed_text(p)) for number, p in batch)
        database.executemany("INSERT INTO words(rowid, text) VALUES (?, ?)", words)
        num_passages += len(batch)
    return num_passages


def _connection(path: Path) -> sqlite3.Connection:
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        return sqlite3.connect(uri, uri=True, check_same_thread=False)
    except sqlite3.Error as error:
        raise refusal(path, str(error)) from error


def _checked(path: Path, database: sqlite3.Connection) -> int:
    """The number of passages. Raises `ConfigError` if the file is not a complete index of this version."""
    if database.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        raise refusal(path, "it is something else")
    refuse_version(path, database.execute("PRAGMA user_version").fetchone()[0])
    (num_passages,) = database.execute("SELECT value FROM meta WHERE key = 'num_passages'").fetchone() or (0,)
    (num_held,) = database.execute("SELECT max(number) FROM passages").fetchone()
    if not num_passages:
        raise refusal(path, "it is empty")
    if num_held != num_passages:
        raise refusal(path, f"it holds {num_held} of its {num_passages} passages")
    return num_passages
