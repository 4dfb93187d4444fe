"""Files of other projects as trees. The samples here are small ones by hand. Their shapes are those of files that the
projects themselves wrote: verifiers 0.4.0 and 0.1.9, verl 0.9.1, trl 1.16.0, inspect-ai 0.3.285 and 0.3.100, treequest
0.3.3."""

import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ramify.core.errors import ConfigError, StoreError
from ramify.core.tree import ROOT, Tree
from ramify.view.readers import (
    ForeignRun,
    chat_messages,
    foreign_run,
    parquet_rows,
    plain_files,
    shared_tree,
    zip_members,
)

HOSTILE = "</script><script>alert(1)</script> \u202egnp.exe\u2066 \x1b[2J"
"""Markup, direction marks and control characters, which stay as they are."""
Values = dict[str, Any]


def read(path: Path) -> ForeignRun:
    run = foreign_run(path)
    assert run is not None
    return run


def written(path: Path, rows: Sequence[Any], *, end: str = "\n") -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + (end if rows else ""), "utf-8")
    return path


def text(tree: Tree, node: int, origin: str = "") -> str:
    """What the segments of one origin say; '' = all of them."""
    segments = [segment for segment in tree.segments(node) if origin in ("", segment.origin)]
    return "".join(tree.codec.decode(segment.ids.tolist()) for segment in segments)


def said(tree: Tree) -> list[str]:
    """What each leaf says."""
    return [text(tree, leaf, "sampled") for leaf in tree.leaves()]


# -- verl -------------------------------------------------------------------------------------------------------------


def verl_row(prompt: str = "1+1?", output: str = "2", **columns: Any) -> Values:
    return {"input": prompt, "output": output, "gts": "2", "score": 1.0, "step": 7, **columns}


def test_samples_of_one_prompt_of_verl_are_one_tree(tmp_path: Path) -> None:
    rows = [
        verl_row(acc=True, request_id="a"),
        verl_row("other", "4", score=float("nan")),
        verl_row(output=HOSTILE, score=0),
        verl_row(step=8),
    ]
    run = read(written(tmp_path / "7.jsonl", rows))
    assert [(tree.number, len(tree.tree.leaves())) for tree in run.trees] == [(0, 2), (1, 1), (2, 1)]
    tree = run.trees[0].tree
    assert (text(tree, ROOT), said(tree), run.trees[0].facts) == ("1+1?", ["2", HOSTILE], {"step": 7, "gts": "2"})
    assert [tree.reward(leaf) for leaf in tree.leaves()] == [1.0, 0.0] and tree.scores(1)[0].parts == (("acc", 1.0),)
    assert tree.notes(1)["request_id"] == "a" and run.trees[1].tree.reward(1) is None
    assert tree.forks[0].rule == "samples" and tree.forks[0].shares == (0.5, 0.5) and len(tree.forks) == 1


def test_equal_samples_keep_a_leaf_each(tmp_path: Path) -> None:
    (only,) = read(written(tmp_path / "a.jsonl", [verl_row()] * 3)).trees
    assert said(only.tree) == ["2", "2", "2"] and "bytes" in only.tree.caveats[0]


def test_a_folder_of_steps_is_one_run_in_order(tmp_path: Path) -> None:
    for step in (10, 9):
        written(tmp_path / f"{step}.jsonl", [verl_row(step=step)])
    written(tmp_path / "readme.jsonl", [verl_row(step=1)])
    assert [tree.facts["step"] for tree in read(tmp_path).trees] == [9, 10]


# -- trl --------------------------------------------------------------------------------------------------------------


def parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> Path:
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table(dict(columns)), path)
    return path


def test_rewards_of_trl_are_the_sum_of_its_functions(tmp_path: Path) -> None:
    columns = {
        "step": [1, 1, 1],
        "prompt": ["1+1?", "1+1?", "2+2?"],
        "completion": ["2", "3", HOSTILE],
        "accuracy": [1.0, None, float("nan")],
        "format": [0.5, 0.25, None],
        "solution": ["2", "2", None],
        "advantage": [1.0, -1.0, 0.0],
    }
    run = read(parquet(tmp_path / "completions_00001.parquet", columns))
    tree = run.trees[0].tree
    assert [(tree.reward(n), tree.measure(n, "advantage")) for n in tree.leaves()] == [(1.5, 1.0), (0.25, -1.0)]
    assert tree.scores(1)[0].parts == (("accuracy", 1.0), ("format", 0.5)) and tree.notes(1)["solution"] == "2"
    assert tree.segments(1)[0].measures["advantage"].tolist() == [1.0]
    assert said(run.trees[1].tree) == [HOSTILE] and run.trees[1].tree.reward(1) is None
    assert any("weights" in caveat for caveat in tree.caveats)


def test_conversations_of_trl_share_their_equal_turns(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "calc", "arguments": {"x": 1}}}]}
    completions = [
        [call, {"role": "tool", "name": "calc", "content": "2"}, {"role": "assistant", "content": answer}]
        for answer in ("two", "three")
    ]
    prompt = [{"role": "system", "content": "be good"}, {"role": "user", "content": "1+1?"}]
    columns = {
        "step": [2, 2],
        "prompt": [prompt] * 2,
        "completion": completions,
        "acc": [1.0, 0.0],
        "advantage": [1, -1],
    }
    folder = tmp_path / "completions"
    folder.mkdir()
    parquet(folder / "completions_00002.parquet", columns)
    (only,) = read(tmp_path).trees
    tree = only.tree
    assert (len(tree), said(tree), tree.problem.question) == (4, ["two", "three"], "1+1?")
    (result,) = [segment.tool_call for segment in tree.segments(1) if segment.tool_call is not None]
    assert (result.tool, result.arguments, result.result, result.status) == ("calc", '{"x": 1}', "2", "ok")
    assert tree.measure(1, "advantage") == 0.0
    assert [segment.origin for segment in tree.segments(1)] == ["sampled", "given"]


def test_parquet_of_another_shape_is_not_known_and_of_no_rows_has_no_trees(tmp_path: Path) -> None:
    assert foreign_run(parquet(tmp_path / "a.parquet", {"uid": ["a"], "ids": [[1]]})) is None
    empty: Values = {"step": [], "prompt": [], "completion": [], "acc": [], "advantage": []}
    assert read(parquet(tmp_path / "b.parquet", empty)).trees == []


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'ramify\[parquet\]'"):
        foreign_run(tmp_path / "a.parquet")


def test_damaged_and_endless_parquet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"step": [1] * 9, "prompt": ["p"] * 9, "completion": ["c"] * 9, "acc": [1.0] * 9}
    path = parquet(tmp_path / "a.parquet", columns)
    monkeypatch.setattr(parquet_rows, "MAX_ROWS", 8)
    with pytest.raises(StoreError, match="has 9 rows, and at most 8"):
        foreign_run(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match="no whole Parquet file"):
        foreign_run(path)


# -- verifiers --------------------------------------------------------------------------------------------------------


def node(role: str, content: Any, parent: int | None, **fields: Any) -> Values:
    message = {"role": role, "content": content, **fields.pop("message", {})}
    return {"parent": parent, "message": message, "sampled": role == "assistant", **fields}


def trace(nodes: Sequence[Values], **fields: Any) -> Values:
    task = {"type": "T", "data": {"idx": 0, "prompt": "1+1?"}, "key": "k"}
    rewards = {"exact": {"score": 1.0, "weight": 1.0}, "form": {"score": 0.5, "weight": 0.2}, "unscored": None}
    return {"id": "t", "task": task, "agent": {"name": "agent"}, "nodes": list(nodes), "rewards": rewards, **fields}


def episode(*traces: Values, **fields: Any) -> Values:
    task = {"type": "T", "data": {"idx": 0, "prompt": "1+1?"}, "key": "k"}
    return {"id": "e", "env": {"id": "calc"}, "task": task, "group": {"id": "g"}, "traces": list(traces), **fields}


def called(answer: str, *, identity: str = "c1", advantage: float = 0.5) -> list[Values]:
    """A trace that calls a tool, then answers."""
    call = {"id": identity, "name": "calc", "arguments": '{"x": 1}', "type": "function"}
    numbers = {"logprobs": [-1.0, -2.0], "advantages": [advantage] * 2, "token_ids": [5, 6], "mask": [True, True]}
    return [
        node("user", "1+1?", None, token_ids=[1]),
        node("assistant", "let me see", 0, message={"tool_calls": [call], "reasoning_content": "hm"}, **numbers),
        node("tool", "2", 1, message={"tool_call_id": identity, "name": "calc"}),
        node("assistant", answer, 2, **numbers),
    ]


def test_traces_of_a_group_are_one_tree_that_shares_equal_turns(tmp_path: Path) -> None:
    rows = [
        episode(trace(called("two"), stop_condition="agent_completed")),
        episode(trace(called(HOSTILE, identity="c2", advantage=-0.5), stop_condition="max_turns")),
        episode(trace([], stop_condition="sandbox_error", errors=[{"type": "SandboxError", "message": "gone"}])),
    ]
    (only,) = read(written(tmp_path / "any.jsonl", rows)).trees
    tree = only.tree
    assert said(tree) == ["two", HOSTILE] and tree.num_failed == 1 and only.facts["group"] == "g"
    assert [tree.stop(leaf) for leaf in tree.leaves()] == ["end_of_sequence", "turn_limit"]
    assert tree.reward(tree.leaves()[0]) == pytest.approx(1.1)
    assert tree.scores(tree.leaves()[0])[0].parts == (("exact", 1.0), ("form", 0.1))
    first = tree.parent(tree.leaves()[0])
    assert first is not None and tree.num_tool_calls(first) == 1
    assert (tree.measure(first, "mean_logprob"), tree.measure(first, "advantage")) == (-1.5, 0.0)
    assert text(tree, first) == (
        '<think>\nhm\n</think>\nlet me see\n<tool_call>\n{"name": "calc", "arguments": {"x": 1}}\n</tool_call>'
        "\n<tool_response>\n2\n</tool_response>\n"
    )
    assert tree.notes(first)["num_tokens"] == 2


def test_a_message_graph_keeps_its_branches(tmp_path: Path) -> None:
    nodes = [
        *called("two"),
        node("user", "again", 1),
        node("assistant", "cut", 4),
        node("user", "summary", None),
        node("assistant", "new", 6),
    ]
    calls = [{"node": 5, "finish_reason": "length", "usage": {"completion_tokens": 3, "prompt_tokens": 9}}]
    (only,) = read(written(tmp_path / "traces.jsonl", [episode(trace(nodes, calls=calls))])).trees
    tree = only.tree
    assert sorted(said(tree)) == ["cut", "new", "two"]
    by_text = {text(tree, leaf, "sampled"): leaf for leaf in tree.leaves()}
    assert tree.stop(by_text["cut"]) == "length" and tree.num_billed(by_text["cut"]) == 3
    assert len(tree.path(by_text["cut"])) == len(tree.path(by_text["two"])) == 5 and text(tree, ROOT) == ""
    assert [text(tree, child) for child in tree.children(ROOT)] == ["1+1?\n\n", "summary\n\n"]
    assert len(tree.stems()) == 2 and all(tree.reward(leaf) is not None for leaf in tree.leaves())


def test_agents_of_an_episode_have_a_tree_each_and_bare_traces_are_read(tmp_path: Path) -> None:
    judge = trace([node("user", "judge", None), node("assistant", "fine", 0)], agent={"name": "judge"})
    assert len(read(written(tmp_path / "a.jsonl", [episode(trace(called("2")), judge)])).trees) == 2
    assert said(read(written(tmp_path / "b.jsonl", [trace(called("2"))])).trees[0].tree) == ["2"]
    (failed,) = read(written(tmp_path / "c.jsonl", [episode(errors=[{"type": "E", "message": "m"}])])).trees
    assert failed.tree.stop(1) == "engine_error" and failed.tree.problem.question == "1+1?"


def test_older_results_of_verifiers_are_read(tmp_path: Path) -> None:
    prompt = [{"role": "system", "content": "be good"}, {"role": "user", "content": "1+1?"}]
    call = json.dumps({"id": "c", "type": "function", "function": {"name": "calc", "arguments": '{"x": 1}'}})
    completion = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "two"},
    ]
    row = {"example_id": 3, "prompt": prompt, "completion": completion, "reward": 1.0, "metrics": {"exact": 1.0}}
    cut = row | {"completion": "text", "reward": 0.0, "is_truncated": True, "answer": "2"}
    (only,) = read(written(tmp_path / "results.jsonl", [row, cut])).trees
    tree = only.tree
    assert [tree.stop(leaf) for leaf in tree.leaves()] == ["length", "end_of_sequence"]
    assert said(tree) == ["text", "two"] and [tree.reward(leaf) for leaf in tree.leaves()] == [0.0, 1.0]
    assert [s.tool_call.tool for s in tree.segments(1) if s.tool_call is not None] == ["calc"]
    assert text(tree, ROOT) == "be good\n\n1+1?\n\n" and tree.problem.uid == "3"
    old = {name: value for name, value in row.items() if name != "metrics"} | {
        "format": 0.5,
        "total_ms": 9.0,
        "error": None,
    }
    (score,) = read(written(tmp_path / "old.jsonl", [old])).trees[0].tree.scores(2)
    assert score.parts == (("format", 0.5),)


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([episode(trace([node("user", "a", 0)]))], "the parent of node 0 is 0"),
        ([episode(trace([node("user", "a", None), node("user", "a", True)]))], "the parent of node 1 is True"),
        ([episode(trace([node("user", "a", None), node("user", "a", 5)]))], "an earlier node"),
        ([episode(trace([{"parent": None, "message": "hi"}]))], "a message is 'hi', but must be an object"),
        ([{**episode(), "traces": "x"}], "traces is 'x', but must be a list"),
        ([{**episode(), "task": 7}], "task is 7"),
        ([episode(), [1]], r"any.jsonl:2: the line is \[1\]"),
        ([verl_row(), verl_row(output=None)], ":2: output is None, but must be text"),
        ([verl_row(), {"input": 4}], "input is 4"),
    ],
)
def test_wrong_types_are_named_with_their_place(tmp_path: Path, rows: Sequence[Any], fault: str) -> None:
    with pytest.raises(StoreError, match=fault):
        foreign_run(written(tmp_path / "any.jsonl", rows))


# -- inspect ----------------------------------------------------------------------------------------------------------

HEADER: Values = {"version": 2, "status": "success", "eval": {"eval_id": "e", "task": "sums", "model": "mock/m"}}


def inspect_sample(answer: str, epoch: int, **fields: Any) -> Values:
    messages = [
        {"role": "system", "content": "be good"},
        {"role": "user", "content": "1+1?", "source": "input"},
        {
            "role": "assistant",
            "content": [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "I add"}],
            "tool_calls": [{"id": f"c{epoch}", "function": "add", "arguments": {"x": 1}, "type": "function"}],
            "source": "generate",
        },
        {
            "role": "tool",
            "content": "",
            "tool_call_id": f"c{epoch}",
            "function": "add",
            "error": {"type": "timeout", "message": "late"},
        },
        {"role": "assistant", "content": answer, "source": "generate"},
    ]
    scores = {
        "includes": {"value": "C", "answer": answer, "explanation": HOSTILE},
        "parts": {"value": {"a": 1, "b": "I"}},
    }
    return {
        "id": "s", "epoch": epoch, "input": "1+1?", "target": "2", "messages": messages, "scores": scores,
        "output": {"choices": [{"stop_reason": "stop"}]}, "events": [{"event": "model"}, {"event": "tool"}], **fields,
    }  # fmt: skip


def archive(path: Path, members: Mapping[str, Any], *, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, value in members.items():
            file.writestr(name, value if isinstance(value, bytes) else json.dumps(value))
    return path


def test_epochs_of_a_sample_of_inspect_are_one_tree(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "log.eval",
        {
            "_journal/start.json": HEADER,
            "samples/s_epoch_1.json": inspect_sample("2", 1),
            "samples/s_epoch_2.json": inspect_sample(HOSTILE, 2, limit={"type": "time", "limit": 1}),
            "samples/t_epoch_1.json": inspect_sample("x", 1, id="t", error={"message": "boom"}),
            "header.json": HEADER,
        },
    )
    run = read(path)
    assert (run.title, run.facts["status"], len(run.trees)) == ("Inspect: sums, mock/m", "success", 2)
    tree = run.trees[0].tree
    assert said(tree) == ["2", HOSTILE] and len(tree) == 4 and text(tree, ROOT) == "be good\n\n1+1?\n\n"
    assert [tree.stop(leaf) for leaf in tree.leaves()] == ["end_of_sequence", "deadline"]
    assert text(tree, 1, "sampled").startswith("<think>\nhm\n</think>\nI add\n<tool_call>")
    (call,) = [segment.tool_call for segment in tree.segments(1) if segment.tool_call is not None]
    assert (call.tool, call.arguments, call.status, call.result) == ("add", '{"x": 1}', "timeout", "late")
    score = tree.reward_score(2)
    assert score is not None and (score.judge, score.value) == ("includes", 1.0)
    assert tree.scores(2)[0].parts == (("a", 1.0), ("b", 0.0)) and tree.notes(2)["events"] == {"model": 1, "tool": 1}
    assert run.trees[1].tree.stop(2) == "engine_error" and run.trees[1].tree.leaves() == []


def test_a_log_of_inspect_may_be_one_json_and_its_long_texts_are_put_back(tmp_path: Path) -> None:
    sample = inspect_sample("attachment://abc", 1, attachments={"abc": "long"})
    path = tmp_path / "log.json"
    path.write_text(json.dumps({**HEADER, "samples": [sample]}, indent=2))
    assert said(read(path).trees[0].tree) == ["long"]
    path.write_text(json.dumps({**HEADER, "samples": [sample]}))
    assert said(read(path).trees[0].tree) == ["long"]


def zstd(path: Path, name: str, value: Any) -> Path:
    """An archive with one member packed by zstd, as Inspect packs them."""
    data = json.dumps(value).encode()
    packed = pytest.importorskip("pyarrow").compress(data, "zstd", asbytes=True)
    archive(path, {name: packed}, method=zipfile.ZIP_STORED)
    whole = bytearray(path.read_bytes())
    index = whole.index(b"PK\x01\x02")
    checksum = struct.pack("<I", __import__("zlib").crc32(data))
    for place in (8, index + 10):
        whole[place : place + 2] = struct.pack("<H", 93)
    for place in (14, index + 16):
        whole[place : place + 4] = checksum
    for place in (22, index + 24):
        whole[place : place + 4] = struct.pack("<I", len(data))
    path.write_bytes(whole)
    return path


def test_zstd_is_read_by_pyarrow_and_refused_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zstd(tmp_path / "log.eval", "header.json", HEADER)
    assert read(path).title == "Inspect: sums, mock/m"
    if not hasattr(zipfile, "ZIP_ZSTANDARD"):
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
        with pytest.raises(ConfigError, match=r"ramify\[parquet\]"):
            foreign_run(path)
    monkeypatch.undo()
    damaged = bytearray(path.read_bytes())
    damaged[60] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match="the archive is damaged"):
        foreign_run(path)


@pytest.mark.parametrize(
    "name", ["samples/../../etc/passwd.json", "/etc/passwd.json", "samples\\..\\a.json", "C:/a.json"]
)
def test_a_member_named_like_a_path_to_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "log.eval", {"header.json": HEADER, name: {}})
    with pytest.raises(StoreError, match="named like a path out of the archive"):
        foreign_run(path)


def test_archives_beyond_the_bounds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = archive(tmp_path / "a.eval", {"header.json": HEADER, "samples/a.json": b" " * (17 * 10**6)})
    with pytest.raises(StoreError, match="unpacks from"):
        foreign_run(bomb)
    path = archive(tmp_path / "b.eval", {"header.json": HEADER, "samples/a.json": inspect_sample("a", 1)})
    for bound, value in (
        ("MAX_MEMBERS", 1),
        ("MAX_TOTAL_BYTES", 100),
        ("MAX_DOCUMENT_BYTES", 100),
        ("MAX_INDEX_BYTES", 50),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(zip_members, bound, value)
            with pytest.raises(StoreError, match=r"b\.eval"):
                foreign_run(path)
    assert len(read(path).trees) == 1


def test_damaged_and_foreign_archives(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.eval", {"header.json": HEADER, "samples/a.json": b'{"id": '})
    with pytest.raises(StoreError, match=r"a\.eval!samples/a\.json: this is no JSON"):
        foreign_run(path)
    data = bytearray(archive(tmp_path / "b.eval", {"header.json": HEADER}).read_bytes())
    data[data.index(b"header.json") + 15] ^= 0xFF
    (tmp_path / "b.eval").write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        foreign_run(tmp_path / "b.eval")
    assert foreign_run(archive(tmp_path / "c.zip", {"other.json": {}})) is None
    (tmp_path / "torn.eval").write_bytes(data[:40])
    with pytest.raises(StoreError, match="no whole archive"):
        foreign_run(tmp_path / "torn.eval")
    (tmp_path / "torn.zip").write_bytes(data[:40])
    assert foreign_run(tmp_path / "torn.zip") is None


# -- treequest --------------------------------------------------------------------------------------------------------


def search(nodes: Sequence[Values]) -> Values:
    root = {"id": -1, "parent_id": None, "score": -1.0, "state_repr": "ROOT", "depth": 0, "algo_metrics": {}}
    return {"nodes": [root, *nodes], "edges": [], "trials": [], "metadata": {"algorithm": "ABMCTSA"}}


def state(number: int, parent: Any, score: Any, **fields: Any) -> Values:
    metrics = {"visits": {"display_name": "Visits", "display_value": "3"}}
    shown = {"state_repr": f"'state {number}'", "action_from_parent": "low", "algo_metrics": metrics}
    return {"id": number, "parent_id": parent, "score": score, **shown, **fields}


def test_a_search_of_treequest_keeps_its_order_actions_and_scores(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    nodes = [
        state(0, -1, 0.5),
        state(2, 0, 0.75, state_repr=HOSTILE),
        state(1, -1, float("nan"), action_from_parent=None),
    ]
    path.write_text(json.dumps(search(nodes), indent=2))
    (only,) = read(path).trees
    tree = only.tree
    assert [tree.parent(n) for n in (1, 2, 3)] == [ROOT, ROOT, 1] and [text(tree, 1), text(tree, 3)] == [
        "'state 0'",
        HOSTILE,
    ]
    assert [tree.action(n) for n in (1, 2, 3)] == ["low", "policy", "low"]
    assert [tree.stop(n) for n in (1, 2, 3)] == [None, "answer", "answer"]
    assert [(one.node, one.score) for one in tree.candidates] == [(3, 0.75), (1, 0.5)]
    assert tree.notes(1) == {"expand_idx": 0, "visits": "3"} and only.facts["algorithm"] == "ABMCTSA"


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        ([state(0, 5, 0.1)], "parent_id of node 0 is 5"),
        ([state(0, 0, 0.1)], "parent_id of node 0 is 0"),
        ([state(0, 1, 0.1), state(1, 0, 0.1)], "parent_id of node 0 is 1"),
        ([state(0, -1, 0.1), state(0, -1, 0.2)], "the id of a second node is 0"),
        ([state(0, [-1], 0.1)], r"is \[-1\]"),
        ([{"id": 0}], "an integer id and a parent_id"),
        (["x"], "a node is 'x'"),
    ],
)
def test_a_search_that_is_no_tree_is_refused(tmp_path: Path, nodes: Sequence[Any], fault: str) -> None:
    with pytest.raises(StoreError, match=fault):
        foreign_run(written(tmp_path / "search.json", [search(nodes)]))


# -- every format -----------------------------------------------------------------------------------------------------


def test_a_last_line_that_is_still_written_is_skipped_and_any_other_torn_line_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "7.jsonl", [verl_row()])
    with path.open("a") as file:
        file.write('{"input": "1+')
    run = read(path)
    assert len(run.trees) == 1 and "7.jsonl:2" in run.facts["skipped"][0]
    with path.open("a") as file:
        file.write("\n" + json.dumps(verl_row()) + "\n")
    with pytest.raises(StoreError, match=r"7\.jsonl:2: this is no JSON"):
        foreign_run(path)


@pytest.mark.parametrize("name", ["7.jsonl", "traces.jsonl", "results.jsonl"])
def test_a_file_with_nothing_but_a_torn_line_is_known_by_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('{"input": "1+')
    run = read(path)
    assert run.trees == [] and len(run.facts["skipped"]) == 1
    path.write_text('{"input": "1+\n')
    with pytest.raises(StoreError, match=":1: this is no JSON"):
        foreign_run(path)


def test_a_run_that_has_just_begun_has_no_trees(tmp_path: Path) -> None:
    (tmp_path / "traces.jsonl").write_text("")
    assert read(tmp_path / "traces.jsonl").trees == [] and read(tmp_path).trees == []


def test_large_lines_files_and_crowds_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "7.jsonl", [verl_row(), verl_row("other", "x" * 200)])
    with monkeypatch.context() as patch:
        patch.setattr(plain_files, "MAX_LINE_BYTES", 150)
        with pytest.raises(StoreError, match=r"7\.jsonl:2: the line has more than 150 bytes"):
            foreign_run(path)
    with monkeypatch.context() as patch:
        patch.setattr(shared_tree, "MAX_TREES", 1)
        with pytest.raises(StoreError, match="more than 1 prompts"):
            foreign_run(path)
    with path.open("ab") as file:
        file.truncate(plain_files.MAX_FILE_BYTES + 1)
    with pytest.raises(StoreError, match=r"7\.jsonl cannot be shown: with it the run has 1,000,000,001 bytes"):
        foreign_run(path)


def test_text_that_is_no_unicode_and_deep_nests_harm_nothing(tmp_path: Path) -> None:
    path = tmp_path / "7.jsonl"
    path.write_text('{"input": "a\\ud800b", "output": "\\ud83d\\ude00", "score": 1, "step": 1, "\\udfff": "\\udfff"}\n')
    tree = read(path).trees[0].tree
    assert tree.problem.question == text(tree, ROOT) == "a\ufffdb" and said(tree) == ["\U0001f600"]
    assert tree.notes(1) == {"\ufffd": "\ufffd"}
    path.write_bytes(json.dumps(verl_row()).encode() + b'\n{"input": "\xff"}\n')
    with pytest.raises(StoreError, match=":2: this is no JSON"):
        foreign_run(path)
    path.write_text(json.dumps(verl_row()) + '\n{"input": ' + "[" * 200_000 + "\n")
    with pytest.raises(StoreError, match="nested too deeply"):
        foreign_run(path)


@pytest.mark.slow
def test_long_chains_and_wide_forks_are_grown(tmp_path: Path) -> None:
    nodes = [node("user" if i % 2 == 0 else "assistant", str(i), i - 1 if i else None) for i in range(20_000)]
    (only,) = read(written(tmp_path / "traces.jsonl", [episode(trace(nodes))])).trees
    assert len(only.tree) == 10_001 and said(only.tree) == ["19999"]
    (wide,) = read(written(tmp_path / "7.jsonl", [verl_row()] * 5_000)).trees
    assert wide.tree.num_leaves == 5_000


def test_what_is_not_known_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04\x95")
    (tmp_path / "b.jsonl").write_text('{"text": 1}\n')
    (tmp_path / "c.txt").write_text("hello {")
    (tmp_path / "d.json").write_text("{broken")
    (tmp_path / "e").write_text("")
    for path in [*sorted(tmp_path.iterdir()), tmp_path, tmp_path / "missing"]:
        assert foreign_run(path) is None
    (tmp_path / "journal").write_bytes(b"")
    written(tmp_path / "7.jsonl", [verl_row()])
    assert foreign_run(tmp_path) is None


def test_parts_of_messages_that_are_no_text_are_named() -> None:
    content = [
        "plain",
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"type": "text", "text": HOSTILE},
        {"x": 1},
    ]
    assert chat_messages.text_of(content) == f'plain\n[image_url]\n{HOSTILE}\n{{"x": 1}}'
    assert chat_messages.text_of(7) == "7" and chat_messages.question_of([]) == ""
