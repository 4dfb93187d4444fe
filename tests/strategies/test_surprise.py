"""Before which tokens a fork may stand, and which of them were the least likely."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.strategies.parts.surprise import fork_positions, num_free

NAN = float("nan")
SURPRISALS = st.lists(st.lists(st.sampled_from([0.5, 1.0, 2.0, NAN]), max_size=5).map(np.array), max_size=4)


def positions(*paths: list[float], n: int, **switches: str) -> list[tuple[int, int]]:
    return fork_positions([np.array(path) for path in paths], n, **switches)  # type: ignore[arg-type]


def test_the_most_surprising_tokens_of_all_paths_come_first() -> None:
    assert positions([1.0, 3.0], [2.0, NAN, 9.0], n=3) == [(1, 2), (0, 1), (1, 0)]


def test_of_equal_tokens_the_earlier_comes_first_or_as_published_the_later() -> None:
    tied = [1.0, 1.0, 1.0], [1.0]
    assert positions(*tied, n=2) == [(0, 0), (0, 1)]
    assert positions(*tied, n=2, ties="later") == [(1, 0), (0, 1)]


def test_fewer_free_tokens_give_fewer_forks_or_as_published_the_same_again() -> None:
    assert positions([NAN, 2.0], n=3) == [(0, 1)]
    assert positions([NAN, 2.0], n=3, shortage="repeat") == [(0, 1)] * 3
    assert positions([2.0, 1.0], n=5, shortage="repeat") == [(0, 0)] * 3 + [(0, 1)] * 2


@given(SURPRISALS, st.integers(1, 4))
def test_no_masked_token_and_none_twice(paths: list[np.ndarray], n: int) -> None:
    found = fork_positions(paths, n)
    num_free_tokens = sum(int((~np.isnan(path)).sum()) for path in paths)
    assert len(found) == len(set(found)) == min(n, num_free_tokens)
    taken = [paths[i][at] for i, at in found]
    assert taken == sorted(taken, reverse=True)
    assert all(value <= min(taken) for i, path in enumerate(paths) for at, value in enumerate(path)
               if value == value and (i, at) not in found)  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "text", "token"),
    [
        (["so", " the", " Answer", " is", " 3"], 3, 3),
        (["<", "ans", "wer", ">", "3"], 2, 5),
        (["no", " word"], 2, 2),
        ([], 0, 0),
    ],
)
def test_tokens_behind_a_word_are_not_free_however_it_is_cut(tokens: list[str], text: int, token: int) -> None:
    encoded = [part.encode() for part in tokens]
    words = ("answer", "conclusion")
    assert num_free(encoded, words) == text
    assert num_free(encoded, words, reading="token") == token
    assert num_free(encoded, ()) == len(tokens)
