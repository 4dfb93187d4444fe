"""`ramify retriever serve`, as a process of its own."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli import commands
from tests.cli.commands import ramify

from ramify.tools.passages import Passage
from ramify.tools.retriever import Retriever
from ramify.tools.search_index import build_index

PASSAGES = [Passage("the owl is the bird of Athena", "Owl"), Passage("Zeus ruled the sky", "Zeus")]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    build_index(tmp_path / "index", PASSAGES)
    return tmp_path / "index"


@pytest.fixture
def process(index: Path) -> Iterator["subprocess.Popen[str]"]:
    with commands.process("retriever", "serve", index, "--topk", 1) as started:
        yield started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_answers_and_stops_when_it_is_told(
    process: "subprocess.Popen[str]", number: signal.Signals
) -> None:
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)

    async def ask() -> str:
        tool = Retriever(url, top_k=2)
        text = (await tool.call("bird")).text
        await tool.let_go()
        return text

    assert asyncio.run(ask()) == "Doc 1(Title: Owl) the owl is the bird of Athena\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 0
    assert said.splitlines() == [
        f"2 passages, POST {url}/retrieve; Ctrl-C stops",
        "stopping after the requests in flight",
    ]


def test_with_json_it_says_where_it_is_in_one_object(index: Path) -> None:
    command = [sys.executable, "-m", "ramify.cli.main", "retriever", "serve", str(index), "--json", "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        process.terminate()
    assert said["schema"] == "ramify.retriever/1"
    assert said["passages"] == 2
    assert said["url"].startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("flags", "message"),
    [(("--topk", 0), "top_k = 0"), (("--port", -1), "port = -1"), (("--host", "203.0.113.7"), "cannot be served at")],
)
def test_what_cannot_be_served_is_refused(
    index: Path, capsys: pytest.CaptureFixture[str], flags: tuple[object, ...], message: str
) -> None:
    said = ramify(capsys, "retriever", "serve", index, *flags)
    assert said.code == 2
    assert message in said.err


def test_a_missing_index_is_refused_with_the_command_that_makes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ramify(capsys, "retriever", "serve", tmp_path / "nowhere")
    assert said.code == 2
    assert "make one: ramify index CORPUS --out" in said.err
