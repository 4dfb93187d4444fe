"""The engine against a small server that speaks vLLM's protocol."""

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.engines.token_servers import CODEC, REQUEST, FakeVllm, failure, ids_of, on_its_way, served, until

from ramify import plugins
from ramify.core.engine import Abortable, EngineControl, Remote, checked
from ramify.core.errors import ConfigError, EngineError
from ramify.core.segment import Finish, Sampling, token_array
from ramify.engines.builtin import FOLDER
from ramify.engines.served.vllm import Vllm


def engine(fake: FakeVllm, **options: Any) -> AbstractAsyncContextManager[Vllm]:
    return served(fake, Vllm, **options)


# -- what it is -------------------------------------------------------------------------------------------------------


def test_making_one_asks_nobody() -> None:
    vllm = plugins.build("engine", "vllm", model=str(FOLDER), base_url="http://127.0.0.1:1")
    assert isinstance(vllm, Remote) and isinstance(vllm, Abortable) and isinstance(vllm, EngineControl)
    assert vllm.capabilities.context_length == 512
    assert (vllm.codec.sha256, vllm.codec.eos_id) == (CODEC.sha256, CODEC.eos_id)
    assert vllm.server is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": str(FOLDER)}, "engine.base_url"),
        ({"base_url": "http://127.0.0.1:1"}, "engine.model"),
        ({"base_url": "http://127.0.0.1:1", "model": "org/model"}, "engine.options.tokenizer"),
        ({"base_url": "http://127.0.0.1:1", "model": "org/model", "tokenizer": "/nowhere"}, "'/nowhere' is no folder"),
        ({"base_url": "here", "model": str(FOLDER)}, "base_url = 'here'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Vllm(**options)  # type: ignore[arg-type]


def test_a_damaged_config_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"config\.json.*holds no table"):
        Vllm(tmp_path, base_url="http://127.0.0.1:1")


async def test_connecting_learns_what_the_server_is() -> None:
    async with engine(FakeVllm()) as vllm:
        await vllm.connect()
        await vllm.connect()
        assert vllm.server is not None
        assert (vllm.server.version, vllm.server.served_name) == ("0.32.0", "builtin")
        assert (vllm.server.route, vllm.server.has_cached_counts) == ("/v1/completions", True)
        given = vllm.capabilities
        assert (given.name, given.context_length, given.logprobs, given.max_topk) == ("vllm", 512, "raw", 20)
        assert given.has_seeds and given.has_abort and given.has_versions and given.keeps_deadlines
        assert not given.measures and not given.is_deterministic


async def test_the_route_that_speaks_ids_alone_is_taken_where_it_is() -> None:
    fake = FakeVllm(refused={"/inference/v1/generate": 0})
    async with engine(fake) as vllm:
        await vllm.connect()
        assert vllm.server is not None and vllm.server.route == "/inference/v1/generate"
        generation = checked(await vllm.generate(replace(REQUEST, topk=2)), REQUEST, CODEC.vocab_size)
        assert CODEC.decode(generation.ids) == "<calc>7+1</calc>"
        assert generation.versions == ((0, len(generation.ids)),)
        assert [top.tolist() for top in generation.topk] == [[-0.5, -1.5]] * len(generation.ids)
        law = fake.asked[0]["sampling_params"]
        assert (law["detokenize"], law["logprobs"]) == (True, 2)
    async with engine(FakeVllm(), api="generate") as vllm:
        with pytest.raises(ConfigError, match="gives no token: http_403"):
            await vllm.connect()


class NamelessVllm(FakeVllm):
    """Names no token ids in the logprobs of `/inference/v1/generate`, as version 0.20."""

    def answer(self, value: dict[str, Any], *, is_probe: bool) -> web.Response:
        for token in value["choices"][0]["logprobs"].get("content", ()):
            for top in token["top_logprobs"]:
                del top["token_id"]
        return super().answer(value, is_probe=is_probe)


async def test_a_route_whose_logprobs_name_no_token_ids_gives_way_to_the_other() -> None:
    async with engine(NamelessVllm(refused={"/inference/v1/generate": 0})) as vllm:
        await vllm.connect()
        assert vllm.server is not None and vllm.server.route == "/v1/completions"
        assert len(checked(await vllm.generate(REQUEST), REQUEST, CODEC.vocab_size).ids)
    async with engine(NamelessVllm(refused={"/inference/v1/generate": 0}), api="generate") as vllm:
        with pytest.raises(EngineError, match="token_id"):
            await vllm.connect()


async def test_top_logprobs_are_asked_for_up_to_a_limit() -> None:
    async with engine(FakeVllm(), max_topk=0) as vllm:
        await vllm.connect()
        assert vllm.capabilities.max_topk == 0 and vllm.capabilities.logprobs == "raw"
    with pytest.raises(ConfigError, match="max_topk = -1: 0 or more"):
        Vllm(FOLDER, base_url="http://127.0.0.1:1", max_topk=-1)


async def test_another_model_is_refused_with_both_names() -> None:
    async with engine(FakeVllm(), model="org/other", tokenizer=FOLDER) as vllm:
        with pytest.raises(ConfigError, match="runs 'builtin', not 'org/other'"):
            await vllm.connect()
    async with engine(FakeVllm(), model="builtin", tokenizer=FOLDER) as vllm:
        await vllm.connect()
    async with engine(FakeVllm(), model="org/other", tokenizer=FOLDER, served_name="builtin") as vllm:
        await vllm.connect()


async def test_a_server_that_lacks_something_says_so_in_the_capabilities() -> None:
    lacking = ("/inference/v1/abort_requests", "/abort_requests", "/weight_info", "/is_paused", "/metrics")
    async with engine(FakeVllm(refused=dict.fromkeys(lacking, 404))) as vllm:
        await vllm.connect()
        assert not vllm.capabilities.has_abort and not vllm.capabilities.has_versions
        assert (await vllm.generate(REQUEST)).versions == ()


async def test_a_server_that_is_paused_or_gone_is_named_when_connecting() -> None:
    fake = FakeVllm()
    fake.is_paused = True
    async with engine(fake) as vllm:
        with pytest.raises(EngineError, match="paused"):
            await vllm.connect()
    vllm = Vllm(FOLDER, base_url="http://127.0.0.1:1")
    with pytest.raises(EngineError, match="unreachable"):
        await vllm.connect()
    await vllm.close()


# -- what goes over the wire ------------------------------------------------------------------------------------------


async def test_nothing_is_left_to_the_servers_defaults() -> None:
    fake = FakeVllm()
    async with engine(fake) as vllm:
        await vllm.generate(replace(REQUEST, sampling=Sampling(temperature=0.7, top_p=0.9, top_k=5), topk=3))
        await vllm.generate(REQUEST)
    body = fake.asked[0]
    assert body["prompt"] == REQUEST.ids.tolist()
    assert body["request_id"].startswith("tree_00ff:") and body["request_id"].endswith(".")
    assert body["request_id"] != fake.asked[1]["request_id"]
    expected = {
        "model": "builtin", "n": 1, "max_tokens": 40, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.0,
        "seed": 2**63 - 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
        "stop": ["</calc>", "</answer>"], "stop_token_ids": [CODEC.eos_id], "skip_special_tokens": False,
        "return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 3,
    }  # fmt: skip
    assert {key: body[key] for key in expected} == expected
    assert fake.asked[1]["logprobs"] == 0


async def test_a_generation_holds_what_the_server_counted() -> None:
    async with engine(FakeVllm()) as vllm:
        generation = await vllm.generate(replace(REQUEST, topk=2, topk_tokens=1))
    num = len(generation.ids)
    assert (CODEC.decode(generation.ids), generation.finish) == ("<calc>7+1</calc>", Finish("stop", "</calc>"))
    assert generation.logprobs is not None and generation.logprobs.tolist() == [-0.5] * num
    assert [top.tolist() for top in generation.topk] == [[-0.5, -1.5]]
    assert (generation.num_cached, generation.num_prefilled) == (len(REQUEST.ids) // 2, (len(REQUEST.ids) + 1) // 2)
    assert (generation.num_billed, generation.versions) == (num, ((0, num),))


async def test_a_stop_word_may_begin_in_the_context_and_a_false_rest_is_gone_on_from() -> None:
    def script(context: list[int]) -> list[int]:
        whole = ids_of("x calc>y</calc> more")
        return whole[len(context) - num_context :]

    fake = FakeVllm(script=script)
    run = [i for character in "7</" for i in CODEC.encode(character)]
    context = token_array([*REQUEST.ids.tolist(), *run])
    num_context = len(context)
    async with engine(fake) as vllm:
        generation = await vllm.generate(replace(REQUEST, ids=context, num_run=len(run)))
        assert fake.asked[0]["stop"] == ["</calc>", "</answer>", "calc>", "answer>"]
        assert (CODEC.decode(generation.ids), len(fake.asked)) == ("x calc>y</calc>", 2)
        assert fake.asked[0]["seed"] != fake.asked[1]["seed"]
        fake.script = lambda _: ids_of("calc> and on it goes")
        generation = await vllm.generate(replace(REQUEST, ids=context, num_run=len(run)))
        assert (CODEC.decode(generation.ids), generation.finish) == ("calc>", Finish("stop", "</calc>"))


async def test_a_request_that_cannot_be_served_never_leaves() -> None:
    fake = FakeVllm()
    async with engine(fake) as vllm:
        requests = {
            "context_full": replace(REQUEST, ids=token_array([65] * 512)),
            "empty_request": replace(REQUEST, max_tokens=0),
            "bad_token_ids": replace(REQUEST, ids=token_array([99_999])),
            "unknown_measure": replace(REQUEST, measures=frozenset({"entropy"})),
            "too_many_topk": replace(REQUEST, topk=21),
            "unservable_sampling": replace(REQUEST, sampling=Sampling(temperature=0.001)),
        }
        assert {reason: (await failure(vllm, request)).reason for reason, request in requests.items()} == {
            reason: reason for reason in requests
        }
        assert not fake.asked
        near = await vllm.generate(replace(REQUEST, ids=token_array([65] * 510)))
        assert fake.asked[0]["max_tokens"] == 2 and len(near.ids) <= 2


def changed(answer: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {**answer, "choices": [{**answer["choices"][0], **choice}]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: b"<html>502</html>", "bad_answer"),
        (lambda a: b"", "bad_answer"),
        (lambda a: b'{"choices": [{"token_ids": [1, NaN]}]}', "bad_answer"),
        (lambda a: {**a, "choices": []}, "no_choices"),
        (lambda a: {**a, "choices": a["choices"] * 2}, "no_choices"),
        (lambda a: {**a, "model": "another"}, "other_model"),
        (lambda a: {**a, "usage": None}, "no_usage"),
        (lambda a: {**a, "usage": {**a["usage"], "completion_tokens": 99}}, "wrong_count"),
        (lambda a: {**a, "usage": {**a["usage"], "prompt_tokens": 99}}, "other_prompt"),
        (lambda a: changed(a, token_ids=None), "no_token_ids"),
        (lambda a: changed(a, finish_reason=None), "unknown_finish"),
        (lambda a: changed(a, logprobs=None), "bad_logprobs"),
        (lambda a: changed(a, logprobs={"token_logprobs": [None], "top_logprobs": [None]}), "bad_logprobs"),
        (lambda a: changed(a, weight_versions=[{"version": "0", "start": 1, "end": 2}]), "bad_versions"),
        (lambda a: changed(a, weight_versions=[{"version": "today", "start": 0, "end": 2}]), "bad_versions"),
        (lambda a: changed(a, weight_versions=[{"version": "9" * 5000, "start": 0, "end": 2}]), "bad_versions"),
        (lambda a: b'{"choices": [], "deep": ' + b"[" * 100_000, "bad_answer"),
    ],
)
async def test_an_answer_that_is_none_is_refused_by_name(change: Any, reason: str) -> None:
    async with engine(FakeVllm(change=change)) as vllm:
        assert (await failure(vllm)).reason == reason


# -- how it is ended --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 403])
async def test_an_aborted_request_comes_back_with_what_it_had(status: int) -> None:
    fake = FakeVllm(refused={"/inference/v1/generate": status})
    async with engine(fake) as vllm:
        asked = await on_its_way(vllm, fake)
        await vllm.abort("another")
        await vllm.abort(REQUEST.request_id)
        generation = await asked
        assert (generation.finish, len(generation.ids), generation.num_billed) == (Finish("abort"), 2, 2)
        await vllm.abort(REQUEST.request_id)


async def test_a_request_is_aborted_at_its_deadline() -> None:
    fake = FakeVllm(is_holding=True)
    async with engine(fake) as vllm:
        await vllm.connect()
        deadline = asyncio.get_running_loop().time() + 0.05
        generation = await vllm.generate(replace(REQUEST, deadline=deadline))
        assert generation.finish == Finish("abort")
        assert asyncio.get_running_loop().time() >= deadline


async def test_without_a_route_for_it_an_abort_closes_the_connection() -> None:
    lacking = dict.fromkeys(("/inference/v1/abort_requests", "/abort_requests"), 404)
    fake = FakeVllm(refused=lacking)
    async with engine(fake) as vllm:
        asked = await on_its_way(vllm, fake)
        await vllm.abort(REQUEST.request_id)
        with pytest.raises(EngineError) as caught:
            await asked
        assert (caught.value.reason, caught.value.is_retryable) == ("aborted", False)
        await until(lambda: fake.num_gone == 1)


async def test_a_cancelled_request_closes_its_connection() -> None:
    fake = FakeVllm()
    async with engine(fake) as vllm:
        asked = await on_its_way(vllm, fake)
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked
        await until(lambda: fake.num_gone == 1)
        fake.is_holding = False
        assert (await vllm.generate(REQUEST)).finish.kind == "stop"


# -- liveness ---------------------------------------------------------------------------------------------------------


async def test_a_server_that_reads_and_sleeps_is_found_silent() -> None:
    fake = FakeVllm()
    async with engine(fake, silent_s=0.06) as vllm:
        await vllm.connect()
        fake.is_holding = True
        asked = [asyncio.create_task(failure(vllm)) for _ in range(3)]
        await until(lambda: len(fake.asked) == 3)
        fake.refused["/v1/completions"] = 500
        errors = await asyncio.gather(*asked)
        assert {(error.reason, error.is_retryable) for error in errors} == {("engine_silent", True)}
        assert not await vllm.is_healthy()


async def test_a_slow_server_that_still_gives_a_token_is_waited_for() -> None:
    fake = FakeVllm()
    async with engine(fake, silent_s=0.03) as vllm:
        asked = await on_its_way(vllm, fake)
        probes = len(fake.aborted)
        await until(lambda: len(fake.aborted) > probes + 3)
        assert await vllm.is_healthy()
        fake.go_on.set()
        assert (await asked).finish.kind == "stop"


async def test_a_paused_server_is_not_silent() -> None:
    fake = FakeVllm()
    async with engine(fake, silent_s=0.03) as vllm:
        await vllm.connect()
        fake.is_holding, fake.is_paused = True, True
        fake.refused["/v1/completions"] = 500
        assert await vllm.is_healthy()


# -- weights ----------------------------------------------------------------------------------------------------------


async def test_new_weights_are_loaded_while_paused_and_no_old_prefix_survives() -> None:
    fake = FakeVllm()
    async with engine(fake) as vllm:
        await vllm.generate(REQUEST)
        fake.orders.clear()
        await vllm.update_weights("/weights/3", 3)
        assert fake.orders == [
            "/pause?mode=keep",
            "/collective_rpc",
            "/update_weight_version",
            "/reset_prefix_cache?reset_running_requests=true",
            "/resume",
        ]
        generation = await vllm.generate(REQUEST)
        assert generation.versions == ((3, len(generation.ids)),)
        await vllm.pause()
        fake.orders.clear()
        await vllm.update_weights('{"names": []}', 4)
        assert "/resume" not in fake.orders and "/finish_weight_update" in fake.orders


@pytest.mark.parametrize("status", [0, 403])
async def test_a_server_that_fell_back_behind_what_it_confirmed_is_refused(status: int) -> None:
    fake = FakeVllm(refused={"/inference/v1/generate": status})
    async with engine(fake) as vllm:
        await vllm.update_weights("/weights/3", 3)
        await vllm.generate(REQUEST)
        fake.version = "2"
        fake.refused["/v1/completions" if status else "/inference/v1/generate"] = 500
        await failure(vllm)
        fake.refused["/v1/completions" if status else "/inference/v1/generate"] = 0
        error = await failure(vllm)
        assert (error.reason, error.is_retryable) == ("stale_weights", True)
        fake.version = "3"
        assert (await vllm.generate(REQUEST)).versions


async def test_a_generation_whose_version_changes_has_a_span_each() -> None:
    def change(answer: dict[str, Any]) -> dict[str, Any]:
        num = len(answer["choices"][0]["token_ids"])
        spans = [{"version": "default", "start": 0, "end": 1}, {"version": "1", "start": 1, "end": num}]
        return changed(answer, weight_versions=spans)

    async with engine(FakeVllm(change=change)) as vllm:
        generation = await vllm.generate(REQUEST)
        assert generation.versions == ((0, 1), (1, len(generation.ids) - 1))


async def test_a_change_in_the_middle_that_no_span_tells_of_is_refused() -> None:
    fake = FakeVllm()
    async with engine(fake) as vllm:
        asked = await on_its_way(vllm, fake)
        await vllm.update_weights("/weights/1", 1)
        fake.go_on.set()
        with pytest.raises(EngineError) as caught:
            await asked
        assert (caught.value.reason, caught.value.is_retryable) == ("mixed_versions", True)


async def test_a_refused_order_names_its_route_and_what_it_needs() -> None:
    fake = FakeVllm(refused=dict.fromkeys(("/pause", "/sleep"), 404))
    async with engine(fake) as vllm:
        with pytest.raises(ConfigError, match=r"/pause.*VLLM_SERVER_DEV_MODE"):
            await vllm.pause()
        with pytest.raises(ConfigError, match=r"/sleep.*--enable-sleep-mode"):
            await vllm.offload()
        with pytest.raises(ConfigError, match="unknown tags"):
            await vllm.onload(("heads",))
        with pytest.raises(ConfigError, match="full path"):
            await vllm.update_weights("weights/3", 3)


async def test_an_update_that_breaks_in_the_middle_leaves_the_server_paused() -> None:
    fake = FakeVllm(refused={"/collective_rpc": 500})
    async with engine(fake) as vllm:
        with pytest.raises(EngineError, match="http_500"):
            await vllm.update_weights("/weights/3", 3)
        assert fake.orders == ["/pause?mode=keep"]
    fake = FakeVllm(refused={"/start_weight_update": 500})
    async with engine(fake) as vllm:
        with pytest.raises(ConfigError, match="weight-transfer-config"):
            await vllm.update_weights("{}", 3)
        assert fake.orders == ["/pause?mode=keep", "/resume"]


async def test_memory_is_given_back_by_tags() -> None:
    fake = FakeVllm()
    async with engine(fake) as vllm:
        await vllm.offload()
        await vllm.onload(("weights",))
        await vllm.offload(("kv_cache",))
        await vllm.onload()
    assert fake.orders == ["/sleep?level=1", "/wake_up?tags=weights", "/release_kv_cache_memory", "/wake_up"]


async def test_the_key_goes_along_and_is_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SERVERS_KEY", "secret-of-the-server")
    fake = FakeVllm(refused={"/v1/models": 401})
    async with engine(fake, api_key_env="A_SERVERS_KEY") as vllm:
        with pytest.raises(EngineError) as caught:
            await vllm.connect()
        assert "secret-of-the-server" not in str(caught.value)
