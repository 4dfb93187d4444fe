"""slime's SFT by its own dotted path: written conversations by the chat template, without slime or an engine."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.service.services import config, served

from ramify.config.run_config import RunConfig
from ramify.core.engine import Generation, Request
from ramify.core.errors import ConfigError
from ramify.engines.builtin import FOLDER
from ramify.rows.sample import Sample
from ramify.service.manager import RolloutManager
from ramify.testing.scripted import Scripted

SFT = "slime.rollout.sft_rollout.generate_rollout"
ASKED = {"role": "user", "content": "2 + 2?"}
SAID = {"role": "assistant", "content": "4"}
MORE = [{"role": "user", "content": "so?"}, {"role": "assistant", "content": "so."}]


class Unasked(Scripted):
    async def generate(self, request: Request) -> Generation:
        raise AssertionError("nobody asks it")


def sft(folder: Path, *rows: dict[str, Any], **settings: Any) -> RunConfig:
    path = folder / "sft.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    usual = {
        "service__rollout_function": SFT,
        "service__debug": "train_only",
        "service__batch_size": len(rows),
        "service__shuffle": False,
        "engine__name": "builtin",
        "data__path": str(path),
        "data__question": "messages",
    }
    return config(**{**usual, **settings})


async def first(manager: RolloutManager) -> tuple[Any, list[str]]:
    """The first batch, and the text of each of its samples with the trained text between bars."""
    batch = await manager.generate(0)
    return batch, [shown(manager, sample) for sample in batch.samples]


def shown(manager: RolloutManager, sample: Sample) -> str:
    decode, text = manager.run.prepared.codec.decode, ""
    mask = [0] * (len(sample.tokens) - sample.response_length) + list(sample.loss_mask or ())
    for token, flag, before in zip(sample.tokens, mask, [0, *mask], strict=False):
        text += ("|" if flag != before else "") + decode([token])
    return text + ("|" if mask[-1] else "")


@pytest.mark.covers("S3.9", engine="builtin")
def test_slimes_own_name_makes_slimes_training_data_without_slime(tmp_path: Path) -> None:
    wanted = sft(tmp_path, {"messages": [ASKED, SAID]}, {"messages": [ASKED, SAID, *MORE]})
    batch, texts = served(tmp_path / "run", first, configured=wanted, engine=Unasked())
    assert texts == [
        "<|user|>2 + 2?<|end|><|assistant|>|4<|end|>|",
        "<|user|>2 + 2?<|end|><|assistant|>|4<|end|>|<|user|>so?<|end|><|assistant|>|so.<|end|>|",
    ]
    data = batch.train_data
    assert data["rewards"] == data["raw_reward"] == [0.0, 0.0] and data["truncated"] == [0, 0]
    assert data["response_lengths"] == [len(mask) for mask in data["loss_masks"]]
    assert all(mask[0] == 1 for mask in data["loss_masks"])
    assert [sample.prompt for sample in batch.samples] == [[ASKED, SAID], [ASKED, SAID, *MORE]]
    assert [sample.metadata["uid"] for sample in batch.samples] == ["0", "1"]


def test_no_server_is_asked(tmp_path: Path) -> None:
    engine = {"engine__name": "sglang", "engine__model": str(FOLDER), "engine__base_url": "http://127.0.0.1:9"}
    _, texts = served(tmp_path / "run", first, configured=sft(tmp_path, {"messages": [ASKED, SAID]}, **engine))
    assert texts == ["<|user|>2 + 2?<|end|><|assistant|>|4<|end|>|"]


@pytest.mark.covers("S3.9", engine="builtin")
def test_the_way_of_masking_is_a_setting(tmp_path: Path) -> None:
    row = {"messages": [ASKED, SAID]}
    wanted = sft(tmp_path, row, service__loss_mask_type="distill_qwen")
    assert served(tmp_path / "run", first, configured=wanted)[1] == ["<|user|>2 + 2?<|end|><|assistant|>|4|"]
    wanted = sft(tmp_path, {"messages": [ASKED, SAID, *MORE]}, service__loss_mask_type="distill_qwen")
    with pytest.raises(ConfigError, match=r"conversation '0': 'distill_qwen' .* has 4 messages"):
        served(tmp_path / "other", first, configured=wanted)


def test_a_row_may_have_tools_a_system_message_and_turns_that_are_not_trained(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    source = json.loads((FOLDER / "tokenizer_config.json").read_text("utf-8"))["chat_template"]
    template.write_text("{% if tools %}[{{ tools | length }}]{% endif %}" + source, "utf-8")
    system, skipped = {"role": "system", "content": "Add."}, {**SAID, "step_loss_mask": 0}
    tools = [{"type": "function", "function": {"name": "calc"}}]
    rows = [
        {"messages": [system, ASKED, skipped, *MORE], "tools": tools, "level": 2},
        {"messages": [ASKED, SAID], "tools": json.dumps(tools), "level": 3},
    ]
    wanted = sft(tmp_path, *rows, format="chat", format_options__template=str(template))
    batch, texts = served(tmp_path / "run", first, configured=wanted)
    assert texts[0].startswith("[1]<|system|>Add.<|end|><|user|>2 + 2?<|end|><|assistant|>4<|end|><|user|>")
    assert texts[0].endswith("<|assistant|>|so.<|end|>|") and texts[0].count("|so.") == 1
    assert texts[1] == "[1]<|user|>2 + 2?<|end|><|assistant|>|4<|end|>|"
    assert [sample.metadata["level"] for sample in batch.samples] == [2, 3]
    assert not any("conversation" in sample.metadata for sample in batch.samples)


@pytest.mark.parametrize(
    ("row", "settings", "fault"),
    [
        ({"messages": [ASKED]}, {}, "conversation '0' has nothing of the assistant to train"),
        ({"messages": [ASKED, {**SAID, "step_loss_mask": 0}]}, {}, "has nothing of the assistant to train"),
        ({"messages": [ASKED, SAID], "tools": "search"}, {}, "the column 'tools' holds 'search'"),
        ({"messages": [ASKED, SAID], "tools": []}, {}, "the column 'tools' holds"),
        ({"messages": "2 + 2?"}, {}, r"sft.jsonl:1: column 'messages' holds no conversation: '2 \+ 2\?'"),
        ({"messages": [SAID]}, {}, "in which the user asks None, which is no text"),
        ({"messages": [{**ASKED, "content": " "}, SAID]}, {}, "column 'messages.content' holds no question: ' '"),
        ({"messages": [{"content": "x"}]}, {}, "holds no conversation"),
        ({"messages": [{"role": "user", "content": [1]}, SAID]}, {}, r"the user asks \[1\], which is no text"),
        ({"messages": [ASKED, SAID], "conversation": "x"}, {}, "there is a column 'conversation' too"),
        (
            {"messages": [ASKED, SAID]},
            {"format": "chat", "format_options__system": "Add."},
            "format_options.system is not said in written conversations",
        ),
        ({"messages": [ASKED, SAID]}, {"engine__name": "scripted"}, "no chat template: engine.model = None"),
    ],
)
def test_a_conversation_that_would_not_be_trained_as_in_slime_is_named(
    tmp_path: Path, row: dict[str, Any], settings: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        served(tmp_path / "run", first, configured=sft(tmp_path, row, **settings))


def test_written_conversations_are_not_evaluated(tmp_path: Path) -> None:
    wanted = sft(
        tmp_path,
        {"messages": [ASKED, SAID]},
        service__debug="none",
        service__eval_function=SFT,
    )
    with pytest.raises(ConfigError, match="written samples cannot be evaluated"):
        served(tmp_path / "run", lambda manager: manager.eval(0), configured=wanted)


def test_slimes_default_rollout_function_grows_trees(tmp_path: Path) -> None:
    name = "slime.rollout.sglang_rollout.generate_rollout"
    wanted = config(service__rollout_function=name, service__eval_function=name, service__eval__sums__prompts=2)

    async def use(manager: RolloutManager) -> Any:
        return await manager.generate(0), await manager.eval(0)

    batch, metrics = served(tmp_path / "run", use, configured=wanted)
    assert batch.samples[0].metadata["ramify"]["uid"] and "eval/sums" in metrics


def test_masks_and_training_alone_need_a_function_that_reads(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"loss_mask_type = 'qwen3' is of slime's SFT: set service.rollout_function"):
        config(service__loss_mask_type="qwen3")
    with pytest.raises(ConfigError, match=r"'train_only' needs batches to train on: .* a service.rollout_function"):
        config(service__debug="train_only")
    with pytest.raises(ConfigError, match="loss_mask_type"):
        config(service__rollout_function=SFT, service__loss_mask_type="llama")
