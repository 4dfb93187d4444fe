"""Batching run: one request of the batching loop, and its state."""

import asyncio
from dataclasses import dataclass, field

from ramify.core.engine import Generation, Request
from ramify.core.segment import Finish, Floats_T
from ramify.engines.stop_watch import StopWatch


@dataclass(slots=True, eq=False)
class BatchingRun:
    """One request that waits or runs."""

    request: Request
    future: asyncio.Future[Generation]
    watch: StopWatch
    max_tokens: int
    """The request's limit, or fewer where the context has less room."""
    is_raw: bool
    """Whether tokens are drawn from the raw distribution: temperature 1, nothing cut off."""
    slot: int = -1
    """-1 = the request has no slot."""
    num_cached: int = 0
    num_sampled: int = 0
    topk: list[Floats_T] = field(default_factory=list[Floats_T])
    versions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(version, number of tokens sampled before this version began), in order."""

    @property
    def num_context(self) -> int:
        return len(self.request.ids)

    @property
    def wants_topk(self) -> bool:
        return self.request.topk > 0 and self.num_sampled < self.request.topk_tokens

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """(version, number of tokens), without empty spans."""
        ends = [start for _, start in self.versions[1:]] + [self.num_sampled]
        spans = zip(self.versions, ends, strict=True)
        return tuple((version, end - start) for (version, start), end in spans if end > start)

    def hear(self, token: bytes | None) -> Finish | None:
        """Count a sampled token; None = a token that ends a sequence. Returns how the request ends with it; None = it
        continues."""
        self.num_sampled += 1
        if token is None:
            return Finish("end_of_sequence")
        found = self.watch.hear(token)
        if found is not None:
            return Finish("stop", found[0])
        return Finish("length") if self.num_sampled == self.max_tokens else None
