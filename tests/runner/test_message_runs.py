"""Runs at an endpoint that speaks in messages: what stands in the tree, what is sent, what is refused beforehand."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.endpoint import Endpoint, Model, Reply, call, calling, said
from tests.runner.parts import OneChain, Plan, Small, only_leaf, tip

from ramify.cli.main import main
from ramify.config.run_config import EngineConfig, GrowthConfig, RunConfig, StrategyConfig, TaskConfig
from ramify.core.action import ActionConfig
from ramify.core.branch import Branch
from ramify.core.command import Command, Grow
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.prices import UNPRICED, Prices
from ramify.core.segment import Finish
from ramify.core.strategy import Strategy
from ramify.core.tool import ToolResult
from ramify.core.tree import ROOT, Tree
from ramify.formats.arpo import arpo
from ramify.formats.messages import ONE_CALL, Messages
from ramify.rows import sft
from ramify.runner.folder import begin, resume
from ramify.runner.library import Rollout, rollout_sync
from ramify.runner.saved import Saved
from ramify.store.check import ledger_faults, tree_faults
from ramify.testing.scripted import Scripted
from ramify.tools.function import FunctionTool

KEY = "sk-secret-0123456789abcdef"
QUESTION = "make 3 from 1 2"


def look(thing: str) -> str:
    """Look at a thing."""
    return f"{thing} is red."


def looking(**fields: Any) -> Small:
    """A task of one tool that is called natively."""
    format = Messages(schemas=[FunctionTool(look).schema])
    return Small(format=format, tools=(FunctionTool(look),), **fields)


def results(body: Mapping[str, Any]) -> list[str]:
    """What the conversation's calls were answered, by a tool or by the user behind the first turn."""
    roles = [message["role"] for message in body["messages"]]
    start = roles.index("assistant") if "assistant" in roles else len(roles)
    return [m["content"] for m in body["messages"][start:] if m["role"] != "assistant"]


def turns(*answers: Mapping[str, Any]) -> Model:
    """A model that says `answers` one after the other along a conversation, the last one for good."""

    def model(body: Mapping[str, Any]) -> Mapping[str, Any]:
        done = sum(message["role"] == "assistant" for message in body["messages"])
        return answers[min(done, len(answers) - 1)]

    return model


def at(endpoint: Endpoint, **options: Any) -> EngineConfig:
    return EngineConfig(name="openai", model="m", base_url=endpoint.url, options=options)


def grown(
    model: Model,
    plan: type[Strategy] | None = OneChain,
    /,
    *,
    task: object | None = None,
    options: Mapping[str, Any] | None = None,
    prices: Prices = UNPRICED,
    **config: Any,
) -> tuple[Rollout, list[dict[str, Any]]]:
    """A run at an endpoint, and the requests it made."""
    config.setdefault("growth", GrowthConfig(max_response_tokens=4000))
    with Endpoint(model) as endpoint:
        run = RunConfig(engine=replace(at(endpoint, **(options or {})), prices=prices), **config)
        result = rollout_sync(config=run, task=task or looking(), **({"strategy": plan} if plan else {}))
    for tree in result.trees:
        assert not list(tree_faults(tree))
    return result, endpoint.requests


def chain(model: Model, **fields: Any) -> tuple[Tree, Branch, list[dict[str, Any]]]:
    """The one path of a run of one chain."""
    result, requests = grown(model, **fields)
    tree, leaf = only_leaf(result)
    return tree, tree.branch(leaf), requests


CALL = calling(call("look", '{"thing": "a"}'), content="Hm.")


# -- one conversation -----------------------------------------------------------------------------------------------


@pytest.mark.covers("S1.2", "S2.7")
def test_a_conversation_is_kept_and_sent_back_word_by_word():
    tree, branch, requests = chain(turns(CALL, said("It is red.")))
    spoken = {"role": "assistant", "content": "Hm.", "tool_calls": [call("look", '{"thing": "a"}')]}
    answer = {"role": "tool", "tool_call_id": "call_a", "content": "a is red."}
    last = {"role": "assistant", "content": "It is red."}
    assert branch.messages == ({"role": "user", "content": QUESTION}, spoken, answer, last)
    assert [sent["messages"] for sent in requests] == [[*branch.messages[:1]], [*branch.messages[:3]]]
    assert requests[0]["tools"] == [{"type": "function", "function": dict(FunctionTool(look).schema)}]
    assert "stop" not in requests[0]
    assert tree.stop(branch.node) == "end_of_sequence"
    (made,) = branch.tool_calls
    assert (made.tool, made.arguments, made.status, made.result) == ("look", "a", "ok", "a is red.")
    assert [p.segment.origin for p in branch.pieces] == ["prompt", "sampled", "given", "sampled"]
    assert branch.transcript == (
        'Hm.\n<tool_call>\n{"name": "look", "arguments": {"thing": "a"}}\n</tool_call>'
        "\n<tool_response>\na is red.\n</tool_response>\nIt is red."
    )


def test_every_call_of_a_turn_is_answered_and_one_is_made():
    both = calling(call("look", '{"thing": "a"}', "one"), call("look", '{"thing": "b"}', "two"))
    _, branch, requests = chain(turns(both, said("done")))
    assert [call.arguments for call in branch.tool_calls] == ["a"]
    assert requests[1]["messages"][2:] == [
        {"role": "tool", "tool_call_id": "one", "content": "a is red."},
        {"role": "tool", "tool_call_id": "two", "content": ONE_CALL},
    ]


def test_what_is_no_call_is_answered_and_the_path_goes_on():
    broken = calling(call("look", '{"thing": '))
    unknown = calling(call("loook", "{}"))
    _, branch, requests = chain(turns(broken, unknown, said("sorry")))
    first, second = results(requests[2])
    assert first.startswith("Error: the tool call could not be read: this is no JSON")
    assert "there is no tool 'loook'; did you mean 'look'?" in second
    assert requests[2]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"thing": '
    assert [call.status for call in branch.tool_calls] == ["invalid", "refused"]


def test_a_turn_without_an_action_can_be_corrected():
    growth = GrowthConfig(no_action="observe", max_turns=2)
    _, branch, requests = chain(turns(said("I think."), said("3")), growth=growth)
    assert requests[1]["messages"][1:] == [
        {"role": "assistant", "content": "I think."},
        {"role": "user", "content": "Error: the turn holds no action"},
    ]
    assert branch.messages[-1]["content"] == "3"


# -- tags -----------------------------------------------------------------------------------------------------------


def test_a_task_that_speaks_in_tags_is_spoken_to_so_and_its_judge_reads_it():
    tree, branch, requests = chain(turns(said("<calc>1+2"), said("It is <answer>3")), task=Small())
    assert branch.transcript == "<calc>1+2</calc> <result>\n3 : 3\n</result>It is <answer>3</answer>"
    assert (tree.stop(branch.node), tree.reward(branch.node)) == ("answer", 1.0)
    assert requests[0]["stop"] == ["</calc>", "</answer>"] and "tools" not in requests[0]
    system, user = requests[0]["messages"]
    assert "<calc>expression</calc>" in system["content"] and user == {"role": "user", "content": QUESTION}
    assert requests[1]["messages"][2:] == [
        {"role": "assistant", "content": "<calc>1+2</calc>"},
        {"role": "user", "content": " <result>\n3 : 3\n</result>"},
    ]
    assert tree.notes(tree.path(branch.node)[1])["restored"] == "</calc>"


def test_a_task_that_speaks_in_tags_can_be_spoken_to_natively():
    model = turns(calling(call("calculator", '{"expression": "1+2"}')), said("<answer>3"))
    tree, branch, requests = chain(
        model, task=Small(), format="messages", format_options={"calls": "native", "system": ""}
    )
    assert tree.reward(branch.node) == 1.0
    assert requests[0]["messages"] == [{"role": "user", "content": QUESTION}]
    assert requests[0]["stop"] == ["</answer>"] and len(requests[0]["tools"]) == 1


def test_a_tag_format_that_is_named_is_put_into_messages(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "from ramify.formats.tags import TagFormat\n"
        'MINE = TagFormat(tags={"calculator": "sum"}, template="Q: {question}", observation="[{text}]")\n',
        "utf-8",
    )
    _, branch, requests = chain(
        turns(said("<sum>1+2"), said("<answer>3")), task=Small(), format=f"{tmp_path / 'mine.py'}:MINE"
    )
    assert requests[1]["messages"][1:] == [
        {"role": "user", "content": f"Q: {QUESTION}"},
        {"role": "assistant", "content": "<sum>1+2</sum>"},
        {"role": "user", "content": "[3 : 3]"},
    ]
    assert branch.tool_calls[0].status == "ok"


@pytest.mark.covers("S2.7")
def test_the_answers_to_a_file_of_questions_are_judged(tmp_path: Path):
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "what colour?", "answer": "red"}\n', "utf-8")
    with Endpoint(turns(said("I say <answer> Red "))) as endpoint:
        flags = {"data__path": str(file), "data__answer": "answer", "prompts": 1}
        engine = {"engine__name": "openai", "engine__model": "m", "engine__base_url": endpoint.url}
        result = rollout_sync(**flags, **engine, strategy__options={"n": 2})
    (tree,) = result.trees
    assert [tree.reward(leaf) for leaf in tree.leaves()] == [1.0, 1.0]


# -- trees ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tree_grpo", {"num_trees": 2, "num_nodes": 2, "num_rounds": 1}),
        ("offline", {"initial_rollouts": 2, "expansion_iterations": 3}),
        ("chains", {"n": 3}),
    ],
)
def test_trees_fork_between_messages(name: str, options: dict[str, Any]):
    def model(body: Mapping[str, Any]) -> Mapping[str, Any]:
        number = len(results(body))
        return calling(call("look", json.dumps({"thing": f"{number}, {body['seed']}"}))) if number < 3 else said("done")

    result, requests = grown(model, None, strategy=StrategyConfig(name=name, options=options))
    (tree,) = result.trees
    assert len(tree.leaves()) >= 3
    sent = [json.dumps(body["messages"]) for body in requests]
    for node in tree.subtree():
        messages = tree.branch(node).messages
        assert all(json.dumps(messages[:i]) in sent for i, m in enumerate(messages) if m["role"] == "assistant")
    assert {body["messages"][-1]["role"] for body in requests} == {"user", "tool"}
    assert result.report.engine_calls == len(requests)


def unsure(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Two calls, then the end; the first token of each turn is in doubt."""
    top = [{"token": token, "logprob": value} for token, value in (("a", -0.5), ("b", -1.5))]
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": top}]}
    if len(results(body)) < 2:
        return calling(call("look", '{"thing": "a"}'), choice_logprobs=logprobs)
    return said("done", choice_logprobs=logprobs)


def test_entropy_branching_works_where_the_server_gives_top_logprobs():
    strategy = StrategyConfig(name="online", options={"n": 4, "initial_rollouts": 2, "branch_probability": 1.0})
    result, requests = grown(unsure, None, options={"max_topk": 10}, strategy=strategy)
    (tree,) = result.trees
    assert len(tree.leaves()) == 4 and tree.forks
    assert {body["top_logprobs"] for body in requests} == {10}
    with pytest.raises(ConfigError, match="reads the measure 'step_entropy_topk'"):
        grown(unsure, None, strategy=strategy)


class InsideATurn(Plan):
    """A chain, and a fork inside what it said."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        return [Grow(ROOT)] if not self.told else [Grow(tip(self.told[0]), at=tree.length(ROOT) + 2)]


def test_a_fork_inside_a_message_ends_its_tree_alone():
    result, _ = grown(turns(said("done")), InsideATurn)
    (tree,) = result.trees
    assert tree.is_broken and len(tree.leaves()) == 1


class Critiqued(Plan):
    """A chain, and a critique of it."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        if len(self.told) == 2:
            return None
        return [Grow(ROOT)] if not self.told else [Grow(tip(self.told[0]), action="critique")]


@pytest.mark.covers("S2.7")
def test_each_action_has_a_server_and_a_model_of_its_own():
    critique = ActionConfig(engine="critic", edge="quotes", role="critique", template="Wrong in {0}? {question}")
    with Endpoint(turns(said("4"))) as writer, Endpoint(turns(said("It is 3.")), models=[{"id": "c"}]) as critic:
        config = RunConfig(
            engine=at(writer),
            engines={"critic": EngineConfig(name="openai", model="c", base_url=critic.url)},
            actions={"policy": ActionConfig(), "critique": critique},
            growth=GrowthConfig(max_response_tokens=4000),
        )
        result = rollout_sync(config=config, task=looking(), strategy=Critiqued)
    (tree,) = result.trees
    assert [sent["model"] for sent in writer.requests] == ["m"]
    (asked,) = critic.requests
    assert (asked["model"], asked["messages"]) == ("c", [{"role": "user", "content": f"Wrong in 4? {QUESTION}"}])
    (node,) = tree.derived(tree.leaves()[0])
    assert tree.branch(node).messages[-1] == {"role": "assistant", "content": "It is 3."}
    sources = [p.segment.source for n in tree.subtree() for p in tree.branch(n).pieces if p.segment.source]
    assert {source.engine for source in sources} == {"openai:m", "openai:c"}


# -- limits ---------------------------------------------------------------------------------------------------------


def test_a_turn_that_was_cut_ends_its_path():
    tree, branch, requests = chain(turns(said("so long", finish="length")))
    assert (tree.stop(branch.node), len(requests)) == ("length", 1)
    assert branch.pieces[-1].segment.finish == Finish("length")


def test_an_action_s_own_limit_ends_the_path_too():
    actions = {"policy": ActionConfig(max_tokens=5)}
    tree, branch, requests = chain(turns(said("so", finish="length", usage=(7, 5))), actions=actions)
    assert (tree.stop(branch.node), requests[0]["max_tokens"]) == ("length", 5)


def test_a_conversation_that_does_not_fit_ends_its_path():
    too_long = Reply(json.dumps({"error": {"message": "maximum context length is 20 tokens"}}).encode(), 400)

    def model(body: Mapping[str, Any]) -> Any:
        return too_long if results(body) else CALL

    tree, branch, _ = chain(model)
    assert tree.stop(branch.node) == "context_full"
    assert len(branch.tool_calls) == 1


def test_lengths_are_counted_as_the_server_counts_them():
    long = calling(call("look", '{"thing": "a"}'), usage=(100, 20))
    growth = GrowthConfig(max_response_tokens=50)
    tree, branch, requests = chain(turns(long, calling(call("look", "{}"), usage=(130, 3))), growth=growth)
    # 20 are sampled, and the result's 44 bytes count for 11 until the server has read them and says 10.
    assert [sent["max_tokens"] for sent in requests][:2] == [50, 50 - 20 - 11]
    assert branch.num_response_tokens >= 50 and tree.stop(branch.node) == "length"


def test_a_long_result_is_cut_to_its_limit():
    task = looking()
    growth = GrowthConfig(max_response_tokens=4000, max_observation_tokens=30)
    model = turns(calling(call("look", json.dumps({"thing": "x" * 500}))), said("done"))
    _, branch, _ = chain(model, task=task, growth=growth)
    (result,) = [message for message in branch.messages if message["role"] == "tool"]
    assert 80 < len(result["content"]) <= 120


@pytest.mark.parametrize("usage", [(7, 10), None])
def test_a_budget_holds_whether_or_not_the_server_counts(usage: Any):
    def model(body: Mapping[str, Any]) -> Mapping[str, Any]:
        told = None if usage is None else (7, min(10, body["max_tokens"]))
        return calling(call("look", '{"thing": "a"}'), usage=told)

    result, requests = grown(model, limits=Limits(decode=25), growth=GrowthConfig(max_response_tokens=4000))
    (tree,) = result.trees
    spent = {role: spend.as_dict() for role, spend in tree.spent().items()}
    assert not list(ledger_faults(tree, spent))
    assert result.report.decode_tokens == 25
    assert [body["max_tokens"] for body in requests] == ([25, 15, 5] if usage else [25])
    assert [tree.stop(leaf) for leaf in tree.leaves()] == ["budget"]


FAULTS = (
    Reply(b"oops", 500),
    Reply(b"<html>Bad gateway</html>"),
    {"choices": []},
    said("half a", finish="abort"),
    Reply(b"later", 429, {"Retry-After": "0"}),
    said("<calc>", finish="error"),
)


@pytest.mark.slow
def test_faults_of_the_server_leave_no_trace_in_the_tree():
    sound = turns(said("<calc>1+2"), said("<calc>3*1"), said("<answer>3"))
    met: Counter[str] = Counter()

    def ill(body: Mapping[str, Any]) -> Any:
        name = f"{body['seed']} {len(body['messages'])}"
        met[name] += 1
        return FAULTS[(len(met) - 1) % len(FAULTS)] if met[name] == 1 else sound(body)

    strategy = StrategyConfig(options={"n": 2})
    trees = [grown(model, None, task=Small(), strategy=strategy)[0].trees[0] for model in (sound, ill)]
    one, other = ([(t.stop(n), t.branch(n).messages, t.notes(n)) for n in t.subtree()] for t in trees)
    assert one == other
    assert list(met.values()) == [2] * len(FAULTS), "every request met a fault of its own"


# -- attachments ----------------------------------------------------------------------------------------------------


@pytest.mark.covers("S1.6")
def test_an_image_goes_to_the_endpoint_and_to_exports_and_never_into_the_ids(tmp_path: Path):
    image = tmp_path / "frame.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 8)

    def look(thing: str) -> ToolResult:
        return ToolResult("seconds 3 to 5", metadata={"span_s": [3.0, 5.0]}, attachments=(str(image),))

    tool = FunctionTool(look)
    task = Small(format=Messages(schemas=[tool.schema]), tools=(tool,))
    tree, branch, requests = chain(turns(CALL, said("done")), task=task)
    assert requests[1]["messages"][3]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    (given,) = [p.segment for p in branch.pieces if p.segment.attachments]
    assert given.attachments == (str(image),)
    assert given.tool_call is not None and given.tool_call.metadata == {"span_s": [3.0, 5.0]}
    assert str(image) not in branch.text
    (example,) = sft.examples(tree, leaves="best")
    assert example.ids is None
    shown = [message["content"] for message in example.messages if isinstance(message["content"], list)]
    assert shown == [[{"type": "image_url", "image_url": {"url": f"file://{image}"}}]]


# -- on disk --------------------------------------------------------------------------------------------------------


def test_a_run_is_read_back_with_its_messages(tmp_path: Path):
    turn = said("<calc>1+", reasoning="caf\u00e9 \U0001d11e")
    with Endpoint(turns(turn, said("<answer>9"))) as endpoint:
        config = RunConfig(engine=at(endpoint), prompts=2, strategy=StrategyConfig(options={"n": 2}))
        begin(config, tmp_path / "run")
    trees = list(Saved.open(tmp_path / "run").trees())
    assert len(trees) == 2
    for tree in trees:
        assert not list(tree_faults(tree))
        messages = tree.branch(tree.leaves()[0]).messages
        assert messages[2] == {"role": "assistant", "content": "<calc>1+</calc>", "reasoning": "caf\u00e9 \U0001d11e"}
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]


@pytest.mark.covers("S3.9")
def test_a_run_becomes_supervised_examples_of_its_messages_and_of_no_ids(tmp_path: Path):
    run, file = tmp_path / "run", tmp_path / "sft.jsonl"

    def model(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return turns(said("<calc>1+2", reasoning="Hm."), said(f"<answer>{body['seed'] % 7}"))(body)

    with Endpoint(model) as endpoint:
        begin(RunConfig(engine=at(endpoint), prompts=2, strategy=StrategyConfig(options={"n": 3})), run)
    assert main(["export", str(run), "--to", "sft", "--out", str(file)]) == 0
    made = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    spoken = [[dict(m) for m in t.branch(leaf).messages] for t in Saved.open(run).trees() for leaf in t.leaves()]
    assert [example["messages"] for example in made] == spoken
    assert len(spoken) == 6
    assert {*made[0]} == {"uid", "leaf", "reward", "messages", "public"}
    assert main(["export", str(run), "--to", "jsonl", "--out", str(tmp_path / "rows.jsonl")]) == 2


def test_a_run_that_was_cut_off_goes_on_with_the_messages_it_had(tmp_path: Path):
    def spoken() -> list[Any]:
        return [tree.branch(leaf).messages for tree in Saved.open(run).trees() for leaf in tree.leaves()]

    run = tmp_path / "run"
    with Endpoint(turns(said("<calc>1+"), said("<calc>2+"), said("<answer>9"))) as endpoint:
        begin(RunConfig(engine=at(endpoint), prompts=1, strategy=StrategyConfig(options={"n": 4})), run)
        whole, num_whole = spoken(), len(endpoint.requests)
        (journal,) = (run / "journal").glob("*.jsonl")
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[: len(lines) // 2]))
        resume(run)
        again = endpoint.requests[num_whole:]
    assert spoken() == whole
    assert 0 < len(again) < num_whole
    assert {message["content"] for body in again for message in body["messages"] if message["role"] == "assistant"} == {
        "<calc>1+</calc>",
        "<calc>2+</calc>",
    }


@pytest.mark.slow
def test_the_key_is_in_no_file_of_a_run_and_in_no_line_it_writes(tmp_path: Path):
    refused: list[Any] = []

    def model(body: Mapping[str, Any]) -> Any:
        refused.extend([body["messages"]] * (not refused))
        if body["messages"] in refused:
            return Reply(json.dumps({"error": {"message": f"wrong key: Bearer {KEY}"}}).encode(), 400)
        return said(f"<answer>{KEY}", reasoning=f"I was sent {KEY}")

    with Endpoint(model) as endpoint:
        settings = ("engine.model=m", f"engine.base_url={endpoint.url}", "strategy.options.n=2", "prompts=3")
        arguments = ["rollout", "--engine", "openai", "--out", str(tmp_path / "run")]
        command = [sys.executable, "-m", "ramify.cli.main", *arguments, *(a for s in settings for a in ("--set", s))]
        done = subprocess.run(command, check=False, capture_output=True, env={**os.environ, "OPENAI_API_KEY": KEY})
    assert {headers.get("Authorization") for headers in endpoint.headers} == {f"Bearer {KEY}"}
    files = [file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert any(b"wrong key" in data for data in files), done.stderr
    assert not any(KEY.encode() in data for data in [*files, done.stdout, done.stderr])


# -- before the start -----------------------------------------------------------------------------------------------


FIVE = {name: name for name in ("a", "b", "c", "d", "e")}


@pytest.mark.parametrize(
    ("config", "task", "message"),
    [
        ({"strategy": StrategyConfig(name="segments")}, None, "strategy 'segments' grows by numbers of tokens"),
        ({"strategy": StrategyConfig(name="treepo")}, None, "strategy 'treepo' grows by numbers of tokens"),
        ({"strategy": StrategyConfig(name="treerl")}, None, "reads the measure 'logprobs'"),
        ({"growth": GrowthConfig(stop_rule="at2po")}, None, "writes a warning into a turn"),
        ({"format": "chat"}, None, "format 'chat' writes a model's template in token ids"),
        (
            {},
            Small(format=arpo(FIVE), tools=tuple(FunctionTool(look, name=name) for name in FIVE)),
            "the format has 6 stop words, </a>, </b>, </c>, </d>, </e>, </answer>, and engine 'policy' takes 4",
        ),
        ({"format": "arpo"}, None, "the format has tags for the tools ['python', 'search']"),
    ],
)
def test_what_cannot_be_said_in_messages_is_refused_before_the_start(
    config: Mapping[str, Any], task: object | None, message: str
):
    with pytest.raises(ConfigError) as caught:
        grown(lambda body: pytest.fail("it was asked"), None, task=task or Small(), **config)
    assert message in str(caught.value)


def test_a_server_that_takes_more_stop_words_gets_them():
    tools = tuple(FunctionTool(look, name=name) for name in FIVE)
    task = Small(format=arpo(FIVE), tools=tools)
    _, _, requests = chain(turns(said("<answer>3")), task=task, options={"max_stops": 16})
    assert len(requests[0]["stop"]) == 6


def test_native_calls_need_an_engine_that_speaks_in_messages():
    refused = pytest.raises(ConfigError, match="calls tools natively, and engine 'policy' samples tokens")
    with refused:
        rollout_sync(config=RunConfig(), task=looking(), engine=Scripted(), strategy=OneChain)


def test_messages_by_tags_can_be_tried_without_a_server():
    config = RunConfig(format="messages", growth=GrowthConfig(max_response_tokens=4000), task=TaskConfig())
    result = rollout_sync(config=config, task=Small(), engine=Scripted(lambda turn: "<answer>3</answer>"))
    (tree,) = result.trees
    assert {tree.reward(leaf) for leaf in tree.leaves()} == {1.0}
    assert tree.branch(ROOT).messages[-1] == {"role": "user", "content": QUESTION}
