"""Local: runs any Hugging Face model folder on this machine's CPU or GPU, with the batching loop.

The engine combines a folder's tokenizer, `TransformersModel` and `BatchingLoop`. It adds only how weights are updated
and offloaded. Needs the extra `hf`. It rejects folders that cannot work: files that are missing or unreadable, and
models with layers that no slot can hold (sliding windows shorter than the context, recurrent states).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ramify.core.errors import ConfigError
from ramify.engines.batched import Batched
from ramify.engines.batching import BatchingLoop

INSTALL: Final = "pip install 'ramify[hf]'"


class Local(Batched):
    """Implements `Engine`, `Abortable` and `EngineControl` with the model of a folder.

    The last bits of a token's logits depend on the other requests in the batch. Each model step blocks the event loop.
    Raises `ConfigError`.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        num_slots: int = 64,
        context_length: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        """Raises `ConfigError`.

        - `model`: the folder of a model.
        - `num_slots`: requests computed at one time. Each slot needs memory for the keys and values of the longest
          context in use.
        - `context_length`: most tokens of a context; None = the model's own.
        - `device`: `cpu`, `cuda`, `cuda:1`, …; None = a GPU if there is one.
        - `dtype`: type of the weights, such as `bfloat16`; None = float32 on a CPU, elsewhere the folder's own.
        """
        if model is None:
            raise ConfigError("engine 'local' runs the model of a folder; name it: engine.model = 'path/to/folder'")
        try:
            from ramify.engines.model_folder import ModelFolder
            from ramify.engines.tokenizer_json import TokenizerJson
            from ramify.engines.transformers_model import TransformersModel
        except ImportError as error:
            raise ConfigError(f"engine 'local' needs torch and transformers: {INSTALL} ({error})") from error
        folder = ModelFolder(model, context_length)
        codec = TokenizerJson(model, vocab_size=folder.vocab_size)
        self._model = TransformersModel(folder, num_slots=num_slots, device=device, dtype=dtype)
        loop = BatchingLoop(self._model, codec, end_ids=codec.end_ids)
        super().__init__("local", loop, codec, is_deterministic=False)

    async def update_weights(self, source: str | Path | Mapping[str, Any], version: int) -> None:
        """Load the weights of a folder or of a state dict between two steps; later tokens carry `version`.

        Raises `ConfigError` for weights that do not fit; the old weights then stay in use.
        """
        self._model.load(source)
        self._loop.forget(version)

    async def offload(self, tags: tuple[str, ...] = ()) -> None:
        """Pause, free the memory of keys and values and move the weights to the host, whatever the tags."""
        self._loop.pause()
        self._model.offload()
        self._loop.forget(self._loop.version)

    async def onload(self, tags: tuple[str, ...] = ()) -> None:
        """Resume after `offload`. Requests that were running recompute their contexts."""
        self._model.onload()
        self._loop.resume()
