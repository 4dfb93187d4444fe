"""The manager whose calls come from elsewhere: in this process, and as a Ray actor."""

import asyncio
from pathlib import Path

import pytest
from tests.service.services import config, digest, served

from ramify.core.errors import ConfigError
from ramify.service.remote import RemoteManager


@pytest.mark.covers("S3.10")
def test_locks_are_held_from_call_to_call(tmp_path: Path) -> None:
    async def main() -> list[set[str]]:
        manager = RemoteManager(config(), tmp_path / "run")
        await manager.start()
        seen: list[set[str]] = []
        try:
            await manager.begin_update(4)
            await manager.run.prepared.engine.update_weights("pushed", 4)
            asking = asyncio.create_task(manager.generate(0))
            for _ in range(50):
                await asyncio.sleep(0)
            assert not asking.done()
            await manager.release()
            seen.append({v for s in (await asking).samples for v in s.weight_versions})
            await manager.acquire()
            update = asyncio.create_task(manager.update_weights(5, "five"))
            for _ in range(50):
                await asyncio.sleep(0)
            assert manager.version == 4
            await manager.release()
            await update
            assert manager.version == 5
            with pytest.raises(ConfigError, match="nothing is held"):
                await manager.release()
            assert (await manager.counted())["handed"] == 4
        finally:
            await manager.close()
        return seen

    assert asyncio.run(main()) == [{"4"}]


@pytest.mark.ray
@pytest.mark.covers("S3.1", "S3.10")
def test_as_an_actor_it_makes_the_batches_of_one_in_this_process_and_goes_on_when_it_is_killed(
    tmp_path: Path, cluster: str
) -> None:
    import ray  # pyright: ignore[reportMissingImports]

    from ramify.service.remote import placed

    async def two(manager: RemoteManager) -> list[str]:
        return [digest(await manager.generate(rollout_id)) for rollout_id in range(2)]

    expected = served(tmp_path / "here", two, configured=config())
    first = placed(config(), tmp_path / "there", num_cpus=0)
    ray.get(first.start.remote())
    reference = first.generate.remote(0)
    assert isinstance(reference, ray.ObjectRef), "a batch is handed over by reference"
    found = [digest(ray.get(reference))]
    ray.kill(first)
    second = placed(None, tmp_path / "there", num_cpus=0)
    ray.get(second.start.remote())
    assert digest(ray.get(second.generate.remote(0))) == expected[0]
    found.append(digest(ray.get(second.generate.remote(1))))
    assert found == expected
    ray.get(second.close.remote())
    ray.kill(second)
