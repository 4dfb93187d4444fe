"""Problem: one question, with what everyone may see and what only oracles may see.

It owns the split between `public` and `secret`. An empty uid or question raises an error. Only code marked `oracle`
gets the secret. Everything else gets `problem.for_agents()`, which holds no secret, so ground truth cannot leak by
accident.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from ramify.core.errors import ConfigError

TOOLS: Final = "tools"
"""Public column with the names of a problem's tools, where it does not have all of the run's."""


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

    def tools_among(self, known: Collection[str]) -> Collection[str]:
        """Names of the tools that this problem has: its public column `tools`, if that lists some of `known`; otherwise
        all of them."""
        given = self.public.get(TOOLS)
        names: Sequence[object] = cast("Sequence[object]", given) if isinstance(given, list | tuple) else ()
        is_subset = bool(names) and all(name in known for name in names)
        return [name for name in known if name in names] if is_subset else known

    def for_agents(self) -> "Problem":
        """Return this problem without its secret columns: what strategies, formats, tools and judges may see."""
        return replace(self, secret={}) if self.secret else self
