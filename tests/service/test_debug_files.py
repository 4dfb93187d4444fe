"""Batches in slime's files of `torch.save`, which are read without running anything that they name."""

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rows.batches import batch_of
from tests.service.services import config, plain, served
from tests.store.test_store import unprivileged

from ramify.core.errors import ConfigError, ExportError, StoreError
from ramify.rows.sample import Sample
from ramify.rows.slime import samples
from ramify.service import debug_files
from ramify.service.manager import RolloutManager

SLIMES: dict[str, Any] = {
    "group_index": 0,
    "index": 3,
    "rollout_id": None,
    "prompt": [{"role": "user", "content": "2 + 2?"}],
    "tokens": [5, 300, 70_000, 2**31, 7],
    "multimodal_inputs": None,
    "multimodal_train_inputs": None,
    "multimodal_train_input_id": None,
    "apply_chat_template_kwargs": {},
    "response": "☃ 4",
    "response_length": 2,
    "label": "4",
    "reward": 1.0,
    "loss_mask": [1, 0],
    "weight_versions": ["7"],
    "rollout_log_probs": [-0.25, 0.0],
    "rollout_top_p_token_ids": None,
    "rollout_top_p_token_offsets": None,
    "rollout_routed_experts": None,
    "remove_sample": False,
    "teacher_log_probs": None,
    "status": "completed",
    "metadata": {"level": 2, "tools": [{"name": "search"}]},
    "generate_function_path": None,
    "custom_rm_path": None,
    "train_metadata": None,
    "session_id": "s",
    "non_generation_time": 0.5,
    "spec_info": {"spec_verify_ct": 0},
    "prefix_cache_info": {"cached_tokens": 3, "total_prompt_tokens": 4},
}
"""A sample as slime's `to_dict` writes it (THUDM/slime slime/utils/types.py)."""


torch: Any = import_module("torch") if find_spec("torch") else None


def saved(folder: Path, value: Any, *, name: str = "0.pt") -> Path:
    """`value`, as slime writes it."""
    torch.save(value, folder / name)
    return folder / name


def batch(**changes: Any) -> Mapping[str, Any]:
    return {"rollout_id": 0, "samples": [{**SLIMES, **changes}]}


def test_without_torch_its_files_are_refused_with_the_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / "0.pt"
    path.write_bytes(b"anything")
    for use in (lambda: debug_files.load(path), lambda: debug_files.save([Sample()], path, rollout_id=0)):
        with pytest.raises(ConfigError, match=r"0\.pt is a file of torch\.save, which needs torch: pip install"):
            use()


# -- files of slime ----------------------------------------------------------------------------------------------------


@pytest.mark.hf
@pytest.mark.covers("S3.5")
def test_samples_that_slime_saved_are_read_with_all_that_they_hold(tmp_path: Path) -> None:
    (sample,) = debug_files.load(saved(tmp_path, batch()))
    assert sample.to_dict() == SLIMES
    assert sample.status is Sample.Status.COMPLETED and sample.tokens[3] == 2**31


@pytest.mark.hf
@pytest.mark.covers("S3.5")
def test_a_service_trains_on_what_slime_saved(tmp_path: Path) -> None:
    more = [{**SLIMES, "index": place, "reward": float(place)} for place in range(3)]
    saved(tmp_path, {"rollout_id": 7, "samples": more}, name="7.pt")
    wanted = config(service__load_debug=str(tmp_path / "{rollout_id}.pt"), service__debug="train_only")

    async def use(manager: RolloutManager) -> Any:
        with pytest.raises(ConfigError, match=r"no batch to load at .*/8.pt"):
            await manager.generate(8)
        return await manager.generate(7)

    data = served(tmp_path / "run", use, configured=wanted).train_data
    assert data["tokens"] == [SLIMES["tokens"]] * 3
    assert (data["loss_masks"], data["raw_reward"]) == ([[1, 0]] * 3, [0.0, 1.0, 2.0])


@pytest.mark.hf
@pytest.mark.covers("S3.5")
def test_a_batch_saved_in_slimes_form_is_trained_on_again(tmp_path: Path) -> None:
    template = str(tmp_path / "batches" / "{rollout_id}.pt")
    wanted = config(service__save_debug=template, service__eval__sums__prompts=2)

    async def use(manager: RolloutManager) -> Any:
        await manager.eval(0)
        return await manager.generate(0)

    first = served(tmp_path / "run", use, configured=wanted)
    assert {path.name for path in (tmp_path / "batches").glob("*.pt")} == {"0.pt", "eval_0.pt"}
    again = config(service__load_debug=template, service__debug="train_only")
    found = served(tmp_path / "again", lambda manager: manager.generate(0), configured=again)
    assert plain(found) == plain(first) and found.train_data == first.train_data
    assert len(debug_files.load(tmp_path / "batches" / "eval_0.pt")) == 2


@pytest.mark.hf
def test_a_file_that_something_else_made_is_not_replaced(tmp_path: Path) -> None:
    path = saved(tmp_path, batch())
    before = path.read_bytes()
    with pytest.raises(ExportError, match="is not what an earlier export made"):
        debug_files.save([Sample()], path, rollout_id=0)
    assert path.read_bytes() == before


@pytest.mark.covers("S3.5")
@pytest.mark.hf
def test_slimes_loader_reads_what_is_saved_here(tmp_path: Path) -> None:
    made = samples(batch_of([1, 2, 3]))
    path = tmp_path / "made.pt"
    debug_files.save(made, path, rollout_id=5)
    wanted = {"rollout_id": 5, "samples": [sample.to_dict() for sample in made]}
    assert torch.load(path, weights_only=True) == torch.load(path, weights_only=False) == wanted
    assert debug_files.load(path) == made


# -- what is refused ---------------------------------------------------------------------------------------------------


class Calling:
    """An object whose pickle calls `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> Any:
        return self.called


@pytest.mark.hf
@pytest.mark.covers("S3.5")
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Calling(os.system, "touch MARK"), "posix.system"),
        (Calling(eval, "open('MARK', 'w')"), "eval"),
        (Calling(__import__, "antigravity"), "__import__"),
        (np.zeros(3), "numpy._core.multiarray._reconstruct"),
        (Path("x"), "pathlib.PosixPath"),
        (Sample, "ramify.rows.sample.Sample"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_that_a_file_names_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path, batch(metadata={"mine": value}))
    with pytest.raises(ExportError, match=r"0\.pt cannot be read") as caught:
        debug_files.load(path)
    assert name in str(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == ["0.pt"]


@pytest.mark.hf
def test_an_ordered_dictionary_is_read_as_a_dictionary(tmp_path: Path) -> None:
    (sample,) = debug_files.load(saved(tmp_path, batch(metadata=OrderedDict(level=2, name=OrderedDict()))))
    assert sample.metadata == {"level": 2, "name": {}}


@pytest.mark.hf
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_a_torn_file_is_named(tmp_path: Path, share: float) -> None:
    path = saved(tmp_path, batch())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ExportError, match=r"0\.pt cannot be read"):
        debug_files.load(path)


@pytest.mark.hf
def test_no_byte_of_a_file_makes_another_error_than_ours(tmp_path: Path) -> None:
    path = saved(tmp_path, batch())
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        for value in (0, 0xFF, whole[place] ^ 0x10):
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            with suppress(ExportError):
                debug_files.load(path)


def lacking(key: str) -> Mapping[str, Any]:
    return {"samples": [{name: value for name, value in SLIMES.items() if name != key}]}


@pytest.mark.hf
@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([SLIMES], "holds 'list' and no list 'samples'"),
        (7, "holds 'int' and no list 'samples'"),
        ({"rollout_id": 0}, "holds ['rollout_id'] and no list 'samples'"),
        ({"samples": {"0": SLIMES}}, "no list 'samples'"),
        ({"rollout_id": 0, "samples": []}, "holds no sample"),
        ({"samples": [7]}, "sample 0: Expected `object`, got `int`"),
        ({"samples": [SLIMES, None]}, "sample 1: Expected `object`, got `null`"),
        (lacking("tokens"), "missing required field `tokens`"),
        (lacking("status"), "missing required field `status`"),
        (lacking("response_length"), "missing required field `response_length`"),
        (batch(tokens="12345"), "Expected `array`, got `str` - at `$.tokens`"),
        (batch(tokens=[1, 2, "3", 4]), "Expected `int`, got `str` - at `$.tokens[2]`"),
        (batch(tokens=[1, 2, -3, 4]), "Expected `int` >= 0"),
        (batch(rollout_log_probs=[None, 0.0]), "Expected `float`, got `null`"),
        (batch(reward="1.0"), "$.reward"),
        (batch(metadata=None), "$.metadata"),
        (batch(response_length=10**30), "response_length 1000000000000000000000000000000 of 5 tokens"),
        (batch(response_length=6), "response_length 6 of 5 tokens"),
        (batch(loss_mask=[1, 1, 1]), "loss_mask has length 3"),
        (batch(status="done"), "has status 'done'"),
        (batch(check=3), "a sample has the key 'check'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_holds_no_samples_of_slime_is_named(tmp_path: Path, value: Any, fault: str) -> None:
    with pytest.raises(ExportError) as caught:
        debug_files.load(saved(tmp_path, value))
    assert fault in str(caught.value) and "0.pt" in str(caught.value)


@pytest.mark.hf
def test_what_training_data_would_not_hold_is_read_and_not_trained(tmp_path: Path) -> None:
    template = str(tmp_path / "{rollout_id}.pt")
    saved(tmp_path, batch(rollout_routed_experts=[[[1]]] * 4))
    looking = config(service__load_debug=template, service__debug="rollout_only")
    found = served(tmp_path / "looking", lambda manager: manager.generate(0), configured=looking)
    assert len(found.samples) == 1
    training = config(service__load_debug=template, service__debug="train_only")
    with pytest.raises(ExportError, match="sample 3 carries rollout_routed_experts"):
        served(tmp_path / "training", lambda manager: manager.generate(0), configured=training)


@pytest.mark.parametrize("ending", ["pkl", "pickle", "pth"])
def test_no_other_pickle_is_named(ending: str) -> None:
    for name in ("load_debug", "save_debug"):
        with pytest.raises(ConfigError, match="no other pickle is read"):
            config(**{f"service__{name}": f"batches/{{rollout_id}}.{ending}"})


@pytest.mark.parametrize("folder", ["locked", "locked/below"])
def test_a_batch_that_the_disk_refuses_is_a_fault_of_the_store(tmp_path: Path, folder: str) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    path = tmp_path / folder / "0.jsonl"
    with (
        unprivileged(tmp_path / "locked" / "0.jsonl"),
        pytest.raises(StoreError, match=r"batch cannot be saved.*Permission denied") as raised,
    ):
        debug_files.save([Sample(tokens=[1, 2], response_length=1)], path, rollout_id=0)
    assert isinstance(raised.value.__cause__, PermissionError)
