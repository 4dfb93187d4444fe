"""Value: the probability that an unfinished path ends well, from a small classifier over the model's own tokens.

The built-in classifier was trained on q values of trees from the built-in tasks' training problems
(`models.train_value`) and knows no other task. It reads the ids of a branch unchanged, so its tokenizer must be the
run's.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from ramify.core.branch import Branch
from ramify.core.errors import JudgeError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.engines.value_model import FOLDER, ValueModel


class Value:
    """Scores steps with a probability, 0 to 1. Not an oracle: it reads only what the agent has seen."""

    is_oracle = False

    def __init__(self, *, name: str = "process", model: str | Path = FOLDER) -> None:
        """The model is loaded at the first judgement.

        - `model`: folder of a `Qwen3ForSequenceClassification`; the default is the shipped value model of the built-in
          model.
        """
        self.name = name
        self._folder = Path(model)

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """One verdict per branch. Raises `JudgeError` for ids of another tokenizer and for branches that are too
        long."""
        for branch in branches:
            if branch.codec.sha256 != self._model.codec_sha256:
                raise JudgeError(
                    f"judge {self.name!r} reads ids of the tokenizer of {self._folder}, and this run has "
                    f"{branch.codec.name!r}; name another judge of steps"
                )
            if len(branch) > self._model.context_length:
                raise JudgeError(f"judge {self.name!r} reads {self._model.context_length} tokens, not {len(branch)}")
        return [Verdict(value) for value in self._model.values([branch.ids for branch in branches])]

    @cached_property
    def _model(self) -> ValueModel:
        return ValueModel(self._folder)
