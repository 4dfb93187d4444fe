# pyright: reportMissingImports=false
# torch and transformers are not part of the development set-up; `engines.local` says how to install them.
"""Classifier: step scores from a Hugging Face folder on this machine. Needs the extra `hf`.

A sequence classifier gives one score per text. With a step tag, a token classifier gives one at the position of every
tag. With two or more classes the score is the softmax probability of the positive class; a single number is passed on
unchanged. No code from the folder is run. Scores are computed in one thread, so the event loop is not blocked. The
weights are loaded when first needed.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ramify.core.errors import ConfigError, JudgeError
from ramify.edge.daemon_threads import DaemonThreads
from ramify.edge.error_text import error_text

INSTALL: Final = "pip install 'ramify[hf]'"


class Classifier:
    """Implements `StepScorer`. Raises `ConfigError` without the extra."""

    def __init__(self, folder: Path, *, step_tag: str | None, positive: int) -> None:
        try:
            import torch
            import transformers
        except ImportError as error:
            raise ConfigError(
                f"a judge of a model's folder needs torch and transformers: {INSTALL} ({error})"
            ) from error
        self._torch: Any = torch
        self._transformers: Any = transformers
        self._folder: Final = folder
        self._step_tag: Final = step_tag
        self._positive: Final = positive
        self._thread = DaemonThreads(1)
        self._loaded: tuple[Any, Any] | None = None

    async def scores(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A list of scores per text. Boundary to a model's code: whatever it raises becomes a `JudgeError`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._computed, list(texts))
        except Exception as error:
            raise JudgeError(f"the model in {str(self._folder)!r} gave no score: {error_text(error)}") from error

    async def close(self) -> None:
        """The weights stay loaded: another run may use them."""

    def _computed(self, texts: list[str]) -> list[list[float]]:
        tokenizer, network = self._loaded or self._load()
        has_padding = tokenizer.pad_token_id is not None and network.config.pad_token_id is not None
        batches = [texts] if has_padding else [[text] for text in texts]
        return [scores for batch in batches for scores in self._of(batch, tokenizer, network)]

    def _of(self, texts: list[str], tokenizer: Any, network: Any) -> list[list[float]]:
        batch = tokenizer(texts, return_tensors="pt", padding=len(texts) > 1).to(network.device)
        with self._torch.inference_mode():
            values = self._values(network(**batch).logits.float())
        if self._step_tag is None:
            return [[value] for value in values.tolist()]
        tag = tokenizer.convert_tokens_to_ids(self._step_tag)
        return [row[ids == tag].tolist() for row, ids in zip(values, batch["input_ids"], strict=True)]

    def _values(self, logits: Any) -> Any:
        """(…, classes) logits -> (…) scores."""
        return logits.softmax(-1)[..., self._positive] if logits.shape[-1] > 1 else logits[..., 0]

    def _load(self) -> tuple[Any, Any]:
        kinds = self._transformers
        kind = kinds.AutoModelForSequenceClassification
        tokenizer = kinds.AutoTokenizer.from_pretrained(self._folder, local_files_only=True, trust_remote_code=False)
        if self._step_tag is not None:
            kind = kinds.AutoModelForTokenClassification
            if tokenizer.encode(self._step_tag, add_special_tokens=False) != [
                tokenizer.convert_tokens_to_ids(self._step_tag)
            ]:
                raise ConfigError(f"the tokenizer has no single token {self._step_tag!r}")
        network = kind.from_pretrained(self._folder, local_files_only=True, trust_remote_code=False).eval()
        device = "cuda" if self._torch.cuda.is_available() else "cpu"
        self._loaded = tokenizer, network.to(device)
        return self._loaded
