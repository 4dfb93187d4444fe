"""FedOnline: the strategy `online` on the random numbers of a scenario, not on those of its tree."""

from collections.abc import Sequence
from typing import Any, ClassVar

from tests.strategies.world import ListDraws

from ramify.strategies.online import Online, OnlineConfig


class FedOnline(Online):
    """`feed` says which numbers the next tree draws."""

    uniforms: ClassVar[Sequence[float]] = ()
    drawn: ClassVar[list[ListDraws]] = []
    """Of every instance: a run has a second one that watches the first."""

    def __init__(self, config: OnlineConfig, rng: Any) -> None:
        draws = ListDraws(self.uniforms)
        self.drawn.append(draws)
        super().__init__(config, draws)

    @classmethod
    def feed(cls, uniforms: Sequence[float]) -> None:
        cls.uniforms, cls.drawn = uniforms, []

    @classmethod
    def num_drawn(cls) -> int:
        """Numbers that the tree has drawn."""
        return max(draws.num_uniforms for draws in cls.drawn)
