"""Each action has a system message of its own: in messages, in frames of tokens and in chat templates."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.endpoint import Endpoint, said
from tests.runner.parts import Listening, OneChain, Plan, Small, grown, tip

from ramify.config.configure import checked, from_toml, resolve, to_toml
from ramify.config.reach import reach
from ramify.config.run_config import EngineConfig, GrowthConfig, RunConfig
from ramify.core.action import ActionConfig
from ramify.core.command import Command, Grow
from ramify.core.errors import ConfigError
from ramify.core.tree import ROOT, Tree
from ramify.engines.shipped import DATA
from ramify.engines.tokenizer import TokenizerFile
from ramify.formats.refine import ACTIONS
from ramify.runner.folder import begin
from ramify.runner.library import rollout_sync
from ramify.runner.saved import Saved
from ramify.testing.scripted import Scripted

TOKENIZER = TokenizerFile(DATA / "builtin" / "tokenizer.json")
QWEN = str(Path(__file__).parents[1] / "formats" / "chat_templates" / "drops_thinking.jinja")
KINDS = {"policy": "You solve.", "critique": "You doubt.", "rewrite": "You improve.", "grade": "You grade."}


def refined(asked: str) -> str:
    """A model that gets one better with every critique."""
    if "Grade the answer" in asked:
        return "-20" if "\\boxed{4}" in asked else "60"
    if "critique of that answer" in asked:
        return "Now \\boxed{3}"
    return "6 / 2 is 3." if "Say what is wrong" in asked else "\\boxed{4}"


def kind_of(asked: str) -> str:
    """The action that asks so."""
    kinds = {"Grade the answer": "grade", "critique of that answer": "rewrite", "Say what is wrong": "critique"}
    return next((kind for words, kind in kinds.items() if words in asked), "policy")


def searching(systems: Mapping[str, str] = KINDS, **values: Any) -> RunConfig:
    """MCTSr, with a system message for each kind of request."""
    config, faults = checked(
        {
            "format": "refine",
            "actions": {kind: {"system": text} for kind, text in systems.items()},
            "judges": {"grade": {"kind": "llm", "options": {"mode": "self_reward"}}},
            "strategy": {"name": "mctsr", "options": {"max_rollouts": 3, "selection": "greedy"}},
            "growth": {"max_response_tokens": 4000},
            **values,
        }
    )
    assert config is not None, faults
    return config


def bare() -> Small:
    return Small(judges=(), tools=())


# -- messages -------------------------------------------------------------------------------------------------------


def asked_in_messages(config: RunConfig) -> dict[str, set[str | None]]:
    """Kind of request -> the system messages that an endpoint got in such requests; None = it got none."""
    with Endpoint(lambda body: said(refined(body["messages"][-1]["content"]))) as endpoint:
        engine = EngineConfig(name="openai", model="m", base_url=endpoint.url)
        rollout_sync(config=replace(config, engine=engine), task=bare())
    heard: dict[str, set[str | None]] = {}
    for body in endpoint.requests:
        *systems, user = body["messages"]
        system = [message["content"] for message in systems if message["role"] == "system"]
        assert len(systems) == len(system) <= 1
        heard.setdefault(kind_of(user["content"]), set()).add(system[0] if system else None)
    return heard


@pytest.mark.covers("S2.4", "S2.7")
def test_every_kind_of_request_of_a_search_has_its_own_system_message():
    assert asked_in_messages(searching()) == {kind: {text} for kind, text in KINDS.items()}


def test_an_action_without_a_system_message_has_the_formats():
    config = searching({"grade": "You grade.", "rewrite": ""}, format_options={"system": "Be kind."})
    wanted = {"policy": {"Be kind."}, "critique": {"Be kind."}, "rewrite": {None}, "grade": {"You grade."}}
    assert asked_in_messages(config) == wanted


def test_the_policys_system_message_opens_the_trees_of_a_task_with_tools():
    with Endpoint(lambda body: said("<answer>3")) as endpoint:
        config = RunConfig(
            engine=EngineConfig(name="openai", model="m", base_url=endpoint.url),
            actions={"policy": ActionConfig(system="Be brief.")},
            growth=GrowthConfig(max_response_tokens=4000),
        )
        (tree,) = rollout_sync(config=config, task=Small(), strategy=OneChain).trees
    (body,) = endpoint.requests
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert tree.branch(ROOT).messages[0] == {"role": "system", "content": "Be brief."}


def test_a_judge_with_a_tokenizer_of_its_own_is_told_its_system_message():
    grade = {"engine": "critic", "edge": "quotes", "role": "judge", "template": "Grade {previous}", "system": "Harsh."}
    with Endpoint(lambda body: said("80")) as judge:
        config = resolve(
            flags={
                "prompts": 1,
                "engines": {"critic": {"name": "openai", "model": "m", "base_url": judge.url}},
                "actions": {"grade": grade},
                "strategy": {"name": "best_of_n", "options": {"n": 2, "judge": "grader"}},
                "judges": {"grader": {"kind": "llm", "options": {"mode": "self_reward", "action": "grade"}}},
            }
        ).config
        rollout_sync(config=config)
    assert [body["messages"][0] for body in judge.requests] == [{"role": "system", "content": "Harsh."}] * 2


# -- tokens ---------------------------------------------------------------------------------------------------------


def asked_in_tokens(config: RunConfig, user: str = "<|user|>") -> tuple[list[Tree], dict[str, set[str]]]:
    """The trees, and kind of request -> the words before the user's turn in such requests."""
    speaker = Listening(Scripted(lambda turn: refined(turn.context), codec=TOKENIZER))
    result = rollout_sync(config=config, engine=speaker, task=bare())
    heard: dict[str, set[str]] = {}
    for request in speaker.requests:
        text = TOKENIZER.decode(request.ids.tolist())
        heard.setdefault(kind_of(text), set()).add(text.partition(user)[0])
    return result.trees, heard


@pytest.mark.covers("S2.4", "S2.7")
def test_engines_of_tokens_are_told_the_same_in_control_tokens_and_never_as_sampled_ones():
    trees, heard = asked_in_tokens(searching())
    assert heard == {kind: {f"<|system|>{text}<|end|>"} for kind, text in KINDS.items()}
    (control,) = TOKENIZER.encode("<|system|>", allow_special=True)
    pieces = [piece.segment for tree in trees for node in tree.subtree() for piece in tree.branch(node).pieces]
    assert {segment.origin for segment in pieces if control in segment.ids} == {"prompt"}


def test_without_a_system_message_no_frame_of_one_is_written():
    assert asked_in_tokens(searching({}))[1] == {kind: {""} for kind in KINDS}


def test_a_system_message_needs_the_frame_of_its_model():
    options = {"frame": "[INST]{prompt}[/INST]"}
    with pytest.raises(ConfigError, match=r"write format_options\.system_frame"):
        asked_in_tokens(searching(format_options=options))
    with pytest.raises(ConfigError, match=r"write format_options\.system_frame"):
        asked_in_tokens(searching({}, format_options={**options, "system": "Be kind."}))
    framed = searching(format_options={**options, "system_frame": "[SYS]{system}"})
    assert asked_in_tokens(framed, "[INST]")[1] == {kind: {f"[SYS]{text}"} for kind, text in KINDS.items()}


class Critiqued(Plan):
    """A chain, and a critique of it."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        if len(self.told) == 2:
            return None
        return [Grow(ROOT)] if not self.told else [Grow(tip(self.told[0]), action="critique")]


def test_a_chat_template_writes_the_system_message_of_each_action():
    critique = ActionConfig(edge="quotes", role="critique", template="Wrong in {0}?", system="You doubt.")
    speaker = Listening(Scripted(lambda turn: "4", codec=TOKENIZER))
    grown(
        Critiqued,
        speaker,
        task=bare(),
        format="chat",
        format_options={"template": QWEN, "system": "Be kind."},
        actions={"policy": ActionConfig(system="You solve."), "critique": critique},
        growth=GrowthConfig(max_response_tokens=4000),
    )
    first, second = (TOKENIZER.decode(request.ids.tolist()) for request in speaker.requests)
    assert first.startswith("<|im_start|>system\nYou solve.<|im_end|>")
    assert second.startswith("<|im_start|>system\nYou doubt.<|im_end|>") and "Wrong in 4?" in second


# -- configuration --------------------------------------------------------------------------------------------------


def test_system_messages_are_recorded_and_a_saved_run_opens_its_trees_with_them(tmp_path: Path):
    assert from_toml(to_toml(searching())) == searching()
    with Endpoint(lambda body: said(refined(body["messages"][-1]["content"]))) as endpoint:
        engine = EngineConfig(name="openai", model="m", base_url=endpoint.url)
        begin(replace(searching(), engine=engine, prompts=1), tmp_path / "run")
    for saved in (Saved.open(tmp_path / "run"), Saved.trusted(tmp_path / "run")):
        (tree,) = saved.trees()
        assert saved.config.actions["grade"].system == "You grade."
        assert tree.branch(ROOT).messages[0] == {"role": "system", "content": "You solve."}


def test_words_of_a_system_message_reach_nothing():
    assert not reach(searching({"policy": "/etc/hosts or https://example.org"}))


@pytest.mark.parametrize(
    ("actions", "wanted"),
    [
        ({"other": ActionConfig(system="x")}, "actions.other.system = 'x': the action continues a path"),
        ({"critique": ActionConfig(edge="quotes", template="{0}", system="x")}, "actions.critique.system = 'x': the"),
        ({"policy": ActionConfig(system="x")}, "the format TagFormat writes no system message"),
    ],
)
def test_a_system_message_that_nothing_could_write_is_refused(actions: dict[str, ActionConfig], wanted: str):
    with pytest.raises(ConfigError) as caught:
        grown(OneChain, actions={"policy": ActionConfig(), **actions})
    assert wanted in str(caught.value)


def test_an_action_that_writes_its_own_text_has_no_system_message():
    with pytest.raises(ConfigError, match="asks for nothing"):
        ActionConfig(text="I don't know.", system="x")
    _, (fault,) = checked({"format": "refine", "actions": {"dummy": {"system": "x"}}})
    assert fault.path == "actions.dummy" and "asks for nothing" in fault.message


def test_what_a_trainers_prompt_may_repeat_is_the_message_that_opens_the_tree():
    assert searching().opening_system == "You solve."
    assert searching({}, format_options={"system": "Be kind."}).opening_system == "Be kind."
    assert searching({"policy": ""}, format_options={"system": "Be kind."}).opening_system == ""
    quoting = {"policy": {"edge": "quotes", "template": ACTIONS["grade"]["template"], "system": "x"}}
    assert searching({}, actions=quoting).opening_system is None
