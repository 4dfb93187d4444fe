"""Problem: one question, with what everyone may see and what only oracles may see.

It owns the split between `public` and `secret`. An empty uid or question raises an error. Only code marked `oracle`
gets the secret. Everything else gets `problem.for_agents()`, which holds no secret, so ground truth cannot leak by
accident.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ramify.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One question.

    `public` is copied to every row of the problem's tree; `secret` (gold answers) reaches `oracle` judges only.
    """

    uid: str
    question: str
    public: Mapping[str, Any] = field(default_factory=dict[str, Any])
    secret: Mapping[str, Any] = field(default_factory=dict[str, Any])
    split: str = ""

    def __post_init__(self) -> None:
        if not self.uid:
            raise ConfigError(f"a problem needs a uid, got {self.uid!r} for the question {self.question[:60]!r}")
        if not self.question.strip():
            raise ConfigError(f"problem {self.uid!r} has no question: {self.question!r}")

    def for_agents(self) -> "Problem":
        """Return this problem without its secret columns: what strategies, formats, tools and judges may see."""
        return replace(self, secret={}) if self.secret else self
