"""ValueModel: scores contexts with a classifier in numpy: how likely a path is to end well.

The network is the built-in model's with one output (`Qwen3ForSequenceClassification`, one label); any folder of that
kind works. The paths of a tree share prefixes, and what a slot already holds is not computed again. A context's score
does not depend on what else is scored.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ramify.core.errors import ConfigError
from ramify.core.segment import Ids_T
from ramify.engines.numpy_model import NumpyModel
from ramify.engines.slot_model import Chunk, Rows
from ramify.engines.slots import SlotTable
from ramify.engines.tokenizer import TokenizerFile

FOLDER: Final = Path(__file__).parents[1] / "data" / "value"
"""The shipped model that scores the steps of the built-in tasks."""
NO_ROWS: Final = Rows(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.int32))


class ValueModel:
    """Scores contexts of token ids. `values` mutates it and must not be called from two threads at once."""

    def __init__(self, folder: str | Path = FOLDER, *, num_slots: int = 64) -> None:
        """Raises `ConfigError` for a folder without such a classifier."""
        self._model = NumpyModel(folder, num_slots=num_slots)
        if self._model.shape.head != "score.weight":
            raise ConfigError(
                f"{str(folder)!r} holds no classifier, which scores steps; its head: {self._model.shape.head}"
            )
        self._slots = SlotTable(num_slots, self._model.context_length)
        self.codec_sha256 = TokenizerFile(Path(folder) / "tokenizer.json").sha256

    @property
    def context_length(self) -> int:
        return self._model.context_length

    def values(self, contexts: Sequence[Ids_T]) -> list[float]:
        """A probability for each context, 0 to 1. Raises `ValueError` for a context that is empty or too long."""
        return [self._value(context) for context in contexts]

    def _value(self, context: Ids_T) -> float:
        if not 0 < len(context) <= self.context_length:
            raise ValueError(f"{len(context)} tokens to score; 1 to {self.context_length} are allowed")
        seat = self._slots.take(context)
        if seat.source != seat.slot and seat.num_cached:
            self._model.copy(seat.source, seat.slot, seat.num_cached)
        chunk = Chunk(seat.slot, seat.num_cached, context[seat.num_cached :])
        logit = float(self._model.forward(NO_ROWS, [chunk])[0, 0])
        self._slots.held[seat.slot] = len(context)
        self._slots.release(seat.slot)
        return 1 / (1 + np.exp(-logit))
