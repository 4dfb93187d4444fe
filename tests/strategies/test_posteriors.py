import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.abmcts import beta_cdf, beta_quantile

from ramify.core.errors import ConfigError
from ramify.strategies.parts.posteriors import (
    FEW,
    Beta,
    BetaPrior,
    Gaussian,
    GaussianPrior,
    Posteriors,
    RunningMean,
    ucb1,
)

SCORES = st.lists(st.floats(0, 1), max_size=40)
PRIORS = st.builds(
    GaussianPrior, m=st.floats(-1, 1), kappa=st.floats(0.1, 5), nu=st.floats(0.1, 5), tau_square=st.floats(0.01, 2)
)


@given(PRIORS, SCORES)
def test_a_gaussian_is_the_prior_updated_by_all_scores_at_once(prior: GaussianPrior, scores: list[float]) -> None:
    posterior = prior.posterior()
    for score in scores:
        posterior.observe(score)
    k, mean = len(scores), float(np.mean(scores)) if scores else 0.0
    kappa, nu = prior.kappa + k, prior.nu + k
    squares = sum((x - mean) ** 2 for x in scores) + k * prior.kappa * (prior.m - mean) ** 2 / kappa
    found = posterior.parameters
    assert (found.kappa, found.nu) == pytest.approx((kappa, nu))
    assert found.m == pytest.approx((prior.kappa * prior.m + k * mean) / kappa, abs=1e-9)
    assert found.tau_square == pytest.approx((prior.nu * prior.tau_square + squares) / nu, abs=1e-9)


@given(SCORES)
def test_running_statistics_are_those_of_the_list(scores: list[float]) -> None:
    seen = RunningMean()
    for score in scores:
        seen.observe(score)
    assert seen.count == len(scores)
    assert seen.mean == pytest.approx(np.mean(scores) if scores else 0.0, abs=1e-12)
    assert seen.squares == pytest.approx(np.var(scores) * len(scores) if scores else 0.0, abs=1e-12)


def test_draws_of_a_gaussian_have_the_mean_and_spread_of_its_student_t() -> None:
    posterior = GaussianPrior(m=0.3, kappa=2.0, nu=9.0, tau_square=0.2).posterior()
    rng = np.random.default_rng(0)
    drawn = [posterior.draw(rng) for _ in range(40_000)]
    assert np.mean(drawn) == pytest.approx(0.3, abs=0.006)
    assert np.var(drawn) == pytest.approx(0.2 / 2.0 * 9 / 7, rel=0.04)


def test_draws_of_a_beta_have_its_mean_and_spread() -> None:
    posterior = BetaPrior(2.0, 3.0).posterior()
    rng = np.random.default_rng(0)
    drawn = [posterior.draw(rng) for _ in range(40_000)]
    assert np.mean(drawn) == pytest.approx(0.4, abs=0.004)
    assert np.var(drawn) == pytest.approx(0.04, rel=0.04)


@given(PRIORS, SCORES, st.integers(1, 9))
def test_pending_requests_are_scores_equal_to_the_mean(prior: GaussianPrior, scores: list[float], n: int) -> None:
    waiting, told = prior.posterior(), prior.posterior()
    for score in scores:
        waiting.observe(score)
        told.observe(score)
    waiting.reserve(n)
    for _ in range(n):
        told.observe(told.mean)
    assert waiting.mean == pytest.approx(told.mean)
    drawn = [posterior.draw(np.random.default_rng(3)) for posterior in (waiting, told)]
    assert drawn[0] == pytest.approx(drawn[1])


@pytest.mark.parametrize("prior", [GaussianPrior(), BetaPrior()])
def test_a_pending_request_leaves_no_trace_once_it_is_answered(prior: GaussianPrior | BetaPrior) -> None:
    waiting, plain = prior.posterior(), prior.posterior()
    waiting.reserve(2)
    waiting.observe(0.7, 1)
    waiting.reserve(-1)
    plain.observe(0.7)
    assert waiting.pending == 0
    assert waiting.draw(np.random.default_rng(1)) == plain.draw(np.random.default_rng(1))


def test_pending_requests_of_a_beta_narrow_it_and_leave_its_mean() -> None:
    posterior = Beta(1.0, 3.0)
    posterior.reserve(12)
    rng = np.random.default_rng(0)
    drawn = [posterior.draw(rng) for _ in range(40_000)]
    assert (np.mean(drawn), np.var(drawn)) == pytest.approx((0.25, 0.25 * 0.75 / 17), rel=0.05)


def test_a_gamma_that_comes_out_as_zero_is_no_infinite_draw() -> None:
    class Zero:
        def standard_gamma(self, shape: float, /) -> float:
            return 0.0

        def standard_normal(self) -> float:
            return 1.0

    assert math.isfinite(Gaussian(GaussianPrior()).draw(Zero()))  # type: ignore[arg-type]


class ByParameters:
    """Draws that follow from the parameters alone, so that their order does not matter."""

    def standard_gamma(self, shape: Any, /) -> Any:
        return shape * (1.25 + np.sin(100 * shape))

    def standard_normal(self, size: Any = None, /) -> Any:
        return 0.75 if size is None else np.full(size, 0.75)

    def beta(self, a: Any, b: Any, /) -> Any:
        return a / (a + b) + np.sin(100 * (a + b)) / 10

    def random(self) -> float:
        raise AssertionError("posteriors draw gammas, normals and betas alone")

    def integers(self, low: int, /) -> int:
        raise AssertionError("posteriors draw gammas, normals and betas alone")


@pytest.mark.parametrize("prior", [GaussianPrior(), BetaPrior()])
@pytest.mark.parametrize("number", [1, FEW, FEW + 1, 3 * FEW])
def test_the_largest_of_many_draws_is_that_of_draws_made_one_by_one(
    prior: GaussianPrior | BetaPrior, number: int
) -> None:
    rng, cap = np.random.default_rng(number), 2
    posteriors = Posteriors()
    assert posteriors.largest(rng, cap=cap) is None
    while len(posteriors) < number:
        posterior = prior.posterior()
        posterior.observe(rng.random())
        posteriors.append(posterior)
        for index in rng.integers(len(posteriors), size=2).tolist():
            changed = posteriors[index]
            changed.reserve(1) if not changed.pending or rng.random() < 0.3 else changed.observe(rng.random(), 1)
            posteriors.changed(index)
        drawn = {i: p.draw(ByParameters()) for i, p in enumerate(posteriors) if p.pending < cap}
        found = posteriors.largest(ByParameters(), cap=cap)
        expected = max(drawn.items(), key=lambda item: item[1], default=None)
        assert found == expected if expected is None or found is None else found == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("prior", [GaussianPrior(), BetaPrior(2.0, 2.0)])
def test_many_equal_posteriors_are_each_the_largest_equally_often(prior: GaussianPrior | BetaPrior) -> None:
    posteriors, rng = Posteriors(), np.random.default_rng(0)
    assert FEW < 64
    for _ in range(64):
        posteriors.append(prior.posterior())
    found = [posteriors.largest(rng, cap=1) for _ in range(20_000)]
    counts = np.bincount([largest[0] for largest in found if largest], minlength=64)
    assert counts.sum() == 20_000
    assert ((counts - 312.5) ** 2 / 312.5).sum() < 110  # chi-square of 63 degrees: 1 in 10,000 is above 111


def test_where_all_are_full_there_is_no_largest() -> None:
    for number in (2, 2 * FEW):
        posteriors = Posteriors()
        for _ in range(number):
            posterior = GaussianPrior().posterior()
            posterior.reserve(1)
            posteriors.append(posterior)
        assert posteriors.largest(np.random.default_rng(0), cap=1) is None


def test_priors_around_a_mean() -> None:
    assert GaussianPrior(kappa=2.0).around(0.4) == GaussianPrior(m=0.4, kappa=2.0)
    assert BetaPrior().around(0.25) == BetaPrior(0.25, 0.75)


@pytest.mark.parametrize(
    ("prior", "wrong"),
    [
        (GaussianPrior, {"kappa": 0.0}),
        (GaussianPrior, {"nu": -1.0}),
        (GaussianPrior, {"tau_square": math.inf}),
        (GaussianPrior, {"m": math.nan}),
        (BetaPrior, {"a": 0.0}),
        (BetaPrior, {"b": math.nan}),
    ],
)
def test_an_impossible_prior_is_refused(prior: type, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        prior(**wrong)


def test_a_choice_never_tried_has_an_infinite_bound() -> None:
    assert ucb1(0.0, 0, 0, exploration=1.0) == math.inf
    assert ucb1(0.4, 2, 5, exploration=2.0) == pytest.approx(0.4 + 2 * math.sqrt(math.log(5) / 2))


@pytest.mark.slow
@given(st.floats(0.3, 30), st.floats(0.3, 30), st.floats(0.001, 0.999))
def test_the_quantile_the_goldens_are_read_with_inverts_its_distribution(a: float, b: float, u: float) -> None:
    assert beta_cdf(beta_quantile(u, a, b), a, b) == pytest.approx(u, abs=1e-9)


def test_the_quantile_of_a_beta_with_a_closed_form() -> None:
    assert beta_quantile(0.36, 1.0, 1.0) == pytest.approx(0.36, abs=1e-12)
    assert beta_quantile(0.5, 0.5, 0.5) == pytest.approx(0.5, abs=1e-12)
    assert beta_quantile(0.25, 0.5, 0.5) == pytest.approx(math.sin(math.pi / 8) ** 2, abs=1e-12)
    assert beta_quantile(0.3, 3.0, 1.0) == pytest.approx(0.3 ** (1 / 3), abs=1e-12)
