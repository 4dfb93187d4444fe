"""Search over a user's own corpus in whole runs: named by a configuration, resumed elsewhere, behind a server."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import ramify

from ramify.config.configure import from_toml, resolve
from ramify.core.tree import Tree
from ramify.runner.saved import Saved
from ramify.tools.retriever_server import RetrieverServer
from ramify.tools.search_index import open_index

CORPUS = [
    {"id": "1", "contents": "Owl\nThe owl is the bird of Athena."},
    {"id": "2", "contents": "Athena\nAthena was born from the head of Zeus."},
]
QUESTIONS = [
    {"question": "Whose bird is the owl?", "gold": "Athena"},
    {"question": "Who is her father?", "gold": "Zeus"},
]
READER = '''
from ramify.testing.scripted import Scripted


def rule(turn):
    if "bird of Athena" not in turn.context:
        return "<search>owl bird</search>"
    return "<answer>Zeus</answer>" if "father" in turn.context else "<answer>Athena</answer>"


class Reader(Scripted):
    """Searches for what the first question asks, then answers."""

    def __init__(self):
        super().__init__(rule)
'''
TOML = """
format = "search_r1"
prompts = 2

[engine]
name = "reader.py:Reader"

[growth]
max_response_tokens = 2000

[data]
answer = "gold"
"""
SEARCH = """
[tools.use.search.options]
index = "corpus.index"
top_k = 1
"""
RETRIEVER = """
[tools.use.search]
kind = "retriever"
options = {{base_url = "{url}", top_k = 1}}
"""
INFORMATION = "\n\n<information>Doc 1(Title: Owl) The owl is the bird of Athena.</information>\n\n"
PRESET = ("rollout", "--preset", "search_r1", "--data", "questions.jsonl", "-c", "search.toml")


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and the working one: questions, a corpus with its index, an engine."""
    monkeypatch.chdir(tmp_path)
    for name, rows in {"corpus.jsonl": CORPUS, "questions.jsonl": QUESTIONS}.items():
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    Path("reader.py").write_text(READER, "utf-8")
    Path("search.toml").write_text(TOML + SEARCH, "utf-8")
    assert ramify(capsys, "index", "corpus.jsonl", "--out", "corpus.index").code == 0
    return tmp_path


def responses(run: Path) -> list[str]:
    """What every leaf of a run holds behind its prompt, observations included."""
    trees: list[Tree] = [*Saved.open(run).trees()]
    return [tree.branch(leaf).transcript for tree in trees for leaf in tree.leaves()]


@pytest.mark.covers("S1.2")
def test_a_corpus_is_searched_in_a_run_of_search_r1_by_configuration_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ramify(capsys, *PRESET, "--out", "run", "--json")
    assert said.code == 0, said.err
    assert (said.json["trees"], said.json["leaves"], said.json["tool_calls"]) == (2, 10, 10)
    assert said.json["mean_reward"] == 1.0
    search = "<search>owl bird</search>" + INFORMATION
    assert responses(Path("run")) == [search + "<answer>Athena</answer>"] * 5 + [search + "<answer>Zeus</answer>"] * 5
    assert ramify(capsys, "check", "run").code == 0


def test_a_run_may_be_resumed_from_another_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ramify(capsys, *PRESET, "--out", "run").code == 0
    config = from_toml((folder / "run" / "config.toml").read_text())
    assert config.tools.use["search"].options == {"index": str(folder / "corpus.index"), "top_k": 1}
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    said = ramify(capsys, "resume", folder / "run", "--json")
    assert (said.code, said.json["mean_reward"]) == (0, 1.0)


def test_only_options_that_are_paths_are_made_absolute(folder: Path) -> None:
    Path("tool.py").write_text("class LookUp:\n    def __init__(self, index: str, name: str) -> None: ...\n", "utf-8")
    use = {
        "search": {"options": {"index": "corpus.index", "page": "joined"}},
        "other": {"kind": "tool.py:LookUp", "options": {"index": "corpus.index"}},
    }
    config = resolve(flags={"tools.use": use}).config
    assert config.tools.use["search"].options == {"index": str(folder / "corpus.index"), "page": "joined"}
    assert config.tools.use["other"].options == {"index": "corpus.index"}
    assert config.tools.use["other"].kind == f"{folder / 'tool.py'}:LookUp"


def test_an_index_that_is_not_there_is_said_before_anything_starts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ramify(capsys, *PRESET, "--set", "tools.use.search.options.index=nowhere", "--out", "run")
    assert said.code == 2
    assert "there is no search index" in said.err and "ramify index CORPUS" in said.err
    assert not Path("run").exists()


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    """Where the corpus is served, from a thread with a loop of its own: the run has one too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    index = open_index("corpus.index")
    server = RetrieverServer(index)
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
    yield server.url
    asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    index.close()


def test_behind_a_server_the_same_corpus_gives_the_same_rows(
    folder: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("server.toml").write_text(TOML + RETRIEVER.format(url=url), "utf-8")
    for name, config in {"here": "search.toml", "there": "server.toml"}.items():
        assert ramify(capsys, *PRESET[:-1], config, "--out", name).code == 0
        assert ramify(capsys, "export", name, "--to", "jsonl", "--out", f"{name}.jsonl").code == 0
    assert Path("here.jsonl").read_bytes() == Path("there.jsonl").read_bytes()
    assert ramify(capsys, "check", "there").code == 0


def test_a_server_that_is_gone_is_told_to_the_model_and_ends_no_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("server.toml").write_text(TOML + RETRIEVER.format(url="http://127.0.0.1:9"), "utf-8")
    limits = ("--set", "tools.max_retries=0", "--set", "growth.max_turns=2", "--prompts", "1")
    said = ramify(capsys, *PRESET[:-1], "server.toml", "--out", "run", *limits, "--json")
    assert said.code == 0
    assert all("execution failed with message: unreachable" in response for response in responses(Path("run")))
