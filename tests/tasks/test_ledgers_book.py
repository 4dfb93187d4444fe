"""The books of `ledgers`: orders that follow from what was done, one answer, a split that holds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.tasks.ledgers_book import (
    MAX_ORDERS,
    MIN_ORDERS,
    NAMES,
    SPLITS,
    LedgerBook,
    LedgerOrder,
    Split,
    draw_book,
    generate,
    split_of,
)

BOOK = LedgerBook((("ann", 12), ("bob", 40), ("eve", 7)), 4)
BOOKS = st.integers(0, 10_000).map(lambda seed: draw_book(random.Random(seed)))
LEDGERS = st.fixed_dictionaries({name: st.integers(-500, 500) for name in ("ann", "bob", "eve")})


@pytest.mark.parametrize(
    ("order", "text", "after"),
    [
        (LedgerOrder("add", "ann", amount=7), "add 7 to ann", {"ann": 19, "bob": 40, "eve": 7}),
        (LedgerOrder("take", "eve", amount=9), "take 9 from eve", {"ann": 12, "bob": 40, "eve": -2}),
        (LedgerOrder("move", "bob", "ann", 5), "move 5 from bob to ann", {"ann": 17, "bob": 35, "eve": 7}),
        (LedgerOrder("double", "ann"), "double ann", {"ann": 24, "bob": 40, "eve": 7}),
        (LedgerOrder("swap", "ann", "bob"), "swap ann and bob", {"ann": 40, "bob": 12, "eve": 7}),
    ],
)
def test_an_order_says_what_it_does(order: LedgerOrder, text: str, after: dict[str, int]) -> None:
    assert order.text == text
    assert order.done(BOOK.ledger) == after


@given(ledger=LEDGERS, number=st.integers(0, MAX_ORDERS))
def test_every_order_changes_the_ledger_it_was_made_for(ledger: dict[str, int], number: int) -> None:
    order = BOOK.order(number, ledger)
    assert order == BOOK.order(number, dict(reversed(ledger.items())))
    assert order.done(ledger) != ledger
    assert set(order.done(ledger)) == set(ledger)


@given(book=BOOKS)
def test_the_answer_is_that_of_carrying_out_every_order(book: LedgerBook) -> None:
    ledger = book.ledger
    for number in range(book.num_orders):
        ledger = book.order(number, ledger).done(ledger)
    assert book.answer == book.result(ledger) == eval(book.asked, {}, ledger)
    assert MIN_ORDERS <= book.num_orders <= MAX_ORDERS
    assert set(book.ledger) < set(NAMES)


def test_whoever_errs_once_is_nearly_always_told_other_orders_and_answers_something_else() -> None:
    books = [draw_book(random.Random(seed)) for seed in range(200)]
    num_same_orders = num_same_answers = 0
    for book in books:
        right = wrong = book.ledger
        wrong = {**wrong, min(wrong): wrong[min(wrong)] + 1}
        orders: list[tuple[str, str]] = []
        for number in range(book.num_orders):
            one, other = book.order(number, right), book.order(number, wrong)
            orders.append((one.text, other.text))
            right, wrong = one.done(right), other.done(wrong)
        num_same_orders += all(one == other for one, other in orders)
        num_same_answers += book.result(right) == book.result(wrong)
    assert num_same_orders == 0
    assert num_same_answers <= 4


def test_the_key_says_what_the_problem_is_whatever_the_order_of_its_accounts() -> None:
    assert BOOK.key == "ann 12 bob 40 eve 7: 4"
    assert LedgerBook(BOOK.accounts[::-1], 4).key == BOOK.key
    assert LedgerBook(BOOK.accounts[::-1], 4).answer == BOOK.answer


@pytest.mark.parametrize("split", SPLITS)
def test_books_are_distinct_of_one_side_and_the_same_for_one_seed(split: Split) -> None:
    books = list(generate(split, 200, 7))
    assert len({book.key for book in books}) == 200
    assert {split_of(book.key) for book in books} == {split}
    assert books == list(generate(split, 200, 7))
    assert books[:9] == list(generate(split, 9, 7))
    assert books != list(generate(split, 200, 8))


def test_the_number_of_orders_may_be_fixed() -> None:
    assert {book.num_orders for book in generate("heldout", 50, 0, num_orders=3)} == {3}
    assert {book.num_orders for book in generate("heldout", 50, 0)} == {3, 4, 5}


def test_about_one_book_in_five_is_held_out() -> None:
    sides = [split_of(draw_book(random.Random(seed)).key) for seed in range(2000)]
    assert 0.17 < sides.count("heldout") / len(sides) < 0.23
