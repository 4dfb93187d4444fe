"""Server config: how to start servers for a run or for `ramify serve`. Values and their checks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ramify.core.errors import ConfigError
from ramify.servers.environment import is_key

Device = Literal["gpu", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How to start the servers of one model, whatever the model and the addresses."""

    python: str | None = None
    """Interpreter of the environment that has the engine; None = ours."""
    device: Device | None = None
    """Where the model runs; None = the device that the installed engine was built for."""
    dtype: str | None = None
    """Type of weights and activations, such as `bfloat16`; None = the model's own, on a CPU float32."""
    max_model_len: int | None = None
    """Most tokens of prompt and completion together; None = the model's own."""
    arguments: tuple[str, ...] = ()
    """More arguments, passed on unchanged."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables set for the servers; they override all others. No keys: this is saved with the run."""
    hand_on: tuple[str, ...] = ()
    """Names of our variables that servers get in addition, such as HF_TOKEN."""
    start_s: float = 600.0
    """Timeout for a server to become ready (vllm-project/vllm: VLLM_ENGINE_READY_TIMEOUT_S)."""
    logs: str | None = None
    """Folder for their logs; None = a new temporary folder."""

    def __post_init__(self) -> None:
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ConfigError(f"max_model_len = {self.max_model_len!r}: at least 1 token")
        if not self.start_s > 0:
            raise ConfigError(f"start_s = {self.start_s!r}: it must be above 0")
        odd = [name for name in (*self.environment, *self.hand_on) if not re.fullmatch(r"[A-Za-z_]\w*", name)]
        if odd:
            raise ConfigError(f"environment: {odd[0]!r} is no name of a variable")
        keys = sorted(filter(is_key, self.environment))
        if keys:
            raise ConfigError(f"environment: {keys[0]} is a key by its name; set it in your own, and hand_on its name")
