"""Judges of chat messages: policy and judge at endpoints of their own, each with its prompts in the configuration."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engines.endpoint import Endpoint, Reply, said

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.command import Failed
from ramify.runner.events import Event, OutcomeTold
from ramify.runner.folder import begin, resume
from ramify.runner.saved import Saved


def run_of(folder: Path, policy: Endpoint, judge: str, **flags: Any) -> RunConfig:
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"question": f"q{i}?"}) + "\n" for i in range(2)))
    once = {"max_tries": 1, "max_down_s": 0.1, "base_s": 0.01}
    return resolve(
        flags={
            "data": {"path": str(data)},
            "prompts": 2,
            "engine": {"name": "openai", "model": "m", "base_url": policy.url},
            "engines": {"judge": {"name": "openai", "model": "m", "base_url": judge, "retry": once}},
            "actions": {
                "grade": {"engine": "judge", "edge": "quotes", "role": "judge", "template": "Grade {previous} strictly"}
            },
            "strategy": {"name": "best_of_n", "options": {"n": 3, "judge": "grader"}},
            "judges": {"grader": {"kind": "llm", "options": {"mode": "self_reward", "action": "grade"}}},
            **flags,
        }
    ).config


def answers(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return said(f"<answer>{body['seed'] % 9}</answer>")


def grades(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """An integer, but at first in words."""
    return said("eighty" if len(body["messages"]) < 4 else "80")


def test_a_reply_and_what_was_wrong_with_it_are_messages_of_one_conversation(tmp_path: Path) -> None:
    with Endpoint(answers) as policy, Endpoint(grades) as judge:
        begin(run_of(tmp_path, policy, judge.url), tmp_path / "run")
        assert len(policy.requests) == 6 and len(judge.requests) == 12
        *_, asked, reply, fault = judge.requests[-1]["messages"]
    assert asked["role"] == "user" and "Grade <answer>" in asked["content"] and "strictly" in asked["content"]
    assert reply["role"] == "assistant" and reply["content"] == "eighty"
    assert fault["role"] == "user" and "no integer" in fault["content"]
    trees = list(Saved.open(tmp_path / "run").trees())
    assert [tree.scores(leaf)[-1].value for tree in trees for leaf in tree.leaves()] == [80.0] * 6
    assert all(tree.spent()["judge"].engine_calls == 6 for tree in trees)
    assert {request.get("tools") for request in judge.requests} == {None}


@pytest.mark.parametrize("fault", [Reply(b"{}", 404), Reply(b"not json"), Reply(b"{}")])
def test_a_judge_that_fails_while_the_policy_is_up_fails_its_commands_and_no_tree(tmp_path: Path, fault: Reply) -> None:
    failed: list[Failed] = []

    def observe(event: Event) -> None:
        if isinstance(event, OutcomeTold) and isinstance(event.delivered.outcome, Failed):
            failed.append(event.delivered.outcome)

    with Endpoint(answers) as policy, Endpoint(lambda body: fault) as judge:
        report = begin(run_of(tmp_path, policy, judge.url, max_failed_share=1.0), tmp_path / "run", observers=[observe])
    assert report.failed_trees == 0 and len(failed) == 6
    assert all(outcome.reason.startswith("judge: action 'grade' gave no reply") for outcome in failed)


def test_a_judge_that_goes_away_fails_its_commands_and_no_tree(tmp_path: Path) -> None:
    judge = Endpoint(grades).__enter__()
    gone: list[bool] = []

    def leave(event: Event) -> None:
        if isinstance(event, OutcomeTold) and not gone:
            gone.append(True)
            judge.__exit__(None, None, None)

    with Endpoint(answers) as policy:
        config = run_of(tmp_path, policy, judge.url, max_failed_share=1.0)
        report = begin(config, tmp_path / "run", observers=[leave])
    assert report.failed_trees == 0
    trees = list(Saved.open(tmp_path / "run").trees())
    assert sum(len(tree.leaves()) for tree in trees) == 6
    assert all(not tree.scores(leaf) for tree in trees for leaf in tree.leaves())


def test_a_run_of_messages_resumes_without_asking_again(tmp_path: Path) -> None:
    with Endpoint(answers) as policy, Endpoint(grades) as judge:
        config = run_of(tmp_path, policy, judge.url)
        begin(config, tmp_path / "whole")
        records = (tmp_path / "whole" / "journal" / "000000.jsonl").read_bytes().splitlines(keepends=True)
        for num_kept in range(8, len(records), 7):
            folder = tmp_path / f"cut-{num_kept}"
            folder.mkdir()
            (folder / "config.toml").write_bytes((tmp_path / "whole" / "config.toml").read_bytes())
            (folder / "journal").mkdir()
            kept = b"".join(records[:num_kept])
            (folder / "journal" / "000000.jsonl").write_bytes(kept)
            num_before = len(policy.requests) + len(judge.requests)
            resume(folder)
            num_asked = len(policy.requests) + len(judge.requests) - num_before
            assert num_asked == 18 - kept.count(b'"record":"grown"'), num_kept
