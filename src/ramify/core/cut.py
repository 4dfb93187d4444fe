"""Cut: where a run of sampled tokens may be divided, and when a growth may stop.

A cut never falls inside a stop word or a character, because no format could read a tag cut in two. `settled` moves a
fork position left to the first token of what it would cut. `is_unresolved` tells whether a run ends in the beginning of
a stop word.
"""

from collections.abc import Iterable, Sequence

from ramify.core.codec import character_width, num_unfinished_bytes


def settled(tokens: Sequence[bytes], offset: int, words: Iterable[str]) -> int:
    """Largest offset <= `offset` at which the run may be divided. `tokens` are the (T,) byte strings of the run."""
    borders = [0]
    for token in tokens:
        borders.append(borders[-1] + len(token))
    data = b"".join(tokens)
    needles = [word.encode() for word in words]
    while 0 < offset < len(tokens):
        start = _start_of_what_is_cut(data, borders[offset], needles)
        if start is None:
            return offset
        offset = max(i for i, border in enumerate(borders) if border <= start and i < offset)
    return offset


def _start_of_what_is_cut(data: bytes, border: int, needles: Iterable[bytes]) -> int | None:
    """First byte of the stop word or character that a cut at byte `border` would divide; None = it divides nothing."""
    unfinished = num_unfinished_bytes(data[:border])
    if unfinished and _is_character(data, border - unfinished):
        return border - unfinished
    starts = [s for needle in needles for s in _occurrences(data, needle) if s < border < s + len(needle)]
    return min(starts, default=None)


def _is_character(data: bytes, start: int) -> bool:
    """Whether the bytes from `start` are one whole character, and not a lead byte without its continuation bytes."""
    try:
        data[start : start + character_width(data[start])].decode()
    except UnicodeDecodeError:
        return False
    return True


def _occurrences(data: bytes, needle: bytes) -> list[int]:
    found: list[int] = []
    at = data.find(needle)
    while at >= 0:
        found.append(at)
        at = data.find(needle, at + 1)
    return found


def is_unresolved(data: bytes, words: Iterable[str]) -> bool:
    """Whether `data` ends inside a proper prefix of a stop word or inside a character."""
    if num_unfinished_bytes(data):
        return True
    for word in words:
        needle = word.encode()
        if any(data.endswith(needle[:n]) for n in range(1, len(needle))):
            return True
    return False


def first_stop(data: bytes, words: Iterable[str], *, after: int) -> tuple[str, int] | None:
    """The stop word that is completed first in `data` and ends after byte `after`, and the byte where it ends.

    If two words end at the same byte: the longer one. None = no stop word ends after `after`.
    """
    best: tuple[int, int, str] | None = None
    for word in words:
        needle = word.encode()
        at = data.find(needle, max(0, after - len(needle) + 1))
        if at >= 0 and (best is None or (at + len(needle), -len(needle)) < best[:2]):
            best = (at + len(needle), -len(needle), word)
    return (best[2], best[0]) if best else None
