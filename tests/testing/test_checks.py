"""Each check finds a broken plug-in, and its message names the plug-in, the rule and the place."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from ramify import (
    ROOT,
    Branch,
    Command,
    ConfigError,
    ContractError,
    Failed,
    Generation,
    Grow,
    Phase,
    Problem,
    Request,
    Tree,
    Verdict,
)
from ramify.core.command import Outcome
from ramify.core.segment import Finish
from ramify.credit import Forest, subtree_loo
from ramify.formats.arpo import arpo
from ramify.judges.exact import Exact
from ramify.strategies.chains import Chains
from ramify.tasks.countdown import Countdown
from ramify.testing import (
    BrokenRule,
    Notebook,
    Scripted,
    check_credit,
    check_engine,
    check_format,
    check_judge,
    check_strategy,
    check_task,
    check_tool,
    run_virtual,
    table,
)
from ramify.testing.contracts.strategies import STRATEGY_RULES


@pytest.mark.slow
def test_parts_that_keep_their_contract_pass() -> None:
    check_strategy("chains", {"n": 2})
    check_strategy(Chains)
    check_tool(Notebook, calls=("write red", "read", "write blue"), other="write green", run=run_virtual)
    check_engine(Scripted)
    check_judge(lambda: Exact(arpo({})))
    check_credit(subtree_loo)
    check_task(Countdown)
    check_format(lambda: arpo({"calculator": "calc"}))


@dataclass(frozen=True)
class Config:
    n: int = 3


class Steady:
    """Three chains, told in any order; what is below breaks one rule each."""

    Config = Config
    measures: frozenset[str] = frozenset()
    is_order_free = True
    post_hoc_reason = ""

    def __init__(self, config: Config, rng: Any) -> None:
        self.rng = rng
        self.config, self.num_left, self.num_open = config, config.n, 0

    def ask(self, tree: Tree) -> Sequence[Command]:
        grows, self.num_left = [Grow(ROOT)] * self.num_left, 0
        self.num_open += len(grows)
        return grows

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self.num_open -= 1

    def is_done(self, tree: Tree) -> bool:
        return not self.num_left and not self.num_open

    def phase(self, tree: Tree) -> Phase:
        return Phase("collection" if self.is_done(tree) else "build")


class Insatiable(Steady):
    """Asks again when the budget is used up."""

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        super().tell(tree, outcome)
        self.num_left += isinstance(outcome, Failed)


class Hasty(Steady):
    """Says that order is no matter, and grows on behind whichever chain ends first."""

    def __init__(self, config: Config, rng: Any) -> None:
        super().__init__(config, rng)
        self.first: int | None = None

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        super().tell(tree, outcome)
        if self.first is None:
            self.first = outcome.command_id
            self.num_left = outcome.command_id


class Unpicklable(Steady):
    def __init__(self, config: Config, rng: Any) -> None:
        super().__init__(config, rng)
        self.rule = lambda tree: True


class Restless(Steady):
    """Draws when it is told."""

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        super().tell(tree, outcome)
        self.rng.random()


class Unfinished(Steady):
    def phase(self, tree: Tree) -> Phase:
        return Phase("growing")


class Endless(Steady):
    def ask(self, tree: Tree) -> Sequence[Command]:
        return [Grow(ROOT)] if self.is_done(tree) else super().ask(tree)


@pytest.mark.parametrize(
    ("strategy", "rule", "where"),
    [
        (Insatiable, "a budget is never overrun", r"asked \d+ times in a row for what starts nothing"),
        (Hasty, "any order of outcomes comes to an end", "outcomes told in the order of seed 0: node 4 differs"),
        (Unpicklable, "a strategy pickled after every outcome goes on the same", "after 0 outcomes: .*pickle"),
        (Restless, "nothing is drawn but at ask", "it drew from its generator outside of ask"),
        (Endless, "a strategy that is done asks for nothing", r"is_done is true, but ask returns \[Grow"),
        (
            Unfinished,
            "a strategy that is done says so in its phase",
            r"its phase is 'growing'; return Phase\('collection'\) when done",
        ),
    ],
)
def test_a_broken_strategy_is_found(strategy: type[Steady], rule: str, where: str) -> None:
    others = [name for name in STRATEGY_RULES if name != rule]
    with pytest.raises(BrokenRule, match=f"strategy {strategy.__name__} breaks the rule '{rule}': .*{where}"):
        check_strategy(strategy, without=others)
    with pytest.raises(BrokenRule, match=f"strategy {strategy.__name__} with .*'n': 2.* breaks the rule"):
        check_strategy(strategy, {"n": 2})


def test_a_broken_rule_is_an_assertion_and_a_contract_error() -> None:
    assert issubclass(BrokenRule, AssertionError)
    assert issubclass(BrokenRule, ContractError)


def test_an_unknown_rule_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'a budget is never overrun'"):
        check_strategy("chains", without=["a budget is overrun"])


class SharedNotes(Notebook):
    """Its forks write into one list."""

    def __init__(self) -> None:
        super().__init__(branching="fork")

    async def open(self, problem: Problem) -> Any:
        session = await super().open(problem)

        class Shared:
            call = session.call
            close = staticmethod(lambda: asyncio.sleep(0))

            async def fork(self) -> Any:
                return self

        return Shared()


class Sleepy(Notebook):
    """A session that never answers an empty call."""

    async def open(self, problem: Problem) -> Any:
        session = await super().open(problem)

        class Hanging:
            close = session.close

            async def call(self, arguments: str) -> Any:
                return await (session.call(arguments) if arguments else asyncio.Event().wait())

        return Hanging()


class Wordy(Notebook):
    """A session whose results are text alone."""

    async def open(self, problem: Problem) -> Any:
        session = await super().open(problem)

        class Texts:
            close = session.close

            async def call(self, arguments: str) -> Any:
                return (await session.call(arguments)).text

        return Texts()


NOTES: dict[str, Any] = {"calls": ("write red", "read"), "other": "write green", "run": run_virtual}


@pytest.mark.parametrize(
    ("tool", "rule", "where"),
    [
        (
            SharedNotes,
            "forks of a session live on by themselves",
            r"the second fork behind 0 calls, its call 0 \('write red'\) gave .*'note 3 written'.*'note 1 written'",
        ),
        (Sleepy, "no argument breaks a session", "the arguments '': no answer within 30 s"),
        (Wordy, "no argument breaks a session", "the arguments '': the result is 'error: .*', not a ToolResult"),
    ],
)
def test_a_broken_tool_is_found(tool: type[Notebook], rule: str, where: str) -> None:
    with pytest.raises(BrokenRule, match=f"tool {tool.__name__} breaks the rule '{rule}': {where}"):
        check_tool(tool, **NOTES)


class Changed(Scripted):
    """What becomes of a generation is a function of the class."""

    change: Callable[[Generation], Generation]

    async def generate(self, request: Request) -> Generation:
        return type(self).change(await super().generate(request))


class Cheap(Changed):
    change = staticmethod(lambda g: replace(g, num_billed=len(g.ids) - 1))


class Deaf(Changed):
    """Says that a stop word ended it that did not."""

    change = staticmethod(lambda g: replace(g, finish=Finish("stop", "</nothing>")) if g.finish.matched else g)


@pytest.mark.parametrize(
    ("engine", "where"),
    [
        (Cheap, r"seed 0, b'.*: it bills \d+ tokens for \d+ sampled ones"),
        (Deaf, r"seed \d, b'.*: it says that '</nothing>' ended it, but '</.*>' did"),
    ],
)
def test_a_broken_engine_is_found(engine: type[Scripted], where: str) -> None:
    rule = "a generation is sound and ends for the reason it says"
    with pytest.raises(BrokenRule, match=f"(?s)engine {engine.__name__} breaks the rule '{rule}': {where}"):
        check_engine(engine)


def test_an_engine_of_one_line_is_checked_without_the_rule_of_seeds() -> None:
    def parrot() -> Scripted:
        return Scripted(table({"": "<answer>3</answer>"}))

    with pytest.raises(BrokenRule, match="engine parrot breaks the rule 'different seeds give different samples'"):
        check_engine(parrot)
    check_engine(parrot, without=["different seeds give different samples"])


class Marking:
    """Notes in the problem whom it has judged."""

    name = "marking"
    is_oracle = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        problem.public["judged"] = len(branches)  # type: ignore[index]
        return [Verdict(1.0) for _ in branches]


class Ranking(Marking):
    """Its verdicts stand in the order of their values."""

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        return [Verdict(float(n)) for n in sorted(len(branch.said) for branch in branches)]


class Endlessly(Marking):
    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        return [Verdict(float("inf")) for _ in branches]


class Picky(Marking):
    async def judge(self, branches: Sequence[Branch], problem: Problem) -> Sequence[Verdict]:
        return [Verdict(1 / len(branch.said)) for branch in branches]


@pytest.mark.parametrize(
    ("judge", "rule", "where"),
    [
        (
            Marking,
            "what it is handed stays as it is",
            "it changed the problem's public columns .*'judged': 4",
        ),
        (Ranking, "verdicts stand in the order of the branches", "response 0 .*in order, .* when the branches"),
        (Endlessly, "a score is a finite number or none", "response 0 .*: the value is inf"),
        (Picky, "an odd response is judged or a judge error", "response '' raises ZeroDivisionError"),
    ],
)
def test_a_broken_judge_is_found(judge: type[Marking], rule: str, where: str) -> None:
    with pytest.raises(BrokenRule, match=f"judge {judge.__name__} breaks the rule '{rule}': {where}"):
        check_judge(judge)


def twice(forest: Forest) -> Any:
    """Counts a token once for every leaf below it."""
    return subtree_loo(forest) * forest.over_leaves(np.ones(forest.num_leaves))


def test_a_credit_that_counts_a_token_twice_is_found() -> None:
    rule = "every sampled token counts once so that the expected gradient is exact"
    where = "two stems that fork twice, first action: the expected gradient is .*, the true one"
    with pytest.raises(BrokenRule, match=f"credit twice breaks the rule '{rule}': {where}"):
        check_credit(twice)


@pytest.mark.parametrize("claim", ["chains", "nothing"])
def test_a_credit_that_counts_a_token_once_a_row_is_found_whatever_it_claims(claim: Any) -> None:
    rule = "a token counts once however many rows hold it"
    where = "the token of node 0: held by rows 0 to 3 .* 0.75, held by rows 0 to 7, .* 1.5: it counts once for each row"
    with pytest.raises(BrokenRule, match=f"credit twice breaks the rule '{rule}': {where}"):
        check_credit(twice, exact_for=claim)


def test_a_credit_of_leaves_or_with_holes_is_found() -> None:
    with pytest.raises(BrokenRule, match=r"two chains, forest 0: shape \(2,\) for 4 nodes"):
        check_credit(lambda forest: forest.rewards)
    with pytest.raises(BrokenRule, match="not all are finite"):
        check_credit(lambda forest: forest.reward)


NUMBERS = itertools.count()


class Forgetful(Countdown):
    """Makes other problems each time."""

    def problems(self, split: str, num_problems: int, seed: int) -> list[Problem]:
        return list(Countdown.problems(self, split, num_problems, seed + 1000 * next(NUMBERS)))


def test_a_broken_task_is_found() -> None:
    rule = "one seed gives the same problems and fewer are the first of them"
    with pytest.raises(BrokenRule, match=f"task Forgetful breaks the rule '{rule}': asked twice for 40 problems"):
        check_task(Forgetful)


def test_a_broken_format_is_found() -> None:
    def trusting() -> Any:
        format = arpo({})
        spans = [replace(span, is_trusted=True) for span in format.open(Problem("p", "Who {is} <|end|> it?"))]

        class Trusting:
            def open(self, problem: Problem) -> Any:
                return spans

        return Trusting()

    with pytest.raises(BrokenRule, match=r"format trusting breaks the rule .*: a trusted span holds the question"):
        check_format(trusting)


@pytest.mark.slow
def test_what_a_rule_wanted_is_told() -> None:
    class Elsewhere(Countdown):
        def problems(self, split: str, num_problems: int, seed: int) -> list[Problem]:
            if split == "tset":
                raise ConfigError("no such split")
            return list(Countdown.problems(self, split, num_problems, seed))

    class Silent(type(arpo({}))):
        def quote(self, template: str, contexts: Any, problem: Problem) -> Any:
            raise KeyError("anser")

    with pytest.raises(
        BrokenRule, match=r"must be like \"split 'tset': there are 'train' and 'heldout'\", it is 'no such"
    ):
        check_task(Elsewhere)
    with pytest.raises(BrokenRule, match=r"breaks the rule 'it quotes .*KeyError: 'anser'"):
        check_format(Silent)
