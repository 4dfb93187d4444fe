"""`ledgers`: solved call by call, and only where every branch has an interpreter of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.tasks.clerks import SLIP, careless, clerk

from ramify import plugins
from ramify.config.run_config import GrowthConfig, RunConfig, StrategyConfig
from ramify.core.errors import ConfigError, ToolError
from ramify.core.problem import Problem
from ramify.core.tool import Branching, Sandboxed, Tool, ToolResult, ToolSession
from ramify.core.tree import Tree
from ramify.judges.exact import ANSWER
from ramify.runner.formats import in_messages
from ramify.runner.library import Rollout, rollout
from ramify.sandbox.session import SandboxAnswer
from ramify.tasks.ledgers import FORMAT, Ledgers, question
from ramify.tasks.ledgers_book import LedgerBook
from ramify.tasks.ledgers_python import LedgerPython
from ramify.testing.scripted import SCRIPTED, Scripted
from ramify.testing.scripts import Rule
from ramify.tools.python import Python

BOOK = LedgerBook((("ann", 12), ("bob", 40), ("eve", 7)), 3)
PROBLEM = Problem(BOOK.key, question(BOOK), {"ledger": BOOK.ledger, "num_orders": BOOK.num_orders})
GROWTH = GrowthConfig(max_response_tokens=8000, max_tool_calls=8)
TREES = StrategyConfig(name="tree_grpo")


@dataclass(frozen=True)
class Shared:
    """A tool whose sessions all branches of a tree share, as if it had no state."""

    tool: Tool
    branching: Branching = "share"

    @property
    def name(self) -> str:
        return self.tool.name

    async def open(self, problem: Problem) -> "SharedSession":
        return SharedSession(await self.tool.open(problem))


@dataclass
class SharedSession:
    session: ToolSession

    async def call(self, arguments: str) -> ToolResult:
        return await self.session.call(arguments)

    async def fork(self) -> "SharedSession":
        return self

    async def close(self) -> None:
        await self.session.close()


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[ToolSession]:
    """A session of `PROBLEM`."""
    session = await LedgerPython(Python(**options)).open(PROBLEM)
    try:
        yield session
    finally:
        await session.close()


async def grown(rule: Rule, *, tool: Tool | None = None, **fields: Any) -> Rollout:
    """Trees whose branches begin behind the steps of others."""
    task = Ledgers() if tool is None else Ledgers(tools=(tool,))
    engine = Scripted(rule, capabilities=replace(SCRIPTED, context_length=32_768))
    config = RunConfig(**{"growth": GROWTH, "strategy": TREES, **fields})
    return await rollout(task.problems("heldout", 2, 0), config=config, engine=engine, task=task)


def replayed(tree: Tree, leaf: int) -> str:
    """What the last call of a branch would have printed, had its calls been run by themselves."""
    said: list[str] = []
    scope: dict[str, Any] = {"ledger": dict(tree.problem.public["ledger"])}
    scope["print"] = lambda *values: said.append(" ".join(map(str, values)))
    for call in tree.branch(leaf).tool_calls:
        exec(call.arguments, scope)
    return said[-1].removeprefix("it is ")


def answers(done: Rollout) -> list[tuple[str | None, str, bool, float | None]]:
    """Of every leaf: what it answered, what its own calls come to, whether one of them slipped, and its reward."""
    return [
        (
            FORMAT.answer(tree.branch(leaf).transcript),
            replayed(tree, leaf),
            any(SLIP in call.arguments for call in tree.branch(leaf).tool_calls),
            tree.reward(leaf),
        )
        for tree in done.trees
        for leaf in tree.leaves()
    ]


@pytest.mark.slow
@pytest.mark.covers("S4.4")
async def test_branches_with_interpreters_of_their_own_answer_what_their_own_calls_come_to() -> None:
    found = answers(await grown(careless))
    assert len(found) >= 8
    assert all(answer == own for answer, own, _, _ in found)
    assert [reward for *_, reward in found] == [float(not has_slipped) for _, _, has_slipped, _ in found]
    assert {has_slipped for _, _, has_slipped, _ in found} == {True, False}


def rewards(done: Rollout) -> list[float | None]:
    return [tree.reward(leaf) for tree in done.trees for leaf in tree.leaves()]


@pytest.mark.slow
async def test_branches_that_share_an_interpreter_answer_wrongly_though_they_do_the_same() -> None:
    forked = rewards(await grown(clerk))
    shared = rewards(await grown(clerk, tool=Shared(LedgerPython(Python()))))
    assert forked == [1.0] * 12
    assert len(shared) == 12
    assert shared.count(1.0) < 6


async def test_an_order_stands_until_the_ledger_changes() -> None:
    async with opened() as session:
        first = f"order 1 of 3: {BOOK.order(0, BOOK.ledger).text}"
        assert (await session.call("print(ledger)")).text == f"{BOOK.ledger!r}\n{first}"
        assert (await session.call("")).text == first
        failed = await session.call("1 / 0")
        assert failed.status == "error" and failed.text.endswith(f"ZeroDivisionError: division by zero\n{first}")
        after = BOOK.order(0, BOOK.ledger).done(BOOK.ledger)
        carried_out = await session.call(f"ledger = {after!r}")
        assert (carried_out.status, carried_out.text) == ("ok", f"order 2 of 3: {BOOK.order(1, after).text}")


async def test_a_wrong_step_is_told_other_orders_and_the_closed_book_tells_no_more() -> None:
    async with opened() as session:
        wrong = {"ann": 1, "bob": 2, "eve": 3}
        assert (await session.call(f"ledger = {wrong!r}")).text == f"order 2 of 3: {BOOK.order(1, wrong).text}"
        await session.call("ledger['ann'] += 1")
        for _ in range(2):
            closed = await session.call("ledger['ann'] += 1")
            assert closed.text == f"the book is closed: answer {BOOK.asked}"


@pytest.mark.parametrize(
    "code", ["del ledger", "ledger = {}", "ledger['zoe'] = 1", "ledger['ann'] = 1.5", "ledger = 3"]
)
async def test_what_is_no_ledger_is_an_error_to_mend(code: str) -> None:
    async with opened() as session:
        broken = await session.call(code)
        assert (broken.status, broken.text) == (
            "error",
            "error: `ledger` must hold a whole number for each of ann, bob, eve",
        )
        mended = await session.call(f"ledger = {BOOK.ledger!r}")
        assert mended.text == f"order 1 of 3: {BOOK.order(0, BOOK.ledger).text}"


@pytest.mark.slow
async def test_a_step_that_hangs_changes_nothing() -> None:
    async with opened(timeout_s=0.5) as session:
        hung = await session.call("ledger['ann'] = 0\nwhile True: pass")
        assert hung.status == "timeout"
        assert (await session.call("print(ledger)")).text.startswith(f"{BOOK.ledger!r}\norder 1 of 3: ")


async def test_a_fork_has_an_interpreter_and_a_page_of_its_own() -> None:
    async with opened() as session:
        fork = await session.fork()
        await session.call("ledger['ann'] += 1")
        assert (await fork.call("print(ledger)")).text.startswith(f"{BOOK.ledger!r}\norder 1 of 3: ")
        assert "order 2 of 3: " in (await session.call("")).text
        await fork.close()


async def test_a_problem_of_another_task_is_refused() -> None:
    tool = LedgerPython(Python())
    with pytest.raises(ToolError, match="problem 'p' is none of `ledgers`: Object missing required field `ledger`"):
        await tool.open(Problem("p", "what?"))


def test_problems_say_the_first_order_and_keep_the_answer_secret() -> None:
    problems = Ledgers().problems("heldout", 200, 0)
    assert len({problem.uid for problem in problems}) == 200
    for problem in problems:
        book = LedgerBook(tuple(problem.public["ledger"].items()), problem.public["num_orders"])
        assert problem.secret == {ANSWER: str(book.answer)}
        assert problem.question.endswith(f"order 1 of {book.num_orders}: {book.order(0, book.ledger).text}")
        assert str(book.answer) not in str(problem.for_agents().secret)


def test_the_number_of_orders_may_be_fixed() -> None:
    assert {p.public["num_orders"] for p in Ledgers(num_orders=5).problems("train", 20, 0)} == {5}
    with pytest.raises(ConfigError, match="num_orders = 2: a book has 3 to 5 orders"):
        Ledgers(num_orders=2)


def test_the_tool_says_behind_which_walls_it_runs_and_how_long() -> None:
    (tool,) = plugins.build("task", "ledgers", python={"timeout_s": 7}).tools
    assert isinstance(tool, Sandboxed)
    assert (tool.name, tool.branching, tool.isolation, tool.timeout_s) == ("python", "fork", "strict", 7)


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ({"timeout": 7}, "unexpected keyword argument 'timeout'"),
        ({"isolation": "weak"}, "isolation = 'weak'"),
        ({"is_stateful": False}, "the ledger is kept in the session"),
    ],
)
def test_options_of_the_session_that_make_no_sense_are_refused(python: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plugins.build("task", "ledgers", python=python)


@dataclass
class Unbegun:
    """A session that does not get as far as its ledger."""

    first: SandboxAnswer | ToolError
    is_closed: bool = False

    async def run(self, code: str) -> SandboxAnswer:
        if isinstance(self.first, ToolError):
            raise self.first
        return self.first

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("first", [SandboxAnswer("[timeout]", "timeout", "strict"), ToolError("not_begun", "[lost]")])
async def test_a_session_that_cannot_be_begun_is_closed(first: SandboxAnswer | ToolError) -> None:
    session = Unbegun(first)

    class Unwilling(Python):
        async def open(self, problem: Problem) -> Any:
            return session

    with pytest.raises(ToolError, match=r"not_begun: .*\["):
        await LedgerPython(Unwilling()).open(PROBLEM)
    assert session.is_closed


def test_at_an_endpoint_the_user_s_message_has_no_control_token() -> None:
    task = Ledgers()
    *_, user = in_messages(FORMAT, task.tools).open(PROBLEM)
    assert user.text.startswith("Write Python between <python> and </python>")
    assert user.text.endswith(f"{PROBLEM.question}\n\n")
