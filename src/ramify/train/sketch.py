# pyright: reportMissingImports=false
# torch is not in the development environment; `engines.local` says how to get it.
"""Sketch: a random projection of long vectors, which keeps squared norms and inner products on average.

A count sketch (Charikar, Chen and Farach-Colton 2002): each coordinate is added with a random sign to one of K buckets.
Over seeds E<Px, Py> = <x, y>, and |Px|^2 has a standard deviation of at most sqrt(2 / K) |x|^2. Only the seed of the
projection is stored.
"""

from collections.abc import Iterable
from typing import Any

import torch

PART = 1 << 22
"""Coordinates that one draw of random numbers covers."""


class Sketch:
    """A linear map to K = `size` numbers. It is the same map for all vectors whose tensors have the same sizes and lie
    on the same kind of device: a CPU and a GPU draw other random numbers from one seed. Sums are float32; on a GPU
    their last bits differ from call to call."""

    def __init__(self, size: int, *, seed: int = 0) -> None:
        self.size = size
        self._seed = seed

    def of(self, tensors: Iterable[Any]) -> Any:
        """(K,) the sketch of the concatenated, flattened tensors. They must be on one device."""
        buckets, generator = None, None
        for tensor in tensors:
            if buckets is None or generator is None:
                buckets = torch.zeros(self.size, device=tensor.device)
                generator = torch.Generator(tensor.device).manual_seed(self._seed)
            for part in tensor.reshape(-1).split(PART):
                drawn = torch.randint(2 * self.size, part.shape, generator=generator, device=part.device)
                buckets.index_add_(0, drawn >> 1, torch.where(drawn & 1 == 0, part, -part))
        return torch.zeros(self.size) if buckets is None else buckets
