"""Frozen dataclasses with `quick_init` do all that they do without it."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from ramify.core.quick_init import quick_init


def made(name: str) -> Any:
    """A new dataclass, always of the same fields."""

    @dataclass(frozen=True, slots=True)
    class Value:
        first: int
        second: str = "b"
        third: list[int] = field(default_factory=lambda: [1])
        fourth: int = field(default=4, kw_only=True)

        def __post_init__(self) -> None:
            if self.first < 0:
                raise ValueError("below 0")

    Value.__name__ = Value.__qualname__ = name
    return Value


Plain = made("Plain")
Quick = quick_init(made("Quick"))


class Special(Quick):
    """A class that inherits the quick `__init__`."""


@pytest.mark.parametrize("arguments", [(1,), (1, "x"), (1, "x", [2])])
@pytest.mark.parametrize("named", [{}, {"fourth": 9}])
def test_the_fields_are_those_of_the_dataclass(arguments: tuple[object, ...], named: dict[str, int]) -> None:
    plain, quick = Plain(*arguments, **named), Quick(*arguments, **named)
    assert dataclasses.asdict(quick) == dataclasses.asdict(plain)
    assert dataclasses.asdict(Special(*arguments, **named)) == dataclasses.asdict(plain)


def test_its_signature_is_that_of_the_dataclass() -> None:
    plain, quick = inspect.signature(Plain), inspect.signature(Quick)
    assert [str(each) for each in quick.parameters.values()] == [str(each) for each in plain.parameters.values()]


def test_defaults_that_a_factory_makes_are_not_shared() -> None:
    assert Quick(1).third is not Quick(1).third


def test_values_are_equal_are_copied_and_are_pickled() -> None:
    value = Quick(1, fourth=2)
    assert value == Quick(1, fourth=2) != Quick(2, fourth=2)
    assert replace(value, first=3) == Quick(3, fourth=2)
    assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value


def test_a_field_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Quick(1).first = 2


def test_its_checks_run() -> None:
    with pytest.raises(ValueError, match="below 0"):
        Quick(-1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        Quick()


@dataclass(frozen=True)
class WithoutSlots:
    value: int


@dataclass(frozen=True, slots=True)
class Longer(Plain):
    more: int = 0


class NoDataclass:
    value: int


@pytest.mark.parametrize("cls", [WithoutSlots, Longer, NoDataclass])
def test_another_class_is_refused_by_its_name(cls: type) -> None:
    with pytest.raises(TypeError, match=cls.__name__):
        quick_init(cls)
