"""The shipped step scorer: its folder is whole, and its report says what it is worth."""

import json

import numpy as np
import pytest
from models.value_data import auc_within, paths_of
from tests.rows.test_preference import TREE, grown

from ramify.engines import builtin
from ramify.engines.value_model import FOLDER


def test_its_report_is_of_training_problems_and_held_out_ones() -> None:
    report = json.loads((FOLDER / "report.json").read_text())
    assert report["paths"] > 10_000
    for task in ("countdown", "hops"):
        assert report["auc_within_problems"][task]["all"] > 0.55


def test_its_tokenizer_is_the_model_s() -> None:
    assert (FOLDER / "tokenizer.json").read_bytes() == (builtin.FOLDER / "tokenizer.json").read_bytes()


def test_a_step_that_many_leaves_share_counts_once() -> None:
    paths = list(paths_of(grown(TREE)))
    assert [path.reward for path in paths] == [0.5, 1.0, 0.0, 1.0, 0.0, 0.0]
    weight_of_a = sum(path.weights[0] for path in paths if path.q[0] == np.float32(2 / 3))
    assert weight_of_a == pytest.approx(1.0)


def test_the_area_is_within_problems_and_ties_count_half() -> None:
    assert auc_within([[(0.9, 1.0), (0.1, 0.0)], [(0.2, 1.0), (0.2, 0.0)], [(0.3, 1.0)]]) == 0.75
    assert auc_within([[(0.3, 1.0)]]) is None
