"""Engine `vllm` against real servers: what every engine promises, and that it is the same model as `builtin`."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from bench.real_replicas import Served

from ramify.cli.check import checked_run
from ramify.config.configure import resolve
from ramify.core.engine import Engine
from ramify.core.errors import ExportError
from ramify.core.segment import Floats_T
from ramify.core.tree import Tree
from ramify.edge.stdio_guard import processes
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.served.vllm import Vllm
from ramify.runner.folder import begin
from ramify.runner.library import Rollout, rollout_sync
from ramify.testing.contracts.engines import ENGINE_RULES, EngineCase
from ramify.testing.contracts.rules import keep

pytestmark = pytest.mark.engines

GREEDY = {"actions.policy.sampling.temperature": 0.0, "strategy.options": {"n": 1}}


def one(replicas: Served) -> Engine:
    return Vllm(replicas.model, base_url=replicas.urls[0])


def both(replicas: Served) -> Engine:
    return Replicas([Vllm(replicas.model, base_url=url) for url in replicas.urls])


@pytest.mark.parametrize("build", [one, both], ids=["one server", "two replicas"])
@pytest.mark.parametrize("rule", ENGINE_RULES)
def test_the_engine_contract_holds(rule: str, build: Callable[[Served], Engine], replicas: Served) -> None:
    keep(ENGINE_RULES, rule, EngineCase(lambda: build(replicas)), "the engine")


def test_servers_without_a_card_keep_to_no_core(replicas: Served) -> None:
    """vLLM would bind the threads of each server to the same core."""
    threads = [
        int(thread.name)
        for process in processes()
        if process.session in replicas.pids
        for thread in Path(f"/proc/{process.id}/task").glob("*")
    ]
    cores: list[set[int]] = []
    for thread in threads:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            cores.append(os.sched_getaffinity(thread))
    assert len(cores) > len(replicas.pids)
    assert all(each == os.sched_getaffinity(0) for each in cores)


def trees(rollout: Rollout) -> list[Tree]:
    assert not rollout.report.failed_trees
    return list(rollout.trees)


def grown(preset: str, flags: dict[str, Any], **others: Any) -> Rollout:
    return rollout_sync(config=resolve(preset=preset, flags={**flags, **others}).config)


def logprobs(tree: Tree) -> Floats_T:
    return np.concatenate([tree.branch(leaf).logprobs for leaf in tree.leaves()])


def ids(tree: Tree) -> list[list[int]]:
    return [tree.branch(leaf).ids.tolist() for leaf in tree.leaves()]


def test_greedy_trees_are_those_of_the_built_in_engine(replicas: Served) -> None:
    flags = {"prompts": 48, "seed": 3, **GREEDY}
    ours = trees(grown("chains", flags))
    theirs = trees(grown("chains", flags, **replicas.flags()))
    # Sums come in another order, so two tokens that are nearly as likely as each other may change places.
    same = [pair for pair in zip(ours, theirs, strict=True) if ids(pair[0]) == ids(pair[1])]
    assert len(same) >= len(ours) - 2
    assert max(float(np.nanmax(abs(logprobs(one) - logprobs(other)))) for one, other in same) < 1e-3


def test_rewards_and_lengths_are_those_of_the_built_in_engine(replicas: Served) -> None:
    flags = {"prompts": 64, "seed": 4, "strategy.options": {"n": 8}}
    ours = trees(grown("chains", flags))
    theirs = trees(grown("chains", flags, **replicas.flags()))
    for measure in (mean_reward, mean_length):
        gaps = [measure(one) - measure(other) for one, other in zip(ours, theirs, strict=True)]
        assert abs(fmean(gaps)) < 3 * stdev(gaps) / len(gaps) ** 0.5


def mean_reward(tree: Tree) -> float:
    return fmean(tree.reward(leaf) or 0.0 for leaf in tree.leaves())


def mean_length(tree: Tree) -> float:
    return fmean(len(tree.branch(leaf)) for leaf in tree.leaves())


def test_no_id_differs_between_the_run_and_what_the_servers_sampled(replicas: Served, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    flags = {"prompts": 24, "seed": 5, "engine.placement": "round_robin", "engine.log": str(log)}
    begin(resolve(preset="treepo", flags={**replicas.flags(), **flags}).config, tmp_path / "run")
    checked = checked_run(tmp_path / "run", log)
    assert checked.against is not None
    assert (checked.breaches, checked.against.differences, checked.against.only_in_log) == ([], [], 0)
    assert checked.against.turns > 500


def test_a_server_that_is_killed_costs_no_tree_and_comes_back(replicas: Served) -> None:
    flags = {**replicas.flags(), "prompts": 48, "seed": 6, "strategy.options": {"n": 8}}
    whole = trees(grown("chains", flags))
    killed: list[int] = []

    def kill(event: object) -> None:
        if not killed:
            killed.append(replicas.pids[0])
            os.kill(replicas.pids[0], signal.SIGKILL)

    found = rollout_sync(config=resolve(preset="chains", flags=flags).config, observers=[kill])
    assert killed
    assert len(trees(found)) == len(whole)
    assert all(len(tree.leaves()) == 8 for tree in found.trees)
    replicas.wait_until_all_answer()


def test_a_lone_server_that_is_killed_and_started_again_costs_no_path(replicas: Served) -> None:
    """`ramify serve` starts the killed server again at its address, 70 to 100 s later; 512 requests are in flight."""
    max_trees = 64
    flags = {**replicas.flags(), "engine.base_url": replicas.urls[1], "strategy.options": {"n": 8}}
    flags |= {"prompts": 2 * max_trees, "max_trees": max_trees, "seed": 7}
    killed: list[int] = []

    def kill(event: object) -> None:
        if not killed:
            killed.append(replicas.pids[1])
            os.kill(replicas.pids[1], signal.SIGKILL)

    found = rollout_sync(config=resolve(preset="chains", flags=flags).config, observers=[kill])
    assert killed
    assert all(len(tree.leaves()) == 8 for tree in trees(found))
    assert (found.report.leaves, found.report.failed_leaves) == (1024, 0)
    replicas.wait_until_all_answer()


def test_a_paused_server_goes_on_where_it_was(replicas: Served) -> None:
    async def main() -> tuple[list[int], list[int]]:
        engine = Vllm(replicas.model, base_url=replicas.urls[0])
        request = EngineCase(lambda: engine).request(engine, max_tokens=16, measures=frozenset())
        try:
            await engine.connect()
            before = await engine.generate(request)
            await engine.pause()
            waiting = asyncio.create_task(engine.generate(request))
            done, _ = await asyncio.wait({waiting}, timeout=1.0)
            assert not done
            await engine.resume()
            return before.ids.tolist(), (await waiting).ids.tolist()
        finally:
            await engine.close()

    before, behind = asyncio.run(main())
    assert behind == before


def test_the_same_servers_answer_as_an_endpoint(replicas: Served) -> None:
    urls = ",".join(f"{url}/v1" for url in replicas.urls)
    flags = {"engine.name": "openai", "engine.model": replicas.model.name, "engine.base_url": urls}
    found = grown("chains", {"prompts": 8, "seed": 7, "strategy.options": {"n": 4}, **flags})
    for tree in trees(found):
        assert len(tree.leaves()) == 4
        assert all(tree.reward(leaf) is not None for leaf in tree.leaves())
        assert all(tree.branch(leaf).messages[-1]["role"] == "assistant" for leaf in tree.leaves())
    with pytest.raises(ExportError, match="bytes"):
        found.rows()
