"""Every fault of an engine behind a server, provoked by a real one: a request ends in one outcome, nothing hangs, and
nothing that is not sound gets through."""

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engines import fault_server as net
from tests.engines.distant import Distant, Said, spoken_by
from tests.runner.parts import OneChain, Small, problems

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.engine import Request
from ramify.core.errors import EngineError, EnginesDown
from ramify.core.limits import Limits
from ramify.core.segment import token_array
from ramify.edge.http import HttpLimits
from ramify.edge.patience import Patience
from ramify.engines.builtin import FOLDER, Builtin
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.retrying import Retrying, RetryPolicy
from ramify.rows.jsonl import lines
from ramify.runner import folder, saved
from ramify.runner.library import Rollout, rollout
from ramify.testing.planned_faults import Delay
from ramify.testing.scripted import Scripted

QUICK = RetryPolicy(base_s=0.01, cap_s=0.05, max_down_s=30.0, abort_grace_s=1.0)
"""The policy as it is, with pauses of another scale."""
LIMITS = HttpLimits()
PATIENCE = Patience(start_s=5.0)
REQUEST = Request(token_array(list(b"make 3")), max_tokens=20, seed=5, stops=("</answer>",), request_id="0/05")


@asynccontextmanager
async def asked(
    plan: net.Plan = lambda received: None,
    *,
    scripted: Scripted | None = None,
    policy: RetryPolicy = QUICK,
    limits: HttpLimits = LIMITS,
    patience: Patience = PATIENCE,
) -> AsyncIterator[tuple[net.FaultServer, Retrying]]:
    """A server that speaks a script, and the engine in front of it."""
    inner = scripted or Scripted(lambda turn: "<answer>3</answer>")
    async with net.FaultServer(spoken_by(inner), plan) as server:
        engine = Retrying(Distant(server.url, limits=limits, patience=patience), policy)
        try:
            yield server, engine
        finally:
            await engine.close()


async def text(engine: Retrying, request: Request = REQUEST) -> str:
    return engine.codec.decode((await engine.generate(request)).ids)


async def failure(engine: Retrying, request: Request = REQUEST) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await engine.generate(request)
    return caught.value


# -- faults that pass, and faults that do not -------------------------------------------------------------------------

PASSING: list[net.Fault] = [
    net.Status(500),
    net.Status(502, b"<html><h1>Bad Gateway</h1></html>"),
    net.Status(429, b"", {"Retry-After": "0"}),
    net.Status(503, b"", {"Retry-After": "0"}),
    net.Cut(0),
    net.Cut(30),
    net.Cut(150),
    net.Chunked(has_last=False),
    net.Garbage(),
]


@pytest.mark.parametrize("fault", PASSING, ids=str)
@pytest.mark.parametrize("times", [1, 2])
async def test_a_fault_that_passes_is_not_seen(fault: net.Fault, times: int) -> None:
    async with asked(net.first(times, fault)) as (server, engine):
        assert await text(engine) == "<answer>3</answer>"
        assert len(server.received) == times + 1
        assert len({received.body for received in server.received}) == 1


@pytest.mark.parametrize(
    ("fault", "reason", "num_tries"),
    [
        (net.Status(500), "http_500", 3),
        (net.Status(502), "http_502", 4),
        (net.Cut(40), "disconnected", 4),
        (net.Garbage(), "disconnected", 4),
        (net.Status(400), "http_400", 1),
        (net.Status(404), "http_404", 1),
        (net.Status(200, b"not json"), "bad_answer", 1),
    ],
    ids=str,
)
async def test_a_fault_that_does_not_pass_ends_in_one_error(fault: net.Fault, reason: str, num_tries: int) -> None:
    async with asked(net.always(fault)) as (server, engine):
        assert (await failure(engine)).reason == reason
        assert len(server.received) == num_tries


async def test_an_answer_cut_anywhere_is_asked_for_again_and_never_taken_for_whole() -> None:
    async with asked(policy=replace(QUICK, min_retries=1000, base_s=0.0)) as (server, engine):
        whole = await text(engine)
        length = len(net.message(await spoken_by(Scripted(lambda turn: whole))(server.received[0])))  # type: ignore[misc]
        for num_bytes in range(0, length, 3):
            server.plan = net.on_calls({len(server.received): net.Cut(num_bytes)})
            assert await text(engine) == whole
        assert engine.num_retries == len(range(0, length, 3)) > 100


async def test_an_answer_that_comes_twice_counts_once() -> None:
    async with asked(net.always(net.Twice())) as (server, engine):
        for seed in range(10):
            assert await text(engine, replace(REQUEST, seed=seed)) == "<answer>3</answer>"
        assert len(server.received) == 10 + engine.num_retries


async def test_an_answer_that_was_lost_on_the_way_is_made_again_under_the_same_id() -> None:
    async with asked(net.first(2, net.Cut(20))) as (server, engine):
        assert await text(engine) == "<answer>3</answer>"
        assert {received.json["request_id"] for received in server.received} == {"0/05"}


# -- busy -------------------------------------------------------------------------------------------------------------


class Bucket:
    """A server's own limit: so many at once and so many a second; whoever comes beyond it is told to come again."""

    def __init__(self, *, per_s: float, retry_after: str = "0.05") -> None:
        self.per_s, self.retry_after = per_s, retry_after
        self.tokens, self.last = per_s / 10, 0.0
        self.num_refused = 0

    def __call__(self, received: net.Received) -> net.Fault | None:
        self.tokens = min(self.per_s / 10, self.tokens + (received.at - self.last) * self.per_s)
        self.last = received.at
        if self.tokens < 1:
            self.num_refused += 1
            return net.Status(429, b'{"error": "slow down"}', {"Retry-After": self.retry_after})
        self.tokens -= 1
        return net.Late(0.005)


@pytest.mark.slow
async def test_a_server_with_a_limit_of_its_own_answers_everybody_in_the_end() -> None:
    bucket = Bucket(per_s=100)
    async with asked(bucket, policy=replace(QUICK, max_tries=1), limits=HttpLimits(max_in_flight=16)) as it:
        server, engine = it
        texts = await asyncio.gather(*(text(engine, replace(REQUEST, seed=seed)) for seed in range(100)))
        assert set(texts) == {"<answer>3</answer>"}
        assert bucket.num_refused > 0
        assert server.most_active <= 16
        assert engine.num_retries == 0


@pytest.mark.slow
async def test_a_server_that_is_busy_for_a_while_is_not_hammered_meanwhile() -> None:
    def plan(received: net.Received) -> net.Fault | None:
        began.append(received.at)
        return net.Status(503, b"", {"Retry-After": "0.2"}) if received.at < began[0] + 1.0 else None

    began: list[float] = []
    async with asked(plan, policy=replace(QUICK, max_tries=1)) as (server, engine):
        await asyncio.gather(*(text(engine, replace(REQUEST, seed=seed)) for seed in range(20)))
        assert len(server.received) <= 20 * 7


# -- slow, hanging, gone ----------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_server_that_hangs_costs_its_deadline_and_a_try() -> None:
    patience = Patience(start_s=0.2, prefill_s=0.0, token_s=0.0)
    async with asked(net.on_calls({0: net.Hang()}), patience=patience) as (server, engine):
        assert await text(engine) == "<answer>3</answer>"
        assert (engine.num_retries, server.num_given_up) == (1, 1)
    async with asked(net.always(net.Hang()), patience=patience) as (server, engine):
        assert (await failure(engine)).reason == "timeout"
        assert len(server.received) == 4


async def test_a_long_prompt_that_takes_its_time_is_no_hang() -> None:
    patience = Patience(start_s=0.2, prefill_s=0.01, token_s=0.0)
    async with asked(net.always(net.Late(0.6)), patience=patience) as (server, engine):
        assert await text(engine, replace(REQUEST, ids=token_array([65] * 200))) == "<answer>3</answer>"
        assert len(server.received) == 1


async def test_an_answer_that_drips_ends_at_the_total_deadline() -> None:
    patience = Patience(start_s=0.3, prefill_s=0.0, token_s=0.0)
    async with asked(net.on_calls({0: net.Drip(0.02)}), patience=patience) as (server, engine):
        assert await text(engine) == "<answer>3</answer>"
        assert (len(server.received), server.num_given_up) == (2, 1)


async def test_at_a_deadline_a_server_returns_what_it_has_by_abort() -> None:
    inner = Scripted(lambda turn: "x" * 500, delay=Delay(token_s=0.01))
    async with asked(scripted=inner) as (server, engine):
        now = asyncio.get_running_loop().time()
        said = await engine.generate(replace(REQUEST, max_tokens=400, deadline=now + 0.3))
        assert said.finish.kind == "abort"
        assert 5 <= len(said.ids) == said.num_billed <= 40
        assert [received.path for received in server.received] == ["/generate", "/abort"]
        assert engine.num_wasted == 0


@pytest.mark.slow
async def test_a_server_that_answers_no_abort_is_left_and_notices() -> None:
    async with asked(net.always(net.Hang())) as (server, engine):
        now = asyncio.get_running_loop().time()
        assert (await failure(engine, replace(REQUEST, deadline=now + 0.2))).reason == "deadline"
        assert asyncio.get_running_loop().time() - now < 3
        await net.until(lambda: not server.num_active)


# -- what is unsound --------------------------------------------------------------------------------------------------

SPOILT: list[tuple[Callable[[Said], dict[str, Any]], str]] = [
    (lambda said: {"logprobs": [*said.logprobs[:-1], 1e999]}, "bad_answer"),
    (lambda said: {"logprobs": [*said.logprobs[:-1], 0.5]}, "bad_logprobs"),
    (lambda said: {"logprobs": [*said.logprobs[:-1], -1e5]}, "bad_logprobs"),
    (lambda said: {"logprobs": said.logprobs[:-1]}, "bad_logprobs"),
    (lambda said: {"logprobs": [None, *said.logprobs[1:]]}, "bad_answer"),
    (lambda said: {"logprobs": []}, "bad_logprobs"),
    (lambda said: {"ids": [*said.ids[:-1], 257]}, "bad_token_ids"),
    (lambda said: {"ids": [*said.ids[:-1], -1]}, "bad_token_ids"),
    (lambda said: {"ids": [], "logprobs": []}, "no_tokens"),
    (lambda said: {"ids": said.ids * 9, "logprobs": said.logprobs * 9}, "too_many_tokens"),
    (lambda said: {"ids": [str(i) for i in said.ids]}, "bad_answer"),
]


@pytest.mark.parametrize(("spoil", "reason"), SPOILT, ids=[str(i) for i in range(len(SPOILT))])
async def test_what_is_unsound_is_refused_and_never_repaired(spoil: Any, reason: str) -> None:
    speak = spoken_by(Scripted(lambda turn: "<answer>3</answer>"))

    async def answer(received: net.Received) -> bytes:
        said = msgspec.json.decode(await speak(received), type=Said)  # type: ignore[misc,arg-type]
        fields = {name: getattr(said, name) for name in said.__struct_fields__} | spoil(said)
        return msgspec.json.encode(fields)

    async with net.FaultServer(answer) as server:
        engine = Retrying(Distant(server.url), QUICK)
        assert (await failure(engine)).reason == reason
        assert len(server.received) == 1
        await engine.close()


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
async def test_numbers_that_json_does_not_have_are_refused(number: bytes) -> None:
    async with asked(net.always(net.Status(200, b'{"ids": [1], "logprobs": [%b]}' % number))) as (_, engine):
        assert (await failure(engine)).reason == "bad_answer"


async def test_an_abort_nobody_asked_for_is_asked_again_and_its_tokens_are_wasted() -> None:
    inner = Scripted(lambda turn: "<answer>3</answer>", delay=Delay(token_s=0.02))
    async with asked(scripted=inner) as (server, engine):
        asking = asyncio.create_task(text(engine))
        await net.until(lambda: inner.num_active > 0)
        await asyncio.sleep(0.1)  # The server's time for five tokens, which the abort wastes.
        await inner.abort(REQUEST.request_id)
        assert await asking == "<answer>3</answer>"
        assert (len(server.received), engine.num_retries) == (2, 1)
        assert engine.num_wasted > 0


async def test_old_weights_after_a_restart_are_no_answer_while_another_replica_has_the_new_ones() -> None:
    engines = [Builtin(num_slots=4), Builtin(num_slots=4)]
    engine = Retrying(Replicas(engines, placement="round_robin"), QUICK)
    await engine.connect()
    await engine.update_weights(str(FOLDER), 2)
    await engines[0].update_weights(str(FOLDER), 1)
    context = token_array(engine.codec.encode("make 3 from 1 2"))
    requests = [Request(context, max_tokens=4, seed=seed, request_id=f"0/{seed}") for seed in range(8)]
    said = await asyncio.gather(*(engine.generate(request) for request in requests))
    assert {version for generation in said for version, _ in generation.versions} == {2}
    await engine.close()


# -- whole runs -------------------------------------------------------------------------------------------------------


def run_config(**flags: Any) -> RunConfig:
    flags = {"seed": 5, "growth.max_response_tokens": 120, "max_failed_share": 1.0, **flags}
    return resolve(preset="offline", flags={name.replace("__", "."): value for name, value in flags.items()}).config


async def grown(
    server: net.FaultServer, *, policy: RetryPolicy = QUICK, engine: Retrying | None = None, **flags: Any
) -> Rollout:
    engine = engine or Retrying(Distant(server.url, patience=Patience(1.0, 0.0, 0.0)), policy)
    try:
        return await rollout(config=run_config(prompts=2, **flags), engine=engine)
    finally:
        await engine.close()


def exported(result: Rollout) -> bytes:
    return b"".join(lines(result.rows()))


async def shuffled(seed: int) -> bytes:
    """A run whose server answers in an order of its own."""
    draw = random.Random(seed)
    speak = spoken_by(Scripted(block_size=0))
    async with net.FaultServer(speak, lambda received: net.Late(draw.uniform(0, 0.01))) as server:
        return exported(await grown(server))


async def test_whatever_is_answered_first_the_rows_are_the_same_bytes() -> None:
    assert len({await shuffled(seed) for seed in range(8)}) == 1


@pytest.mark.parametrize(
    "times", [pytest.param(20, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.endurance)]
)
async def test_whatever_is_answered_first_the_rows_are_the_same_bytes_again_and_again(times: int) -> None:
    assert len({await shuffled(seed) for seed in range(times)}) == 1


@pytest.mark.parametrize("seed", range(3))
async def test_faults_that_pass_leave_the_rows_as_they_are(seed: int) -> None:
    faults = [*PASSING, net.Hangup(), net.Twice(), net.Chunked(), net.Late(0.02)]
    async with net.FaultServer(spoken_by(Scripted(block_size=0))) as server:
        calm = exported(await grown(server))
    plan = net.drawn(seed, faults, share=0.2)
    async with net.FaultServer(spoken_by(Scripted(block_size=0)), plan) as server:
        policy = replace(QUICK, min_retries=10_000)
        assert exported(await grown(server, policy=policy)) == calm
        assert any(received.num_before for received in server.received)


async def test_a_run_waits_for_engines_that_come_back() -> None:
    async with net.FaultServer(spoken_by(Scripted(block_size=0))) as server:
        calm = exported(await grown(server))

    async with net.FaultServer(spoken_by(Scripted(block_size=0)), net.always(net.Late(0.005))) as server:
        engine = Retrying(Distant(server.url, patience=Patience(1.0, 0.0, 0.0)), QUICK)
        running = asyncio.create_task(grown(server, engine=engine))
        await net.until(lambda: len(server.received) >= 5)
        await server.down()
        await net.until(lambda: engine.is_waiting)
        assert not running.done()
        await server.up()
        assert exported(await running) == calm


async def test_a_run_whose_engines_stay_away_stops_and_leaves_nothing_behind() -> None:
    async with net.FaultServer(spoken_by(Scripted(block_size=0)), net.always(net.Late(0.005))) as server:
        running = asyncio.create_task(grown(server, policy=replace(QUICK, max_down_s=0.3)))
        await net.until(lambda: len(server.received) >= 5)
        await server.down()
        with pytest.raises(EnginesDown, match="nothing has answered for 0 s"):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_deadline_of_the_run_keeps_what_the_server_had() -> None:
    inner = Scripted(lambda turn: "x" * 1000, delay=Delay(token_s=0.01))
    async with net.FaultServer(spoken_by(inner)) as server:
        engine = Retrying(Distant(server.url), QUICK)
        config = RunConfig(limits=Limits(seconds=0.4), preset=None)
        result = await rollout(problems(2), config=config, strategy=OneChain, engine=engine, task=Small())
        await engine.close()
    assert result.report.stop_words == {"deadline": 2}
    for tree in result.trees:
        (leaf,) = tree.leaves()
        assert 5 <= tree.num_sampled(leaf) == tree.spent()["policy"].decode <= 80


# -- the command line -------------------------------------------------------------------------------------------------

MINE = """
from dataclasses import replace
from tests.engines.distant import Distant
from ramify.engines.retrying import Retrying, RetryPolicy


class Mine(Retrying):
    def __init__(self, address: str) -> None:
        super().__init__(Distant(address), RetryPolicy(base_s=0.01, cap_s=0.05, max_down_s=0.3))
"""


async def command(*arguments: object) -> tuple[int, str]:
    """Exit code and what was said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ramify.cli.main", *map(str, arguments), stderr=subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


def rows_on_disk(path: Path) -> bytes:
    return b"".join(lines(saved.Saved.open(path).rows()))


@pytest.mark.slow
async def test_a_run_whose_engines_died_is_saved_exits_with_75_and_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)

    def dies(received: net.Received) -> net.Fault | None:
        if received.number > 8 and not is_up_again:
            doomed.set()
            return net.Hang()
        return None

    doomed, is_up_again = asyncio.Event(), list[bool]()
    async with net.FaultServer(spoken_by(Scripted(block_size=0)), dies) as server:
        flags = ["--preset", "offline", "--engine", f"{tmp_path / 'mine.py'}:Mine", "--prompts", 3]
        flags += ["--set", f"engine.options.address={server.url}", "--set", "growth.max_response_tokens=120", "-q"]
        running = asyncio.create_task(command("rollout", *flags, "--out", tmp_path / "cut"))
        async with asyncio.timeout(30):
            await doomed.wait()
        await server.down()
        code, said = await running
        assert (code, "nothing has answered for 0 s" in said, "Traceback" in said) == (75, True, False)
        assert f"continue with: ramify resume {tmp_path / 'cut'}" in said

        is_up_again.append(True)
        await server.up()
        cut, whole = tmp_path / "cut", tmp_path / "whole"
        await asyncio.to_thread(folder.resume, cut)
        await asyncio.to_thread(folder.begin, saved.Saved.open(cut).config, whole)
        assert rows_on_disk(cut) == rows_on_disk(whole) != b""
