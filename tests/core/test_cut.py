"""Stop words and characters are never cut, wherever tokens fall."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ramify.core.codec import ByteCodec, num_unfinished_bytes
from ramify.core.cut import first_stop, is_unresolved, settled

WORDS = ("</calc>", "</answer>", "</call>")


def pieces(data: bytes, borders: list[int]) -> list[bytes]:
    edges = [0, *sorted(set(borders)), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if b > a]


@given(st.text(max_size=8), st.sampled_from(WORDS), st.text(max_size=8), st.lists(st.integers(0, 40), max_size=12))
def test_a_settled_position_cuts_nothing_and_is_never_to_the_right(
    before: str, word: str, after: str, borders: list[int]
) -> None:
    data = (before + word + after).encode()
    tokens = pieces(data, [b for b in borders if b < len(data)])
    start = len(before.encode())
    for offset in range(len(tokens) + 1):
        at = settled(tokens, offset, [word])
        border = len(b"".join(tokens[:at]))
        assert at <= offset
        assert not start < border < start + len(word)
        assert at in (0, len(tokens)) or num_unfinished_bytes(data[:border]) == 0


def test_a_position_that_cuts_nothing_stays() -> None:
    tokens = [b"ab", b"cd", b"</ca", b"lc>", b"ef"]
    assert [settled(tokens, i, WORDS) for i in range(6)] == [0, 1, 2, 2, 4, 5]


def test_a_token_that_holds_the_end_of_a_word_and_more_is_not_cut_off_from_it() -> None:
    assert settled([b"x<", b"/calc>y", b"z"], 1, WORDS) == 0


def test_a_run_is_unresolved_inside_a_word_or_a_character() -> None:
    assert is_unresolved(b"7+1</ca", WORDS)
    assert is_unresolved("é".encode()[:1], WORDS)
    assert not is_unresolved(b"7+1</calc>", WORDS)
    assert not is_unresolved(b"7+1", WORDS)


def test_invalid_bytes_are_nobodys_character() -> None:
    assert settled([b"\xff", b"\x80", b"a"], 1, WORDS) == 1
    assert not is_unresolved(b"a\x80\x80\x80\x80", WORDS)


@given(st.text(alphabet="<>/calswer", max_size=20), st.integers(0, 20))
def test_the_first_stop_is_the_one_complete_first(text: str, after: int) -> None:
    data = text.encode()
    ends = sorted(
        (i + len(w), -len(w), w)
        for w in WORDS
        for i in range(len(text))
        if text.startswith(w, i) and i + len(w) > after
    )
    expected = (ends[0][2], ends[0][0]) if ends else None
    assert first_stop(data, WORDS, after=after) == expected


@given(st.text(max_size=30))
def test_the_byte_codec_gives_text_back(text: str) -> None:
    codec = ByteCodec()
    clean = text.encode("utf-8", errors="replace").decode()
    assert codec.decode(codec.encode(text)) == clean
