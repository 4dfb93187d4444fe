"""Judges with a tokenizer of their own: contexts of their own, and nothing of them where anything grows."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.engines.endpoint import Endpoint, said
from tests.judges.sittings import judged_by, sat

from ramify.cli.check import checked_run
from ramify.cli.draw import node_label
from ramify.config.configure import resolve
from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.action import ActionConfig
from ramify.core.errors import ConfigError, StoreError
from ramify.core.tree import Tree
from ramify.engines.builtin import FOLDER
from ramify.engines.tokenizer import TokenizerFile
from ramify.runner.folder import begin, resume
from ramify.runner.library import rollout_sync
from ramify.runner.saved import Saved
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn
from ramify.view.valued import valued

CODEC = TokenizerFile(FOLDER / "tokenizer.json")
GRADE = {"edge": "quotes", "role": "judge", "template": "Grade {previous} of {question}, é"}
SELF = {"mode": "self_reward", "action": "grade"}


def grades(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """An integer, but at first in words."""
    return said("eighty" if len(body["messages"]) < 2 else "80")


def run_of(judge: str, **flags: Any) -> RunConfig:
    """The built-in model judged by another one at an endpoint."""
    return resolve(
        flags={
            "prompts": 2,
            "engines": {"critic": {"name": "openai", "model": "m", "base_url": judge}},
            "actions": {"grade": {**GRADE, "engine": "critic"}},
            "strategy": {"name": "best_of_n", "options": {"n": 3, "judge": "grader"}},
            "judges": {"grader": {"kind": "llm", "options": SELF}},
            "growth.max_response_tokens": 96,
            **flags,
        }
    ).config


def judges_nodes(tree: Tree) -> list[int]:
    return [node for node in tree.subtree() if tree.role(node) == "judge"]


def test_an_endpoint_judges_in_messages_what_an_engine_of_tokens_grew(tmp_path: Path) -> None:
    with Endpoint(grades) as judge:
        begin(run_of(judge.url), tmp_path / "run")
        assert len(judge.requests) == 12
    trees = list(Saved.open(tmp_path / "run").trees())
    assert [tree.scores(leaf)[-1].value for tree in trees for leaf in tree.leaves()] == [80.0] * 6
    told = {request["messages"][0]["content"] for request in judge.requests}
    for tree in trees:
        assert tree.spent()["judge"].engine_calls == 6
        for leaf in tree.leaves():
            response = tree.branch(leaf).transcript.removesuffix(CODEC.decode([CODEC.eos_id]))
            assert f"Grade {response} of {tree.problem.question}, é" in told
    *_, reply, fault = judge.requests[-1]["messages"]
    assert (reply["role"], reply["content"], fault["role"]) == ("assistant", "eighty", "user")
    assert checked_run(tmp_path / "run").breaches == []


def test_what_a_judge_said_is_in_its_own_tokenizer_and_never_in_a_row(tmp_path: Path) -> None:
    with Endpoint(grades) as judge:
        begin(run_of(judge.url), tmp_path / "run")
    saved = Saved.open(tmp_path / "run")
    for tree in saved.trees():
        judged = judges_nodes(tree)
        assert len(judged) == 6
        for node in judged:
            assert tree.branch(node).codec.name == "bytes" and tree.branch(node).text.startswith("Grade ")
        others = set(tree.subtree()) - set(judged)
        assert {tree.branch(node).codec.sha256 for node in others} == {CODEC.sha256}
    rows = list(saved.rows())
    assert rows and {row.codec_sha256 for row in rows} == {CODEC.sha256}
    assert all(CODEC.decode(row.ids).startswith("<|user|>") for row in rows)


def test_what_such_a_judge_said_is_drawn_and_told_in_its_own_words(tmp_path: Path) -> None:
    with Endpoint(grades) as judge:
        begin(run_of(judge.url), tmp_path / "run")
    saved = Saved.open(tmp_path / "run")
    for tree in saved.trees():
        judged = judges_nodes(tree)
        drawn = [node_label(tree, node).plain for node in judged]
        assert sum("80" in label for label in drawn) == sum("eighty" in label for label in drawn) == 3
        texts = {node.text for node in valued(tree, saved.config.strategy).nodes if node.node in judged}
        assert {text[:6] for text in texts} == {"eighty", "80"}


@pytest.mark.slow
def test_a_run_that_was_killed_asks_another_tokenizers_judge_for_no_recorded_reply_again(tmp_path: Path) -> None:
    with Endpoint(grades) as judge:
        config = run_of(judge.url)
        begin(config, tmp_path / "whole")
        whole = [tree.branch(node).text for tree in Saved.open(tmp_path / "whole").trees() for node in tree.subtree()]
        records = (tmp_path / "whole" / "journal" / "000000.jsonl").read_bytes().splitlines(keepends=True)
        for num_kept in range(6, len(records), 9):
            folder = tmp_path / f"cut-{num_kept}"
            (folder / "journal").mkdir(parents=True)
            (folder / "config.toml").write_bytes((tmp_path / "whole" / "config.toml").read_bytes())
            kept = b"".join(records[:num_kept])
            (folder / "journal" / "000000.jsonl").write_bytes(kept)
            num_before = len(judge.requests)
            resume(folder)
            assert len(judge.requests) - num_before == 12 - kept.count(b'"role":"judge"'), num_kept
            again = [tree.branch(node).text for tree in Saved.open(folder).trees() for node in tree.subtree()]
            assert again == whole


def test_a_run_does_not_go_on_nor_is_it_read_with_another_tokenizer_of_its_judge(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "critic"))
    options = {"mode": "self_reward", "action": "grade", "max_replies": 1}
    config = run_of(
        "",
        engine={"name": "scripted"},
        engines={"critic": {"name": "builtin", "model": str(folder)}},
        judges={"grader": {"kind": "llm", "options": options}},
    )
    begin(config, tmp_path / "run")
    assert list(Saved.open(tmp_path / "run").trees())
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\n")
    for again in (resume, Saved.open):
        with pytest.raises(StoreError, match="begun with"):
            again(tmp_path / "run")


def test_a_model_with_a_chat_template_judges_in_that() -> None:
    action = ActionConfig(**{**GRADE, "engine": "critic"})  # pyright: ignore
    found = sat(
        judged_by(["1"]),
        options={**SELF, "max_replies": 2},
        actions={"policy": ActionConfig(), "grade": action},
        engines={"critic": EngineConfig(name="builtin")},
    )
    (first, *_) = judges_nodes(found.tree)
    branch, (leaf,) = found.tree.branch(first), found.tree.leaves()
    assert branch.codec.sha256 == CODEC.sha256 != found.tree.codec.sha256
    user, end, assistant = CODEC.encode("<|user|><|end|><|assistant|>", allow_special=True)
    opening = branch.ids[: branch.num_prompt].tolist()
    assert opening[0] == user and opening[-2:] == [end, assistant]
    assert found.tree.branch(leaf).transcript.removesuffix("\x00") in branch.prompt_text


def test_a_model_without_a_folder_is_told_the_bare_prompt() -> None:
    found = sat(
        Scripted(lambda turn: "<answer>3</answer>", codec=CODEC),
        options=SELF,
        actions={"policy": ActionConfig(), "grade": ActionConfig(**{**GRADE, "engine": "critic"})},  # pyright: ignore
        engines={"critic": EngineConfig(name="scripted")},
    )
    (first, *_) = judges_nodes(found.tree)
    assert found.tree.branch(first).codec.name == "bytes"
    assert found.tree.branch(first).prompt_text.startswith("Grade <answer>3</answer> of ")


def test_a_search_of_refinements_is_graded_elsewhere_in_the_same_words() -> None:
    def refines(turn: ScriptedTurn) -> str:
        return f"<think>hm</think>It is \\boxed{{{turn.seed % 5}}}."

    with Endpoint(grades) as judge:
        critic = {"engines": {"critic": {"name": "openai", "model": "m", "base_url": judge.url}}}
        flags = {**critic, "engine.name": "scripted", "data.questions": ["a?"], "prompts": 1}
        flags |= {"actions.grade.engine": "critic"}
        config = resolve(preset="mctsr", flags=flags).config
        (tree,) = rollout_sync(config=config, engine=Scripted(refines)).trees
    assert tree.candidates and {candidate.score for candidate in tree.candidates} == {80.0}
    contents = [request["messages"][0]["content"] for request in judge.requests]
    assert all("Answer:\nIt is \\boxed{" in content for content in contents)
    assert not any("<|user|>" in content or "<think>" in content for content in contents)


def test_no_budget_is_overrun_by_a_judge_of_another_tokenizer(tmp_path: Path) -> None:
    for name, most in (("decode", 200), ("prefill_uncached", 4000), ("turns", 15)):
        with Endpoint(grades) as judge:
            begin(run_of(judge.url, **{f"limits.{name}": most}), tmp_path / name)
        for tree in Saved.open(tmp_path / name).trees():
            assert 0 < sum(getattr(spend, name) for spend in tree.spent().values()) <= most


def test_only_a_judge_may_have_a_tokenizer_of_its_own() -> None:
    critique = ActionConfig(engine="critic", edge="quotes", role="critique", template="{previous}")
    with pytest.raises(ConfigError, match="only judges ask by another"):
        sat(
            judged_by(["1"]),
            options={"mode": "self_reward"},
            actions={"policy": ActionConfig(), "critique": critique},
            engines={"critic": EngineConfig(name="builtin")},
        )
