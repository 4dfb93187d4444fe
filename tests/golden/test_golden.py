"""The functions of the package give the golden numbers."""

import pytest
from tests.golden.files import FOLDER, Case, cases, differences, names
from tests.golden.table import ENUMERATED, LATER, LATER_FUNCTIONS, TABLE


def _parameters() -> list[object]:
    """One parameter a case; a file that cannot be read is one that fails."""
    found: list[object] = []
    for file in TABLE:
        try:
            of_file = [c for c in cases(file) if c.function not in LATER_FUNCTIONS.get(file, ())]
        except OSError as error:
            found.append(pytest.param(error, id=f"{file}::missing"))
            continue
        found += [pytest.param(case, id=case.name) for case in of_file]
    return found


@pytest.mark.parametrize("case", _parameters())
def test_golden(case: Case | OSError) -> None:
    if isinstance(case, OSError):
        pytest.fail(f"a golden file is missing: {case}")
    section = TABLE[case.file]
    if (case.function, case.mode) not in section:
        pytest.fail(f"{case.name}: no check for ({case.function!r}, {case.mode!r}); known: {sorted(section, key=str)}")
    found = differences(section[case.function, case.mode](case.input, case.mode), case.expected, case.tolerance_abs)
    assert not found, f"{case.name}: {found[:5]}"


def test_every_golden_file_is_covered_or_named_as_later() -> None:
    covered = set(TABLE) | ENUMERATED
    assert covered <= set(names()), f"missing in {FOLDER}: {covered - set(names())}"
    assert set(names()) <= covered | LATER
    assert not set(TABLE) & LATER


def test_functions_named_as_later_are_in_their_files() -> None:
    for file, functions in LATER_FUNCTIONS.items():
        assert functions <= {case.function for case in cases(file)}
