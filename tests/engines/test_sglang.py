"""The engine against a small server that speaks SGLang's protocol. No real one ran here: what is known of it was read
in its source, release 0.5.23."""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest
from tests.engines.token_servers import CODEC, REQUEST, FakeSglang, failure, served, until

from ramify import plugins
from ramify.core.engine import Abortable, EngineControl, Remote, checked
from ramify.core.errors import ConfigError
from ramify.core.segment import Finish, Sampling
from ramify.engines.builtin import FOLDER
from ramify.engines.served.sglang import Sglang

GENERATE_FIELDS = frozenset(
    "rid text input_ids stream sampling_params return_logprob logprob_start_len top_logprobs_num token_ids_logprob "
    "return_text_in_logprobs priority extra_key cache_salt routing_key session_id return_sampling_mask".split()
)
"""Some of the fields of `sglang.api.v1.GenerateRequest`, those this engine could need among them."""
SAMPLING_FIELDS = frozenset(
    "max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty "
    "repetition_penalty min_new_tokens n json_schema regex ebnf structural_tag ignore_eos skip_special_tokens "
    "spaces_between_special_tokens no_stop_trim stream_interval logit_bias sampling_seed custom_params beam_width "
    "watermark".split()
)
"""The fields of `sglang.srt.sampling.sampling_params.SamplingParams` that callers set."""


def engine(fake: FakeSglang, **options: Any) -> AbstractAsyncContextManager[Sglang]:
    return served(fake, Sglang, **options)


def test_making_one_asks_nobody() -> None:
    sglang = plugins.build("engine", "sglang", model=str(FOLDER), base_url="http://127.0.0.1:1")
    assert isinstance(sglang, Remote) and isinstance(sglang, Abortable) and isinstance(sglang, EngineControl)
    assert sglang.server is None
    with pytest.raises(ConfigError, match=r"engine\.base_url"):
        Sglang(FOLDER)


async def test_connecting_learns_what_the_server_is() -> None:
    async with engine(FakeSglang()) as sglang:
        await sglang.connect()
        given = sglang.capabilities
        assert (given.name, given.context_length, given.logprobs, given.max_topk) == ("sglang", 506, "scaled", 20)
        assert given.has_abort and given.has_versions and given.keeps_deadlines
        assert not given.has_seeds and not given.is_deterministic
        assert sglang.server is not None and sglang.server.version == "0.5.23"
    async with engine(FakeSglang(), model="org/other", tokenizer=FOLDER) as sglang:
        with pytest.raises(ConfigError, match=r"runs .*'builtin', not 'org/other'"):
            await sglang.connect()


async def test_a_body_has_known_fields_alone_and_leaves_nothing_to_the_servers_defaults() -> None:
    fake = FakeSglang()
    async with engine(fake, logprobs_mode="raw") as sglang:
        await sglang.generate(replace(REQUEST, sampling=Sampling(temperature=0.7, top_p=0.9, top_k=5), topk=3))
        await sglang.generate(replace(REQUEST, stops=tuple(f"<{n}>" for n in range(40)), max_tokens=3))
    body = fake.asked[0]
    law = body["sampling_params"]
    assert body.keys() <= GENERATE_FIELDS and law.keys() <= SAMPLING_FIELDS
    assert (body["input_ids"], body["top_logprobs_num"]) == (REQUEST.ids.tolist(), 3)
    expected = {
        "n": 1, "max_new_tokens": 40, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
        "stop": ["</calc>", "</answer>"], "stop_token_ids": [CODEC.eos_id], "skip_special_tokens": False,
    }  # fmt: skip
    assert {key: law[key] for key in expected} == expected
    assert "sampling_seed" not in law
    assert fake.asked[1]["sampling_params"]["top_k"] == -1
    assert len(fake.asked[1]["sampling_params"]["stop"]) == 32


async def test_seeds_are_sent_where_they_count() -> None:
    fake = FakeSglang()
    fake.is_deterministic = True
    async with engine(fake) as sglang:
        await sglang.generate(REQUEST)
        assert sglang.capabilities.has_seeds
    assert fake.asked[0]["sampling_params"]["sampling_seed"] == 2**63 - 1


async def test_a_generation_holds_what_the_server_counted() -> None:
    async with engine(FakeSglang()) as sglang:
        generation = checked(await sglang.generate(replace(REQUEST, topk=2)), REQUEST, CODEC.vocab_size)
    num = len(generation.ids)
    assert (CODEC.decode(generation.ids), generation.finish) == ("<calc>7+1</calc>", Finish("stop", "</calc>"))
    assert generation.logprobs is not None and generation.logprobs.tolist() == [-0.5] * num
    assert [top.tolist() for top in generation.topk] == [[-0.5, -1.0, -2.0]] * num
    assert (generation.num_billed, generation.versions) == (num, ((0, num),))
    assert generation.num_cached + generation.num_prefilled == len(REQUEST.ids)


async def test_sampling_whose_logprobs_would_be_another_laws_is_refused() -> None:
    truncated = replace(REQUEST, sampling=Sampling(top_p=0.9))
    async with engine(FakeSglang()) as sglang:
        assert (await failure(sglang, truncated)).reason == "unservable_sampling"
        await sglang.generate(replace(REQUEST, sampling=Sampling(temperature=0.0, top_p=0.9)))
    async with engine(FakeSglang(), logprobs_mode="raw") as sglang:
        await sglang.generate(truncated)
        assert sglang.capabilities.logprobs == "raw"


def changed(answer: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {**answer, "meta_info": {**answer["meta_info"], **meta}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: b"<html>502</html>", "bad_answer"),
        (lambda a: [a], "bad_answer"),
        (lambda a: {**a, "output_ids": None}, "no_token_ids"),
        (lambda a: {**a, "output_ids": [1, 2]}, "bad_logprobs"),
        (lambda a: changed(a, finish_reason=None), "unknown_finish"),
        (lambda a: changed(a, prompt_tokens=None), "no_usage"),
        (lambda a: changed(a, completion_tokens=99), "wrong_count"),
        (lambda a: changed(a, prompt_tokens=99), "other_prompt"),
        (lambda a: changed(a, output_token_logprobs=None), "bad_logprobs"),
        (lambda a: changed(a, weight_versions=[{"version": "0", "start": 1, "end": 2}]), "bad_versions"),
    ],
)
async def test_an_answer_that_is_none_is_refused_by_name(change: Any, reason: str) -> None:
    async with engine(FakeSglang(change=change)) as sglang:
        assert (await failure(sglang)).reason == reason


async def test_an_abort_ends_one_request_and_no_other_whose_number_begins_alike() -> None:
    fake = FakeSglang(is_holding=True)
    async with engine(fake) as sglang:
        await sglang.connect()
        others = [asyncio.create_task(sglang.generate(replace(REQUEST, request_id=f"t/{n}"))) for n in range(12)]
        await until(lambda: len(fake.asked) == 12)
        await sglang.abort("t/1")
        generation = await others[1]
        assert (generation.finish, len(generation.ids)) == (Finish("abort"), 2)
        assert sum(mark.is_set() for mark in fake.aborted.values()) == 1
        fake.go_on.set()
        done = await asyncio.gather(*others)
        assert sum(each.finish.kind == "abort" for each in done) == 1


async def test_an_abort_in_the_queue_says_neither_tokens_nor_cost() -> None:
    def queued(answer: dict[str, Any]) -> dict[str, Any]:
        finish = {"type": "abort", "message": "Abort in waiting queue"}
        meta = {
            "id": answer["meta_info"]["id"],
            "finish_reason": finish,
            "weight_version": "default",
            "completion_tokens": 0,
        }
        return {"text": "", "output_ids": [], "meta_info": {**meta, "output_token_logprobs": []}}

    async with engine(FakeSglang(change=queued)) as sglang:
        generation = await sglang.generate(REQUEST)
    assert (generation.finish, len(generation.ids), generation.num_billed) == (Finish("abort"), 0, 0)


async def test_new_weights_are_loaded_while_paused_and_an_older_version_is_refused() -> None:
    fake = FakeSglang()
    async with engine(fake) as sglang:
        await sglang.connect()
        fake.orders.clear()
        await sglang.update_weights("/weights/3", 3)
        assert fake.orders == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
        generation = await sglang.generate(REQUEST)
        assert generation.versions == ((3, len(generation.ids)),)
        fake.version = "default"
        error = await failure(sglang)
        assert (error.reason, error.is_retryable) == ("stale_weights", True)
        with pytest.raises(ConfigError, match="full path"):
            await sglang.update_weights("weights", 4)


async def test_memory_is_given_back_by_tags_and_a_refusal_names_the_flag() -> None:
    fake = FakeSglang()
    async with engine(fake) as sglang:
        await sglang.offload(("kv_cache",))
        await sglang.onload()
        assert fake.orders == ["/release_memory_occupation", "/resume_memory_occupation"]
        fake.refused["/release_memory_occupation"] = 400
        with pytest.raises(ConfigError, match=r"/release_memory_occupation.*--enable-memory-saver"):
            await sglang.offload()
        with pytest.raises(ConfigError, match="unknown tags"):
            await sglang.offload(("heads",))
