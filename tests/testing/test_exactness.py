"""`check_exact`: passes what is exact, and fails with the worst component."""

import pytest

from ramify.testing import BrokenRule, check_exact


@pytest.mark.slow
def test_an_exact_pair_passes_with_its_certificates() -> None:
    found = check_exact("planned", "subtree_loo", options={"children": [2, 1.5]}, problems=["ragged"])
    assert [each.verdict for each in found] == ["exact"]
    check_exact("chains", "leaf_mean", options={"n": 2}, problems=["ragged"], allows_scaled=True)


def test_a_wrong_pair_fails_with_the_worst_component() -> None:
    worst = (
        r"chains with credit leaf_grpo on ragged: biased \(worst at prefix '11', token 0: 0.27\d+ times the gradient\)"
    )
    with pytest.raises(BrokenRule, match=worst):
        check_exact("chains", "leaf_grpo", options={"n": 2}, problems=["ragged"])
    with pytest.raises(BrokenRule, match=r"scaled by 1/2 \(\d+ trees \(all\), fractions"):
        check_exact("chains", "leaf_mean", options={"n": 2}, problems=["ragged"])


def test_what_tests_nothing_fails() -> None:
    with pytest.raises(BrokenRule, match="untested: no tree forked"):
        check_exact("chains", "auto", options={"n": 1}, problems=["ragged"])
