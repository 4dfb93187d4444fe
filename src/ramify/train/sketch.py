# pyright: reportMissingImports=false
# torch is no part of the development set-up; `engines.local` says how to get it.
"""Sketch: a random projection of vectors too long to keep, which keeps squared norms and products in the mean.

A count sketch (Charikar, Chen and Farach-Colton 2002): a coordinate is added with a random sign to one of K buckets.
Over seeds E<Px, Py> = <x, y>, and |Px|^2 has a standard deviation of at most sqrt(2 / K) |x|^2. Nothing is stored of
the projection but its seed.
"""

from collections.abc import Iterable
from typing import Any

import torch

PART = 1 << 22
"""Coordinates that are drawn for at once."""


class Sketch:
    """A linear map to K = `size` numbers, the same for all vectors that come in tensors of the same sizes. Sums are
    float32; on a GPU their last bits differ from call to call."""

    def __init__(self, size: int, *, seed: int = 0) -> None:
        self.size = size
        self._seed = seed

    def of(self, tensors: Iterable[Any]) -> Any:
        """(K,) of the vector that the tensors are, flattened, one behind the other; they are on one device."""
        buckets, generator = None, None
        for tensor in tensors:
            if buckets is None or generator is None:
                buckets = torch.zeros(self.size, device=tensor.device)
                generator = torch.Generator(tensor.device).manual_seed(self._seed)
            for part in tensor.reshape(-1).split(PART):
                drawn = torch.randint(2 * self.size, part.shape, generator=generator, device=part.device)
                buckets.index_add_(0, drawn >> 1, torch.where(drawn & 1 == 0, part, -part))
        return torch.zeros(self.size) if buckets is None else buckets
