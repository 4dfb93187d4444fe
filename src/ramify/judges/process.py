"""Process: a process reward model (PRM; rStar's process preference model), which scores every step of a path.

A branch is its question and its steps, one per node. Branches of all trees that are judged at about the same time share
a request. Each branch is scored whole, and `aggregate` turns the scores of its steps into the value of its node. Scales
differ by model, so scores are passed on unchanged and never mixed.

Scorers: a Hugging Face folder on this machine (`classifier.py`, the extra `hf`), or a vLLM server that pools or
classifies (`pooling.py`, the extra `http`).
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, Protocol

from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, JudgeError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.formats.tags import placeholders, spans_of
from ramify.tools.together import Together

Aggregate = Literal["last", "min", "mean", "product"]
AGGREGATES: Final[tuple[Aggregate, ...]] = ("last", "min", "mean", "product")
WINDOW_S: Final = 0.005
"""Seconds that the first branch waits for others."""


class StepScorer(Protocol):
    """Scores texts. Each text gets a list of numbers: one for every step tag, or a single one for the whole text."""

    async def scores(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Raises `JudgeError`."""
        ...

    async def close(self) -> None: ...


class ProcessJudge:
    """Scores nodes by the steps on their branches."""

    def __init__(
        self,
        *,
        name: str = "process",
        model: str | None = None,
        base_url: str | None = None,
        template: str = "{question}\n\n{steps}",
        step_tag: str | None = None,
        separator: str = "\n\n",
        aggregate: Aggregate = "last",
        positive: int = -1,
        deadline_s: float = 120.0,
        max_batch: int = 64,
    ) -> None:
        """Raises `ConfigError`.

        - `model`: folder of the reward model or, with a `base_url`, the model's name on the server.
        - `base_url`: address of a vLLM server that pools or classifies; None = the model runs in this process.
        - `template`: text that is scored; it must cite `{question}` and `{steps}`.
        - `step_tag`: text written after every step, where the step's score is read; None = each text has one score,
          that of its last step.
        - `separator`: text between steps without a tag.
        - `aggregate`: how the scores of a path's steps become one; any but `last` needs a `step_tag`.
        - `positive`: index of the class whose probability is the score; -1 = the last.
        - `deadline_s`: timeout of one judgement.
        - `max_batch`: most texts in one request.
        """
        if aggregate not in AGGREGATES:
            raise ConfigError(f"judge {name!r}: aggregate = {aggregate!r}; allowed are {', '.join(AGGREGATES)}")
        if sorted(set(placeholders(template))) != ["question", "steps"]:
            raise ConfigError(f"judge {name!r}: template = {template!r} must cite {{question}} and {{steps}}, no other")
        if step_tag is None and aggregate != "last":
            raise ConfigError(f"judge {name!r}: aggregate = {aggregate!r} needs a step_tag: there is one score a text")
        if not 0 < deadline_s < math.inf or max_batch < 1 or step_tag == "":
            raise ConfigError(
                f"judge {name!r}: {deadline_s=!r}, {max_batch=!r} must be above 0 and {step_tag=!r} a text or left out"
            )
        self.name: Final = name
        self.is_oracle: Final = False
        self.deadline_s: Final = deadline_s
        self._template: Final = template
        self._step_tag: Final = step_tag
        self._separator: Final = separator
        self._aggregate: Final[Aggregate] = aggregate
        self._scorer = scorer_of(name, model=model, base_url=base_url, step_tag=step_tag, positive=positive)
        self._together = Together[str, Sequence[float]](self._scored, window_s=WINDOW_S, max_questions=max_batch)

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        """One verdict per branch, with the parts `last min mean product num_steps`. Raises `JudgeError`."""
        steps = [self._steps(branch) for branch in branches]
        texts = [self._text(problem.question, each) for each in steps]
        try:
            async with asyncio.timeout(self.deadline_s):
                scores = await asyncio.gather(*map(self._together.answer, texts), return_exceptions=True)
        except TimeoutError:
            raise JudgeError(f"judge {self.name!r} gave nothing in {self.deadline_s:g} s") from None
        for each in scores:
            if isinstance(each, BaseException):
                raise each
        found = [each for each in scores if not isinstance(each, BaseException)]
        return [self._verdict(each, len(of)) for each, of in zip(found, steps, strict=True)]

    async def close(self) -> None:
        await self._together.close()
        await self._scorer.close()

    async def _scored(self, texts: Sequence[str]) -> Sequence[Sequence[float] | Exception]:
        scores = await self._scorer.scores(texts)
        if len(scores) != len(texts):
            raise JudgeError(f"judge {self.name!r}: {len(scores)} answers for {len(texts)} texts")
        return scores

    def _steps(self, branch: Branch) -> list[str]:
        """The text that each node added after the opening. A step tag inside a step's own text is removed."""
        pieces = [piece for piece in branch.pieces if piece.segment.origin != "prompt"]
        steps = [
            branch.codec.decode([i for piece in of for i in piece.segment.ids.tolist() if i != branch.codec.eos_id])
            for _, of in groupby(pieces, lambda piece: piece.node)
        ]
        return [_without(self._step_tag, step) for step in steps]

    def _text(self, question: str, steps: Sequence[str]) -> str:
        tag = self._step_tag
        if tag is None:
            written = self._separator.join(steps)
        else:
            question, written = _without(tag, question), "".join(f"{step}{tag}" for step in steps)
        return "".join(span.text for span in spans_of(self._template, {"question": question, "steps": written}))

    def _verdict(self, scores: Sequence[float], num_steps: int) -> Verdict:
        wanted = num_steps if self._step_tag else 1
        if len(scores) != wanted or not scores:
            raise JudgeError(f"judge {self.name!r}: {len(scores)} scores for {wanted} steps")
        if not all(math.isfinite(score) for score in scores):
            raise JudgeError(f"judge {self.name!r} gave {list(scores)!r:.200}; scores are finite numbers")
        parts = aggregated(scores)
        return Verdict(parts[self._aggregate], {**parts, "num_steps": float(num_steps)})


def _without(tag: str | None, text: str) -> str:
    """The text without the tag, also where it appears only when another one inside it is removed."""
    while tag and tag in text:
        text = text.replace(tag, "")
    return text


def aggregated(scores: Sequence[float]) -> Mapping[str, float]:
    """The scores of a path's steps, combined by each rule."""
    return {
        "last": scores[-1],
        "min": min(scores),
        "mean": math.fsum(scores) / len(scores),
        "product": math.prod(scores),
    }


def scorer_of(name: str, *, model: str | None, base_url: str | None, step_tag: str | None, positive: int) -> StepScorer:
    """The scorer. Raises `ConfigError` if no model is named or its folder does not exist."""
    if base_url is not None:
        from ramify.judges.pooling import Pooling

        return Pooling(base_url, model=model, has_steps=step_tag is not None, positive=positive)
    if model is None:
        raise ConfigError(f"judge {name!r} needs a model: set `model` to its folder, or `base_url` to a server")
    if not (Path(model) / "config.json").is_file():
        raise ConfigError(f"judge {name!r}: there is no model in the folder {model!r}: config.json is missing")
    from ramify.judges.classifier import Classifier

    return Classifier(Path(model), step_tag=step_tag, positive=positive)
