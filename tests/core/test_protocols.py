"""`follows` says what `isinstance` says, for every protocol that is checked at run time."""

import importlib
import pkgutil
from types import SimpleNamespace

import pytest

import ramify
from ramify.core.protocols import follows, members

ROOMS = ("core", "engines", "formats", "runner", "strategies", "tools")


def protocols() -> dict[str, type]:
    """By name, those of the modules that need no extra."""
    names = [each.name for each in pkgutil.walk_packages(ramify.__path__, "ramify.")]
    modules = []
    for name in names:
        if name.split(".")[1] in ROOMS:
            try:
                modules.append(importlib.import_module(name))
            except ImportError:
                continue
    values = (value for module in modules for value in vars(module).values() if isinstance(value, type))
    return {
        value.__qualname__: value
        for value in values
        if getattr(value, "_is_runtime_protocol", False) and value.__qualname__[0] != "_"
    }


PROTOCOLS = protocols()


def test_there_are_many() -> None:
    assert len(PROTOCOLS) > 20


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_value_follows_a_protocol_if_it_has_every_member(name: str) -> None:
    protocol = PROTOCOLS[name]
    whole = dict.fromkeys(members(protocol), len)
    assert whole, "a protocol asks for something"
    assert follows(SimpleNamespace(**whole), protocol) and isinstance(SimpleNamespace(**whole), protocol)
    for left_out in whole:
        part = SimpleNamespace(**{each: value for each, value in whole.items() if each != left_out})
        assert not follows(part, protocol) and not isinstance(part, protocol)
