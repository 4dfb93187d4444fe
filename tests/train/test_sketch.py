"""A sketch keeps squared norms and products in the mean, and is one linear map for a seed."""

import pytest

torch = pytest.importorskip("torch", reason="pip install 'ramify[hf]'")

from ramify.train.sketch import Sketch  # noqa: E402

pytestmark = pytest.mark.hf

ONE, OTHER = (torch.randn(500, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
HEAVY = torch.cat([torch.tensor([30.0, -20.0]), ONE])
NUM_SEEDS = 600


def over_seeds(one: torch.Tensor, other: torch.Tensor, size: int) -> tuple[float, float]:
    """Mean over seeds of the product of two sketches, and its standard error."""
    sketches = (Sketch(size, seed=seed) for seed in range(NUM_SEEDS))
    found = torch.stack([each.of([one]) @ each.of([other]) for each in sketches])
    return float(found.mean()), float(found.std() / NUM_SEEDS**0.5)


@pytest.mark.parametrize("vector", [ONE, HEAVY], ids=["even", "heavy"])
def test_its_squared_norm_has_the_vector_s_as_its_mean(vector: torch.Tensor) -> None:
    mean, error = over_seeds(vector, vector, size=16)
    assert abs(mean - float(vector @ vector)) < 4 * error


def test_products_of_two_vectors_are_kept_too() -> None:
    mean, error = over_seeds(ONE, OTHER, size=16)
    assert abs(mean - float(ONE @ OTHER)) < 4 * error


def test_its_squared_norm_spreads_by_no_more_than_said() -> None:
    _, error = over_seeds(ONE, ONE, size=64)
    assert error * NUM_SEEDS**0.5 < 1.15 * (2 / 64) ** 0.5 * float(ONE @ ONE)


def test_it_is_one_linear_map_for_a_seed_whatever_the_shape() -> None:
    sketch = Sketch(32, seed=5)
    whole = sketch.of([ONE + 2 * OTHER])
    torch.testing.assert_close(whole, sketch.of([ONE]) + 2 * sketch.of([OTHER]))
    assert torch.equal(sketch.of([ONE]), Sketch(32, seed=5).of([ONE.reshape(50, 10)]))
    assert not torch.equal(sketch.of([ONE]), Sketch(32, seed=6).of([ONE]))


def test_nothing_has_a_sketch_of_zeros() -> None:
    assert not Sketch(8).of([]).any()
