"""The digest of a state depends on what objects hold, and on nothing else."""

import copy
import random
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ramify.environments.state_digest import state_digest


@dataclass
class Held:
    names: list[str] = field(default_factory=list[str])
    more: Any = None

    def method(self) -> None:
        """A method, which objects hold too."""


VALUES = [
    None, 0, False, 0.0, "", b"", "0", [], (), {}, set[int](), [[], []], [[[]]], {"a": 1}, {"a": 2}, {"b": 1}, {1, 2},
    frozenset({1, 2}), deque([1]), OrderedDict(a=1), np.zeros(2), np.zeros(3), random.Random(1), random.Random(2),
    Held(), Held(["a"]), Held(more=Held()), int, len, Held().method,
]  # fmt: skip


def test_different_states_have_different_digests():
    digests = [state_digest(value) for value in VALUES]
    assert None not in digests
    assert len(set(digests)) == len(VALUES)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_copy_has_the_digest_of_its_original(value: Any):
    assert state_digest(copy.deepcopy(value)) == state_digest(value)


def test_shared_and_equal_objects_have_one_digest():
    text = "".join(["a", "b"])
    assert state_digest([text, text]) == state_digest(["ab", "".join(["a", "b"])])


def test_the_order_of_a_set_does_not_count():
    numbers = list(range(1000))
    one, other = set(numbers), set[int]()
    for number in reversed(numbers):
        other.add(number)
    assert state_digest(one) == state_digest(other)


def test_an_object_that_holds_itself_has_a_digest():
    one, other = Held(), Held()
    one.more, other.more = one, other
    assert state_digest(one) == state_digest(other) is not None


def test_a_lock_has_no_digest():
    assert state_digest({"lock": threading.Lock()}) is None
