"""Rows as OpenRLHF's own `Experience`, through its buffer's functions and its loss."""

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.originals.sources import imports
from tests.trainers.factor import BATCHES, differentiated, rows_of

from ramify.core.errors import ConfigError, ExportError

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]
pytest.importorskip("torch", reason="torch is not installed: make test-trainers")
PACKAGES = ("openrlhf", "openrlhf.models", "openrlhf.utils", "openrlhf.trainer", "openrlhf.trainer.ppo_utils")


@pytest.fixture(scope="module")
def theirs() -> Any:
    spec = find_spec("openrlhf")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("openrlhf is not installed: make test-trainers")
    (folder,) = spec.submodule_search_locations
    with imports(Path(folder).parent, absent=(*PACKAGES, "deepspeed")) as load:
        yield Namespace(loss=load("openrlhf.models.loss"), buffer=load("openrlhf.trainer.ppo_utils.experience"))


@pytest.mark.parametrize("num_micro", [1, 3])
@pytest.mark.parametrize("name", BATCHES)
def test_every_token_is_trained_with_its_credit(name: str, num_micro: int, theirs: Any) -> None:
    """Appended to the replay buffer, drawn as micro batches of one step, and differentiated."""
    from ramify.integrations.openrlhf import experience

    rows = rows_of(name)
    whole = theirs.buffer.Experience(**experience(rows))
    items = theirs.buffer.remove_padding_in_sequences(theirs.buffer.split_experience_batch(whole))
    order = np.random.default_rng(0).permutation(len(rows))
    num_trees = len({(row.uid, row.tree_seed) for row in rows})
    for places in np.array_split(order, num_micro):
        batch = theirs.buffer.make_experience_batch([items[place] for place in places])

        def loss(logprobs: Any, batch: Any = batch) -> Any:
            return theirs.loss.PolicyLoss()(
                logprobs, batch.action_log_probs, batch.advantages, action_mask=batch.action_mask,
                batch_num_tokens=whole.action_mask.sum(), dp_size=1,
            )[0]  # fmt: skip

        found = differentiated(loss, batch.action_log_probs)
        for gradient, place in zip(found, places, strict=True):
            row = rows[place]
            stated = -row.trained[1:] / (row.normaliser * num_trees)
            assert gradient[: len(row) - 1] == pytest.approx(stated, rel=1e-4, abs=1e-9)
            assert not gradient[len(row) - 1 :].any()


def test_its_fields_are_those_of_the_rows() -> None:
    from ramify.integrations.openrlhf import experience

    rows = rows_of("mixed")
    made = experience(rows, pad_id=9)
    for number, row in enumerate(rows):
        assert made["sequences"][number, : len(row)].tolist() == row.ids.tolist()
        assert set(made["sequences"][number, len(row) :].tolist()) <= {9}
        assert (np.flatnonzero(made["action_mask"][number]) == np.flatnonzero(row.weights > 0) - 1).all()
        assert made["attention_mask"][number].sum() == made["total_length"][number] == len(row)
        assert made["rewards"][number] == np.float32(row.reward)


def test_what_has_no_place_in_a_batch_is_refused() -> None:
    from dataclasses import replace

    from ramify.integrations.openrlhf import experience

    rows = rows_of("even")
    with pytest.raises(ExportError, match="no rows"):
        experience([])
    with pytest.raises(ExportError, match="without a logprob"):
        experience([replace(rows[0], logprobs=np.full(len(rows[0]), np.nan, np.float32)), *rows[1:]])
    with pytest.raises(ExportError, match="normaliser"):
        experience([replace(rows[0], normaliser=3.0), *rows[1:]])


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("actor.loss_agg_mode", "seq-mean-token-mean", "set token-mean"),
        ("actor.policy_loss_type", "gspo", "set ppo"),
        ("actor.entropy_coef", 0.01, "entropy_coef 0.01"),
        ("algo.kl.use_loss", True, "kl.use_loss"),
        ("algo.advantage.is_correction_level", "sequence", "set off or token"),
    ],
)
def test_arguments_that_would_train_something_else_are_refused(path: str, value: Any, problem: str) -> None:
    from ramify.integrations.openrlhf import check_arguments

    args = Namespace(
        actor=Namespace(loss_agg_mode="token-mean", policy_loss_type="ppo", entropy_coef=None),
        algo=Namespace(kl=Namespace(use_loss=False, init_coef=0.01), advantage=Namespace(is_correction_level="off")),
    )
    check_arguments(args)
    at = args
    *outer, name = path.split(".")
    for part in outer:
        at = getattr(at, part)
    setattr(at, name, value)
    with pytest.raises(ConfigError, match=problem):
        check_arguments(args)
