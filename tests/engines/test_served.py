"""What both kinds of servers are held to: answers and moments that would make a false token count."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.engines.token_servers import (
    CODEC,
    REQUEST,
    FakeSglang,
    FakeVllm,
    failure,
    ids_of,
    on_its_way,
    served,
    serving,
    until,
)

from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import Finish
from ramify.engines.builtin import FOLDER
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.served.engine import Served
from ramify.engines.served.sglang import Sglang
from ramify.engines.served.vllm import Vllm


@dataclass
class Pair:
    """A fake server, the engine in front of it, and what the two call things."""

    fake: Any
    kind: type[Served]
    tokens: str
    load: str = "/collective_rpc"
    pause: str = "/pause?mode=keep"
    resume: str = "/resume"

    @property
    def engine(self) -> AbstractAsyncContextManager[Served]:
        return served(self.fake, self.kind)


def sglang() -> Pair:
    load, pause, resume = "/update_weights_from_disk", "/pause_generation", "/continue_generation"
    return Pair(FakeSglang(), Sglang, "/generate", load, pause, resume)


PAIRS: dict[str, Callable[[], Pair]] = {
    "vllm": lambda: Pair(FakeVllm(), Vllm, "/v1/completions"),
    "vllm-ids": lambda: Pair(FakeVllm(refused={"/inference/v1/generate": 0}), Vllm, "/inference/v1/generate"),
    "sglang": sglang,
}


@pytest.fixture(params=PAIRS.values(), ids=PAIRS.keys())
def pair(request: pytest.FixtureRequest) -> Pair:
    return request.param()


async def test_the_end_of_a_sequence_is_among_the_ids(pair: Pair) -> None:
    pair.fake.script = lambda _: ids_of("so<|end|>more")
    async with pair.engine as engine:
        generation = await engine.generate(REQUEST)
    assert (CODEC.decode(generation.ids), generation.finish.kind) == ("so<|end|>", "end_of_sequence")


async def test_an_answer_to_another_request_is_refused(pair: Pair) -> None:
    fake = pair.fake
    answers: list[dict[str, Any]] = []

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        answers.append(answer)
        return answers[0]

    fake.change = change
    async with pair.engine as engine:
        await engine.generate(REQUEST)
        assert (await failure(engine)).reason == "other_request"


async def test_a_gateway_that_calls_requests_something_else_is_no_other_server() -> None:
    class Gateway(FakeVllm):
        def answer(self, value: dict[str, Any], *, is_probe: bool) -> Any:
            return super().answer({**value, "id": "cmpl-of-the-gateway"}, is_probe=is_probe)

    async with served(Gateway(), Vllm) as vllm:
        assert len((await vllm.generate(REQUEST)).ids)


async def test_a_server_that_came_back_with_another_model_samples_nothing(pair: Pair) -> None:
    fake = pair.fake
    async with pair.engine as engine:
        await engine.generate(REQUEST)
        num = len(fake.asked)
        fake.refused[pair.tokens] = 500
        await failure(engine)
        fake.refused[pair.tokens] = 0
        fake.model = "/somewhere/else"
        assert (await failure(engine)).reason == "other_model"
        assert len(fake.asked) == num
        fake.model = str(FOLDER)
        await engine.generate(REQUEST)


async def test_a_look_at_the_server_that_fails_leaves_its_versions_known(pair: Pair) -> None:
    fake = pair.fake
    async with pair.engine as engine:
        await engine.update_weights("/weights/3", 3)
        before = (await engine.generate(REQUEST)).versions
        fake.refused |= dict.fromkeys(("/weight_info", "/abort_request", "/inference/v1/abort_requests"), 500)
        with pytest.raises(EngineError, match="http_500"):
            await engine.connect()
        fake.refused.pop("/weight_info")
        assert (await engine.generate(REQUEST)).versions == before == ((3, before[0][1]),)


# -- how it is ended --------------------------------------------------------------------------------------------------


async def test_an_abort_that_meets_a_false_stop_is_not_gone_on_from() -> None:
    def false_stop(answer: dict[str, Any]) -> dict[str, Any]:
        choice = {**answer["choices"][0], "finish_reason": "stop", "stop_reason": "calc>"}
        return {**answer, "choices": [choice]}

    fake = FakeVllm(change=false_stop)
    async with served(fake, Vllm) as vllm:
        asked = await on_its_way(vllm, fake)
        await vllm.abort(REQUEST.request_id)
        generation = await asked
        assert (generation.finish, len(generation.ids), len(fake.asked)) == (Finish("abort"), 2, 1)


async def test_an_abort_of_what_was_not_sent_yet_never_sends_it() -> None:
    fake = FakeVllm()
    async with served(fake, Vllm) as vllm:
        await vllm.connect()
        asking = asyncio.create_task(vllm.generate(REQUEST))
        await asyncio.sleep(0)  # now it waits for what the server says of its weights
        await vllm.abort(REQUEST.request_id)
        generation = await asking
        assert (generation.finish, len(generation.ids), fake.asked) == (Finish("abort"), 0, [])


async def test_a_server_that_is_silent_and_counts_nonsense_is_found_silent() -> None:
    fake = FakeVllm(counted="-")
    async with served(fake, Vllm, silent_s=0.06) as vllm:
        asked = await on_its_way(vllm, fake)
        fake.refused["/v1/completions"] = 500
        with pytest.raises(EngineError, match="engine_silent"):
            await asked


# -- weights ----------------------------------------------------------------------------------------------------------


async def test_an_update_that_ends_in_the_middle_lets_no_token_count_until_one_succeeds(pair: Pair) -> None:
    fake = pair.fake
    async with pair.engine as engine:
        asked = await on_its_way(engine, fake)
        fake.refused[pair.load] = 500
        with pytest.raises(EngineError, match="http_500"):
            await engine.update_weights("/weights/3", 3)
        fake.go_on.set()
        num = len(fake.asked)
        error = await failure(engine)
        assert (error.reason, error.is_retryable, len(fake.asked)) == ("stale_weights", True, num)
        fake.is_holding = False
        await engine.resume()
        with pytest.raises(EngineError, match="mixed_versions"):
            await asked
        assert (await failure(engine)).reason == "stale_weights"
        fake.refused.pop(pair.load)
        fake.orders.clear()
        await engine.update_weights("/weights/3", 3)
        assert (fake.orders[0], fake.orders[-1]) == (pair.pause, pair.resume)
        assert {version for version, _ in (await engine.generate(REQUEST)).versions} == {3}


async def test_an_update_that_is_cancelled_in_the_middle_lets_no_token_count(pair: Pair) -> None:
    fake = pair.fake
    async with pair.engine as engine:
        await engine.generate(REQUEST)
        fake.loads.clear()
        loading = asyncio.create_task(engine.update_weights("/weights/3", 3))
        await until(lambda: fake.is_loading)
        loading.cancel()
        await asyncio.wait({loading})
        assert loading.cancelled()
        assert (await failure(engine)).reason == "stale_weights"
        fake.loads.set()
        await engine.update_weights("/weights/3", 3)
        assert (await engine.generate(REQUEST)).versions[0][0] == 3


async def test_weights_are_never_loaded_into_a_server_that_may_be_running(pair: Pair) -> None:
    fake = pair.fake
    async with pair.engine as engine:
        await engine.connect()
        fake.refused[pair.pause.partition("?")[0]] = 500
        with pytest.raises(EngineError, match="http_500"):
            await engine.pause()
        fake.refused.clear()
        await engine.update_weights("/weights/3", 3)
        assert (fake.orders[-1], pair.pause in fake.orders) == (pair.resume, True)
        await engine.pause()
        fake.refused[pair.resume] = 500
        with pytest.raises(EngineError, match="http_500"):
            await engine.resume()
        fake.refused.clear()
        fake.orders.clear()
        await engine.update_weights("/weights/4", 4)
        assert (fake.orders[0], fake.orders[-1]) == (pair.pause, pair.resume)


async def test_updates_come_one_after_another(pair: Pair) -> None:
    fake = pair.fake
    async with pair.engine as engine:
        await engine.connect()
        fake.orders.clear()
        await asyncio.gather(*(engine.update_weights(f"/weights/{n}", n) for n in (3, 4)))
        half = len(fake.orders) // 2
        assert fake.orders[:half] == fake.orders[half:]
        assert (fake.orders[0], fake.orders[half - 1]) == (pair.pause, pair.resume)
        assert (await engine.generate(REQUEST)).versions[0][0] == 4


@pytest.mark.parametrize("source", ["/weights/3", "{}"])
async def test_a_refusal_behind_the_first_order_of_an_update_leaves_the_server_paused(source: str) -> None:
    later = "/finish_weight_update" if source == "{}" else "/update_weight_version"
    fake = FakeVllm(refused={later: 404})
    async with served(fake, Vllm) as vllm:
        await vllm.connect()
        with pytest.raises(EngineError, match=f"update_failed.*{later}.*stays paused"):
            await vllm.update_weights(source, 3)
        assert "/resume" not in fake.orders
        assert (await failure(vllm)).reason == "stale_weights"


async def test_weights_that_were_dropped_sample_nothing_before_others_are_loaded() -> None:
    fake = FakeVllm()
    async with served(fake, Vllm, sleep_level=2) as vllm:
        await vllm.generate(REQUEST)
        await vllm.offload(("kv_cache",))
        await vllm.onload()
        await vllm.generate(REQUEST)
        await vllm.offload()
        await vllm.onload()
        assert (await failure(vllm)).reason == "stale_weights"
        await vllm.update_weights("/weights/3", 3)
        await vllm.generate(REQUEST)


async def test_a_refused_order_leaves_the_clock_running() -> None:
    fake = FakeVllm(refused={"/pause": 404, "/sleep": 404})
    async with served(fake, Vllm, silent_s=0.06) as vllm:
        for order in (vllm.pause(), vllm.offload()):
            with pytest.raises(ConfigError):
                await order
        asked = await on_its_way(vllm, fake)
        fake.refused["/v1/completions"] = 500
        with pytest.raises(EngineError, match="engine_silent"):
            await asked


@pytest.mark.parametrize("order", ["pause", "load", "resume"])
async def test_a_replica_whose_update_broke_off_is_given_the_weights_again(order: str, pair: Pair) -> None:
    fake, path = pair.fake, {"pause": pair.pause, "load": pair.load, "resume": pair.resume}[order].partition("?")[0]
    other = type(fake)(refused=dict(fake.refused))
    async with serving(fake) as url, serving(other) as other_url:
        replicas = Replicas([pair.kind(FOLDER, base_url=each) for each in (url, other_url)], placement="round_robin")
        try:
            await replicas.connect()
            fake.unanswered.add(path)
            await replicas.update_weights("/weights/3", 3)
            assert [stats.state for stats in replicas.stats] == ["stale", "ready"]
            fake.unanswered.clear()
            await until(lambda: all(stats.state == "ready" for stats in replicas.stats))
            found = [await replicas.generate(replace(REQUEST, request_id=f"r/{n}")) for n in range(4)]
            assert {version for generation in found for version, _ in generation.versions} == {3}
            assert fake.asked and other.asked
        finally:
            await replicas.close()
