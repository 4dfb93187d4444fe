import pytest

from ramify.core.backup import backed_up, backup_weight, final_value, terminal_choice


def test_a_success_replaces_a_stored_failure_and_no_failure_a_stored_success() -> None:
    stored = backed_up(0.0, -1.0, 0.5)
    assert stored == -0.5
    assert backed_up(stored, -1.0, 0.25) == -0.75
    assert backed_up(stored, 1.0, 0.25) == 0.25
    assert backed_up(0.25, -1.0, 1.0) == 0.25
    assert backed_up(0.25, 0.0, 1.0) == 0.25


def test_a_leaf_weighs_one_and_the_top_of_a_long_path_no_less_than_the_floor() -> None:
    assert backup_weight(4, 5) == 1.0
    assert backup_weight(1, 4) == 0.5
    assert backup_weight(0, 64) == 0.1


def test_a_reward_from_0_to_1_is_a_value_from_wrong_to_correct() -> None:
    assert [final_value(reward) for reward in (0.0, 0.25, 1.0)] == [-1.0, -0.5, 1.0]


@pytest.mark.parametrize(
    ("values", "surprisals", "chosen"),
    [
        ([-1.0, 1.0, 1.0], [0.1, 0.5, 0.4], 2),
        ([-0.5, -1.0], [0.1, 0.9], 1),
        ([-0.5, 0.2], [0.3, 0.2], 1),
        ([1.0, 1.0], [0.5, 0.5], 0),
    ],
)
def test_correct_comes_before_wrong_before_the_rest_and_the_surest_first(
    values: list[float], surprisals: list[float], chosen: int
) -> None:
    assert terminal_choice(values, surprisals) == chosen
