"""Golden files: where they are, how their cases are read, and what counts as equal.

`RAMIFY_GOLDEN` names another folder than the committed `vectors`. A folder or file that is missing is a failure.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("RAMIFY_GOLDEN") or Path(__file__).parent / "vectors")


@dataclass(frozen=True)
class Case:
    """One case of a golden file; `function` and `mode` say which entry of the table it is held to."""

    file: str
    case_id: str
    function: str
    mode: str | None
    input: Any
    expected: Any
    tolerance_abs: float

    @property
    def name(self) -> str:
        return f"{self.file}::{self.case_id}"


def load(file: str) -> dict[str, Any]:
    """The golden file called `file` (without its suffix)."""
    with (FOLDER / f"{file}.json").open(encoding="utf-8") as stream:
        return json.load(stream)


def names() -> list[str]:
    """Every golden file of the folder, without suffixes."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def cases(file: str) -> list[Case]:
    """The cases of a golden file, whatever its layout."""
    content = load(file)
    if content.get("kind") == "trees":
        return [*_tree_cases(file, content), *_ppo_cases(file, content)]
    if content.get("schema") == "ramify-golden-1":
        return [_search_case(file, case, content["tolerance"]["abs"]) for case in content["cases"]]
    return [
        Case(file, c["id"], c["function"], c.get("mode"), c["input"], c["expected"], content["tolerance_abs"])
        for c in content["cases"]
    ]


def _search_case(file: str, case: Mapping[str, Any], tolerance_abs: float) -> Case:
    """Of a search file: its kind is the function, its preset the mode."""
    return Case(file, case["name"], case["kind"], case["preset"], case["inputs"], case["expected"], tolerance_abs)


def _tree_cases(file: str, content: Mapping[str, Any]) -> list[Case]:
    """Of every forest: its weights, and the coefficients of each credit."""
    found: list[Case] = []
    for case in content["cases"]:
        for function, expected in (("weights", case["weights"]), *case["coefficients"].items()):
            name = f"{case['name']}/{function}"
            found.append(Case(file, name, function, None, case["nodes"], expected, 1e-12))
    return found


def _ppo_cases(file: str, content: Mapping[str, Any]) -> list[Case]:
    outputs = ("A_plus", "A_minus", "W", "objective", "dlogp")
    return [
        Case(file, f"ppo/{number}", "ppo", None, case, {name: case[name] for name in outputs}, 1e-12)
        for number, case in enumerate(content["ppo"])
    ]


def differences(actual: Any, expected: Any, tolerance_abs: float, where: str = "") -> list[str]:
    """What differs: mappings by key, sequences by position, numbers beyond the tolerance; None equals None only."""
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping) or set(actual) != set(expected):
            return [f"{where}: keys of {actual!r} are not {sorted(expected)}"]
        return [d for key in expected for d in differences(actual[key], expected[key], tolerance_abs, f"{where}.{key}")]
    if isinstance(expected, Sequence) and not isinstance(expected, str):
        if isinstance(actual, str) or not isinstance(actual, Sequence) or len(actual) != len(expected):
            return [f"{where}: {actual!r} is not {expected!r}"]
        pairs = enumerate(zip(actual, expected, strict=True))
        return [d for i, (a, e) in pairs for d in differences(a, e, tolerance_abs, f"{where}[{i}]")]
    is_number = isinstance(expected, int | float) and not isinstance(expected, bool)
    if is_number and isinstance(actual, int | float) and not isinstance(actual, bool):
        return [] if abs(actual - expected) <= tolerance_abs else [f"{where}: {actual!r} is not {expected!r}"]
    is_same = type(actual) is type(expected) and actual == expected
    return [] if is_same else [f"{where}: {actual!r} is not {expected!r}"]
