"""Debug files between slime's own functions and ours. Needs torch, which slime imports."""

from pathlib import Path
from typing import Any

import pytest
from tests.originals.sources import imports, source
from tests.rows.batches import batch_of

from ramify.rows.sample import Sample
from ramify.rows.slime import samples
from ramify.service import debug_files


@pytest.mark.originals
@pytest.mark.covers("S3.5")
def test_slime_reads_our_files_and_we_read_its(tmp_path: Path) -> None:
    root = source("RAMIFY_SLIME", "THUDM/slime", "slime/observability/rollout_data_utils.py")
    pytest.importorskip("torch")
    with imports(root, absent=("ray",)) as get:
        theirs: Any = get("slime.observability.rollout_data_utils")
    made = samples(batch_of([1, 2, 3]))
    template = str(tmp_path / "{rollout_id}.pt")
    debug_files.save(made, debug_files.path_of(template, 7), rollout_id=7)
    found = theirs.load_debug_rollout_data(template, rollout_id=7)
    assert [Sample.from_dict(_known(sample)) for sample in found] == made

    theirs.save_debug_rollout_data(template, found, rollout_id=8, evaluation=False)
    theirs.save_debug_rollout_data(template, {"sums": {"samples": found}}, rollout_id=9, evaluation=True)
    for path in (debug_files.path_of(template, 8), debug_files.path_of(template, 9, is_evaluation=True)):
        again = debug_files.load(path)
        assert [sample.to_dict() for sample in again] == [sample.to_dict() for sample in found]


def _known(sample: Any) -> dict[str, Any]:
    """The fields of a sample of slime that are ours too."""
    ours = vars(Sample())
    return {name: value for name, value in sample.to_dict().items() if name in ours}
