import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from ramify.config.run_config import ToolsConfig
from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.errors import ConfigError, ToolError
from ramify.core.format import ToolAction
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.tool import Branching, Tool, ToolResult
from ramify.runner.toolbox import Toolbox
from ramify.testing.clock import run_virtual
from ramify.testing.notebook import Notebook
from ramify.tools.calculator import Calculator
from ramify.tools.function import FunctionTool

T = TypeVar("T")
PROBLEM = Problem("p", "make 99 from 13 7 1 5", secret={"answer": "hidden"})


@dataclass
class Recorder:
    """A tool that adds up its arguments; how it behaves otherwise is `act`'s."""

    branching: Branching = "fork"
    act: Callable[[str], Awaitable[object] | object] = lambda arguments: None
    name: str = "adder"
    journal: list[str] = field(default_factory=list)
    """What all its sessions have seen, a line an event."""
    num_lost: int = 0
    """Forks that will fail."""

    async def open(self, problem: Problem) -> "RecorderSession":
        assert not problem.secret
        self.journal.append("open")
        return RecorderSession(self, 0)


@dataclass
class RecorderSession:
    tool: Recorder
    total: int

    async def call(self, arguments: str) -> Any:
        said = self.tool.act(arguments)
        if isinstance(said, Awaitable):
            said = await said
        self.tool.journal.append(f"call {arguments} at {self.total}")
        self.total += int(arguments) if arguments.isdigit() else 0
        return ToolResult(str(self.total)) if said is None else said

    async def fork(self) -> "RecorderSession":
        if self.tool.num_lost:
            self.tool.num_lost -= 1
            raise ToolError("sandbox_lost")
        self.tool.journal.append("fork")
        return RecorderSession(self.tool, self.total)

    async def close(self) -> None:
        self.tool.journal.append("close")


def branch(*calls: ToolCall) -> Branch:
    """A branch on which these calls were answered."""
    pieces = [Piece(0, Segment("prompt", token_array([1])))]
    for node, call in enumerate(calls, 1):
        pieces.append(Piece(node, Segment("sampled", token_array([2]))))
        pieces.append(Piece(node, Segment("given", token_array([3]), tool_call=call)))
    return Branch(ByteCodec(), len(calls), tuple(pieces))


def restored(*calls: ToolCall) -> list[ToolCall]:
    """The same calls as a store gives them back: equal, but other objects."""
    return [ToolCall(c.tool, c.arguments, c.status, c.result) for c in calls]


def toolbox(*tools: Tool, config: ToolsConfig | None = None) -> Toolbox:
    return Toolbox(tools, config, problems={"t": PROBLEM, "u": PROBLEM})


def run(main: Coroutine[Any, Any, T]) -> T:
    return run_virtual(main)


async def chain(box: Toolbox, tool: str, *arguments: str, on: Sequence[ToolCall] = ()) -> list[ToolCall]:
    """Calls one after another on one branch."""
    calls = list(on)
    for text in arguments:
        calls.append(await box.call("t", branch(*calls), ToolAction(tool, text)))
    return calls[len(on) :]


def results(calls: Sequence[ToolCall]) -> list[tuple[str, str]]:
    return [(call.status, call.result) for call in calls]


# -- branching ---------------------------------------------------------------------------------------------------------


def test_a_forked_branch_goes_on_from_the_state_at_its_fork() -> None:
    async def main() -> None:
        box = toolbox(Calculator())
        first, second = await chain(box, "calculator", "7+1", "13*5")
        assert first.result == "8 : 13 5 8"
        assert second.result == "65 : 8 65"
        assert results(await chain(box, "calculator", "13-5", on=[first])) == [("ok", "8 : 8 8")]
        assert results(await chain(box, "calculator", "13-7")) == [("ok", "6 : 1 5 6")]
        assert box.metrics()["tools/replayed_calls"] == 0
        await box.close()

    run(main())


def test_two_siblings_that_made_the_same_call_keep_states_of_their_own() -> None:
    async def main() -> list[tuple[str, str]]:
        tool = Recorder("replay")
        box = toolbox(tool)
        one, other = await asyncio.gather(chain(box, "adder", "5"), chain(box, "adder", "5"))
        ended = [*await chain(box, "adder", "1", on=one), *await chain(box, "adder", "2", on=other)]
        assert tool.journal.count("open") == 2
        await box.close()
        return results(ended)

    assert run(main()) == [("ok", "6"), ("ok", "7")]


@pytest.mark.parametrize("branching", ["fork", "replay"])
def test_a_branch_read_back_from_a_store_is_replayed_and_compared(branching: Branching) -> None:
    async def main() -> list[str]:
        tool = Recorder(branching)
        calls = await chain(toolbox(tool), "adder", "5", "6")
        tool.journal.clear()
        box = toolbox(tool)
        assert results(await chain(box, "adder", "7", on=restored(*calls))) == [("ok", "18")]
        assert box.metrics()["tools/replayed_calls"] == 2
        return [line for line in tool.journal if line.startswith("call")]

    assert run(main()) == ["call 5 at 0", "call 6 at 5", "call 7 at 11"]


def test_a_replay_that_differs_is_raised_and_says_how() -> None:
    async def main() -> None:
        box = toolbox(Recorder("replay"))
        past = [ToolCall("adder", "5", "ok", "5"), ToolCall("adder", "6", "ok", "12")]
        with pytest.raises(ToolError, match=r"adder '6' had given ok '12' and now gave ok '11'") as caught:
            await chain(box, "adder", "7", on=past)
        assert caught.value.reason == "replay_diverged"

    run(main())


def test_a_replay_that_fails_is_no_observation_of_the_next_call() -> None:
    async def fail(arguments: str) -> None:
        raise RuntimeError("the disk is gone")

    async def main() -> None:
        with pytest.raises(ToolError, match=r"replay_diverged.*had answered and now failed.*the disk is gone"):
            await chain(toolbox(Recorder("fork", act=fail)), "adder", "7", on=[ToolCall("adder", "5", "ok", "5")])

    run(main())


def test_a_replay_whose_sandbox_is_lost_is_tried_again() -> None:
    lost = iter([True, False])

    async def lose(arguments: str) -> None:
        if arguments == "5" and next(lost):
            raise ToolError("sandbox_lost")

    async def main() -> list[ToolCall]:
        past = [ToolCall("adder", "5", "ok", "5")]
        return await chain(toolbox(Recorder("fork", act=lose)), "adder", "7", on=past)

    (call,) = run(main())
    assert (call.status, call.result, call.num_retries) == ("ok", "12", 1)


def test_a_session_that_moved_on_is_replayed_for_the_sibling() -> None:
    async def main() -> None:
        box = toolbox(Notebook())
        written = await chain(box, "notebook", "write red", "write blue")
        sibling = await chain(box, "notebook", "write green", "read", on=written[:1])
        assert sibling[-1].result == "1. red\n2. green"
        assert results(await chain(box, "notebook", "read", on=written)) == [("ok", "1. red\n2. blue")]
        assert box.metrics()["tools/replayed_calls"] == 1

    run(main())


def test_a_tool_that_refuses_to_branch_answers_the_first_branch_only() -> None:
    async def main() -> None:
        tool = Recorder("refuse")
        box = toolbox(tool)
        trunk = await chain(box, "adder", "5", "6")
        late = await chain(box, "adder", "7", on=trunk[:1])
        assert late[0].status == "refused"
        assert not late[0].is_executed
        assert "state is another branch's" in late[0].result
        assert results(await chain(box, "adder", "8", on=trunk)) == [("ok", "19")]
        assert results(await chain(box, "adder", "9")) == [("ok", "9")]
        assert box.metrics()["tools/refused_calls"] == 1

    run(main())


def test_a_tool_without_state_has_one_session_a_tree() -> None:
    async def main() -> None:
        tool = Recorder("share")
        box = toolbox(tool)
        await asyncio.gather(*(box.call(tree, branch(), ToolAction("adder", "1")) for tree in "tutut"))
        assert tool.journal.count("open") == 2
        box.release("t")
        await box.close()
        assert tool.journal.count("close") == 2

    run(main())


def test_the_first_states_of_many_chains_come_from_one_opening() -> None:
    async def main() -> None:
        tool = Recorder("fork", act=lambda arguments: asyncio.sleep(1))
        box = toolbox(tool)
        await asyncio.gather(*(chain(box, "adder", str(n)) for n in range(8)))
        assert (tool.journal.count("open"), tool.journal.count("fork")) == (1, 8)

    run(main())


def test_calls_that_timed_out_crashed_or_were_refused_leave_the_state_before_them() -> None:
    async def main() -> None:
        box = toolbox(Recorder("replay"))
        past = [
            ToolCall("adder", "5", "ok", "5"),
            ToolCall("adder", "99", "timeout", ""),
            ToolCall("adder", "99", "crashed", "x"),
            ToolCall("adder", "99", "refused", "x"),
            ToolCall("", "99", "invalid", "x"),
            ToolCall("other", "99", "ok", "x"),
        ]
        assert results(await chain(box, "adder", "1", on=past)) == [("ok", "6")]

    run(main())


def test_at_most_so_many_sessions_are_parked_and_evicted_ones_are_rebuilt_from_the_nearest_state() -> None:
    async def main() -> None:
        tool = Recorder("fork")
        box = toolbox(tool, config=ToolsConfig(max_parked=3))
        calls = await chain(box, "adder", "1", "2", "3", "4", "5")
        metrics = box.metrics()
        assert (metrics["tools/parked_sessions"], metrics["tools/evicted_sessions"]) == (3, 3)
        assert results(await chain(box, "adder", "9", on=calls[:3])) == [("ok", "15")]
        assert box.metrics()["tools/replayed_calls"] == 0
        assert results(await chain(box, "adder", "9", on=calls[:1])) == [("ok", "10")]
        assert box.metrics()["tools/replayed_calls"] == 1
        await box.close()
        opened, closed = (sum(word in line for line in tool.journal) for word in ("open", "close"))
        assert closed == opened + tool.journal.count("fork")

    run(main())


def test_a_session_that_cannot_be_forked_is_lost_and_rebuilt() -> None:
    async def main() -> None:
        tool = Recorder("fork")
        box = toolbox(tool)
        calls = await chain(box, "adder", "5")
        tool.num_lost = 1
        (call,) = await chain(box, "adder", "1", on=calls)
        assert (call.result, call.num_retries) == ("6", 1)
        assert box.metrics()["tools/replayed_calls"] == 1

    run(main())


def test_a_state_whose_ancestors_are_all_lost_is_rebuilt_from_the_beginning() -> None:
    async def main() -> None:
        tool = Recorder("fork")
        box = toolbox(tool)
        calls = await chain(box, "adder", "5", "6", "7", "8")
        tool.num_lost = 4
        (call,) = await chain(box, "adder", "1", on=calls)
        assert (call.result, call.num_retries) == ("27", 1)
        assert box.metrics()["tools/replayed_calls"] == 4

    run(main())


def test_a_released_tree_leaves_no_session_even_where_calls_were_running() -> None:
    async def main() -> None:
        tool = Recorder("fork", act=lambda arguments: asyncio.sleep(5))
        box = toolbox(tool)
        calling = asyncio.create_task(chain(box, "adder", "1"))
        await asyncio.sleep(1)
        box.release("t")
        await calling
        await box.close()
        assert box.metrics()["tools/parked_sessions"] == 0
        assert tool.journal.count("close") == 2

    run(main())


# -- faults ------------------------------------------------------------------------------------------------------------


def alone(tool: Tool, arguments: str = "1", config: ToolsConfig | None = None) -> tuple[ToolCall, float]:
    """One call and the virtual seconds it took."""

    async def main() -> tuple[ToolCall, float]:
        box = toolbox(tool, config=config)
        call = await box.call("t", branch(), ToolAction(tool.name, arguments))
        seconds = asyncio.get_running_loop().time()
        await box.close()
        return call, seconds

    return run(main())


@pytest.mark.covers("S0.5")
def test_a_tool_that_hangs_times_out_and_the_branch_goes_on_from_before() -> None:
    async def hang_on_13(arguments: str) -> None:
        if arguments == "13":
            await asyncio.Event().wait()

    async def main() -> None:
        box = toolbox(Recorder("replay", act=hang_on_13))
        first, hung, after = await chain(box, "adder", "5", "13", "6")
        assert (hung.status, hung.duration_s, hung.num_retries) == ("timeout", 120.0, 0)
        assert results([first, after]) == [("ok", "5"), ("ok", "11")]

    run(main())


def test_a_tool_that_ignores_its_cancellation_delays_the_branch_by_a_second_only() -> None:
    async def stubborn(arguments: str) -> ToolResult:
        while True:
            try:
                await asyncio.sleep(1e5)
                return ToolResult("at last")
            except asyncio.CancelledError:
                continue

    call, seconds = alone(Recorder("fork", act=stubborn))
    assert call.status == "timeout"
    assert seconds == 121.0


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), KeyError("boom"), SystemExit("boom"), TimeoutError("boom"), RecursionError("boom")]
)
def test_a_tool_that_raises_crashes_alone(error: BaseException) -> None:
    def fail(arguments: str) -> None:
        raise error

    call, _ = alone(Recorder("fork", act=fail))
    assert (call.status, call.num_retries) == ("crashed", 0)
    assert "boom" in call.result


def test_a_tool_that_cancels_itself_crashes_alone() -> None:
    def leave(arguments: str) -> None:
        raise asyncio.CancelledError

    call, _ = alone(Recorder("fork", act=leave))
    assert (call.status, call.result) == ("crashed", "GaveUp: it cancelled itself")


def test_an_exception_without_a_message_of_its_own_is_told_by_its_kind() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    def fail(arguments: str) -> None:
        raise Mute

    assert alone(Recorder("fork", act=fail))[0].result == "Mute: "


@pytest.mark.covers("S0.5")
@pytest.mark.parametrize("branching", ["share", "fork", "replay"])
def test_a_fault_of_the_tool_is_retried_with_pauses_and_counted(branching: Branching) -> None:
    faults = iter(range(2))

    def act(arguments: str) -> None:
        if next(faults, None) is not None:
            raise ToolError("search_503", "busy")

    call, seconds = alone(Recorder(branching, act=act))
    assert (call.status, call.result, call.num_retries) == ("ok", "1", 2)
    assert 0 < seconds < 1.5
    assert call.duration_s == seconds


@pytest.mark.covers("S0.5")
def test_the_seconds_of_a_call_are_those_of_the_tool_and_not_of_a_busy_event_loop() -> None:
    def quick(arguments: str) -> str:
        time.sleep(0.01)
        return arguments

    async def main() -> ToolCall:
        box = toolbox(FunctionTool(quick))
        calling = asyncio.create_task(box.call("t", branch(), ToolAction("quick", "1")))
        for _ in range(5):
            await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 - what is tested
        call = await calling
        await box.close()
        return call

    call = asyncio.run(main())
    assert (call.status, call.result) == ("ok", "1")
    assert 0.01 <= call.duration_s < 0.25


def test_a_tool_may_say_by_its_own_clock_how_long_it_worked() -> None:
    async def slow_to_hear(arguments: str) -> ToolResult:
        await asyncio.sleep(5)
        return ToolResult("1", took_s=0.25)

    call, seconds = alone(Recorder("fork", act=slow_to_hear))
    assert (call.duration_s, seconds) == (0.25, 5.0)


@pytest.mark.parametrize("said", [float("nan"), -1.0, "soon", 1e9])
def test_a_tools_own_clock_is_believed_only_within_the_time_that_passed(said: Any) -> None:
    async def odd(arguments: str) -> ToolResult:
        await asyncio.sleep(5)
        return ToolResult("1", took_s=said)

    assert alone(Recorder("fork", act=odd))[0].duration_s == 5.0


def test_a_fault_that_stays_is_a_crash_after_the_last_try() -> None:
    def act(arguments: str) -> None:
        raise ToolError("search_503", "busy")

    call, _ = alone(Recorder("fork", act=act))
    assert (call.status, call.result, call.num_retries) == ("crashed", "search_503: busy", 3)
    assert alone(Recorder("fork", act=act), config=ToolsConfig(max_retries=0))[0].num_retries == 0


def test_a_tool_that_refuses_to_branch_is_not_retried() -> None:
    def act(arguments: str) -> None:
        raise ToolError("search_503", "busy")

    assert alone(Recorder("refuse", act=act))[0].num_retries == 0


def test_a_tool_that_does_not_open_is_a_crash() -> None:
    class Shut(Recorder):
        async def open(self, problem: Problem) -> RecorderSession:
            await asyncio.Event().wait()
            raise AssertionError

    call, seconds = alone(Shut("fork"))
    assert (call.status, call.result) == ("crashed", "tool_hang: adder did not open in 120 s")
    assert seconds == 120


@pytest.mark.parametrize("junk", [7, [], b"\xff\xfe", ToolResult(3), ToolResult("", "odd"), object()])  # type: ignore[arg-type]
def test_junk_is_a_crash_or_readable_text(junk: object) -> None:
    call, _ = alone(Recorder("fork", act=lambda arguments: junk))
    assert call.status == ("ok" if isinstance(junk, bytes) else "crashed")
    call.result.encode()


def test_metadata_and_attachments_of_a_result_stay_with_its_call() -> None:
    said = ToolResult("a frame", metadata={"second": 3.5}, attachments=("sha256:ab", "sha256:cd"))
    call, _ = alone(Recorder("fork", act=lambda arguments: said))
    assert (call.metadata, call.attachments) == ({"second": 3.5}, ("sha256:ab", "sha256:cd"))


def test_ten_megabytes_come_back_as_head_and_tail() -> None:
    call, _ = alone(Recorder("fork", act=lambda arguments: ToolResult("a" * 5_000_000 + "z" * 5_000_000)))
    assert len(call.result.encode()) <= 65536
    assert call.result.startswith("aaa")
    assert call.result.endswith("zzz")
    assert "10000000 bytes in all" in call.result


def test_one_failing_branch_leaves_its_siblings_alone() -> None:
    async def act(arguments: str) -> None:
        await asyncio.sleep(1)
        if arguments == "3":
            raise RuntimeError("boom")

    async def main() -> list[str]:
        box = toolbox(Recorder("fork", act=act))
        calls = await asyncio.gather(*(chain(box, "adder", str(n)) for n in range(6)))
        assert asyncio.get_running_loop().time() == 1.0
        return [c.status for (c,) in calls]

    assert run(main()) == ["ok", "ok", "ok", "crashed", "ok", "ok"]


def test_an_unknown_tool_is_refused_with_the_nearest_name() -> None:
    async def main() -> None:
        box = toolbox(Calculator())
        call = await box.call("t", branch(), ToolAction("calculater", "1"))
        assert call.status == "refused"
        assert "'calculator'" in call.result

    run(main())


def test_two_tools_of_one_name_are_refused_before_the_start() -> None:
    with pytest.raises(ConfigError, match="two tools are called 'calculator'"):
        toolbox(Calculator(), Calculator())


@pytest.mark.parametrize("num_steps", range(14))
@pytest.mark.parametrize("branching", ["share", "fork", "replay", "refuse"])
def test_cancelling_a_call_at_any_point_leaves_nothing_running(branching: Branching, num_steps: int) -> None:
    async def main() -> None:
        tool = Recorder(branching, act=lambda arguments: asyncio.sleep(0))
        box = toolbox(tool)
        task = asyncio.create_task(chain(box, "adder", "1", on=[ToolCall("adder", "5", "ok", "5")][: num_steps % 2]))
        for _ in range(num_steps):
            await asyncio.sleep(0)
        task.cancel()
        result = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(result[0], asyncio.CancelledError | list | ToolError)
        await box.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        made = sum(line in ("open", "fork") for line in tool.journal)
        assert tool.journal.count("close") == made

    run(main())


# -- figures -----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("S0.5")
def test_figures_are_told_in_all_and_for_each_tool() -> None:
    faults = iter(range(1))

    async def act(arguments: str) -> ToolResult:
        await asyncio.sleep(float(arguments))
        if arguments == "4" and next(faults, None) is not None:
            raise ToolError("busy")
        return ToolResult("" if arguments == "1" else arguments)

    async def main() -> dict[str, float]:
        box = toolbox(Recorder("fork", act=act), Calculator(), Notebook())
        await chain(box, "adder", "1", "2", "4")
        await chain(box, "calculator", "7+1", "9+9")
        box.count_limit_reached()
        return box.metrics()

    metrics = run(main())
    pause = metrics["tools/total_execution_time"] - 11
    assert 0 < pause < 0.5
    assert metrics == pytest.approx(
        {
            "tools/total_calls": 5,
            "tools/successful_calls": 3,
            "tools/failed_calls": 2,
            "tools/total_execution_time": 11 + pause,
            "tools/avg_execution_time": (11 + pause) / 5,
            "tools/max_execution_time": 8 + pause,
            "tools/total_retries": 1,
            "tools/max_retries": 1,
            "tools/call_limit_reached_count": 1,
            "tools/refused_calls": 0,
            "tools/adder/calls": 3,
            "tools/adder/success_rate": 2 / 3,
            "tools/adder/avg_time": (11 + pause) / 3,
            "tools/calculator/calls": 2,
            "tools/calculator/success_rate": 0.5,
            "tools/calculator/avg_time": 0,
            "tools/notebook/calls": 0,
            "tools/notebook/success_rate": 0,
            "tools/notebook/avg_time": 0,
            "tools/replayed_calls": 0,
            "tools/evicted_sessions": 0,
            "tools/parked_sessions": 7,
        }
    )


def test_a_function_that_hangs_in_a_thread_is_left_behind_at_the_deadline() -> None:
    released = threading.Event()
    tool = FunctionTool(lambda arguments: str(released.wait(20)), name="slow")

    async def main() -> ToolCall:
        box = toolbox(tool, config=ToolsConfig(deadline_s=0.05))
        call = await box.call("t", branch(), ToolAction("slow", ""))
        await box.close()
        return call

    call = asyncio.run(main())
    released.set()
    assert call.status == "timeout"


def test_no_more_calls_run_at_once_than_are_allowed() -> None:
    async def main() -> float:
        box = toolbox(Recorder(act=lambda arguments: asyncio.sleep(5)), config=ToolsConfig(max_parallel=2))
        calls = [box.call("t", branch(), ToolAction("adder", "1")) for _ in range(5)]
        assert {call.status for call in await asyncio.gather(*calls)} == {"ok"}
        await box.close()
        return asyncio.get_running_loop().time()

    assert run(main()) == 3 * 5
