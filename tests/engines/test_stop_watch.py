from hypothesis import given
from hypothesis import strategies as st

from ramify.core.cut import first_stop
from ramify.engines.stop_watch import StopWatch

tokens = st.lists(st.text("<>/abé", min_size=1, max_size=4).map(str.encode), max_size=30)
stop_words = st.lists(st.text("<>/abé", min_size=1, max_size=6), max_size=4)


@given(tokens, tokens, stop_words)
def test_fed_token_by_token_it_finds_what_is_found_in_the_whole_run(before, after, words):
    watch = StopWatch(words, reversed(before))
    data = b"".join(before)
    for token in after:
        found = first_stop(data + token, words, after=len(data))
        assert watch.hear(token) == ((found[0], 1) if found is not None else None)
        data += token


@given(tokens, tokens, stop_words)
def test_fed_many_tokens_at_once_it_finds_what_it_finds_token_by_token(before, after, words):
    at_once, one_by_one = (StopWatch(words, reversed(before)) for _ in range(2))
    found = (
        (word_and_one[0], num)
        for num, token in enumerate(after, 1)
        if (word_and_one := one_by_one.hear(token)) is not None
    )
    assert at_once.hear(*after) == next(found, None)


def test_it_keeps_no_more_than_a_stop_word_needs():
    watch = StopWatch(("</answer>",), [b"x" * 100])
    for _ in range(100):
        watch.hear(b"y" * 100)
    assert watch.hear(b"</answ") is None
    assert watch.hear(b"er> and more") == ("</answer>", 1)
