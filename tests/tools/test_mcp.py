"""MCP servers as tools: real processes, and one real HTTP server of the SDK."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.tools.mcp_calls import PROBLEM, SERVER, ask, called, is_alive, mcp, servers, tools_of, until, used

from ramify.core.errors import ConfigError, ToolError
from ramify.core.segment import ToolCall
from ramify.core.tool import ToolResult, state_of
from ramify.runner.toolbox import Toolbox
from ramify.tools.mcp import Mcp


@pytest.fixture(scope="module")
def listing() -> str:
    """What the server lists, asked once."""
    return str(mcp().recorded()["listed"])


# -- what a server offers ---------------------------------------------------------------------------------------------


def test_every_tool_of_a_server_is_a_tool(listing: str) -> None:
    tools = tools_of(listing)
    assert list(tools)[:5] == ["add", "look", "remember", "recall", "spend"], "both pages, in the server's order"
    assert tools["add"].schema["description"] == "Add two numbers."  # type: ignore[attr-defined]
    assert tools["add"].schema["parameters"]["required"] == ["a", "b"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("only", "branching", "expected"),
    [
        (["add", "look"], {}, {"add": "share", "look": "share"}),
        (["remember"], {}, {"remember": "replay"}),
        (["spend"], {}, {"spend": "refuse"}),
        (["remember", "recall"], {}, {"remember": "replay", "recall": "replay"}),
        (["remember", "recall", "spend"], {}, {"remember": "refuse", "recall": "refuse", "spend": "refuse"}),
        (["remember", "add"], {"add": "share"}, {"remember": "replay", "add": "share"}),
        (["spend", "add"], {"spend": "share"}, {"spend": "share", "add": "share"}),
        (["spend", "add"], {"spend": "replay", "add": "share"}, {"spend": "replay", "add": "share"}),
    ],
)
def test_annotations_say_how_tools_branch_and_options_overrule_them(
    listing: str, only: list[str], branching: dict[str, Any], expected: dict[str, str]
) -> None:
    """What reads joins the state of what changes, so that it sees what its branch has done."""
    tools = tools_of(listing, only=only, branching=branching)
    assert {name: tool.branching for name, tool in tools.items()} == expected


def test_tools_are_chosen_and_renamed(listing: str) -> None:
    tools = tools_of(listing, only=["add", "fault"], rename={"add": "plus"})
    assert list(tools) == ["plus", "fault"]
    assert called(tools, "plus", {"a": 1, "b": 2}).result == "3"


def test_a_recorded_server_needs_not_be_there_and_not_be_asked(listing: str) -> None:
    tools = Mcp(command="no such program", listed=listing).tools
    assert tools[0].name == "add"
    assert set(mcp().recorded()) == {"listed", "cwd"}
    assert Path(mcp(listed=listing).recorded()["cwd"]).is_absolute()


def listed(*tools: dict[str, Any]) -> Mcp:
    """A server that listed these when its run began."""
    usual = {"description": "", "parameters": {}, "branching": "share"}
    return Mcp(command="no such program", listed=json.dumps([usual | tool for tool in tools]))


@pytest.mark.slow
def test_a_server_of_thousands_of_tools_is_read_soon_and_one_that_lists_a_tool_twice_is_refused() -> None:
    made = listed(*({"name": f"a.tool-{i}"} for i in range(30_000)))
    began = time.process_time()
    assert len(made.tools) == 30_000
    assert time.process_time() - began < 5
    with pytest.raises(ConfigError, match="two of its tools are called 'a'; a name calls one"):
        _ = listed({"name": "a"}, {"name": "b"}, {"name": "a"}).tools


def test_what_is_no_list_of_tools_is_refused_as_such() -> None:
    with pytest.raises(ConfigError, match=r"listed = '\[3\]': this is no list of tools"):
        _ = Mcp(command="no such program", listed="[3]").tools


def test_a_server_whose_list_has_no_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="its list of tools has more than 100 pages"):
        _ = mcp("endless").tools


def test_a_schema_of_any_kind_is_read_and_checks_what_it_can() -> None:
    kinds: list[Any] = [{"type": None}, {"type": 3}, {"anyOf": None}, 3, True, {"type": ["string", 4]}, {"enum": 3}]
    for parameters in ({"properties": {"n": kind}, "required": 3} for kind in kinds):
        (tool,) = listed({"name": "a", "parameters": parameters}).tools
        assert tool.fault('{"n": "x"}') is None  # type: ignore[attr-defined]


def test_a_server_is_asked_from_within_a_running_loop() -> None:
    async def main() -> list[str]:
        return [tool.name for tool in mcp(only=["add"]).tools]

    assert asyncio.run(main()) == ["add"]
    assert not servers()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "command = None, url = None: set exactly one of them"),
        ({"command": "x", "url": "http://127.0.0.1"}, "set exactly one of them"),
        ({"url": "127.0.0.1:80"}, "it must begin with http:// or https://"),
        ({"url": "http://127.0.0.1", "args": ["x"]}, "args = ['x']: a server of a url takes none"),
        ({"command": "x", "headers": {"A": "B"}}, "headers = {'A': 'B'}: a server of a command takes none"),
        ({"command": "x", "start_s": 0}, "start_s = 0: it must be above 0"),
        ({"command": "x", "branching": {"a": "fork"}}, "branching.a = 'fork': allowed are 'refuse', 'replay', 'share'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Mcp(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ["ad"]}, "only names the tool 'ad', which it does not list; did you mean 'add'"),
        ({"rename": {"x": "y"}}, "rename names the tool 'x'"),
        ({"branching": {"x": "share"}}, "branching names the tool 'x'"),
        ({"rename": {"add": "look"}}, "two of its tools are called 'look'"),
        ({"only": []}, "offers no tools"),
        ({"rename": {"add": "plus</search>"}}, "no format can call a tool 'plus</search>'; give it a name of letters"),
        ({"rename": {"add": ""}}, "no format can call a tool ''"),
    ],
)
def test_options_that_do_not_fit_the_server_are_refused(listing: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tools_of(listing, **options)
    assert message in str(caught.value)
    assert "MCP server 'mcp'" in str(caught.value)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Mcp(command="no such program"), "command = 'no such program': there is no such program"),
        (Mcp(command=sys.executable, args=["-c", "import sys; sys.exit('no licence')"]), "no licence"),
        (Mcp(command=sys.executable, args=["-c", "print('hello')"]), "no session with the server"),
        (mcp("silent", "chatty", start_s=0.5), "it did not answer in 0.5 s; its last words: hello from the server"),
        (
            mcp(env_from=["NO_SUCH_VARIABLE"]),
            "variable NO_SUCH_VARIABLE, which an MCP server needs, is not set",
        ),
        (Mcp(url="http://127.0.0.1:1/mcp"), "no session with the server: ConnectError"),
    ],
    ids=["no program", "dies", "ends", "silent", "no variable", "nobody there"],
)
def test_a_server_that_does_not_answer_stops_the_run_before_it_begins(made: Mcp, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _ = made.tools
    assert message in str(caught.value)
    assert str(caught.value).startswith("MCP server 'mcp': ")
    assert not servers()


# -- results ----------------------------------------------------------------------------------------------------------


def test_a_result_is_text_data_and_files(listing: str, tmp_path: Path) -> None:
    call = called(tools_of(listing, attachments=str(tmp_path / "files")), "look", "dot")
    assert (call.status, call.result) == ("ok", "seen\n[image/png, 70 bytes]")
    assert call.metadata["structured"] == {"spans": [[1.5, 3.0]], "thing": "dot"}
    (name,) = call.attachments
    assert call.metadata["files"] == [{"name": name, "mime_type": "image/png", "num_bytes": 70}]
    assert Path(name).parent == tmp_path / "files"
    assert Path(name).read_bytes().startswith(b"\x89PNG")
    assert Path(name).name.endswith(".png") and len(Path(name).stem) == 64


def test_every_kind_of_content_has_its_place(listing: str, tmp_path: Path) -> None:
    async def work(box: Toolbox) -> list[ToolCall]:
        return [await ask(box, "look", thing) for thing in ("tone", "file", "page", "link", "file")]

    tone, file, page, link, again = used(tools_of(listing, attachments=str(tmp_path)), work)
    assert tone.result == "seen\n[audio/wav, 70 bytes]"
    assert file.metadata["files"][0]["uri"] == "file:///f"
    assert page.result == "seen\na page"
    assert link.result == "seen\nx http://127.0.0.1/x far away"
    assert (page.attachments, link.attachments) == ((), ())
    assert again.attachments == file.attachments
    assert len(list(tmp_path.iterdir())) == 2, "the same content is one file"


@pytest.mark.parametrize(
    ("how", "status", "text"),
    [
        ("error", "error", "the disk is full"),
        ("junk line", "ok", "still here"),
        ("", "empty", ""),
        ("garbage", "crashed", "the server's answer makes no sense"),
    ],
)
def test_what_a_server_says_is_told(listing: str, how: str, status: str, text: str) -> None:
    call = called(tools_of(listing), "fault", how)
    assert call.status == status
    assert text in call.result
    assert call.num_retries == 0


def test_a_tool_that_the_server_does_not_know_after_all_is_an_error_to_read(listing: str) -> None:
    call = called(tools_of(listing), "ghost")
    assert (call.status, call.result) == ("error", "no 'ghost'")


def test_a_big_result_is_cut_and_big_data_left_out(listing: str) -> None:
    call = called(tools_of(listing), "fault", "big")
    assert call.status == "ok"
    assert len(call.result) <= 65536
    assert "3000000 bytes in all" in call.result
    assert call.metadata == {"structured_bytes": 200_011}
    assert called(tools_of(listing), "fault", "odd").metadata == {"structured_bytes": 32}


def test_arguments_that_do_not_fit_reach_no_server(listing: str) -> None:
    tools = {tool.name: tool for tool in Mcp(command="no such program", listed=listing).tools}
    for name, arguments, fault in [
        ("add", {"a": "one", "b": 2}, 'a = "one": it must be a whole number'),
        ("add", {"a": 1}, "b is missing: it must be a whole number"),
        ("add", "1 + 2", "the arguments are no JSON"),
        ("look", "moon", 'thing = "moon": it must be one of "dot", "tone"'),
    ]:
        call = called(tools, name, arguments)
        assert (call.status, call.is_executed) == ("invalid", False)
        assert fault in call.result


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_tools_that_only_read_share_one_server_for_the_run(listing: str) -> None:
    async def work(box: Toolbox) -> list[str]:
        calls = await asyncio.gather(*(ask(box, "pid") for _ in range(5)), ask(box, "add", {"a": 1, "b": 2}))
        box.release("t")
        return [call.result for call in [*calls[:-1], await ask(box, "pid")]]

    assert len(set(used(tools_of(listing, only=["pid", "add"]), work))) == 1


def test_a_branch_has_a_server_of_its_own_and_a_fork_replays_its_calls(listing: str) -> None:
    async def work(box: Toolbox) -> list[str]:
        one = await ask(box, "remember", "red")
        two = await ask(box, "recall", after=[one])
        blue = await ask(box, "remember", "blue", after=[one, two])
        said = [await ask(box, "recall", after=[one, two, blue])]
        green = await ask(box, "remember", "green", after=[one])
        said.append(await ask(box, "recall", after=[one, green]))
        said.append(await ask(box, "recall"))
        said.append(await ask(box, "recall", after=[ToolCall("remember", "red", "ok", "note 1")]))
        assert box.metrics()["tools/replayed_calls"] == 2
        return [call.result for call in said]

    tools = tools_of(listing, only=["remember", "recall"])
    assert used(tools, work) == ["red; blue", "red; green", "", "red"]


def test_a_replay_that_differs_is_raised(listing: str) -> None:
    async def work(box: Toolbox) -> None:
        with pytest.raises(ToolError, match="replay_diverged"):
            await ask(box, "remember", "blue", after=[ToolCall("remember", "red", "ok", "note 7")])

    used(tools_of(listing, only=["remember"]), work)


def test_a_state_that_cannot_be_repeated_is_refused_to_the_second_branch(listing: str) -> None:
    async def work(box: Toolbox) -> list[str]:
        first = await ask(box, "spend", "coin")
        await ask(box, "recall", after=[first])
        late = [
            await ask(box, name, "coin" if name == "spend" else "{}", after=[first]) for name in ("spend", "recall")
        ]
        return [call.status for call in late]

    assert used(tools_of(listing, only=["spend", "recall"]), work) == ["refused", "refused"]


# -- faults -----------------------------------------------------------------------------------------------------------


def test_a_server_that_dies_in_a_call_is_told_with_its_last_words_and_started_anew(listing: str) -> None:
    async def work(box: Toolbox) -> tuple[ToolCall, ToolCall]:
        return await ask(box, "fault", "die"), await ask(box, "add", {"a": 1, "b": 2})

    died, after = used(tools_of(listing, only=["fault", "add"]), work, max_retries=1)
    assert (died.status, died.num_retries) == ("crashed", 1)
    assert died.result.endswith("Connection closed; its last words: out of memory")
    assert (after.status, after.result) == ("ok", "3")


def test_a_server_that_was_killed_between_calls_is_replaced(listing: str) -> None:
    async def work(box: Toolbox) -> list[str]:
        first = await ask(box, "pid")
        os.kill(int(first.result), signal.SIGKILL)
        return [first.result, (await ask(box, "pid")).result]

    before, after = used(tools_of(listing, only=["pid"]), work)
    assert before != after
    assert after.isdigit()


def test_a_state_that_died_with_its_server_is_made_again(listing: str) -> None:
    async def work(box: Toolbox) -> list[ToolCall]:
        one = await ask(box, "remember", "red")
        died = await ask(box, "fault", "die", after=[one])
        return [died, await ask(box, "recall", after=[one, died])]

    died, after = used(tools_of(listing, only=["remember", "recall", "fault"]), work, max_retries=0)
    assert (died.status, after.result) == ("crashed", "red")


@pytest.mark.slow
def test_a_server_that_never_answers_is_left_at_the_deadline_and_answers_others_meanwhile(listing: str) -> None:
    async def work(box: Toolbox) -> tuple[ToolCall, ToolCall]:
        hanging = asyncio.create_task(ask(box, "fault", "hang"))
        quick = await ask(box, "add", {"a": 1, "b": 2})
        return await hanging, quick

    late, quick = used(tools_of(listing, only=["fault", "add"]), work, deadline_s=1.0)
    assert (late.status, quick.result) == ("timeout", "3")


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("only", [["fault"], ["fault", "remember"]], ids=["shared", "of a branch"])
def test_a_cancelled_call_leaves_nothing_behind(listing: str, only: list[str], delay_s: float) -> None:
    async def work(box: Toolbox) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(delay_s):
                await ask(box, "fault", "hang")

    used(tools_of(listing, only=only), work)


@pytest.mark.slow
def test_a_server_that_will_not_end_is_killed(listing: str) -> None:
    began = time.monotonic()
    call = called(tools_of(listing, "stubborn", only=["pid"]), "pid")
    assert not is_alive(int(call.result))
    assert time.monotonic() - began < 10


HOLDER = """
import asyncio, sys
from ramify.core.problem import Problem
from ramify.tools.mcp import Mcp

async def main():
    args = [sys.argv[1], "stubborn", "child"]
    (tool,) = Mcp(command=sys.executable, args=args, only=["pid"], listed=sys.argv[2]).tools
    session = await tool.open(Problem("p", "q"))
    print((await session.call("{}")).text, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.slow
def test_no_server_outlives_a_killed_process(listing: str) -> None:
    """Not even one that ignores the end of its input and SIGTERM, nor what it has started itself."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, SERVER, listing], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    server = int(holder.stdout.readline())
    names = [entry.name for entry in Path("/proc").iterdir()]
    group = [int(name) for name in names if name.isdigit() and is_in_group_of(int(name), server)]
    assert len(group) == 3, "the guard, the server and its child"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    until(lambda: not any(map(is_alive, group)))


def is_in_group_of(pid: int, other: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgid(other)
    except ProcessLookupError:
        return False


def test_a_server_learns_no_variable_that_is_not_named(listing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("WEATHER_KEY", "for the server")
    options = {"only": ["environment"], "env": {"MODE": "test"}, "env_from": ["WEATHER_KEY"]}
    names = set(called(tools_of(listing, **options), "environment").result.split())
    assert {"MODE", "WEATHER_KEY"} <= names
    assert names <= {"MODE", "WEATHER_KEY", "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}


# -- a server of the SDK, by HTTP -------------------------------------------------------------------------------------

HTTP_SERVER = """
import socket, sys, uvicorn
from typing import Any
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("weather")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def forecast(city: str, days: int = 1) -> dict[str, Any]:
    "Say the weather."
    if city == "nowhere":
        raise ValueError("no such city")
    return {"city": city, "days": days}

class Guarded:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != b"Bearer 123":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.app(scope, receive, send)

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(Guarded(server.streamable_http_app()), log_level="error")).run(sockets=[listener])
"""


@contextmanager
def http_server(port: int = 0) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", HTTP_SERVER, str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_a_server_behind_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_AUTHORIZATION", "Bearer 123")
    with http_server() as port:
        url = f"http://127.0.0.1:{port}/mcp"
        with pytest.raises(ConfigError, match="MCP server 'weather': it cannot be asked for its tools"):
            _ = Mcp(name="weather", url=url).tools
        made = Mcp(name="weather", url=url, headers={"Authorization": "WEATHER_AUTHORIZATION"})
        tools = {tool.name: tool for tool in made.tools}
        assert tools["forecast"].branching == "share"

        async def work(box: Toolbox) -> list[ToolCall]:
            return [await ask(box, "forecast", {"city": city}) for city in ("Rome", "nowhere")]

        rome, nowhere = used(tools, work)
    assert rome.status == "ok"
    assert json.loads(rome.result) == {"city": "Rome", "days": 1}
    assert rome.metadata["structured"] == {"city": "Rome", "days": 1}
    assert nowhere.status == "error"
    assert "Error executing tool forecast" in nowhere.result
    gone = called(tools, "forecast", {"city": "Rome"}, max_retries=0)
    assert gone.status == "crashed"


def test_a_session_is_itself_without_a_toolbox(listing: str) -> None:
    async def main() -> list[ToolResult]:
        tool = tools_of(listing, only=["add"])["add"]
        session = await tool.open(PROBLEM)
        assert await session.fork() is session
        results = [await session.call('{"a": 1, "b": 2}'), await session.call('{"a": 1}')]
        await session.close()
        await tool.let_go()  # type: ignore[attr-defined]
        return results

    good, bad = asyncio.run(main())
    assert good == ToolResult("3")
    assert (bad.status, "b is missing" in bad.text) == ("error", True)


def test_servers_of_one_name_have_states_of_their_own(listing: str) -> None:
    one, other = (tools_of(listing, only=["remember"])["remember"] for _ in range(2))
    assert state_of(one) != state_of(other)
