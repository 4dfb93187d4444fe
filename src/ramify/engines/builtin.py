"""Builtin: the shipped models, run in numpy alone.

The engine combines a tokenizer, `NumpyModel` and `BatchingLoop`. It adds only how weights are updated and offloaded. A
folder works in place of a shipped model if it holds a Qwen3 network in Hugging Face format and a byte-level tokenizer.
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
"""The model for the tasks `countdown` and `hops`."""


class Builtin(Batched):
    """Implements `Engine`, `Abortable` and `EngineControl` with a shipped model (by name) or the model of a folder.

    It runs on the CPU with numpy. Raises `ConfigError` for a folder it cannot run.
    """

    def __init__(
        self,
        model: str | Path = FOLDER,
        *,
        num_slots: int = 64,
        batch_invariant: bool = True,
        context_length: int | None = None,
    ) -> None:
        """Raises `ConfigError` for a folder it cannot run.

        - `model`: a shipped model, by name, or the folder of a model.
        - `num_slots`: requests computed at one time. Each slot needs memory for the keys and values of its context.
        - `batch_invariant`: whether a token's logits are the same in every batch, which makes runs repeatable. If
          false, one matrix product computes several rows: faster from 8 rows on, but the last bits of logits depend on
          the other rows. Set OPENBLAS_NUM_THREADS=1 then: threads make products of such small matrices ten times
          slower.
        - `context_length`: most tokens of a context; None = the model's own, which is also the upper limit.
        """
        folder = folder_of(model)
        self._model = NumpyModel(
            folder, num_slots=num_slots, context_length=context_length, is_batch_invariant=batch_invariant
        )
        codec = _codec(folder)
        super().__init__("builtin", BatchingLoop(self._model, codec), codec, is_deterministic=batch_invariant)

    async def update_weights(self, source: str, version: int) -> None:
        """Load the weights of folder `source` between two steps; later tokens carry `version`.

        Raises `ConfigError` for a network of another shape; the old weights then stay in use.
        """
        self._model.load(folder_of(source))
        self._model.clear()
        self._loop.forget(version)

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        """Pause and free the memory of keys and values, whatever the tags. The weights are a few MB and stay."""
        self._loop.pause()
        self._model.clear()
        self._loop.forget(self._loop.version)

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        """Resume after `offload`. Requests that were running recompute their contexts."""
        self._loop.resume()


def _codec(folder: Path) -> Codec:
    try:
        return TokenizerFile(folder / "tokenizer.json")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokenizer in {str(folder)!r} cannot be used: {error}") from error
