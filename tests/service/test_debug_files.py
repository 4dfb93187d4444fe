"""Batches in files: JSON lines, and slime's files of `torch.save`, which are read as data and never unpickled."""

import os
import pickle
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rows.batches import batch_of
from tests.service.services import config, plain, served

from ramify.core.errors import ConfigError, ExportError
from ramify.rows.sample import Sample
from ramify.rows.slime import samples
from ramify.service import debug_files
from ramify.service.manager import RolloutManager
from ramify.service.plain_pickle import MAX_DEPTH, dumped, loaded

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
    "metadata": {"level": 2, "tools": ({"name": "search"},)},
    "generate_function_path": None,
    "custom_rm_path": None,
    "train_metadata": None,
    "session_id": "s",
    "non_generation_time": 0.5,
    "spec_info": {"spec_verify_ct": 0},
    "prefix_cache_info": {"cached_tokens": 3, "total_prompt_tokens": 4},
}
"""A sample as slime's `to_dict` writes it (THUDM/slime slime/utils/types.py)."""


def saved(folder: Path, value: Any, *, name: str = "0.pt", **options: Any) -> Path:
    """`value`, as `torch.save` writes what holds no tensor (pytorch torch/serialization.py)."""
    data = value if isinstance(value, bytes) else pickle.dumps(value, protocol=2)
    path = folder / name
    with zipfile.ZipFile(path, "w", **options) as archive:
        for entry, content in {"data.pkl": data, "byteorder": b"little", "version": b"3\n"}.items():
            archive.writestr(f"{path.stem}/{entry}", content)
    return path


def batch(**changes: Any) -> Mapping[str, Any]:
    return {"rollout_id": 0, "samples": [{**SLIMES, **changes}]}


# -- files of slime ----------------------------------------------------------------------------------------------------


@pytest.mark.covers("S3.5")
def test_samples_that_slime_saved_are_read_with_all_that_they_hold(tmp_path: Path) -> None:
    (sample,) = debug_files.load(saved(tmp_path, batch()))
    tools = {"level": 2, "tools": [{"name": "search"}]}  # a tuple is read as a list
    assert sample.to_dict() == {**SLIMES, "metadata": tools}
    assert sample.status is Sample.Status.COMPLETED and sample.tokens[3] == 2**31


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


def test_a_file_that_something_else_made_is_not_replaced(tmp_path: Path) -> None:
    path = saved(tmp_path, batch())
    before = path.read_bytes()
    with pytest.raises(ExportError, match="is not what an earlier export made"):
        debug_files.save([Sample()], path, rollout_id=0)
    assert path.read_bytes() == before


@pytest.mark.hf
@pytest.mark.covers("S3.5")
def test_torch_reads_and_writes_the_same_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    made = samples(batch_of([1, 2, 3]))
    path = tmp_path / "made.pt"
    debug_files.save(made, path, rollout_id=5)
    wanted = {"rollout_id": 5, "samples": [sample.to_dict() for sample in made]}
    for weights_only in (True, False):
        assert torch.load(path, weights_only=weights_only) == wanted
    torch.save(wanted, tmp_path / "theirs.pt")
    assert debug_files.load(tmp_path / "theirs.pt") == made
    torch.save({"samples": [{**SLIMES, "multimodal_train_inputs": torch.zeros(3)}]}, tmp_path / "image.pt")
    with pytest.raises(ExportError, match=r"names 'torch\._utils\._rebuild_tensor_v2'"):
        debug_files.load(tmp_path / "image.pt")


# -- what is refused ---------------------------------------------------------------------------------------------------


class Calling:
    """An object whose pickle calls `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> Any:
        return self.called


@pytest.mark.covers("S3.5")
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Calling(os.system, "touch MARK"), "posix.system"),
        (Calling(eval, "open('MARK', 'w')"), "__builtin__.eval"),
        (Calling(__import__, "antigravity"), "__builtin__.__import__"),
        (np.zeros(3), "numpy._core.multiarray._reconstruct"),
        (np.float64(1.0), "numpy._core.multiarray.scalar"),
        (b"bytes", "_codecs.encode"),
        ({1, 2}, "__builtin__.set"),
        (Path("x"), "pathlib.PosixPath"),
        (Sample, "ramify.rows.sample.Sample"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_that_a_file_names_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path, batch(metadata={"mine": value}))
    with pytest.raises(ExportError, match=r"0\.pt cannot be read: .* nothing that a file names") as caught:
        debug_files.load(path)
    assert f"the pickle names {name!r}, and" in str(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == ["0.pt"]


def test_an_ordered_dictionary_is_read_as_a_dictionary(tmp_path: Path) -> None:
    (sample,) = debug_files.load(saved(tmp_path, batch(metadata=OrderedDict(level=2, name=OrderedDict()))))
    assert sample.metadata == {"level": 2, "name": {}}


PUSHED = {
    "an older protocol": (b"(lp0\n.", "no pickle of protocol 2"),
    "another protocol": (pickle.dumps({}, protocol=4), "no pickle of protocol 2"),
    "an instruction that builds": (b"\x80\x02}}b.", "the instruction b'b'"),
    "an instruction that makes an object": (b"\x80\x02})\x81.", r"the instruction b'\x81'"),
    "an extension": (b"\x80\x02\x82\x01.", r"the instruction b'\x82'"),
    "a storage": (b"\x80\x02X\x01\x00\x00\x00aQ.", "the instruction b'Q'"),
    "a call of a text": (b"\x80\x02X\x01\x00\x00\x00a)R.", "calls a value of type str"),
    "a call with arguments": (b"\x80\x02ccollections\nOrderedDict\n]\x85R.", "calls a value of type type"),
    "a class that is not called": (b"\x80\x02ccollections\nOrderedDict\n\x85.", "names a class and does not call it"),
    "two values": (b"\x80\x02}}.", "makes no single value"),
    "no value": (b"\x80\x02.", "makes no single value"),
    "what follows the end": (b"\x80\x02}.}", "makes no single value"),
    "a text of 4 GB": (b"\x80\x02X\xff\xff\xff\xffab.", "torn at byte"),
    "a memo of 4 billion places": (b"\x80\x02}r\xff\xff\xff\xffj\xff\xff\xff\xfe.", "torn at byte"),
    "a value that was never put": (b"\x80\x02h\x07.", "torn at byte"),
    "an empty stack": (b"\x80\x02s.", "torn at byte"),
    "a list that is no list": (b"\x80\x02}K\x01a.", "appends to what is no list"),
    "a dictionary that is none": (b"\x80\x02]X\x01\x00\x00\x00aK\x01s.", "sets items of what is no dictionary"),
    "a key that is a list": (b"\x80\x02}]K\x01s.", "a key of type list; keys must be texts"),
    "a name without an end": (b"\x80\x02c" + b"x" * 5000, "torn at byte"),
    "text that is no UTF-8": (b"\x80\x02X\x01\x00\x00\x00\xff.", "torn at byte"),
}


@pytest.mark.parametrize("what", PUSHED)
def test_a_program_that_no_plain_value_needs_is_refused(tmp_path: Path, what: str) -> None:
    data, fault = PUSHED[what]
    with pytest.raises(ExportError) as caught:
        debug_files.load(saved(tmp_path, data))
    assert fault in str(caught.value)


def in_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def laughing(levels: int) -> Any:
    """10 ** levels values in a pickle of a few hundred bytes."""
    value: Any = ["ha"] * 10
    for _ in range(levels):
        value = [value] * 10
    return value


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (in_itself(), "more than 4 times the pickle"),
        (deep(MAX_DEPTH + 1), "at most 64 are read"),
        (laughing(30), "more than 4 times the pickle"),
        ([[1] * 1000] * 1000, "more than 4 times the pickle"),
    ],
    ids=["in itself", "deep", "a billion places", "one list in many places"],
)
def test_a_short_pickle_makes_no_large_value(value: Any, fault: str) -> None:
    data = pickle.dumps(value, protocol=2)
    tracemalloc.start()
    try:
        with pytest.raises(ExportError, match=fault):
            loaded(data)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_a_torn_file_is_named(tmp_path: Path, share: float) -> None:
    path = saved(tmp_path, batch())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ExportError, match=r"0\.pt cannot be read: it is no file of torch.save, or was cut short"):
        debug_files.load(path)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = saved(tmp_path, batch())
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"completed") + 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ExportError, match="Bad CRC-32"):
        debug_files.load(path)


def test_no_byte_of_a_file_makes_another_error_than_ours(tmp_path: Path) -> None:
    path = saved(tmp_path, batch())
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        for value in (0, 0xFF, whole[place] ^ 0x10):
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            with suppress(ExportError):
                debug_files.load(path)


def without_pickle(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "0.pt", "w") as archive:
        archive.writestr("0/version", b"3\n")
    return folder / "0.pt"


def older(folder: Path) -> Path:
    (folder / "0.pt").write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + pickle.dumps(batch(), protocol=2))
    return folder / "0.pt"


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda folder: saved(folder, batch(), compression=zipfile.ZIP_DEFLATED), "is compressed"),
        (lambda folder: saved(folder, b"\x80\x02}.", name="data.pkl.pt"), "holds [] and no list 'samples'"),
        (without_pickle, "it has 0 entries called data.pkl"),
        (older, "it is no file of torch.save"),
    ],
    ids=["compressed", "empty", "no pickle", "torch's older format"],
)
def test_another_archive_is_refused(tmp_path: Path, make: Callable[[Path], Path], fault: str) -> None:
    with pytest.raises(ExportError) as caught:
        debug_files.load(make(tmp_path))
    assert fault in str(caught.value)


def lacking(key: str) -> Mapping[str, Any]:
    return {"samples": [{name: value for name, value in SLIMES.items() if name != key}]}


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


@pytest.mark.parametrize("value", [np.float64(1.0), object(), np.zeros(2)])
def test_what_could_not_be_read_again_is_not_saved(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ExportError, match=r"a sample holds .* only numbers, texts, lists and dictionaries are saved"):
        debug_files.save([Sample(metadata={"mine": value})], tmp_path / "0.pt", rollout_id=0)
    assert not list(tmp_path.glob("*"))


# -- plain values ------------------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)


@given(VALUES)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert loaded(dumped(value)) == value == loaded(pickle.dumps(value, protocol=2))


@given(VALUES, st.data())
def test_a_changed_program_makes_a_value_or_an_error_of_ours(value: Any, data: st.DataObject) -> None:
    whole = bytearray(dumped(value))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ExportError):
        loaded(bytes(whole))


def test_a_large_batch_is_read_whole() -> None:
    tokens, logprobs = list(range(300_000)), [-0.5] * 300_000
    many = [{"tokens": tokens, "mask": [1] * 300_000, "logprobs": logprobs}]
    assert loaded(dumped(many)) == many
