"""A folder's own numbers: those of the unmodified model, whatever it is batched with."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra hf")
pytestmark = pytest.mark.hf

from tests.engines.folders import config_of, with_tokenizer  # noqa: E402
from tests.judges.test_process import PROBLEM, path  # noqa: E402

from ramify.core.errors import JudgeError  # noqa: E402
from ramify.judges.process import ProcessJudge  # noqa: E402


def folder(at: Path, kind: str, *, num_labels: int) -> Path:
    import transformers

    torch.manual_seed(1)
    config = config_of("qwen2", num_labels=num_labels)
    getattr(transformers, kind).from_config(config).save_pretrained(at)
    return with_tokenizer(at)


def own(at: Path, kind: str, text: str) -> Any:
    import transformers

    network = getattr(transformers, kind).from_pretrained(at, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(at)
    with torch.inference_mode():
        return network(**tokenizer([text], return_tensors="pt")).logits[0]


async def test_a_sequence_classifier_scores_a_text_whoever_else_is_scored(tmp_path: Path):
    kind = "AutoModelForSequenceClassification"
    at = folder(tmp_path, kind, num_labels=2)
    judge = ProcessJudge(model=str(at))
    branches = [path("one step"), path("one", "and a much longer second one"), path("x")]
    together = await judge.judge(branches, PROBLEM)
    alone = [(await judge.judge([branch], PROBLEM))[0] for branch in branches]
    wanted = own(at, kind, "how many?\n\none step").softmax(-1)[-1].item()
    assert together[0].value == pytest.approx(wanted, abs=1e-5)
    assert [v.value for v in together] == pytest.approx([v.value for v in alone], abs=1e-5)


async def test_a_step_is_scored_alike_on_the_whole_path_and_on_its_beginning(tmp_path: Path):
    at = folder(tmp_path, "AutoModelForTokenClassification", num_labels=2)
    judge = ProcessJudge(model=str(at), step_tag="<|end|>", aggregate="min")
    whole, begun = await judge.judge([path("first", "second", "third"), path("first", "second")], PROBLEM)
    assert whole.parts["num_steps"] == 3.0
    assert begun.parts["product"] > whole.parts["product"] > 0
    (again,) = await judge.judge([path("first", "second")], PROBLEM)
    assert again.parts["last"] == pytest.approx(begun.parts["last"], abs=1e-5)


async def test_a_tag_that_is_no_token_is_a_fault(tmp_path: Path):
    at = folder(tmp_path, "AutoModelForTokenClassification", num_labels=2)
    with pytest.raises(JudgeError, match="no single token"):
        await ProcessJudge(model=str(at), step_tag="<no_token>").judge([path("first")], PROBLEM)
