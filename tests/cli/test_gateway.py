"""`ramify gateway`, as a process of its own."""

import asyncio
import json
import re
import signal
import subprocess
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import process, ramify
from tests.engines.endpoint import Endpoint, said
from tests.engines.fault_server import FaultServer, Hang, until

QUESTION = {"model": "best_of_n", "messages": [{"role": "user", "content": "make 24 from 4 6 8 2"}], "seed": 3}


def told_url(started: "subprocess.Popen[str]") -> str:
    assert started.stdout is not None
    url = started.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url)
    return url


def ask(url: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    sent = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), sent)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_makes_24_and_stops_when_it_is_told(tmp_path: Path, number: signal.Signals) -> None:
    with process("gateway", "--preset", "best_of_n", "--out", tmp_path / "runs") as gateway:
        url = told_url(gateway)
        answer = ask(url, QUESTION)
        gateway.send_signal(number)
        _, told = gateway.communicate(timeout=30)
    assert answer["choices"][0]["message"]["content"] == "24"
    assert gateway.returncode == 0
    assert told.splitlines() == [
        "models: builtin, best_of_n",
        f"trees: ramify view {tmp_path / 'runs'}; Ctrl-C stops",
        "stopping after the requests in flight",
    ]
    assert answer["ramify"]["run"] == str(tmp_path / "runs" / "best_of_n")


@pytest.mark.slow
def test_the_header_of_an_answer_links_its_tree(tmp_path: Path) -> None:
    with process("gateway", "--preset", "best_of_n", "--view", "--out", tmp_path / "runs") as gateway:
        url = told_url(gateway)
        body = json.dumps(QUESTION).encode()
        request = urllib.request.Request(f"{url}/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            link = response.headers["x-ramify-view"]
        page, _, fragment = link.partition("#")
        assert fragment == "v=tree&r=1&t=0"
        with urllib.request.urlopen(f"{page}documents/run/1/tree/0", timeout=60) as document:
            assert json.load(document)["question"] == "make 24 from 4 6 8 2"
        gateway.send_signal(signal.SIGINT)
        _, told = gateway.communicate(timeout=30)
    assert f"trees: {page}; Ctrl-C stops" in told.splitlines()


def test_a_link_to_all_trees_is_for_no_gateway_with_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "keys").write_text("a-key-of-some-length-1234567890\n", "utf-8")
    said = ramify(capsys, "gateway", "--view", "--keys", tmp_path / "keys", "--out", tmp_path / "runs")
    assert said.code == 2
    assert "--view: its link shows the trees of all clients" in said.err


@pytest.mark.slow
def test_the_trees_of_a_killed_gateway_are_shown_and_never_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with process("gateway", "--preset", "best_of_n", "--out", tmp_path / "runs") as gateway:
        answer = ask(told_url(gateway), QUESTION)
        gateway.kill()
        gateway.wait(30)
    folder, number = answer["ramify"]["run"], answer["ramify"]["tree"]
    shown = ramify(capsys, "show", folder, number)
    assert shown.code == 0
    assert "make 24 from 4 6 8 2" in shown.out
    assert ramify(capsys, "check", folder).code == 0
    resumed = ramify(capsys, "resume", folder)
    assert resumed.code == 2
    assert "is a gateway's" in resumed.err


@pytest.mark.slow
def test_with_json_it_says_what_it_serves_in_one_object(tmp_path: Path) -> None:
    with Endpoint(lambda body: said("42")) as endpoint:
        flags = ("--engine", "openai", "--model", "m", "--base-url", endpoint.url, "--out", tmp_path / "runs")
        with process("gateway", *flags, "--json", "-q") as gateway:
            assert gateway.stdout is not None
            told = json.loads(gateway.stdout.readline())
            answer = ask(told["url"], {**QUESTION, "model": "self_consistency"})
            gateway.terminate()
            assert gateway.wait(30) == 0
    assert told["schema"] == "ramify.gateway/1"
    assert told["models"][0] == "m" and "mctsr" in told["models"]
    assert "beam" in told["not_served"]
    assert answer["usage"]["completion_tokens"] == 48


@pytest.mark.slow
def test_keys_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, other = "sk-file-0123456789", "sk-environment-0123456789"
    (tmp_path / "keys").write_text(f"{key}\n")
    monkeypatch.setenv("RAMIFY_GATEWAY_KEYS", other)
    for flags, good, bad in ((("--keys", tmp_path / "keys"), key, other), ((), other, key)):
        with process("gateway", "--preset", "best_of_n", "--out", tmp_path / f"runs-{good}", *flags) as gateway:
            url = told_url(gateway)
            assert ask(url, QUESTION, Authorization=f"Bearer {good}")["usage"]["completion_tokens"]
            with pytest.raises(urllib.error.HTTPError, match="401"):
                ask(url, QUESTION, Authorization=f"Bearer {bad}")
            gateway.terminate()
            assert gateway.wait(30) == 0


@pytest.mark.slow
async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    answer = lambda received: json.dumps({"data": [{"id": "m"}]}).encode()  # noqa: E731
    hangs = lambda received: Hang() if received.method == "POST" else None  # noqa: E731
    async with FaultServer(answer, hangs) as server:
        flags = ("--engine", "openai", "--model", "m", "--base-url", server.url, "--out", tmp_path / "runs")
        with process("gateway", *flags, "--preset", "self_consistency") as gateway:
            url = await asyncio.to_thread(told_url, gateway)
            asking = asyncio.create_task(asyncio.to_thread(ask, url, {**QUESTION, "model": "m"}))
            await until(lambda: server.num_active == 1)
            gateway.send_signal(signal.SIGTERM)
            assert gateway.stderr is not None
            for line in iter(partial(asyncio.to_thread, gateway.stderr.readline), None):
                if "stopping" in await line:
                    break
            gateway.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(gateway.wait, 30) == -signal.SIGTERM
            with pytest.raises(OSError):  # noqa: PT011 - however the connection ends
                await asking


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--preset", "mctrs"), "did you mean"),
        (("--host", "0.0.0.0"), "only a loopback address is served without keys"),
        (("--port", -1), "port = -1"),
        (("--max-in-flight", 0), "at least 1"),
        (("--max-tokens", 0), "at least 1"),
        (("--keys", "nowhere"), "--keys nowhere"),
        (("--budget", "decode_token=5"), "did you mean 'decode_tokens'"),
        (("--prompts", 5), "unknown argument '--prompts'"),
    ],
)
def test_what_cannot_be_served_is_refused_and_leaves_no_folder(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[object, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        refused = ramify(capsys, "gateway", *flags)
        code, err = refused.code, refused.err
    except SystemExit as exit:
        code, err = int(exit.code or 0), capsys.readouterr().err
    assert code == 2
    assert message in err
    assert not list(tmp_path.iterdir())


def test_an_endpoint_that_is_not_there_is_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("--engine", "openai", "--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--preset", "mctsr")
    refused = ramify(capsys, "gateway", *flags)
    assert refused.code == 3
    assert "unreachable" in refused.err
    assert not list(tmp_path.iterdir())
