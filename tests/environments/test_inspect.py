"""Tasks of Inspect as an environment. The toy file of tasks is written by the test."""

import json
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("inspect_ai", reason="needs inspect_ai==0.3.285, in an environment of its own")
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import Score, accuracy, scorer
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool
    from inspect_ai.util import store

from tests.environments.toy_inspect import COUNTER

import ramify
from ramify.core.branch import Branch
from ramify.core.codec import ByteCodec
from ramify.core.environment import AgentTurn, Observation
from ramify.core.errors import ConfigError, JudgeError, ToolError
from ramify.environments.check import EnvironmentCheck
from ramify.environments.inspect import Inspect
from ramify.environments.task import EnvironmentTask
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's
NO_WORDS = Branch(ByteCodec(is_exact=True), 0, ())
PLANTED = "PLANTED-SECRET"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks") / "toy_counter.py"
    path.write_text(COUNTER, "utf-8")
    return path


def named(file: Path, name: str, **options: Any) -> Inspect:
    return Inspect(task=f"{file}@{name}", **options)


def added(number: int) -> AgentTurn:
    return AgentTurn(tool="add", arguments=json.dumps({"number": number}))


def noted(text: str) -> AgentTurn:
    return AgentTurn(tool="note", arguments=text)


ADDS = [added(number) for number in range(-1, 11)]
NOTES = [*ADDS, *map(noted, "abcdef")]


async def played(environment: Inspect, turns: Sequence[AgentTurn]) -> Any:
    episode = await environment.open(environment.problems("train", 1, 0)[0], 0)
    return episode, [await episode.step(turn, 0) for turn in turns]


async def score_of(episode: Any) -> Any:
    return await episode.score(NO_WORDS, None)


# -- what the model and the judges see ------------------------------------------------------------------------------


def test_a_problem_opens_with_the_messages_of_the_solver_and_keeps_the_target_secret(file: Path):
    found = named(file, "counter").problems("train", 20, 0)
    assert [each.uid for each in found] == [f"counter-{i}" for i in range(1, 21)]
    assert found[0].public["messages"] == [
        {"role": "system", "content": "You add numbers."},
        {"role": "user", "content": "Reach 7."},
    ]
    assert found[0].secret["sample"]["target"] == "7"
    assert "target" not in repr(found[0].for_agents())


def test_the_tools_are_those_of_the_solver(file: Path):
    (schema,) = named(file, "counter").schemas
    assert (schema["name"], schema["description"]) == ("add", "Add a number to the sum.")
    assert schema["parameters"]["required"] == ["number"]
    assert [each["name"] for each in named(file, "agent").schemas] == ["add", "submit"]


async def test_calls_write_to_the_store_of_their_branch_alone(file: Path):
    before = dict(store()._data)
    episode, seen = await played(named(file, "counter"), [added(3), added(10), added(4), AgentTurn(text="It is 7.")])
    assert [each.text for each in seen[:3]] == [
        "the sum is 3 after 1 numbers", "10 is not from 0 to 9", "the sum is 7 after 2 numbers",
    ]  # fmt: skip
    assert [each.status for each in seen] == ["ok", "error", "ok", "ok"]
    assert [each.end for each in seen] == [None, None, None, "done"]
    assert store()._data == before
    assert await score_of(episode) == (await score_of(episode))
    assert (await score_of(episode)).value == 1.0


async def test_an_agent_that_submits_goes_on_until_it_does(file: Path):
    submit = AgentTurn(tool="submit", arguments="seven it is")
    episode, seen = await played(named(file, "agent"), [added(7), AgentTurn(text="Hm."), submit])
    assert seen[1] == Observation("Please proceed to the next step using your best judgement.")
    assert seen[2].end == "done"
    verdict = await score_of(await episode.fork())
    assert (verdict.value, verdict.parts) == (1.0, {"is_reached": 1.0, "several.sum": 7.0, "several.words": 3.0})


async def test_an_entry_of_a_dict_is_the_reward_if_it_is_named(file: Path):
    episode, _ = await played(named(file, "noted", reward_part="sum"), [added(5)])
    assert (await score_of(episode)).value == 5.0
    episode, _ = await played(named(file, "noted"), [added(5)])
    with pytest.raises(JudgeError, match=r"set reward_part to one of \['sum', 'words'\]"):
        await score_of(episode)
    await episode.close()


# -- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "turns"), [("counter", ADDS), ("noted", NOTES)])
async def test_a_fork_equals_a_fresh_replay_and_moves_nobody_else(file: Path, name: str, turns: Sequence[AgentTurn]):
    environment = named(file, name)
    rng = random.Random(0)
    num_steps = 0
    while num_steps < 1000:
        path = [rng.choice(turns) for _ in range(rng.randrange(8))]
        trunk, past = await played(environment, path)
        branches = [(await trunk.fork(), [rng.choice(turns) for _ in range(3)]) for _ in range(3)]
        before = trunk.digest()
        seen = {id(branch): [await branch.step(turn, 0) for turn in own] for branch, own in branches}
        assert trunk.digest() == before is not None
        for branch, own in branches:
            alone, again = await played(environment, [*path, *own])
            assert again == [*past, *seen[id(branch)]]
            assert alone.digest() == branch.digest()
            num_steps += len(again)
            await alone.close()
            await branch.close()
        await trunk.close()


@pytest.mark.parametrize(("name", "turns"), [("counter", ADDS), ("agent", ADDS), ("noted", NOTES)])
async def test_the_check_finds_no_fault(file: Path, name: str, turns: Sequence[AgentTurn]):
    check = EnvironmentCheck(named(file, name), turns)
    assert [each for each in await check.findings() if each.fault] == []
    assert check.num_digests == check.num_steps > 200


def adding(turn: ScriptedTurn) -> str:
    if turn.context.count("</add>") >= 3:
        return "I am done."
    return f'<add>{{"number": {turn.seed % 4}}}</add>'


@pytest.mark.parametrize("preset", ["arpo", "offline", "chains", "mcts"])
@pytest.mark.parametrize("branching", ["fork", "replay"])
def test_trees_grow_and_no_text_tells_the_secret(preset: str, branching: Any):
    options: dict[str, Any] = {"growth.max_response_tokens": 2000, "max_failed_share": 0.0}
    if preset == "mcts":
        options |= {"strategy.options.judge": "environment", "strategy.options.outcome": "environment"}
        options |= {"strategy.options.oracle": "declared"}
    environment = Inspect(task=summing(right()), branching=branching)
    grown = ramify.rollout_sync(
        task=EnvironmentTask(environment), engine=Scripted(adding), preset=preset, prompts=2, seed=1, **options
    )
    assert (grown.report.failed_trees, grown.report.failed_leaves) == (0, 0)
    num_calls = 0
    for tree in grown.trees:
        for node in range(len(tree)):
            for segment in tree.segments(node):
                num_calls += segment.tool_call is not None
                assert PLANTED not in tree.codec.decode(segment.ids)
    assert num_calls


# -- what is wrong is told ------------------------------------------------------------------------------------------

SEEN: list[int] = []


@tool
def add():
    async def execute(number: int) -> str:
        """Add.

        Args:
            number: It.
        """
        store().set("sum", store().get("sum", 0) + number)
        return str(store().get("sum"))

    return execute


@tool
def leak():
    async def execute(number: int) -> str:
        """Add to a global.

        Args:
            number: It.
        """
        SEEN.append(number)
        return str(sum(SEEN))

    return execute


@scorer(metrics=[accuracy()])
def right():
    async def score(state, target):
        return Score(value=float(state.store.get("sum", 0)))

    return score


@scorer(metrics=[accuracy()])
def broken():
    async def score(state, target):
        raise LookupError("no such thing")

    return score


@scorer(metrics=[accuracy()])
def odd():
    async def score(state, target):
        return Score(value="rather good")

    return score


def summing(scorer: Any, *tools: Any, **options: Any) -> Task:
    samples = [Sample(input=f"Add {i}.", target=PLANTED, metadata={"hint": PLANTED}) for i in range(3)]
    return Task(dataset=samples, solver=[use_tools(*(tools or [add()])), generate()], scorer=scorer, **options)


@pytest.mark.parametrize(
    ("scorer", "words"),
    [(broken, "scorer 'broken' raised LookupError: no such thing"), (odd, "scorer 'odd' gave 'rather good'; a number")],
)
async def test_a_scorer_that_gives_no_number_is_named_with_its_words(scorer: Any, words: str):
    episode, _ = await played(Inspect(task=summing(scorer())), [AgentTurn(text="Done.")])
    with pytest.raises(JudgeError, match=words):
        await score_of(episode)


async def test_a_tool_that_vanishes_is_an_error_for_the_model():
    episode, _ = await played(Inspect(task=summing(right())), [])
    episode.state.tools = []
    assert (await episode.step(added(1), 0)).status == "error"


async def test_a_tool_with_a_global_is_found_by_the_check():
    found = {
        each.rule: each.fault for each in await EnvironmentCheck(Inspect(task=summing(right(), leak()))).findings()
    }
    assert "the state is shared" in (found["a replay gives the same"] or "")


async def test_a_store_that_cannot_be_copied_says_what_to_do():
    episode, _ = await played(Inspect(task=summing(right())), [])
    episode.state.store.set("lines", (line for line in "abc"))
    assert episode.digest() is None
    with pytest.raises(ToolError, match="set branching = 'replay'"):
        await episode.fork()
    assert (await score_of(episode)).value == 0.0


async def test_tools_can_be_named_instead_of_the_solver():
    environment = Inspect(task=summing(right()), tools=[leak()])
    assert [each["name"] for each in environment.schemas] == ["leak"]


async def test_a_limit_of_messages_truncates():
    _, seen = await played(Inspect(task=summing(right(), message_limit=4)), [added(1), added(2)])
    assert [each.end for each in seen] == [None, "truncated"]


def test_what_a_tree_cannot_have_is_refused_by_name():
    with pytest.raises(ConfigError, match="sandbox 'docker' of sample 1 cannot be copied"):
        Inspect(task=summing(right(), sandbox="docker")).check_start()
    with pytest.raises(ConfigError, match="has no scorer"):
        Inspect(task=summing(None)).check_start()
    with pytest.raises(ConfigError, match="has 3 samples; ask for at most as many, not 4"):
        Inspect(task=summing(right())).problems("train", 4, 0)


def test_a_task_that_is_not_there_is_named(file: Path):
    with pytest.raises(ConfigError, match="cannot load the task"):
        Inspect(task=f"{file}@nothing").check_start()
    with pytest.raises(ConfigError, match=r"write package/task or file\.py@task"):
        Inspect(task=str(file)).check_start()
