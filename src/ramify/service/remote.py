"""Remote: the manager as a Ray actor. Places and forwards; what is done is done by `manager.py`, which knows no Ray.

Every method of `RolloutManager` is called as `manager.generate.remote(3)`. Ray hands what it returns over by reference:
the batch stays where it was made until somebody asks for it, and goes straight to whoever trains on it. Ray restarts no
manager: one that died is placed again on its folder, and goes on from its journal.
"""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError
from ramify.service.manager import RolloutManager


class RemoteManager(RolloutManager):
    """A manager whose locks are held from one call to another, as no caller elsewhere can hold a context open."""

    def __init__(self, config: RunConfig | None, path: Path | None, **options: Any) -> None:
        super().__init__(config, path, **options)
        self._held: AsyncExitStack | None = None

    async def start(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As of the manager; itself it cannot be returned."""
        await super().start()

    async def acquire(self) -> None:
        """Hold the lock around engine changes until `release`."""
        held = AsyncExitStack()
        await held.enter_async_context(self.lock())
        self._held = held

    async def begin_update(self, version: int, source: str = "") -> None:
        """Hold the engines still until `release`, for a trainer that pushes weights itself; see `updating`."""
        held = AsyncExitStack()
        await held.enter_async_context(self.updating(version, source))
        self._held = held

    async def release(self) -> None:
        """End what `acquire` or `begin_update` began; the weights are acknowledged then. Raises `ConfigError` where
        nothing was begun."""
        if self._held is None:
            raise ConfigError("nothing is held: call `acquire` or `begin_update` before `release`")
        held, self._held = self._held, None
        await held.aclose()

    async def counted(self) -> dict[str, int]:
        """`counts`, as a call."""
        return dict(self.counts)


def placed(config: RunConfig | None, path: Path, **placement: Any) -> Any:
    """An actor with a manager on the folder `path`, which every node that it may be placed on must see. `placement` are
    Ray's options, such as `num_cpus` or `scheduling_strategy`. Raises `ConfigError` where Ray is missing.

    What its constructor raises comes with the first call.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError("a manager in a Ray actor needs Ray: pip install 'ramify[ray]'") from error
    options = {"num_cpus": 1, "max_restarts": 0, **placement}
    actor: Any = ray
    return actor.remote(RemoteManager).options(**options).remote(config, path.absolute())
