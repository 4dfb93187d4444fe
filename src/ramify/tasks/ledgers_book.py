"""Made-up books for a coding agent: accounts, and orders to carry out on them one after the other.

It owns the problems, their split and the one right answer. A hash of the problem and the account values chooses the
next order. So a wrong step leads to other orders, and no order can be known before the previous one is done. Pure:
nothing here runs code.
"""

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Split = Literal["train", "heldout"]
SPLITS: Final[tuple[Split, ...]] = ("train", "heldout")
Verb = Literal["add", "take", "move", "double", "swap"]

NAMES: Final = ("ann", "bob", "cid", "dan", "eve", "fay")
NUM_ACCOUNTS: Final = 3
MIN_ORDERS: Final = 3
MAX_ORDERS: Final = 5
"""One call per order and one for the answer make six calls, the default limit of a path."""
HELDOUT_PERCENT: Final = 20

Ledger = Mapping[str, int]
"""Account -> its value."""


@dataclass(frozen=True, slots=True)
class LedgerOrder:
    """One order. Carrying it out always changes the ledger it was made for."""

    verb: Verb
    one: str
    other: str = ""
    """'' if the order uses only one account."""
    amount: int = 0

    @property
    def text(self) -> str:
        """What the agent is told, e.g. `move 7 from ann to bob`."""
        match self.verb:
            case "add":
                return f"add {self.amount} to {self.one}"
            case "take":
                return f"take {self.amount} from {self.one}"
            case "move":
                return f"move {self.amount} from {self.one} to {self.other}"
            case "double":
                return f"double {self.one}"
            case "swap":
                return f"swap {self.one} and {self.other}"

    def done(self, ledger: Ledger) -> dict[str, int]:
        """The ledger after the order is carried out."""
        one, other = ledger[self.one], ledger.get(self.other, 0)
        match self.verb:
            case "add":
                return {**ledger, self.one: one + self.amount}
            case "take":
                return {**ledger, self.one: one - self.amount}
            case "move":
                return {**ledger, self.one: one - self.amount, self.other: other + self.amount}
            case "double":
                return {**ledger, self.one: 2 * one}
            case "swap":
                return {**ledger, self.one: other, self.other: one}


@dataclass(frozen=True, slots=True)
class LedgerBook:
    """One problem: the first values of the accounts, and the number of orders."""

    accounts: tuple[tuple[str, int], ...]
    num_orders: int

    @property
    def key(self) -> str:
        """Canonical key, e.g. `ann 12 bob 40 eve 7: 4`."""
        return f"{' '.join(f'{name} {held}' for name, held in sorted(self.accounts))}: {self.num_orders}"

    @property
    def ledger(self) -> dict[str, int]:
        """The first values of the accounts."""
        return dict(self.accounts)

    def order(self, number: int, ledger: Ledger) -> LedgerOrder:
        """Order `number`, from 0, for a session that now has this ledger."""
        rng = random.Random(f"ledgers {self.key} {number} {sorted(ledger.items())}")
        one, other = rng.sample(sorted(ledger), 2)
        verbs: list[Verb] = ["add", "take", "move"]
        if ledger[one]:
            verbs.append("double")
        if ledger[one] != ledger[other]:
            verbs.append("swap")
        verb = rng.choice(verbs)
        return LedgerOrder(
            verb,
            one,
            other if verb in ("move", "swap") else "",
            rng.randint(2, 19) if verb in ("add", "take", "move") else 0,
        )

    @property
    def weights(self) -> dict[str, int]:
        """Account -> its factor in the answer."""
        names = sorted(self.ledger)
        weights = list(range(1, len(names) + 1))
        random.Random(f"ledgers {self.key}").shuffle(weights)
        return dict(zip(names, weights, strict=True))

    @property
    def asked(self) -> str:
        """The formula for the answer, shown when the book is closed, e.g. `2*ann + 3*bob + 1*eve`."""
        return " + ".join(f"{weight}*{name}" for name, weight in self.weights.items())

    def result(self, ledger: Ledger) -> int:
        """The value of `asked` for a ledger."""
        return sum(weight * ledger[name] for name, weight in self.weights.items())

    @property
    def answer(self) -> int:
        """The one right answer: the result of carrying out every order as told."""
        ledger: Ledger = self.ledger
        for number in range(self.num_orders):
            ledger = self.order(number, ledger).done(ledger)
        return self.result(ledger)


def split_of(key: str) -> Split:
    """The split of a book; it depends only on its canonical key."""
    digest = hashlib.sha256(f"ledgers {key}".encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % 100 < HELDOUT_PERCENT else "train"


def draw_book(rng: random.Random, num_orders: int | None = None) -> LedgerBook:
    """A book of either split. Consumes `rng`."""
    accounts = tuple((name, rng.randint(10, 99)) for name in sorted(rng.sample(NAMES, NUM_ACCOUNTS)))
    return LedgerBook(accounts, num_orders or rng.randint(MIN_ORDERS, MAX_ORDERS))


def generate(split: Split, num_books: int, seed: int, *, num_orders: int | None = None) -> Iterator[LedgerBook]:
    """Yield distinct books of one split. A seed always gives the same books."""
    rng = random.Random(f"ledgers {split} {seed}")
    seen: set[str] = set()
    while len(seen) < num_books:
        book = draw_book(rng, num_orders)
        if book.key not in seen and split_of(book.key) == split:
            seen.add(book.key)
            yield book
