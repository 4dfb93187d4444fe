"""tau2-bench as an environment, by its domain `mock`. `make test-tau2` runs it with a checkout of tau2-bench."""

import asyncio
import importlib.util
import json
import random
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("tau2") is None:
        pytest.skip("needs tau2-bench from its source (make test-tau2)", allow_module_level=True)
    from ramify.environments.tau2 import TASK, Tau2, tau2_registry

    tau2_registry()
    from tau2.data_model.tasks import Task
    from tau2.registry import registry

from tests.environments.cut_runs import resumed_at_cuts, tenths
from tests.environments.tau2_loop import DONE, HELLO, TASKS, grown_chains, is_over, own_run, talking

import ramify
import ramify.config.configure
from ramify.core.branch import Branch
from ramify.core.codec import ByteCodec
from ramify.core.environment import REPLIES, AgentTurn, Observation
from ramify.core.errors import ConfigError, ToolError
from ramify.core.judge import Reply
from ramify.core.tool import STATE_DIGEST
from ramify.environments.check import EnvironmentCheck
from ramify.environments.task import EnvironmentTask
from ramify.environments.tau2_dialogue import FIRST_WORDS
from ramify.environments.tau2_episode import IDS, Tau2Episode
from ramify.formats.messages import MESSAGES
from ramify.runner.folder import begin
from ramify.runner.saved import Saved
from ramify.store.check import tree_faults
from ramify.testing.scripted import Scripted

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's
NO_WORDS = Branch(ByteCodec(is_exact=True), 0, ())
SCENARIO = "Important Meeting"
STOP = "Thank you. ###STOP###"


def create(title: str = "Important Meeting", user: str = "user_1") -> AgentTurn:
    return AgentTurn(tool="create_task", arguments=json.dumps({"user_id": user, "title": title}))


def said(text: str) -> AgentTurn:
    return AgentTurn(text=text)


def saying(*replies: str) -> Callable[[str], Any]:
    """A customer that says these replies in order, then stops."""
    left = list(replies)

    async def ask(prompt: str) -> Reply:
        return Reply(left.pop(0) if left else STOP)

    return ask


async def echoing(prompt: str) -> Reply:
    """A customer whose reply is a function of the conversation."""
    draws = random.Random(prompt.rpartition("so far:")[2])
    calls = ["CALL check_notifications {}", 'CALL dismiss_notification {"notification_id": "notif_1"}', "CALL no {"]
    return Reply(draws.choice([*calls, "yes", "no", "maybe", "maybe", STOP]))


def mock(*tasks: str, **options: Any) -> Tau2:
    return Tau2(domain="mock", tasks=tasks, **options)


async def opened(environment: Tau2) -> tuple[Tau2Episode, Any]:
    (problem,) = environment.problems("train", 1, 0)
    return await environment.open(problem, 0), problem


async def played(environment: Tau2, turns: Sequence[AgentTurn], ask: Any) -> tuple[Tau2Episode, list[Observation]]:
    episode, _ = await opened(environment)
    return episode, [await episode.step_by(ask, turn, 0) for turn in turns]


# -- what the agent and the judges see --------------------------------------------------------------------------------


def test_a_problem_opens_with_the_policy_and_keeps_the_scenario_secret() -> None:
    (problem,) = mock("create_task_1").problems("train", 1, 0)
    system, user = problem.public[MESSAGES]
    assert system["role"] == "system" and "<policy>" in system["content"]
    assert user == {"role": "user", "content": FIRST_WORDS}
    assert SCENARIO not in repr(problem.for_agents())
    assert SCENARIO in repr(problem.secret[TASK])


def test_a_history_is_told_and_its_last_words_are_the_agent_s() -> None:
    (problem,) = mock("update_task_with_message_history").problems("train", 1, 0)
    words = problem.public[MESSAGES][1]["content"]
    assert "customer: I need to create a task" in words and "you: CALL create_task" in words
    assert words.rpartition("\n\n")[2].startswith("result: ")


def test_every_task_of_the_domain_opens() -> None:
    assert len(Tau2(domain="mock").problems("train", 10, 0)) == 10


def test_the_agent_has_the_domain_s_functions_and_the_customer_its_own() -> None:
    names = {schema["name"] for schema in mock().schemas}
    assert "create_task" in names and "check_notifications" not in names


# -- a conversation ---------------------------------------------------------------------------------------------------


async def test_two_forks_score_one_and_nothing() -> None:
    ask = saying("I need a task.")
    episode, _ = await played(mock("create_task_1"), [said(HELLO)], ask)
    good, bad = await episode.fork(), await episode.fork()
    assert (await good.step_by(ask, create(), 0)).status == "ok"
    assert (await bad.step_by(ask, create("Another"), 0)).status == "ok"
    for branch in (good, bad):
        assert (await branch.step_by(ask, said(DONE), 0)) == Observation(STOP, end="done")
    _, problem = await opened(mock("create_task_1"))
    verdicts = [await branch.score(NO_WORDS, problem) for branch in (good, bad)]
    assert [(each.value, each.parts["db"]) for each in verdicts] == [(1.0, 1.0), (0.0, 0.0)]
    verdict = await episode.score(NO_WORDS, problem)
    assert verdict is not None and verdict.value == 0.0  # it has not ended


async def test_scoring_changes_nothing() -> None:
    ask = saying("I need a task.")
    episode, _ = await played(mock("create_task_1"), [said(HELLO), create()], ask)
    before = episode.digest()
    _, problem = await opened(mock("create_task_1"))
    await episode.score(NO_WORDS, problem)
    assert episode.digest() == before is not None
    assert (await episode.step_by(ask, said(DONE), 0)).end == "done"


async def test_the_customer_s_calls_change_its_database() -> None:
    call = 'CALL dismiss_notification {"notification_id": "notif_1"}'
    task = "update_task_with_user_tools"
    asked: list[str] = []
    plan = saying(call, "Done.")

    async def ask(prompt: str) -> Reply:
        asked.append(prompt)
        return await plan(prompt)

    episode, seen = await played(mock(task), [said(HELLO)], ask)
    silent, _ = await played(mock(task), [said(HELLO)], saying("Done."))
    assert seen == [Observation("Done.")]
    assert "result: Notification notif_1 dismissed" in asked[1] and "result:" not in asked[0]
    assert episode.databases != silent.databases and episode.digest() != silent.digest()


async def test_a_call_that_cannot_be_read_is_answered_and_counted() -> None:
    episode, seen = await played(
        mock(), [said(HELLO)], saying("CALL dismiss_notification {oh", "CALL nothing", "Well.")
    )
    assert seen == [Observation("Well.")]
    assert episode.run.num_errors == 2


async def test_an_empty_reply_is_asked_for_again() -> None:
    _, seen = await played(mock(), [said(HELLO)], saying("", "  ", "Hi."))
    assert seen == [Observation("Hi.")]


@pytest.mark.parametrize("word", ["###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"])
async def test_the_customer_ends_by_a_word(word: str) -> None:
    _, seen = await played(mock(), [said(HELLO)], saying(f"Bye {word}"))
    assert seen[0].end == "done"


async def test_a_failed_call_is_an_error_for_the_agent_and_too_many_are_a_limit() -> None:
    _, seen = await played(mock(max_errors=2), [said(HELLO), create(user="x"), create(user="y")], saying("Hi."))
    assert [(each.status, each.end) for each in seen] == [("ok", None), ("error", None), ("error", "truncated")]
    assert "not found" in seen[1].text


async def test_a_customer_that_never_stops_is_ended_by_the_limit() -> None:
    episode, seen = await played(mock(max_steps=6), [said(HELLO)] * 3, saying(*["And then?"] * 9))
    assert [each.end for each in seen] == [None, None, "truncated"]
    _, problem = await opened(mock())
    verdict = await episode.score(NO_WORDS, problem)
    assert verdict is not None and (verdict.value, dict(verdict.parts)) == (0.0, {})


async def test_an_empty_turn_and_bad_arguments_are_no_step() -> None:
    episode, _ = await opened(mock())
    before = episode.digest()
    for turn in (said(" "), AgentTurn(tool="create_task", arguments="{}"), AgentTurn(tool="fly", arguments="{}")):
        assert (await episode.step_by(saying(), turn, 0)).status == "error"
    assert episode.digest() == before
    with pytest.raises(ToolError, match="played by a model"):
        await episode.step(said(HELLO), 0)


# -- forks ------------------------------------------------------------------------------------------------------------

TURNS = [
    said(HELLO),
    said(DONE),
    create(),
    create("Another"),
    create(user="nobody"),
    AgentTurn(tool="get_users", arguments="{}"),
    AgentTurn(tool="update_task_status", arguments='{"task_id": "task_1", "status": "completed"}'),
]


async def test_a_fork_equals_a_fresh_replay_and_moves_nobody_else() -> None:
    environment = mock("update_task_with_user_tools")
    rng = random.Random(0)
    num_steps = 0
    while num_steps < 300:
        path = [rng.choice(TURNS) for _ in range(rng.randrange(6))]
        trunk, past = await played(environment, path[:1], echoing)
        for turn in path[1:]:
            if past[-1].end is None:
                past.append(await trunk.step_by(echoing, turn, 0))
        if any(each.end for each in past):
            continue
        plans = [[rng.choice(TURNS) for _ in range(3)] for _ in range(3)]
        branches = [await trunk.fork() for _ in plans]
        before, seen = trunk.digest(), []
        for branch, turns in zip(branches, plans, strict=True):
            seen.append([])
            for turn in turns:
                if not (seen[-1] and seen[-1][-1].end):
                    seen[-1].append(await branch.step_by(echoing, turn, 0))
            assert trunk.digest() == before is not None
        for branch, turns, own in zip(branches, plans, seen, strict=True):
            alone, again = await played(environment, [*path, *turns[: len(own)]], echoing)
            assert again == [*past, *own]
            assert alone.digest() == branch.digest()
            num_steps += len(own)


async def test_a_fork_copies_the_databases_when_it_writes() -> None:
    episode, _ = await played(mock(), [said(HELLO)], saying("Hi."))
    reads, writes = await episode.fork(), await episode.fork()
    await reads.step_by(saying(), AgentTurn(tool="get_users", arguments="{}"), 0)
    await writes.step_by(saying(), create(), 0)
    assert reads.run.environment is episode.run.environment
    assert writes.run.environment is not episode.run.environment
    assert episode.databases == reads.databases != writes.databases
    before = episode.digest()
    await reads.step_by(saying(), create(), 0)
    assert reads.run.environment is not episode.run.environment and episode.digest() == before


async def test_a_domain_that_cannot_be_copied_says_what_to_do() -> None:
    episode, _ = await played(mock(), [said(HELLO)], saying("Hi."))
    episode.run.environment.lock = threading.Lock()
    branch = await episode.fork()
    with pytest.raises(ToolError, match=r"cannot be copied .*set branching = 'replay'"):
        await branch.step_by(saying(), create(), 0)


async def test_ids_of_new_bills_are_a_function_of_the_path() -> None:
    environment = registry.get_env_constructor("telecom")()
    bills = []
    for seed in (7, 7, 8):
        fresh = registry.get_env_constructor("telecom")()
        customer = next(each for each in fresh.tools.db.customers)
        customer.bill_ids.clear()
        with IDS.drawn_by(seed):
            fresh.tools._apply_one_time_charge(customer.customer_id, 1.0, "a charge")
        bills.append(fresh.get_db_hash())
    assert bills[0] == bills[1] != bills[2] and environment.get_db_hash() not in bills


@pytest.mark.parametrize("branching", ["fork", "replay"])
async def test_the_check_finds_no_fault(branching: Any) -> None:
    check = EnvironmentCheck(mock(*TASKS, branching=branching), TURNS)
    assert [each for each in await check.findings() if each.fault] == []
    assert check.num_digests == check.num_steps > 100


# -- trees ------------------------------------------------------------------------------------------------------------


def grown(preset: str, *, prompts: int = 2, seed: int = 1, **options: Any) -> Any:
    settings: dict[str, Any] = {"growth.max_response_tokens": 4000, "max_failed_share": 0.0}
    if preset == "mcts":
        settings |= {"strategy.options.judge": "environment", "strategy.options.outcome": "environment"}
        settings |= {"strategy.options.oracle": "declared"}
    task = EnvironmentTask(mock(*TASKS, **options))
    return ramify.rollout_sync(
        task=task, engine=Scripted(talking), preset=preset, prompts=prompts, seed=seed, **settings
    )


def of_user(tree: Any) -> list[int]:
    return [node for node in range(len(tree)) if tree.role(node) == "user"]


@pytest.mark.parametrize("preset", ["arpo", "offline", "mcts", "chains"])
@pytest.mark.parametrize("branching", ["fork", "replay"])
def test_trees_grow_with_the_customer_beside_the_path(preset: str, branching: Any) -> None:
    rollout = grown(preset, branching=branching)
    assert (rollout.report.failed_trees, rollout.report.failed_leaves) == (0, 0)
    for tree in rollout.trees:
        assert not list(tree_faults(tree)) and of_user(tree)
        assert tree.spent()["user"].decode == sum(tree.num_sampled(node) for node in of_user(tree)) > 0
        for leaf in tree.leaves():
            assert all(piece.role == "policy" for piece in tree.branch(leaf).pieces)
            assert all(score.is_oracle for score in tree.scores(leaf))
        for node in range(len(tree)):
            for segment in tree.segments(node):
                if tree.role(node) == "policy":
                    assert SCENARIO not in tree.codec.decode(segment.ids) or segment.is_sampled or segment.tool_call
    for row in rollout.rows():
        trained = rollout.trees[0].codec.decode(row.ids[row.weights > 0].tolist())
        assert "Please help me" not in trained and "###STOP###" not in trained


def test_forked_and_replayed_trees_are_the_same() -> None:
    forked, replayed = (grown("arpo", branching=each) for each in ("fork", "replay"))
    assert [row.ids.tolist() for row in forked.rows()] == [row.ids.tolist() for row in replayed.rows()]
    assert [row.reward for row in forked.rows()] == [row.reward for row in replayed.rows()]
    assert replayed.report.tools["tools/replayed_calls"] > 0


@pytest.mark.parametrize("preset", ["arpo", "offline"])
def test_every_state_is_that_of_its_path(preset: str) -> None:
    """A fresh conversation with the recorded replies stands where each branch says."""
    checked = 0
    for tree in grown(preset).trees:
        environment = mock(*TASKS)
        for leaf in tree.leaves():
            checked += _replayed(environment, tree, leaf)
    assert checked > 10


def _replayed(environment: Tau2, tree: Any, leaf: int) -> int:
    calls = [call for call in tree.branch(leaf).tool_calls if call.status in ("ok", "empty", "error")]

    problem = next(each for each in environment.problems("train", len(TASKS), 0) if each.uid == tree.problem.uid)

    async def replay() -> None:
        episode = await environment.open(problem, 0)
        for call in calls:
            replies = saying(*(reply["text"] for reply in call.metadata.get(REPLIES, ())))
            turn = AgentTurn(tool=call.tool, arguments=call.arguments) if call.tool else said(call.arguments)
            observed = await episode.step_by(replies, turn, 0)
            assert (observed.text, observed.end) == (call.result, call.end)
            assert episode.digest() == call.metadata[STATE_DIGEST]

    asyncio.run(replay())
    return len(calls)


def test_tau2_s_own_loop_gives_the_same_rewards() -> None:
    environment = mock(*TASKS)
    problems = {problem.uid: problem for problem in environment.problems("train", len(TASKS), 0)}
    parameters = {each["name"]: each["parameters"] for each in environment.schemas}
    leaves = [leaf for seed in range(1, 5) for leaf in grown_chains(environment, "chains", prompts=2, seed=seed)]
    ended = [leaf for leaf in leaves if is_over(leaf[1])]
    assert len(ended) > 20 and {leaf[2] for leaf in ended} == {0.0, 1.0}
    for uid, steps, reward, parts in ended:
        info = own_run(Task.model_validate(problems[uid].secret[TASK]), steps, parameters)
        assert info.reward == reward
        assert {kind.value.lower(): each for kind, each in info.reward_breakdown.items()}.items() <= parts.items()


def test_a_path_without_an_end_is_cut_by_the_limit() -> None:
    rollout = ramify.rollout_sync(
        task=EnvironmentTask(mock("create_task_1", max_steps=8)),
        engine=Scripted(lambda turn: "Go on, please."),
        **{"preset": "chains", "prompts": 1, "growth.max_response_tokens": 4000},
    )
    (tree,) = rollout.trees
    assert {tree.stop(leaf) for leaf in tree.leaves()} == {"env_limit"}
    assert {tree.reward(leaf) for leaf in tree.leaves()} == {0.0}


RULE = """
from ramify.testing import Scripted
from tests.environments.tau2_loop import talking


class Talking(Scripted):
    def __init__(self):
        super().__init__(talking)
"""


def test_a_saved_run_is_resumed_with_the_customer_s_replies(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text(RULE)
    flags = {
        "environment.name": "tau2",
        "environment.options.domain": "mock",
        "environment.options.tasks": list(TASKS),
        "engine.name": f"{tmp_path / 'rule.py'}:Talking",
        "growth.max_response_tokens": 4000,
        "prompts": 1,
        "seed": 2,
    }
    config = ramify.config.configure.resolve(preset="offline", flags=flags).config
    begin(config, tmp_path / "whole")
    whole = Saved.open(tmp_path / "whole").tree(0)
    assert whole is not None and of_user(whole) and not list(tree_faults(whole))
    for again in resumed_at_cuts(tmp_path / "whole", tenths(tmp_path / "whole", (3, 6, 9))):
        assert of_user(again) and not list(tree_faults(again))


# -- what is wrong is told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"domain": "mocks"}, "tau2 has no domain 'mocks'; did you mean 'mock'"),
        ({"domain": "mock", "tasks": ["create_task_9"]}, "has no task 'create_task_9'; did you mean 'create_task_1'"),
        ({"domain": "retail", "split": "tests"}, "has no split 'tests'; did you mean 'test'"),
    ],
)
def test_unknown_names_are_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Tau2(**options).problems("train", 1, 0)


def test_too_many_problems_are_refused() -> None:
    with pytest.raises(ConfigError, match="'mock' has 10 tasks; ask for at most as many, not 11"):
        Tau2(domain="mock").problems("train", 11, 0)


def with_tasks(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let the domain have two tasks, the second with other criteria or another state."""
    plain, other = registry.get_tasks_loader("mock")(None)[:2]
    changed = Task.model_validate({**other.model_dump(), **changes})
    monkeypatch.setitem(registry._tasks, "mock", lambda split=None: [plain, changed])


def test_tasks_that_need_a_judge_are_refused_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    criteria = {"nl_assertions": ["The agent was kind"], "reward_basis": ["DB", "NL_ASSERTION"]}
    with_tasks(monkeypatch, evaluation_criteria=criteria)
    assert len(Tau2(domain="mock").problems("train", 1, 0)) == 1
    with pytest.raises(ConfigError, match=r"tasks create_task_1_with_env_assertions .*judge model.*judged = 'skip'"):
        Tau2(domain="mock").problems("train", 2, 0)
    with pytest.raises(ConfigError, match="has 1 tasks without the 1 that need a judge model"):
        Tau2(domain="mock", judged="skip").problems("train", 2, 0)


async def test_a_task_in_which_the_customer_must_speak_first_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"id": "1", "name": "check_notifications", "arguments": {}, "requestor": "user"}
    history = [
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "tool_calls": [call]},
        {"role": "tool", "id": "1", "content": "[]", "requestor": "user"},
    ]
    with_tasks(monkeypatch, initial_state={"message_history": history})
    problem = Tau2(domain="mock").problems("train", 2, 0)[1]
    with pytest.raises(ConfigError, match="begins with a turn that is not the agent's"):
        await Tau2(domain="mock").open(problem, 0)


def test_missing_data_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **options: Any) -> Any:
        raise FileNotFoundError("no tasks.json")

    monkeypatch.setitem(registry._tasks, "mock", missing)
    with pytest.raises(ConfigError, match=r"cannot read the tasks of 'mock' .*no tasks.json.*set TAU2_DATA_DIR"):
        Tau2(domain="mock").check_start()
    monkeypatch.undo()
    monkeypatch.setitem(registry._domains, "mock", missing)
    with pytest.raises(ConfigError, match=r"cannot open the domain 'mock' .*no tasks.json.*set TAU2_DATA_DIR"):
        Tau2(domain="mock").check_start()
