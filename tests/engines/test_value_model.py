"""The classifier in numpy."""

import numpy as np
import pytest

from ramify.core.errors import ConfigError
from ramify.engines import builtin
from ramify.engines.value_model import ValueModel

CONTEXTS = [np.arange(5, 40, dtype=np.int32), np.arange(5, 60, dtype=np.int32), np.arange(90, 100, dtype=np.int32)]


def test_a_score_does_not_depend_on_what_was_scored_before() -> None:
    alone = [ValueModel().values([context])[0] for context in CONTEXTS]
    assert ValueModel().values(CONTEXTS) == alone
    assert ValueModel(num_slots=1).values([*CONTEXTS, *CONTEXTS]) == alone * 2
    assert all(0 < value < 1 for value in alone)


def test_a_model_that_is_no_classifier_is_refused() -> None:
    with pytest.raises(ConfigError, match="no classifier"):
        ValueModel(builtin.FOLDER)


@pytest.mark.parametrize("length", [0, 10_000])
def test_contexts_that_cannot_be_scored_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"{length} tokens"):
        ValueModel().values([np.zeros(length, np.int32)])
