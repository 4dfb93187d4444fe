"""ActionConfig: the configuration entry that a Grow's `action` names. It says how to sample."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ramify.core.command import Edge, Role
from ramify.core.errors import ConfigError
from ramify.core.segment import Sampling

SET_HERE: Final = frozenset({"messages", "model", "n", "stream"})
"""Fields of a request that no action may set."""


@dataclass(frozen=True, slots=True)
class ActionConfig:
    """How one kind of growth is sampled."""

    engine: str = "policy"
    """Name of an entry of the run's engines."""
    edge: Edge = "continues"
    """It goes on with its path, or quotes it in a fresh context."""
    role: Role = "policy"
    """Who speaks; only tokens of the policy are trained."""
    template: str = ""
    """Prompt of a fresh context, for `quotes`. The format decides what it may cite (`{question}`, `{answer}`, `{0}`,
    ...)."""
    system: str | None = None
    """System message of the contexts that this action opens; '' = none, None = the format's. The opening context of a
    tree is opened by the action `policy`."""
    sampling: Sampling = Sampling()
    """How tokens are drawn."""
    max_tokens: int | None = None
    """Most tokens of one step, held exactly: a stop word may be cut in two, and the next step goes on inside it. None =
    what is left of the response."""
    text: str = ""
    """Text that a growth writes instead of asking its engine. It becomes one `given` step that ends the path and is
    never trained. '' = the engine is asked."""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of its requests, such as `response_format`, for an engine that takes chat messages."""

    def __post_init__(self) -> None:
        if (self.edge == "quotes") != bool(self.template):
            raise ConfigError(f"an action that quotes needs a template, and only such a one: {self!r}")
        if self.text and (self.template or self.max_tokens is not None or self.system is not None):
            raise ConfigError(
                f"an action that writes its text asks for nothing: no template, no max_tokens, no system: {self!r}"
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens = {self.max_tokens!r}: a step has at least one token")
        if ours := sorted(SET_HERE & set(self.fields)):
            raise ConfigError(f"fields: ramify itself sets {', '.join(ours)} of a request; leave it out")
