"""Endpoints that refuse, lie and never end: what people are told, how a run ends, and what it costs."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engines.endpoint import Endpoint, Model, Reply, said

import ramify

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
