"""Tools that the configuration names, from the setting to the tree, the journal and the exports."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runner.parts import Listening, OneChain, Small, only_leaf

from ramify.config.configure import from_toml, resolve, to_toml
from ramify.config.run_config import EngineConfig, GrowthConfig, RunConfig, ToolConfig, ToolsConfig
from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.segment import ToolCall
from ramify.core.tree import Tree
from ramify.engines.shipped import DATA
from ramify.engines.tokenizer import TokenizerFile
from ramify.rows import rows_of
from ramify.rows.records import record
from ramify.rows.sft import examples
from ramify.rows.sft import record as example_record
from ramify.runner.folder import begin
from ramify.runner.library import rollout_sync
from ramify.runner.saved import Saved
from ramify.runner.tools import isolation_of, listed, tools_of
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn
from ramify.tools.calculator import Calculator

BUILTIN = DATA / "builtin"
MCP_SERVER = str(Path(__file__).parents[1] / "tools" / "mcp_server.py")
GROWTH = GrowthConfig(max_response_tokens=4000)

TOOLS_FILE = '''
import ramify


@ramify.tool
def weather(city: str, days: int = 1) -> dict:
    """Say the weather."""
    return {"city": city, "days": days}


def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


def untyped(number):
    return number


class Greeter:
    branching = "share"

    def __init__(self, word: str, times: int = 1, name: str = "greeter"):
        self.name, self.word, self.times = name, word, times

    async def open(self, problem):
        return self

    async def call(self, arguments):
        return ramify.ToolResult(" ".join([self.word] * self.times + [arguments]))

    async def fork(self):
        return self

    async def close(self):
        pass


greeter = Greeter("hello")
'''
MCP_OPTIONS = {"command": sys.executable, "args": [MCP_SERVER], "only": ["add", "look"], "rename": {"add": "plus"}}


@pytest.fixture
def tools_file(tmp_path: Path) -> str:
    """A user's file, of a name of its own: a file is imported once."""
    path = tmp_path / f"tools_{abs(hash(str(tmp_path)))}.py"
    path.write_text(TOOLS_FILE, "utf-8")
    return str(path)


def speaking(*turns: str, codec: Any = None) -> Listening:
    """An engine that says `turns` one after the other, by how many answers of tools it has seen."""

    def rule(turn: ScriptedTurn) -> str:
        seen = sum(turn.context.count(mark) for mark in ("<result>", "<|tool|>"))
        return turns[min(seen, len(turns) - 1)]

    return Listening(Scripted(rule, **({} if codec is None else {"codec": codec})))


def grown(engine: Listening, use: Mapping[str, ToolConfig], **config: Any) -> tuple[Tree, int]:
    settings = RunConfig(growth=GROWTH, tools=ToolsConfig(use=use), **config)
    return only_leaf(
        rollout_sync(config=settings, engine=engine, task=Small(), strategy=OneChain)  # type: ignore[arg-type]
    )


def calls_of(grown: tuple[Tree, int]) -> list[tuple[str, str, str, str]]:
    tree, leaf = grown
    return [(call.tool, call.arguments, call.status, call.result) for call in tree.branch(leaf).tool_calls]


def calling(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


# -- by tags and by chat ----------------------------------------------------------------------------------------------


def test_tools_of_the_configuration_have_tags_of_their_names(tools_file: str) -> None:
    use = {
        "weather": ToolConfig(kind=f"{tools_file}:weather"),
        "twice": ToolConfig(kind=f"{tools_file}:double"),
        "greet": ToolConfig(kind=f"{tools_file}:Greeter", options={"word": "hi", "times": 2}),
        "notes": ToolConfig(kind="mcp", options=MCP_OPTIONS),
    }
    engine = speaking(
        "<weather>Rome</weather>",
        '<twice>{"number": 21}</twice>',
        "<greet>Ann</greet>",
        '<plus>{"a": 1, "b": 2}</plus>',
        "<twice>21</twice>",
        "<calc>1+2</calc>",
        "<answer>3</answer>",
    )
    assert calls_of(grown(engine, use)) == [
        ("weather", "Rome", "ok", '{"city": "Rome", "days": 1}'),
        ("twice", '{"number": 21}', "ok", "42"),
        ("greet", "Ann", "ok", "hi hi Ann"),
        ("plus", '{"a": 1, "b": 2}', "ok", "3"),
        ("twice", "21", "invalid", "the arguments must be a JSON object, not 21"),
        ("calculator", "1+2", "ok", "3 : 3"),
    ]
    assert "</plus>" in engine.requests[0].stops


def test_a_named_tag_format_has_tags_for_them_too(tools_file: str) -> None:
    file = Path(tools_file)
    file.write_text(TOOLS_FILE + '\nfrom ramify.formats.arpo import arpo\nSPOKEN = arpo({"calculator": "calc"})\n')
    use = {"weather": ToolConfig(kind=f"{tools_file}:weather")}
    engine = speaking("<weather>Rome</weather>", "<answer>3</answer>")
    assert calls_of(grown(engine, use, format=f"{tools_file}:SPOKEN"))[0][2] == "ok"


def test_a_chat_model_calls_them_as_functions(tools_file: str) -> None:
    use = {
        "weather": ToolConfig(kind=f"{tools_file}:weather"),
        "notes": ToolConfig(kind="mcp", options=MCP_OPTIONS),
    }
    engine = speaking(
        calling("weather", city="Rome", days=2),
        calling("plus", a=1, b=2),
        calling("look", thing="page"),
        "done",
        codec=TokenizerFile(BUILTIN / "tokenizer.json"),
    )
    tree, leaf = grown(engine, use, format="chat")
    assert [call[2:] for call in calls_of((tree, leaf))] == [
        ("ok", '{"city": "Rome", "days": 2}'),
        ("ok", "3"),
        ("ok", "seen\na page"),
    ]


def test_arguments_that_do_not_fit_are_corrected_and_the_path_goes_on(tools_file: str) -> None:
    use = {
        "weather": ToolConfig(kind=f"{tools_file}:weather"),
        "notes": ToolConfig(kind="mcp", options=MCP_OPTIONS),
    }
    engine = speaking(
        calling("weather", city="Rome", days="two"),
        calling("weather", town="Rome"),
        calling("plus", a="one", b=2),
        calling("look", thing="moon"),
        '<tool_call>{"name": "weather", "arguments": {"city": }}</tool_call>',
        calling("weather", city="Rome"),
        "done",
        codec=TokenizerFile(BUILTIN / "tokenizer.json"),
    )
    tree, leaf = grown(engine, use, format="chat")
    faults = [
        'the arguments do not fit: days = "two": it must be a whole number',
        "the arguments do not fit: city is missing: it must be a text; there is no town; known: city, days",
        'the arguments do not fit: a = "one": it must be a whole number',
        'the arguments do not fit: thing = "moon": it must be one of "dot", "tone", "file", "page", "link"',
    ]
    calls = calls_of((tree, leaf))
    assert [call[2:] for call in calls[:4]] == [("invalid", fault) for fault in faults]
    assert calls[4][2] == "invalid" and "this is no JSON" in calls[4][3]
    assert calls[5][2] == "ok"
    text = tree.branch(leaf).transcript
    assert all(f"Error: {fault}" in text for fault in faults)
    assert tree.spent()["policy"].tool_calls == 1, "only what was carried out is a call"


def test_two_tools_of_a_task_with_one_name_are_refused(tools_file: str) -> None:
    task = Small(tools=(Calculator(), Calculator()))
    with pytest.raises(ConfigError, match="two tools are called 'calculator'"):
        rollout_sync(config=RunConfig(), engine=Scripted(), task=task, strategy=OneChain)


def test_a_tool_that_takes_the_tag_of_another_is_told_how_to_replace_it(tools_file: str) -> None:
    entry = {"calc": {"kind": f"{tools_file}:weather"}}
    with pytest.raises(
        ConfigError, match=r"the tag <calc> calls the task's tool 'calculator'; write tools\.use\.calculator"
    ):
        rollout_sync(prompts=1, engine="scripted", tools__use=entry)


# -- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tools.use.wether.kind=FILE:wether"], "did you mean 'weather'"),
        (["tools.use.w.kind=FILE:weather", "tools.use.w.options.deadline=3"], "did you mean 'deadline_s'"),
        (["tools.use.w.kind=FILE:weather", "tools.use.w.options.deadline_s=soon"], "w.options.deadline_s: got 'soon'"),
        (["tools.use.w.kind=FILE:weather", "tools.use.w.options.branching=fork"], "allowed are 'share', 'replay'"),
        (["tools.use.g.kind=FILE:Greeter", "tools.use.g.options.wrod=x"], "did you mean 'word'"),
        (["tools.use.g.kind=FILE:Greeter"], "tools.use.g.options: it needs 'word'"),
        (["tools.use.g.kind=FILE:Greeter", "tools.use.g.options.word=3"], "g.options.word: got 3"),
        (["tools.use.g.kind=FILE:greeter", "tools.use.g.options.word=x"], "is a tool already and takes none"),
        (["tools.use.u.kind=FILE:untyped"], "parameter 'number' has no type hint"),
        (["tools.use.m.kind=mpc"], "unknown tool 'mpc'; did you mean 'mcp'"),
        (["tools.use.m.kind=mcp"], "command = None, url = None: set exactly one of them"),
        (["tools.use.m.kind=mcp", "tools.use.m.options.comand=x"], "m.options.comand: unknown key"),
        (["tools.use.m.kind=mcp", "tools.use.m.options.command=3"], "m.options.command: got 3"),
        (["tools.use.m.kind=mcp", "tools.use.m.options.command=x", "tools.use.m.options.args=x"], "args: got 'x'"),
        (
            ["tools.use.m.kind=mcp", "tools.use.m.options.command=x", "tools.use.m.options.branching.a=frok"],
            "m.options.branching: got {'a': 'frok'}",
        ),
        (["tools.use.m.kid=mcp"], "tools.use.m.kid: unknown key; did you mean 'kind'"),
    ],
)
def test_what_is_wrong_with_a_tool_is_said_before_anything_starts(
    tools_file: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(overrides=[line.replace("FILE", tools_file) for line in overrides])
    assert message in str(caught.value)
    assert "tools.use." in str(caught.value)


def test_a_configuration_names_tools_and_keeps_them(tools_file: str) -> None:
    text = f"""
    [tools.use.weather]
    kind = {json.dumps(f"{tools_file}:weather")}
    options = {{ deadline_s = 5.0, branching = "refuse" }}

    [tools.use.notes]
    kind = "mcp"

    [tools.use.notes.options]
    command = {json.dumps(sys.executable)}
    args = [{json.dumps(MCP_SERVER)}]
    only = ["add"]
    branching = {{ add = "share" }}
    """
    config = from_toml(text)
    known = listed(config.tools)
    assert json.loads(known.use["notes"].options["listed"])[0]["name"] == "add"
    kept = from_toml(to_toml(RunConfig(tools=known)))
    assert kept.tools == known
    tools = {tool.name: tool for tool in tools_of(Small(), kept.tools)}  # type: ignore[arg-type]
    assert {name: tool.branching for name, tool in tools.items()} == {
        "calculator": "fork",
        "weather": "refuse",
        "add": "share",
    }


def test_a_tool_takes_the_place_of_the_tasks_tool_of_its_name(tools_file: str) -> None:
    use = {"calculator": ToolConfig(kind=f"{tools_file}:double")}
    (tool,) = tools_of(Small(), ToolsConfig(use=use))  # type: ignore[arg-type]
    assert not isinstance(tool, Calculator)


def test_a_name_calls_one_tool(tools_file: str) -> None:
    use = {
        "plus": ToolConfig(kind=f"{tools_file}:double"),
        "notes": ToolConfig(
            kind="mcp", options={**MCP_OPTIONS, "listed": json.dumps([listing("add"), listing("look")])}
        ),
    }
    with pytest.raises(ConfigError, match=r"tools.use.plus and tools.use.notes both have a tool 'plus'"):
        tools_of(Small(), ToolsConfig(use=use))  # type: ignore[arg-type]


def listing(name: str) -> dict[str, Any]:
    return {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}, "branching": "share"}


def test_tools_without_walls_say_so() -> None:
    assert isolation_of([Calculator()]) == "none"


# -- a run that is kept -----------------------------------------------------------------------------------------------


def test_a_finished_run_is_read_without_its_server(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(Path(MCP_SERVER).read_text("utf-8"), "utf-8")
    options = {"command": sys.executable, "args": [str(script)], "only": ["add"]}
    config = RunConfig(
        prompts=1,
        engine=EngineConfig(name="scripted"),
        tools=ToolsConfig(use={"notes": ToolConfig(kind="mcp", options=options)}),
    )
    begin(config, tmp_path / "run")
    script.unlink()
    saved = Saved.open(tmp_path / "run")
    assert len(list(saved.trees())) == 1
    assert json.loads(saved.config.tools.use["notes"].options["listed"])[0]["name"] == "add"


# -- observations of any kind -----------------------------------------------------------------------------------------

VIDEO_FILE = '''
from pathlib import Path

import ramify


@ramify.tool
def ground(query: str) -> ramify.ToolResult:
    """Find where in the video something happens."""
    spans = [[1.5, 3.0], [7.25, 8.0]]
    frames = [Path(__file__).with_name(f"frame_{start}.png") for start, _ in spans]
    return ramify.ToolResult("twice", metadata={"spans": spans}, attachments=tuple(map(str, frames)))
'''


@pytest.mark.covers("S1.6")
def test_spans_of_time_and_pictures_go_with_an_observation_and_never_into_ids(tmp_path: Path) -> None:
    """A video agent's grounding tool: its text is all that a model of tokens reads."""
    file = tmp_path / f"video_{abs(hash(str(tmp_path)))}.py"
    file.write_text(VIDEO_FILE, "utf-8")
    config = RunConfig(prompts=1, growth=GROWTH, tools=ToolsConfig(use={"ground": ToolConfig(kind=f"{file}:ground")}))
    engine = speaking("<ground>a dog barks</ground>", "<answer>3</answer>")
    result = rollout_sync(
        [Problem("p", "make 3 from 1 2")],
        config=config,
        engine=engine,
        task=Small(),
        strategy=OneChain,  # type: ignore[arg-type]
    )
    tree, leaf = only_leaf(result)
    call = tree.branch(leaf).tool_calls[0]
    frames = tuple(str(tmp_path / f"frame_{start}.png") for start in (1.5, 7.25))
    assert (call.result, call.metadata, call.attachments) == ("twice", {"spans": [[1.5, 3.0], [7.25, 8.0]]}, frames)
    assert tree.branch(leaf).pieces[2].segment.attachments == frames
    assert "frame" not in tree.branch(leaf).text and "7.25" not in tree.branch(leaf).text

    (row,) = rows_of(tree)
    exported = record(row)
    (told,) = [span["call"] for span in exported["spans"] if span["call"] is not None]
    assert told == {
        "tool": "ground",
        "arguments": "a dog barks",
        "status": "ok",
        "metadata": {"spans": [[1.5, 3.0], [7.25, 8.0]]},
        "attachments": list(frames),
    }
    assert np.array_equal(row.ids, tree.branch(leaf).ids)
    (example,) = examples(tree, leaves="best")
    (observed,) = [m for m in example_record(example)["messages"] if m["role"] == "tool"]
    assert observed["attachments"] == list(frames)
    assert observed["metadata"] == {"spans": [[1.5, 3.0], [7.25, 8.0]]}
    json.dumps(exported)


@pytest.mark.covers("S1.6")
def test_they_are_in_the_journal_and_in_the_tree_that_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / f"video_{abs(hash(str(tmp_path)))}.py"
    file.write_text(VIDEO_FILE, "utf-8")
    task = tmp_path / f"task_{abs(hash(str(tmp_path)))}.py"
    task.write_text(SCRIPT_FILE, "utf-8")
    overrides = [
        f"engine.name={task}:Speaker",
        f"tools.use.ground.kind={file}:ground",
        "prompts=1",
        "growth.max_response_tokens=400",
        "strategy.options.n=1",
    ]
    begin(resolve(preset="chains", overrides=overrides).config, tmp_path / "run")
    (tree,) = Saved.open(tmp_path / "run").trees()
    (leaf,) = tree.leaves()
    calls: tuple[ToolCall, ...] = tree.branch(leaf).tool_calls
    assert calls[0].metadata == {"spans": [[1.5, 3.0], [7.25, 8.0]]}
    assert len(calls[0].attachments) == 2
    journal = "".join(part.read_text("utf-8", "replace") for part in (tmp_path / "run" / "journal").iterdir())
    assert "frame_1.5.png" in journal


SCRIPT_FILE = """
from ramify.testing.scripted import Scripted


class Speaker(Scripted):
    def __init__(self):
        super().__init__(lambda turn: ANSWER if "<result>" in turn.context else "<ground>a dog</ground>")


ANSWER = "<answer>3</answer>"
"""
