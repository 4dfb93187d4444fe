"""Protocols: whether a value has all that a protocol asks for, fast enough to ask for every tree.

`isinstance` lists the members of a runtime protocol anew each time, which takes longer than all the rest of making a
tree (until Python 3.12). Here they are listed once for each protocol.
"""

from functools import cache
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

T = TypeVar("T")


def follows(value: object, protocol: type[T]) -> TypeGuard[T]:
    """What `isinstance(value, protocol)` says of a protocol that is checked at run time."""
    return all(hasattr(value, name) for name in members(protocol))


@cache
def members(protocol: type[Any]) -> tuple[str, ...]:
    """The names of the attributes and methods that a protocol and its bases declare."""
    bases = [base for base in protocol.__mro__ if base is not Protocol and getattr(base, "_is_protocol", False)]
    declared = (name for base in bases for name in (*vars(base), *vars(base).get("__annotations__", ())))
    return tuple(sorted({*declared} - _PLAIN))


@runtime_checkable
class _Empty(Protocol): ...


_PLAIN = frozenset({*vars(_Empty), "__annotations__", "__slots__", "__non_callable_proto_members__"})
"""What every protocol has beside its members."""
