"""Builtin: the shipped models, run in numpy alone.

An engine of tokenizer, `NumpyModel` and `BatchingLoop`; it holds no logic of its own but what concerns weights. Any
folder with a Qwen3 network in Hugging Face format and a byte-level tokenizer works in place of a shipped one.
"""

from pathlib import Path

from ramify.core.codec import Codec
from ramify.core.errors import ConfigError
from ramify.engines.batched import Batched
from ramify.engines.batching import BatchingLoop
from ramify.engines.numpy_model import NumpyModel
from ramify.engines.shipped import MODELS, folder_of
from ramify.engines.tokenizer import TokenizerFile

FOLDER = MODELS["builtin"]
"""The model of `countdown` and `hops`."""


class Builtin(Batched):
    """Implements `Engine`, `Abortable` and `EngineControl` with a shipped model, named, or that of a folder.

    `batch_invariant` off computes several rows in one matrix product: faster from 8 rows on, but a token's logits then
    differ in the last bits with what runs beside it, and OPENBLAS_NUM_THREADS=1 must be set, since matrices this small
    lose a factor of ten to threads (the batch-invariant mode starts none). Raises `ConfigError` for a folder it cannot
    run.
    """

    def __init__(
        self,
        model: str | Path = FOLDER,
        *,
        num_slots: int = 64,
        batch_invariant: bool = True,
        context_length: int | None = None,
    ) -> None:
        folder = folder_of(model)
        self._model = NumpyModel(
            folder, num_slots=num_slots, context_length=context_length, is_batch_invariant=batch_invariant
        )
        codec = _codec(folder)
        super().__init__("builtin", BatchingLoop(self._model, codec), codec, is_deterministic=batch_invariant)

    async def update_weights(self, source: str, version: int) -> None:
        """Take the weights of folder `source` between two steps; later tokens carry `version`.

        Raises `ConfigError` for a network of another shape, which leaves everything as it was.
        """
        self._model.load(folder_of(source))
        self._model.clear()
        self._loop.forget(version)

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        """Pause and give the memory of keys and values back, whatever the tags; the weights are a few MB and stay."""
        self._loop.pause()
        self._model.clear()
        self._loop.forget(self._loop.version)

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        """Go on after `offload`; requests on their way compute their contexts again."""
        self._loop.resume()


def _codec(folder: Path) -> Codec:
    try:
        return TokenizerFile(folder / "tokenizer.json")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokenizer in {str(folder)!r} cannot be used: {error}") from error
