"""What a service does when the disk is full, and when things happen at once that must not."""

import asyncio
import os
import resource
import signal
from pathlib import Path

import pytest
from tests.service.services import config, digest, served

from ramify.core.engine import Generation, Request
from ramify.core.errors import ConfigError, StoreError
from ramify.service.manager import RolloutManager
from ramify.testing.scripted import Scripted

SAID_SO = 7


def on_a_full_disk(path: Path) -> None:
    """A batch, then a save for which there is no room any more. Leaves the process."""

    async def main() -> int:
        manager = await RolloutManager(config(), path).start()
        await manager.generate(0)
        await manager.save(0)
        await manager.generate(1)
        size = sum(file.stat().st_size for file in (path / "journal").glob("*.jsonl"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, size + 10))
        try:
            await manager.save(1)
        except StoreError:
            return SAID_SO
        return 0

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os._exit(asyncio.run(main()))


@pytest.mark.slow
@pytest.mark.covers("S3.8")
def test_a_save_for_which_there_is_no_room_says_so_and_spoils_nothing(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        on_a_full_disk(tmp_path / "run")
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == SAID_SO

    async def use(manager: RolloutManager) -> list[str]:
        with pytest.raises(StoreError, match=r"has no save of rollout 1; the last saves are \[0\]"):
            await manager.load(1)
        one = digest(await manager.generate(1))
        await manager.load(0)
        return [one, digest(await manager.generate(1))]

    one, again = served(tmp_path / "run", use)
    assert one == again


class Slow(Scripted):
    """Loads weights slowly, and writes down which weights every request was answered by."""

    def __init__(self) -> None:
        super().__init__(version=0)
        self.loading = asyncio.Event()
        self.may_load = asyncio.Event()
        self.said: list[int] = []

    async def update_weights(self, source: str, version: int) -> None:
        self.loading.set()
        await self.may_load.wait()
        await super().update_weights(source, version)

    async def generate(self, request: Request) -> Generation:
        generation = await super().generate(request)
        self.said += [version for version, _ in generation.versions]
        return generation


EVAL = {"service__eval__held.prompts": 3, "service__eval__held.repeats": 2}


@pytest.mark.covers("S3.7")
def test_an_evaluation_waits_for_an_update_and_is_of_one_version(tmp_path: Path) -> None:
    engine = Slow()

    async def use(manager: RolloutManager) -> None:
        update = asyncio.create_task(manager.update_weights(1, "one"))
        await engine.loading.wait()
        evaluation = asyncio.create_task(manager.eval(0))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not engine.said and not evaluation.done()
        engine.may_load.set()
        await update
        metrics = await evaluation
        assert set(engine.said) == {1} and "eval/held" in metrics

    served(tmp_path / "run", use, configured=config(**EVAL), engine=engine)


@pytest.mark.covers("S3.7")
def test_an_update_waits_for_an_evaluation(tmp_path: Path) -> None:
    engine = Slow()
    engine.may_load.set()

    async def use(manager: RolloutManager) -> None:
        evaluation = asyncio.create_task(manager.eval(0))
        await asyncio.sleep(0)
        update = asyncio.create_task(manager.update_weights(1, "one"))
        await asyncio.gather(evaluation, update)
        assert set(engine.said) == {0} and manager.version == 1

    served(tmp_path / "run", use, configured=config(**EVAL), engine=engine)


@pytest.mark.covers("S3.7")
def test_nothing_is_evaluated_on_engines_that_are_offloaded(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> None:
        await manager.offload()
        with pytest.raises(ConfigError, match="offloaded"):
            await manager.eval(0)

    served(tmp_path / "run", use, configured=config(**EVAL))


@pytest.mark.slow
@pytest.mark.covers("S3.7")
def test_an_evaluation_leaves_no_trace_in_what_is_trained(tmp_path: Path) -> None:
    async def use(manager: RolloutManager, num_evals: int) -> list[str]:
        found: list[str] = []
        for rollout_id in range(2):
            for _ in range(num_evals):
                await manager.eval(rollout_id)
            found.append(digest(await manager.generate(rollout_id)))
        return found

    with_it = served(tmp_path / "with", lambda manager: use(manager, 2), configured=config(**EVAL))
    without = served(tmp_path / "without", lambda manager: use(manager, 0), configured=config(**EVAL))
    assert with_it == without


@pytest.mark.covers("S3.10")
def test_a_cancelled_batch_can_be_asked_for_again(tmp_path: Path) -> None:
    async def use(manager: RolloutManager) -> str:
        asking = asyncio.create_task(manager.generate(0))
        for _ in range(30):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        return digest(await manager.generate(0))

    again = served(tmp_path / "run", use, configured=config())
    assert again == digest(served(tmp_path / "other", lambda manager: manager.generate(0), configured=config()))
