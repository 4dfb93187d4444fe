"""Tree shares: a command that reads a large run does so in several processes, each of which replays its trees only.

Each process reads every line, which is a twentieth of the work of `ramify check`. What it tells belongs to one tree
each, so the command says the same however many processes there are. A run that is trusted is not divided: the code that
it names runs once, and here.
"""

from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeVar

from ramify.cli.side_by_side import in_streams, num_cores
from ramify.core.shard import WHOLE, Shard, shards_of
from ramify.runner.saved import Saved
from ramify.store.journal import file_paths
from ramify.store.layout import JOURNAL, parts

T = TypeVar("T")

SHARE_BYTES: Final = 4 * 2**20
"""Bytes of journals for which a process is worth its start: a second or two of reading, and less than one to start."""
MAX_SHARES: Final = 16
"""With more, reading every line takes as long as replaying a share."""


def each_tree(make: Callable[[Saved, Shard], Iterator[tuple[int, T]]], saved: Saved) -> Iterator[tuple[int, T]]:
    """What `make` yields of a run: numbers of trees, each with what it found. They come in the order of the numbers, if
    `make` yields those of every share so. It is called once, or once a share in processes of their own; then it and
    what it yields are pickled. Raises what it raises."""
    number = num_shares(saved)
    if number == 1:
        yield from make(saved, WHOLE)
        return
    with in_streams([partial(_of_share, make, saved.path, share) for share in shards_of(number)]) as found:
        yield from merge(*found, key=itemgetter(0))


def num_shares(saved: Saved) -> int:
    """In how many shares a run is read. Raises `StoreError` if its journals cannot be found."""
    files = [file for part in parts(saved.path) for file in file_paths(part.path / JOURNAL)]
    number = min(num_cores(), MAX_SHARES, sum(file.stat().st_size for file in files) // SHARE_BYTES)
    return 1 if saved.is_trusted else max(1, number)


def _of_share(
    make: Callable[[Saved, Shard], Iterator[tuple[int, T]]], path: Path, share: Shard
) -> Iterator[tuple[int, T]]:
    return make(Saved.open(path), share)
