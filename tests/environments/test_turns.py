"""Whole turns: formats read them and write the world's answer as the user's next turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from tests.engines.endpoint import Endpoint, Model, call, calling, said
from tests.environments.worlds import Walk, Walking
from tests.formats.test_chat import BUILTIN, INCREMENTAL, SEARCH, TEMPLATES, chat, template

import ramify
from ramify.core.environment import AgentTurn, Observation, Takes
from ramify.core.format import TurnAction
from ramify.core.problem import Problem
from ramify.core.tool import ToolResult, text_schema
from ramify.environments.task import EnvironmentTask
from ramify.formats.messages import Messages
from ramify.formats.tags import TagFormat
from ramify.testing import Scripted

MODEL = {"engine.name": "openai", "engine.model": "m", "preset": "chains", "prompts": 1, "strategy.options": {"n": 1}}


def grown(endpoint: Endpoint, environment: Any, **settings: Any) -> Any:
    return ramify.rollout_sync(
        task=EnvironmentTask(environment), **{**MODEL, "engine.base_url": endpoint.url, **settings}
    ).trees[0]


def calls_then_ends(tool: str, num_calls: int) -> Model:
    """A model that calls a tool this often along a conversation, and then says that it ends."""

    def model(body: Mapping[str, Any]) -> Mapping[str, Any]:
        num_made = sum(bool(message.get("tool_calls")) for message in body["messages"])
        return calling(call(tool, '{"where": "right"}')) if num_made < num_calls else said("that is all")

    return model


def test_a_turn_of_an_endpoint_is_answered_by_the_user() -> None:
    with Endpoint(lambda body: said("<think>hm</think> right")) as endpoint:
        tree = grown(endpoint, Walking())
    (leaf,) = tree.leaves()
    assert {step.arguments for step in tree.branch(leaf).tool_calls} == {"right"}
    roles = [message["role"] for message in endpoint.requests[2]["messages"]]
    assert roles[-5:] == ["user", "assistant", "user", "assistant", "user"]
    assert endpoint.requests[2]["messages"][-1]["content"].startswith("you are at ")
    assert tree.stop(leaf) in ("done", "env_limit")


@dataclass(frozen=True, kw_only=True)
class Calling(Walking):
    """Takes calls alone, and opens with several messages."""

    name: ClassVar[str] = "calling"
    takes: ClassVar[Takes] = "calls"

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return (text_schema("go", "Go somewhere.", parameter="where"),)

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        messages = [
            {"role": "system", "content": "You walk."},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "where to?"},
            {"role": "user", "content": "to 3"},
        ]
        return [Problem("p", "to 3", {"messages": messages})]

    def world(self, problem: Problem, seed: int) -> Walk:
        return CallWalk()


class CallWalk(Walk):
    def step(self, turn: AgentTurn, seed: int) -> Observation:
        observed = super().step(turn, seed)
        return replace(observed, text=f"{turn.tool}({turn.arguments}): {observed.text}")

    def copy(self) -> "CallWalk":
        return CallWalk(self.place, self.num_steps, list(self.said))


def test_functions_are_called_natively_and_a_conversation_opens_the_path() -> None:
    with Endpoint(calls_then_ends("go", 2)) as endpoint:
        tree = grown(endpoint, Calling())
    (leaf,) = tree.leaves()
    assert [m["content"] for m in endpoint.requests[0]["messages"]] == ["You walk.", "hello", "where to?", "to 3"]
    assert endpoint.requests[0]["tools"][0]["function"]["name"] == "go"
    assert tree.stop(leaf) == "end_of_sequence"
    assert [step.tool for step in tree.branch(leaf).tool_calls] == ["go", "go"]
    assert tree.branch(leaf).tool_calls[0].result.startswith("go(right): you are at ")


class Leading(Calling):
    """Its opening holds an answer that the model did not write."""

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        talk = [("user", "hello"), ("assistant", "<answer>3</answer>"), ("user", "are you sure?")]
        return [Problem("p", "?", {"messages": [{"role": role, "content": content} for role, content in talk]})]


def test_an_assistant_turn_of_the_opening_is_prompt() -> None:
    settings = {"preset": "chains", "prompts": 1, "strategy.options": {"n": 1}}
    chat_format = {
        "format": "chat",
        "format_options.template": str(TEMPLATES / "chatml_tools.jinja"),
        "format_options.opening": "messages",
    }
    run = ramify.rollout_sync(
        task=EnvironmentTask(Leading()), engine=Scripted(lambda turn: "yes"), **{**settings, **chat_format}
    )
    (leaf,) = run.trees[0].leaves()
    branch, (row,) = run.trees[0].branch(leaf), run.rows()
    assert "<answer>3</answer>" in branch.prompt_text and branch.said == "yes"
    assert row.num_prompt == branch.num_prompt and not row.is_sampled[: row.num_prompt].any(), "never trained"


@pytest.mark.parametrize("name", INCREMENTAL)
def test_a_chat_template_writes_the_world_s_answer_as_the_user_s_turn(name: str) -> None:
    format = chat(template(name), BUILTIN)
    written = "".join(span.text for span in format.observe(TurnAction("go"), ToolResult("you are at 2")))
    render = template(name)
    opened = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "go"}]
    tools = [{"type": "function", "function": dict(SEARCH)}]
    whole = render([*opened, {"role": "user", "content": "you are at 2"}], tools, True)
    assert whole.endswith(written) and "you are at 2" in written


@pytest.mark.parametrize("format", [TagFormat(), Messages()])
def test_thinking_is_no_part_of_a_turn(format: Any) -> None:
    assert format.turn("<think>left or right?</think>\n right ") == "right"
    assert format.turn("<think>left or right?</think>") is None


def test_a_failed_step_says_so_in_the_answer() -> None:
    spans = TagFormat().observe(TurnAction("go"), ToolResult("the board is on fire", "crashed"))
    assert "the board is on fire" in "".join(span.text for span in spans)


@dataclass(frozen=True, kw_only=True)
class Several(Calling):
    """Its problems have different tools."""

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return tuple(text_schema(name, f"{name} somewhere.", parameter="where") for name in ("go", "fly", "swim"))

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        return [Problem("p", "to 3", {"tools": ["swim", "go"]})]


def test_a_problem_has_its_own_tools() -> None:
    with Endpoint(calls_then_ends("fly", 1)) as endpoint:
        tree = grown(endpoint, Several())
    assert [tool["function"]["name"] for tool in endpoint.requests[0]["tools"]] == ["go", "swim"]
    (refused,) = tree.branch(tree.leaves()[0]).tool_calls
    assert (refused.status, refused.result) == ("refused", "there is no tool 'fly'; known: go, swim")


def test_an_opening_shows_the_tools_of_its_problem() -> None:
    schemas = [text_schema(name, f"{name} somewhere.") for name in ("go", "fly", "swim")]
    problem = Problem("p", "to 3", {"tools": ["swim"]})
    for format in (
        chat(template("chatml_tools"), BUILTIN, schemas),
        Messages(TagFormat(tags={"go": "g"}), schemas=schemas),
    ):
        some, every = ("".join(span.text for span in format.open(each)) for each in (problem, Problem("p", "to 3")))
        assert "swim somewhere" in some and "fly somewhere" not in some and "fly somewhere" in every
