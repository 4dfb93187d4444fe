"""Stop watch: finds stop words in a run of tokens as they come, without reading the run again.

Invariant: fed token by token it finds what `first_stop` finds in the whole run, since it keeps as many bytes as a stop
word can have before its last.
"""

from collections.abc import Iterable, Sequence

from ramify.core.cut import first_stop


class StopWatch:
    """Looks for `words` in a run that has begun with `tokens`, byte strings latest first; only their end is read."""

    def __init__(self, words: Sequence[str], tokens: Iterable[bytes]) -> None:
        self._words = words
        self._room = max((len(word.encode()) for word in words), default=1) - 1
        self._tail = b""
        for token in tokens:
            if len(self._tail) >= self._room:
                break
            self._tail = token + self._tail
        self._tail = self._end_of(self._tail)

    def hear(self, token: bytes) -> str | None:
        """The stop word that `token` completes first, None = none."""
        if not self._words:
            return None
        data = self._tail + token
        found = first_stop(data, self._words, after=len(self._tail))
        self._tail = self._end_of(data)
        return found[0] if found is not None else None

    def _end_of(self, data: bytes) -> bytes:
        return data[max(0, len(data) - self._room) :]
