"""Stop watch: finds stop words in a run of tokens as they come, without reading earlier tokens again.

Invariant: however the calls divide the run, it finds what `first_stop` finds in the whole run. It keeps at most as many
bytes as the longest stop word has before its last byte.
"""

from collections.abc import Iterable, Sequence

from ramify.core.cut import first_stop


class StopWatch:
    """Looks for `words` in a run that began with `tokens`, byte strings with the latest first; it reads only their
    end."""

    def __init__(self, words: Sequence[str], tokens: Iterable[bytes]) -> None:
        self._words = words
        self._room = max((len(word.encode()) for word in words), default=1) - 1
        self._tail = b""
        for token in tokens:
            if len(self._tail) >= self._room:
                break
            self._tail = token + self._tail
        self._tail = self._end_of(self._tail)

    @property
    def tail(self) -> bytes:
        """The end of the run so far; a stop word may have begun in it."""
        return self._tail

    def hear(self, *tokens: bytes) -> tuple[str, int] | None:
        """The first stop word that `tokens` complete, and how many of them it takes. None = they complete none.

        After a stop word the watch must not be used again: the run ends there.
        """
        if not self._words:
            return None
        num_before = len(self._tail)
        data = b"".join((self._tail, *tokens))
        found = first_stop(data, self._words, after=num_before)
        self._tail = self._end_of(data)
        return None if found is None else (found[0], _num_up_to(tokens, found[1] - num_before))

    def _end_of(self, data: bytes) -> bytes:
        return data[max(0, len(data) - self._room) :]


def _num_up_to(tokens: Sequence[bytes], end: int) -> int:
    """Number of tokens whose bytes reach byte `end`."""
    reached = 0
    for index, token in enumerate(tokens):
        reached += len(token)
        if reached >= end:
            return index + 1
    return len(tokens)
