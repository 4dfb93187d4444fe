"""The fields of slime's evaluation sets: each is heeded here, or refused where it is set."""

from dataclasses import fields
from typing import Any, Final

import pytest
from tests.originals.sources import imports, source

from ramify.integrations.slime.args import SET_REFUSED

HEEDED: Final = (
    "name path rm_type custom_rm_path input_key label_key metadata_key n_samples_per_eval_prompt temperature top_p "
    "top_k max_response_len metadata_overrides"
).split()
WITH_A_TEMPLATE: Final = ("tool_key", "apply_chat_template_kwargs")
"""slime reads them for its chat template, which is refused."""


@pytest.mark.originals
@pytest.mark.covers("S3.7")
def test_every_field_of_a_set_is_heeded_or_refused() -> None:
    root = source("RAMIFY_SLIME", "THUDM/slime", "slime/utils/eval_config.py")
    with imports(root, absent=()) as get:
        module: Any = get("slime.utils.eval_config")
    refused = {name for name, _, _ in SET_REFUSED}
    known = {field.name for field in fields(module.EvalDatasetConfig)}
    assert known == {*HEEDED, *WITH_A_TEMPLATE, *refused}
    (usual,) = module.build_eval_dataset_configs(object(), [{"name": "sums", "path": "sums.jsonl"}], {})
    for name, allowed, _ in SET_REFUSED:
        assert getattr(usual, name) in allowed
