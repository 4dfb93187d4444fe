"""Repair repositories: small Python packages with planted bugs, drawn by a seed.

A repository has a few functions in two to four modules, one or two bugs, and a test of every function that the agent
sees. The hidden tests call the same functions with other arguments. What is right is computed here, by the functions
without the bugs. Every bug makes a test fail that is seen, and a hidden test.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ramify.environments.repair_functions import BY_NAME, FUNCTIONS, RepairFunction

Split = Literal["train", "heldout"]
SPLITS: Final[tuple[Split, ...]] = ("train", "heldout")
HELDOUT_PERCENT: Final = 20
PACKAGES: Final = ("atlas", "depot", "field", "harbor", "ledger", "orchard", "quill", "studio")
MAX_MODULES: Final = 4
MAX_FUNCTIONS: Final = 6
MAX_BUGS: Final = 2
NUM_DRAWS: Final = 40
"""Arguments drawn for a function, until enough of them show its bug."""
NUM_HIDDEN: Final = 3
"""Hidden tests of a function."""
MAX_SHOWN: Final = 3
"""Tests of a function that show a bug, the visible one among them, where others can be had."""

CASE: Final = """
    def test_{name}(self):
        self.assertEqual({name}({arguments}), {expected})
"""


@dataclass(frozen=True, slots=True)
class RepairCase:
    """A call of a function, and what is right."""

    module: str
    function: str
    arguments: tuple[Any, ...]
    expected: str
    """The representation of what is right."""
    shows: bool
    """Whether the planted bugs change the result."""


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A line of a file that is wrong, and what would be right."""

    path: str
    function: str
    wrong: str
    right: str


@dataclass(frozen=True, slots=True)
class Repository:
    """One problem."""

    package: str
    files: Mapping[str, str]
    """Path in `/w` -> content."""
    bugs: tuple[PlantedBug, ...]
    failing: tuple[str, ...]
    """Names of the visible tests that fail."""
    hidden: tuple[RepairCase, ...]

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits of a hash of the files."""
        return hashlib.sha256(repr(sorted(self.files.items())).encode()).hexdigest()[:12]


def repositories(split: str, num_repositories: int, seed: int, *, num_bugs: int | None = None) -> Iterator[Repository]:
    """Yield distinct repositories of one split. A seed always gives the same ones. `num_bugs` None = one or two."""
    rng = random.Random(f"repair {split} {seed}")
    seen: set[str] = set()
    while len(seen) < num_repositories:
        drawn = draw_repository(rng, num_bugs or rng.randint(1, MAX_BUGS))
        if drawn is not None and drawn.key not in seen and split_of(drawn.key) == split:
            seen.add(drawn.key)
            yield drawn


def split_of(key: str) -> Split:
    """The split of a repository; it depends only on its key."""
    digest = hashlib.sha256(f"repair {key}".encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % 100 < HELDOUT_PERCENT else "train"


def draw_repository(rng: random.Random, num_bugs: int) -> Repository | None:
    """A repository of either split; None = what was drawn is too large, or its tests do not show its bugs. Consumes
    `rng`."""
    chosen = {name for each in rng.sample(FUNCTIONS, rng.randint(2, 4)) for name in (each.name, *each.uses)}
    functions = [each for each in FUNCTIONS if each.name in chosen]
    modules = sorted({each.module for each in functions})
    if not 2 <= len(modules) <= MAX_MODULES or len(functions) > MAX_FUNCTIONS:
        return None
    package = rng.choice(PACKAGES)
    constants = {each.name: rng.choice(each.constants) for each in functions}
    right = {each.name: each.source.format(k=constants[each.name]) for each in functions}
    wrong, bugs = dict(right), list[PlantedBug]()
    for each in rng.sample(functions, num_bugs):
        bug = _drawn_bug(rng, each, constants[each.name], package)
        wrong[each.name] = right[each.name].replace(bug.right, bug.wrong)
        bugs.append(bug)
    cases = _cases(rng, functions, constants, (right, wrong))
    if not all(_is_shown(cases[bug.function], right | {bug.function: wrong[bug.function]}) for bug in bugs):
        return None
    failing = tuple(f"test_{name}" for name, (visible, *_) in cases.items() if visible.shows)
    hidden = tuple(case for _, *others in cases.values() for case in others)
    files = {f"{package}/__init__.py": f'"""The package {package}."""\n'}
    files |= {f"{package}/{name}.py": _module(name, functions, wrong, package) for name in modules}
    files[f"test_{package}.py"] = _visible(package, [visible for visible, *_ in cases.values()])
    return Repository(package, files, tuple(bugs), failing, hidden)


def _drawn_bug(rng: random.Random, function: RepairFunction, constant: Any, package: str) -> PlantedBug:
    other = rng.choice([each for each in function.constants if each != constant] or [constant])
    right, wrong = (text.format(k=constant, other=other) for text in rng.choice(function.bugs))
    line = next(each for each in function.source.format(k=constant).splitlines() if right in each)
    return PlantedBug(f"{package}/{function.module}.py", function.name, line.replace(right, wrong, 1), line)


def _cases(
    rng: random.Random,
    functions: Sequence[RepairFunction],
    constants: Mapping[str, Any],
    sources: tuple[Mapping[str, str], Mapping[str, str]],
) -> dict[str, list[RepairCase]]:
    """Function -> its visible case, then its hidden ones. Those that show a bug come first."""
    right, wrong = map(_defined, sources)
    found: dict[str, list[RepairCase]] = {}
    for each in functions:
        constant = constants[each.uses[0] if each.uses else each.name]
        drawn = {repr(arguments): arguments for arguments in (each.arguments(rng, constant) for _ in range(NUM_DRAWS))}
        cases = [
            RepairCase(each.module, each.name, arguments, expected, _result(wrong[each.name], arguments) != expected)
            for arguments in drawn.values()
            for expected in [_result(right[each.name], arguments)]
        ]
        shows, hides = [case for case in cases if case.shows], [case for case in cases if not case.shows]
        found[each.name] = [*shows[:MAX_SHOWN], *hides, *shows[MAX_SHOWN:]][: 1 + NUM_HIDDEN]
    return found


def _is_shown(cases: Sequence[RepairCase], alone: Mapping[str, str]) -> bool:
    """Whether the visible case of a function fails, and a hidden one does where the function's bug is the only one."""
    visible, *hidden = cases
    function = _defined(alone)[visible.function]
    return visible.shows and any(_result(function, case.arguments) != case.expected for case in hidden)


def _defined(sources: Mapping[str, str]) -> Mapping[str, Callable[..., Any]]:
    """Name -> function, of our own sources."""
    names: dict[str, Any] = {}
    exec("\n".join(sources.values()), names)
    return names


def _result(function: Callable[..., Any], arguments: Sequence[Any]) -> str:
    """The representation of what is returned; the name of an error where one is raised."""
    try:
        return repr(function(*arguments))
    except (ValueError, TypeError, IndexError) as error:
        return type(error).__name__


def _module(name: str, functions: Sequence[RepairFunction], sources: Mapping[str, str], package: str) -> str:
    own = [each for each in functions if each.module == name]
    uses = sorted({(BY_NAME[used].module, used) for each in own for used in each.uses})
    imports = "".join(f"from {package}.{module} import {used}\n" for module, used in uses)
    body = "\n\n".join(sources[each.name] for each in own)
    return f"{imports}\n\n{body}" if imports else body


def _visible(package: str, cases: Sequence[RepairCase]) -> str:
    """The file of the tests that the agent sees."""
    imports = "".join(f"from {package}.{case.module} import {case.function}\n" for case in cases)
    tests = "".join(
        CASE.format(name=case.function, arguments=", ".join(map(repr, case.arguments)), expected=case.expected)
        for case in cases
    )
    return f"import unittest\n\n{imports}\n\nclass Test{package.title()}(unittest.TestCase):{tests}"
