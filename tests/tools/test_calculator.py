import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.tools.calculator import MAX_VALUE, CalculatorState, apply, numbers_left

numbers = st.lists(st.integers(0, 9999), min_size=1, max_size=6).map(tuple)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("7+1", "8 : 13 5 8"),
        (" 13 - 7 ", "6 : 1 5 6"),
        ("5*13", "65 : 7 1 65"),
        ("5/1", "5 : 13 7 5"),
        ("1-1", "error: 1 is not left"),
        ("9+1", "error: 9 is not left"),
        ("1-5", "error: 1-5 is below zero"),
        ("13/7", "error: 13/7 is not exact"),
        ("7+1+5", "error: use the form a+b"),
        ("", "error: use the form a+b"),
        ("-7+1", "error: use the form a+b"),
        ("__import__('os')", "error: use the form a+b"),
        ("7**5", "error: use the form a+b"),
        ("\u0667+1", "error: use the form a+b"),
        ("7" * 5000 + "+1", "error: use the form a+b"),
    ],
)
def test_a_step_shows(expression: str, text: str) -> None:
    assert apply(CalculatorState((13, 7, 1, 5)), expression)[1] == text


def test_division_by_zero_and_too_large_values_are_errors() -> None:
    assert apply(CalculatorState((5, 0)), "5/0")[1] == "error: 5/0 is division by zero"
    assert apply(CalculatorState((5, 9999)), "5*9999")[1] == f"error: 5*9999 is above {MAX_VALUE}"


def test_a_number_given_twice_can_be_used_twice() -> None:
    state, text, is_allowed = apply(CalculatorState((4, 4)), "4+4")
    assert (state, text, is_allowed) == (CalculatorState((8,)), "8 : 8", True)


@given(numbers, st.text() | st.from_regex(r" ?[0-9]{1,7} ?[-+*/] ?[0-9]{1,7} ?", fullmatch=True))
def test_an_error_changes_nothing_and_says_so(numbers: tuple[int, ...], expression: str) -> None:
    state, text, is_allowed = apply(CalculatorState(numbers), expression)
    assert is_allowed == (not text.startswith("error:"))
    assert is_allowed or state == CalculatorState(numbers)


@given(numbers, st.data())
def test_a_good_step_leaves_one_number_fewer_and_shows_the_whole_state(
    numbers: tuple[int, ...], data: st.DataObject
) -> None:
    if len(numbers) < 2:
        return
    left, right = data.draw(st.permutations(numbers))[:2]
    state, text, is_allowed = apply(CalculatorState(numbers), f"{left}{data.draw(st.sampled_from('+-*/'))}{right}")
    if is_allowed:
        assert len(state.numbers) == len(numbers) - 1
        assert 0 <= state.numbers[-1] <= MAX_VALUE
        assert numbers_left(text) == state.numbers


@pytest.mark.parametrize("text", ["", "error: 9 is not left", "8", "8 :", "8 : x", "8 : 5 8 rest"])
def test_other_texts_show_no_state(text: str) -> None:
    assert numbers_left(text) is None
