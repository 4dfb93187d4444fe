"""Rules: how a contract is written, and how a broken rule is reported.

A rule is a function of a case (a plug-in and how to use it) that raises if the plug-in breaks the rule. The name of the
function is the rule in plain English.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from ramify.core.errors import ConfigError, ContractError, nearest

Case = TypeVar("Case")


class BrokenRule(ContractError, AssertionError):
    """A plug-in broke a rule of its contract. The message names the plug-in, the rule and where it was broken."""


def rules_of(*rules: Callable[[Case], None]) -> Mapping[str, Callable[[Case], None]]:
    """Rule in plain English -> the function that checks it, in the order given."""
    return {rule.__name__.replace("_", " "): rule for rule in rules}


def demand(is_kept: bool, where: str) -> None:
    """Raise unless the rule is kept. `where` says at which seed, step, command or call, and what was seen."""
    if not is_kept:
        raise BrokenRule(where)


def keep(rules: Mapping[str, Callable[[Case], None]], rule: str, case: Case, subject: str) -> None:
    """Check one rule by its name. Raises `BrokenRule`, also if the plug-in itself raises."""
    if rule not in rules:
        raise ConfigError(f"unknown rule {rule!r}; {nearest(rule, rules)}")
    try:
        rules[rule](case)
    except Exception as error:  # boundary to a plug-in: whatever it raises is reported under the rule that was checked
        said = str(error) if isinstance(error, BrokenRule) else f"{type(error).__name__}: {error}"
        raise BrokenRule(f"{subject} breaks the rule {rule!r}: {said}") from error


def keep_all(
    rules: Mapping[str, Callable[[Case], None]], case: Case, subject: str, *, without: Collection[str] = ()
) -> None:
    """Check every rule except those in `without`, and stop at the first broken one.

    Raises `BrokenRule`, or `ConfigError` for an unknown name in `without`.
    """
    for name in without:
        if name not in rules:
            raise ConfigError(f"unknown rule {name!r}; {nearest(name, rules)}")
    for rule in rules:
        if rule not in without:
            keep(rules, rule, case, subject)


def name_of(plugin: object) -> str:
    """The name of a plug-in, its class or the function that makes it, for messages."""
    return getattr(plugin, "__name__", None) or type(plugin).__name__
