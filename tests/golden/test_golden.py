"""The functions of the package give the golden numbers."""

import traceback

import pytest
from tests.golden.files import FOLDER, Case, cases, differences, names
from tests.golden.table import ENUMERATED, LATER, LATER_FUNCTIONS, TABLE


def _faults(case: Case) -> list[str]:
    """What is wrong with one case of the table: its check is missing, raises, or gives other numbers."""
    check = TABLE[case.file].get((case.function, case.mode))
    if check is None:
        known = sorted(TABLE[case.file], key=str)
        return [f"{case.name}: no check for ({case.function!r}, {case.mode!r}); known: {known}"]
    try:
        actual = check(case.input, case.mode)
    except Exception:  # noqa: BLE001 - the other cases are tried all the same
        return [f"{case.name}: {traceback.format_exc()}"]
    found = differences(actual, case.expected, case.tolerance_abs)
    return [f"{case.name}: {found[:5]}"] if found else []


@pytest.mark.parametrize("file", TABLE)
def test_golden(file: str) -> None:
    later = LATER_FUNCTIONS.get(file, ())
    held = [case for case in cases(file) if case.function not in later]
    assert held, f"{file}: no case"
    faults = [fault for case in held for fault in _faults(case)]
    assert not faults, f"{len(faults)} faults in {len(held)} cases:\n" + "\n".join(faults)


def test_every_golden_file_is_covered_or_named_as_later() -> None:
    covered = set(TABLE) | ENUMERATED
    assert covered <= set(names()), f"missing in {FOLDER}: {covered - set(names())}"
    assert set(names()) <= covered | LATER
    assert not set(TABLE) & LATER


def test_functions_named_as_later_are_in_their_files() -> None:
    for file, functions in LATER_FUNCTIONS.items():
        assert functions <= {case.function for case in cases(file)}
