"""Problems without an end, and the samples that functions draw and give back."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import ConfigError, ContractError
from ramify.core.problem import Problem
from ramify.rows.sample import Sample
from ramify.service.source import ProblemSource, SampleSource, flat


def source(num: int = 5, *, seed: int = 0, shuffle: bool = True) -> ProblemSource:
    problems = [Problem(f"p{i}", f"question {i}?", secret={"answer": i}, public={"row": i}) for i in range(num)]
    return ProblemSource(problems, seed=seed, shuffle=shuffle)


def uids(drawn: ProblemSource, numbers: range) -> list[str]:
    return [drawn.problem(number).uid for number in numbers]


@pytest.mark.covers("S3.8")
@given(st.integers(1, 30), st.integers(0, 2**40), st.booleans())
def test_every_epoch_has_every_problem_once(num: int, seed: int, shuffle: bool) -> None:
    drawn = source(num, seed=seed, shuffle=shuffle)
    for epoch in range(3):
        found = uids(drawn, range(epoch * num, (epoch + 1) * num))
        assert Counter(uid.partition("@")[0] for uid in found) == {f"p{i}": 1 for i in range(num)}
        assert {uid.partition("@")[2] for uid in found} == {str(epoch) if epoch else ""}


@pytest.mark.covers("S3.8")
def test_the_order_follows_from_the_seed_and_differs_between_epochs() -> None:
    one, same, other = source(40), source(40), source(40, seed=1)
    first = uids(one, range(40))
    assert first == uids(same, range(40)) != uids(other, range(40))
    assert [uid.partition("@")[0] for uid in uids(one, range(40, 80))] != first
    assert uids(source(4, shuffle=False), range(6)) == ["p0", "p1", "p2", "p3", "p0@1", "p1@1"]


def test_a_source_without_problems_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no problem"):
        ProblemSource([], seed=0, shuffle=False)


@pytest.mark.covers("S3.8")
def test_groups_are_n_copies_with_numbers_of_their_own() -> None:
    drawn = SampleSource(source(shuffle=False), group_size=3, label_key="answer")
    one, two = drawn.get_samples(2)
    assert [s.index for s in [*one, *two]] == list(range(6))
    assert [s.group_index for s in [*one, *two]] == [0, 0, 0, 1, 1, 1]
    assert {(s.prompt, s.label, s.metadata["row"], s.metadata["uid"]) for s in two} == {("question 1?", "1", 1, "p1")}
    one[0].metadata["mine"] = 1  # pyright: ignore[reportIndexIssue]
    assert "mine" not in one[1].metadata
    assert len(drawn) == 5


@pytest.mark.covers("S3.8")
def test_without_a_label_key_no_answer_gets_out() -> None:
    drawn = SampleSource(source(), group_size=1)
    assert all(sample.label is None for (sample,) in drawn.get_samples(5))
    assert "answer" not in json.dumps(drawn.state())
    with pytest.raises(ConfigError, match=r"label_key = 'gold': the secret of 'p.' has \['answer'\]"):
        SampleSource(source(), group_size=1, label_key="gold").get_samples(1)


@pytest.mark.covers("S3.8")
def test_what_was_given_back_comes_first_partial_or_not() -> None:
    drawn = SampleSource(source(shuffle=False), group_size=2)
    one, two, _ = drawn.get_samples(3)
    two[0].tokens, two[0].response_length, two[0].status = [1, 2, 3], 2, Sample.Status.ABORTED
    drawn.add_samples([two, one[:1]])
    again = drawn.get_samples(3)
    assert again[:2] == [two, one[:1]] and again[2][0].group_index == 3
    assert drawn.buffer == []


@pytest.mark.covers("S3.8")
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8), st.integers(0, 8))
def test_a_source_that_is_told_a_state_goes_on_exactly(steps: list[tuple[int, int]], cut: int) -> None:
    """Draw so many groups and give so many of them back, again and again; at `cut` another source takes over."""

    def played(drawn: SampleSource, some: list[tuple[int, int]]) -> list[list[list[dict[str, object]]]]:
        said = []
        for num, back in some:
            groups = drawn.get_samples(num)
            said.append([[s.to_dict() for s in group] for group in groups])
            drawn.add_samples(groups[:back])
        return said

    one, two, three = (SampleSource(source(), group_size=2, label_key="answer") for _ in range(3))
    whole = played(one, steps)
    head = played(two, steps[:cut])
    written = json.dumps(two.state())
    assert '"label": "' not in written, "gold answers are not written down"
    three.load(json.loads(written))
    assert head + played(three, steps[cut:]) == whole
    assert three.state() == one.state()


@pytest.mark.parametrize("groups", [[[]], [["text"]], [[Sample(), 3]]])
def test_what_is_no_group_is_not_taken_back(groups: list[list[Sample]]) -> None:
    drawn = SampleSource(source(), group_size=1)
    with pytest.raises(ContractError, match="a group must be a list of samples"):
        drawn.add_samples(groups)
    assert drawn.buffer == []


def test_nested_groups_are_flattened_in_their_order() -> None:
    assert flat([[1, [2, 3]], [], [[4]]]) == [1, 2, 3, 4]
