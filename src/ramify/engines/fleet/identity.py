"""Identity: what makes servers replicas of one model: the same tokenizer and the same capabilities."""

from dataclasses import dataclass, fields, replace

from ramify.core.codec import Codec
from ramify.core.engine import Capabilities, Engine
from ramify.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Identity:
    """What one replica is, and so what all must be. `capabilities` say that deadlines are enforced: `Replica` does this
    if an engine does not."""

    codec: Codec
    capabilities: Capabilities

    @classmethod
    def of(cls, engine: Engine) -> "Identity":
        return cls(engine.codec, replace(engine.capabilities, keeps_deadlines=True))

    def refuse_another(self, engine: Engine, name: str) -> None:
        """Raises `ConfigError`, which names the replica and the difference, if `engine` is not the same."""
        other = Identity.of(engine)
        if other.codec.sha256 != self.codec.sha256:
            raise ConfigError(
                f"{name} has the tokenizer {other.codec.name!r} ({other.codec.sha256[:12]}), the others have "
                f"{self.codec.name!r} ({self.codec.sha256[:12]}); replicas are servers of one model"
            )
        for field in fields(Capabilities):
            has, others = getattr(other.capabilities, field.name), getattr(self.capabilities, field.name)
            if has != others:
                raise ConfigError(
                    f"{name} has {field.name} = {has!r}, the others have {others!r}; replicas are servers of one "
                    "model, started alike"
                )
