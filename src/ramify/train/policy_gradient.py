# pyright: reportMissingImports=false
# torch and transformers are not in the development environment; `engines.local` says how to get them.
"""Policy gradient: the gradient of a tree's rows, on the Hugging Face policy that sampled them. Needs the extra `hf`.

g = sum over rows and tokens of coefficient * grad log pi(token). pi is the distribution that the token was drawn from.
The rows' weights make each sampled token count once. Computed in float32 without dropout.
Invariant: the model gives every trained token the logprob that was recorded when it was sampled. Rows of other weights
raise an error, since their gradient would be wrong and look right. So do tokens of a truncated distribution (top-p,
top-k) or greedy ones, because they were not drawn from the model's distribution.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from ramify.core.errors import ConfigError
from ramify.core.segment import Sampling
from ramify.engines.model_folder import ModelFolder
from ramify.rows.row import Row, RowSpan
from ramify.train.sketch import Sketch

Layers = Literal["all", "last"]
"""all: every parameter; last: the parameters that the model lists from its last layer on, with the final norm and an
output matrix that is not shared."""
Floats_D = npt.NDArray[np.float32]

MAX_GAP: Final = 0.01
"""Largest allowed difference from the recorded logprob, in nats. Two float32 implementations of a model differ by
1e-4."""
MAX_TOKENS: Final = 4096
"""Tokens in one forward pass, padding included; a single row may have more."""

_LAYER = re.compile(r".*?\.\d+\.")


class PolicyGradient:
    """The policy in a folder. Mutates nothing; on a CPU the same rows give the same bits.

    `sketch`: None = full gradients. `device`: None = a GPU if there is one. Raises `ConfigError` if the folder has no
    model.
    """

    def __init__(
        self, folder: str | Path, *, layers: Layers = "all", sketch: Sketch | None = None, device: str | None = None
    ) -> None:
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._network: Any = ModelFolder(folder).network("float32").to(self._device)
        self._parameters = _chosen(self._network, layers)
        self._sketch = sketch
        for parameter in self._parameters:
            parameter.requires_grad_()

    @property
    def num_parameters(self) -> int:
        """Number of parameters that gradients are taken of."""
        return sum(parameter.numel() for parameter in self._parameters)

    def of(self, rows: Sequence[Row]) -> Floats_D:
        """(D,) the gradient of a tree's rows, in the chosen parameters or as their sketch; 0 for no rows.

        Rows whose coefficients are all 0 are skipped, without a check. Raises `ConfigError`.
        """
        total = np.zeros(self.num_parameters if self._sketch is None else self._sketch.size, np.float32)
        for batch in _batches([row for row in rows if row.coefficients.any()]):
            gradients = torch.autograd.grad(self._objective(batch), self._parameters, materialize_grads=True)
            total += self._vector(gradients).cpu().numpy()
        return total

    def _vector(self, gradients: Sequence[Any]) -> Any:
        if self._sketch is not None:
            return self._sketch.of(gradients)
        return torch.cat([gradient.reshape(-1) for gradient in gradients])

    def _objective(self, rows: Sequence[Row]) -> Any:
        """Sum of coefficient * log pi over the trained tokens of the rows."""
        trained = [np.flatnonzero(row.weights > 0) for row in rows]
        logits = self._logits(rows, trained)
        ids = self._joined([row.ids for row in rows], trained).long()[:, None]
        temperatures = self._joined([_by_span(row, _temperature) for row in rows], trained).float()[:, None]
        logprobs = (logits / temperatures).log_softmax(-1).gather(1, ids)[:, 0]
        with torch.no_grad():
            is_raw = self._joined([_by_span(row, _has_raw_logprobs) for row in rows], trained)
            found = torch.where(is_raw, logits.log_softmax(-1).gather(1, ids)[:, 0], logprobs)
            _refuse_other_model(found, self._joined([row.logprobs for row in rows], trained))
        return (self._joined([row.coefficients for row in rows], trained).float() * logprobs).sum()

    def _logits(self, rows: Sequence[Row], trained: Sequence[npt.NDArray[np.intp]]) -> Any:
        """(N, V) logits that the N trained tokens of the rows were drawn from. Rows are padded at their end, which no
        trained token reads."""
        ids = np.zeros((len(rows), max(len(row) for row in rows)), np.int64)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row.ids
        logits = self._network(input_ids=torch.from_numpy(ids).to(self._device), use_cache=False).logits
        numbers = np.repeat(np.arange(len(rows)), [len(places) for places in trained])
        before = np.concatenate(trained) - 1
        return logits[torch.from_numpy(numbers), torch.from_numpy(before)].float()

    def _joined(self, values: Sequence[npt.NDArray[Any]], trained: Sequence[npt.NDArray[np.intp]]) -> Any:
        """(N,) the values of the rows at their trained tokens."""
        joined = np.concatenate([of_row[places] for of_row, places in zip(values, trained, strict=True)])
        return torch.from_numpy(joined).to(self._device)


def _chosen(network: Any, layers: Layers) -> list[Any]:
    """Parameters in the model's order, shared ones once."""
    named = list(network.named_parameters())
    found = [match.group() for name, _ in named if (match := _LAYER.match(name))]
    if layers == "all":
        return [parameter for _, parameter in named]
    if not found:
        raise ConfigError(f"{type(network).__name__} has no numbered layers, so none is the last: use layers = 'all'")
    first = next(index for index, (name, _) in enumerate(named) if name.startswith(found[-1]))
    return [parameter for _, parameter in named[first:]]


def _batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows in batches of at most `MAX_TOKENS` tokens with padding, the longest rows first."""
    batch: list[Row] = []
    for row in sorted(rows, key=len, reverse=True):
        if batch and len(batch[0]) * (len(batch) + 1) > MAX_TOKENS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _by_span(row: Row, value: Callable[[RowSpan], float]) -> npt.NDArray[Any]:
    """(T,) `value` of each token's span."""
    return np.repeat([value(span) for span in row.spans], [span.num_tokens for span in row.spans])


def _has_raw_logprobs(span: RowSpan) -> bool:
    return span.source is None or span.source.logprobs == "raw"


def _temperature(span: RowSpan) -> float:
    """Raises `ConfigError` if the tokens were not drawn from the model's full distribution at a temperature above 0."""
    law = Sampling() if span.source is None else span.source.sampling
    if law.temperature == 0 or law != Sampling(law.temperature):
        raise ConfigError(
            f"tokens were drawn by {law!r}; a gradient needs a temperature above 0, top_p = 1 and top_k = 0: "
            "set actions.policy"
        )
    return law.temperature


def _refuse_other_model(found: Any, recorded: Any) -> None:
    """Raises `ConfigError` if recomputed logprobs differ from the recorded ones, or if none were recorded."""
    gap = float((found - recorded).abs().max())
    if not gap <= MAX_GAP:
        said = "rows have no logprobs" if np.isnan(gap) else f"a logprob is {gap:.3g} nats from the one recorded"
        raise ConfigError(
            f"{said}, {MAX_GAP} are allowed: the gradient would be another policy's; "
            "rows must come from these weights, sampled in float32 and with logprobs"
        )
