"""`ramify view` serves runs until it is told to stop, or writes one new file; `show` and `demo` write pages too."""

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import process, ramify
from tests.view.test_documents import foreign, path_of, run_of
from tests.view.test_html_file import in_page, trees_in

from ramify.view import html_file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three trees of 3 nodes each."""
    return run_of(tmp_path / "run", *(path_of(number, f"word {number}") for number in range(3)))


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


def told_url(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    return server.stdout.readline().strip()


# -- live -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_stops_when_it_is_told(run: Path, number: signal.Signals):
    with process("view", run) as server:
        url = told_url(server)
        assert b"<!doctype html>" in asked(url).lower()
        assert json.loads(asked(f"{url}documents/run/0"))["num_trees"] == 3
        with urllib.request.urlopen(f"{url}changes", timeout=30):  # A tab that is still open holds nobody up.
            server.send_signal(number)
            out, told = server.communicate(timeout=30)
    assert (server.returncode, out) == (0, "")
    assert told.splitlines()[-1] == f"{run}; only this machine can open it; Ctrl-C stops"


@pytest.mark.slow
def test_with_json_it_says_what_it_serves_in_one_object(run: Path, tmp_path: Path):
    file = foreign(tmp_path / "7.jsonl")
    with process("view", run, file, "--json", "--quiet") as server:
        told = json.loads(told_url(server))
        assert json.loads(asked(f"{told['url']}documents/index"))["is_live"] is True
        server.terminate()
        out, said = server.communicate(timeout=30)
    assert told == {"schema": "ramify.view/1", "url": told["url"], "runs": [str(run), str(file)]}
    assert (server.returncode, out, said) == (0, "", "")


@pytest.mark.slow
def test_it_listens_at_the_port_that_is_asked_for(run: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with process("view", run, "--port", port) as server:
        url = told_url(server)
        assert url.startswith(f"http://127.0.0.1:{port}/")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            asked(f"http://127.0.0.1:{port}/")
        server.terminate()
        assert server.wait(30) == 0


def test_a_port_in_use_is_refused(run: Path, capsys: pytest.CaptureFixture[str]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = ramify(capsys, "view", run, "--port", port)
    assert (said.code, said.out) == (2, "")
    assert f"127.0.0.1:{port} cannot be served at" in said.err
    assert "address already in use" in said.err


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_refused(run: Path, port: int, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "view", run, f"--port={port}")
    assert said.code == 2
    assert f"port = {port}: allowed are 0 (any free port) to 65535" in said.err


def test_without_aiohttp_the_line_that_installs_it_is_told(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(__import__("sys").modules, "aiohttp", None)
    said = ramify(capsys, "view", run)
    assert (said.code, said.out) == (2, "")
    assert "pip install 'ramify[view]'" in said.err
    assert "ramify view RUN --html FILE" in said.err
    assert ramify(capsys, "view", run, "--html", tmp_path / "page.html").code == 0


@pytest.mark.slow
def test_behind_ssh_the_line_that_forwards_the_port_is_told(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    with process("view", run) as server:
        port = told_url(server).split("/")[2].rpartition(":")[2]
        server.terminate()
        _, told = server.communicate(timeout=30)
    assert f"from your own machine: ssh -L {port}:127.0.0.1:{port} " in told


# -- what cannot be opened --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [True, False])
def test_what_is_not_there_is_refused(tmp_path: Path, live: bool, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty").mkdir()
    flags = () if live else ("--html", tmp_path / "page.html")
    for path in (tmp_path / "missing", tmp_path / "empty"):
        said = ramify(capsys, "view", path, *flags)
        assert (said.code, said.out) == (2, "")
        assert str(path) in said.err
    assert not (tmp_path / "page.html").exists()


# -- one file ---------------------------------------------------------------------------------------------------------


def test_a_file_is_written_and_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "page.html"
    said = ramify(capsys, "view", run, "--html", path)
    assert (said.code, said.out) == (0, f"{path}\n")
    assert "MB; open it in a browser; it needs nothing else" in said.err
    assert len(trees_in(path.read_text("utf-8"))) == 3
    again = ramify(capsys, "view", run, "--html", path)
    assert (again.code, again.out) == (2, "")
    assert "File exists; name a new file" in again.err


def test_with_json_a_file_is_named_with_its_size(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "page.html"
    said = ramify(capsys, "view", run, "--html", path, "--json")
    assert said.json == {"schema": "ramify.view/1", "html": str(path), "bytes": path.stat().st_size}


@pytest.mark.parametrize(
    ("flags", "trees", "has_tokens"),
    [
        (["--tree", 2], [2], True),
        (["--tree", 2, "--tree", 0], [0, 2], True),
        (["--max-nodes", 4], [0, 1], True),
        (["--no-tokens"], [0, 1, 2], False),
        (["--no-tokens", "--tree", 1, "--max-nodes", 1], [1], False),
    ],
)
def test_flags_say_what_is_put_into_a_file(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[Any], trees: list[int], has_tokens: bool
):
    assert ramify(capsys, "view", run, "--html", tmp_path / "page.html", *flags).code == 0
    text = (tmp_path / "page.html").read_text("utf-8")
    assert trees_in(text) == [f"run/0/tree/{number}" for number in trees]
    assert any("/tokens/" in name for name in in_page(text)) is has_tokens


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--tree", 2], "--tree: it is about the file of --html FILE"),
        (["--max-nodes", 4], "--max-nodes: it is about the file of --html FILE"),
        (["--no-tokens"], "--no-tokens: it is about the file of --html FILE"),
        (["--html", "page.html", "--max-nodes", 0], "--max-nodes 0: at least 1 is needed"),
        (["--html", "page.html", "--tree", 9], "there is no tree 9; `ramify show RUN` lists the trees of a run"),
        (["--html", "page.svg"], "cannot write page.svg: the name of a page ends in .html"),
        (["--html", "missing/page.html"], "cannot write missing/page.html: No such file or directory"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[Any],
    why: str,
):
    monkeypatch.chdir(tmp_path)
    said = ramify(capsys, "view", run, *flags)
    assert (said.code, said.out) == (2, "")
    assert why in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_that_is_too_large_is_refused_with_what_makes_it_smaller(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(html_file, "MAX_BYTES", 1000)
    said = ramify(capsys, "view", run, "--html", tmp_path / "page.html")
    assert (said.code, said.out) == (2, "")
    for remedy in ("--tree N", "--max-nodes N", "--no-tokens", "without --html has no such limit"):
        assert remedy in said.err
    assert not (tmp_path / "page.html").exists()


def test_faults_of_a_run_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    broken = [record for record in path_of(0) if type(record).__name__ != "GrownRecord"]
    said = ramify(capsys, "view", run_of(tmp_path / "run", broken, path_of(1)), "--html", tmp_path / "page.html")
    assert said.code == 0
    assert "tree 0: the record says number of steps" in said.err


# -- other commands ---------------------------------------------------------------------------------------------------


def test_show_writes_the_page_of_one_tree(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "tree.html"
    said = ramify(capsys, "show", run, 1, "--html", path)
    assert said.code == 0
    assert f"wrote {path}" in said.err
    text = path.read_text("utf-8")
    assert trees_in(text) == ["run/0/tree/1"]
    assert in_page(text)["index"]["opens"] == 1
    for flags, why in (
        ([run, 1, "--html", path], "File exists"),
        ([run, 9, "--html", tmp_path / "b.html"], "has no tree 9"),
        ([run, "--html", tmp_path / "b.html"], "name it: ramify show RUN TREE --html FILE"),
        ([run, 1, "--html", tmp_path / "b.html", "--json"], "leave out --html or --json"),
    ):
        refused = ramify(capsys, "show", *flags)
        assert refused.code == 2
        assert why in refused.err
    assert not (tmp_path / "b.html").exists()


def test_the_demo_writes_the_page_of_its_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert ramify(capsys, "demo", "--out", tmp_path / "demo").code == 0
    text = (tmp_path / "demo" / "tree.html").read_text("utf-8")
    assert trees_in(text) == ["run/0/tree/0"]
    assert in_page(text)["index"]["opens"] == 0
