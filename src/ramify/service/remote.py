"""Remote: the manager as a Ray actor. This file places the actor; `manager.py` does the work and does not import Ray.

Call every method of `RolloutManager` as `manager.generate.remote(3)`. Ray returns references: a batch stays where it
was made until somebody asks for it, and goes directly to the trainer that asks. Ray does not restart a manager that
died. Place a new one on its folder, and it continues from the journal.
"""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError
from ramify.service.manager import RolloutManager


class RemoteManager(RolloutManager):
    """A manager whose locks are held between calls, because a remote caller cannot hold a context open."""

    def __init__(self, config: RunConfig | None, path: Path | None, **options: Any) -> None:
        super().__init__(config, path, **options)
        self._held: AsyncExitStack | None = None

    async def start(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The same as `RolloutManager.start`, but returns nothing: an actor cannot return itself."""
        await super().start()

    async def acquire(self) -> None:
        """Hold the lock around engine changes until `release`."""
        held = AsyncExitStack()
        await held.enter_async_context(self.lock())
        self._held = held

    async def begin_update(self, version: int, source: str = "") -> None:
        """Pause the engines until `release`, for a trainer that pushes weights itself; see `updating`."""
        held = AsyncExitStack()
        await held.enter_async_context(self.updating(version, source))
        self._held = held

    async def release(self) -> None:
        """End what `acquire` or `begin_update` began; an update is acknowledged now. Raises `ConfigError` if nothing is
        held."""
        if self._held is None:
            raise ConfigError("nothing is held: call `acquire` or `begin_update` before `release`")
        held, self._held = self._held, None
        await held.aclose()

    async def counted(self) -> dict[str, int]:
        """`counts` as a method, because an actor's properties cannot be read."""
        return dict(self.counts)


def placed(config: RunConfig | None, path: Path, **placement: Any) -> Any:
    """Place an actor with a manager on the folder `path`. Every node that may run it must see the folder. `placement`
    are Ray's options, such as `num_cpus` or `scheduling_strategy`. Raises `ConfigError` if Ray is missing.

    The first call raises what the constructor raised.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError("a manager in a Ray actor needs Ray: pip install 'ramify[ray]'") from error
    options = {"num_cpus": 1, "max_restarts": 0, **placement}
    actor: Any = ray
    return actor.remote(RemoteManager).options(**options).remote(config, path.absolute())
